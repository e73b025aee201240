//! Structures are maps, trees, lists and strings that move from process to process as they are.
//!
//! The region has one address in every member of a domain. So a data structure whose parts
//! all lie in a message's extents is valid wherever the message arrives: nothing is
//! serialised, copied or adjusted, and sending a million entries costs what sending
//! nothing costs.
//!
//! ```
//! use portolan::structure::{Map, NoRoom, Structure, Text, Tree};
//! use portolan::{Access, Deadline, Domain, Handover, PortOptions, WhenFull};
//!
//! #[derive(Handover)]
//! struct Atlas<'a> {
//!     harbours: Map<'a, Text<'a>, Harbour>,
//!     by_depth: Tree<'a, u32, Text<'a>>,
//! }
//!
//! #[derive(Handover)]
//! struct Harbour {
//!     latitude: f64,
//!     longitude: f64,
//! }
//!
//! let domain = Domain::private()?;
//! let mut port = domain.bind(PortOptions::named("atlases"))?;
//!
//! let mut atlas = Structure::<Atlas>::build(&domain, |arena| {
//!     Ok(Atlas { harbours: arena.map(), by_depth: arena.tree() })
//! })?;
//! atlas.edit(|atlas, arena| {
//!     let genoa = Harbour { latitude: 44.4, longitude: 8.9 };
//!     atlas.harbours.insert(arena.text("Genoa")?, genoa)?;
//!     atlas.by_depth.insert(15, arena.text("Genoa")?)?;
//!     Ok::<_, NoRoom>(())
//! })??;
//! port.make_send().send(atlas.into_message(), WhenFull::Fail)?;
//!
//! // In another process: read it where it lies, change it, send it on.
//! let mut message = port.receive(Access::Later, Deadline::NEVER)?;
//! let atlas = message.root::<Atlas>()?;
//! assert_eq!(atlas.harbours.get("Genoa").map(|h| h.latitude), Some(44.4));
//! message.edit::<Atlas, _>(|atlas, _| atlas.by_depth.clear())?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! What may lie in a structure is said at [`Handover`].
//!
//! # Lifetimes, and why a closure
//!
//! What lies in an arena has a lifetime parameter that stands for that arena.
//! [`Message::root`] lends the root out for as long as the message is borrowed, so it
//! cannot be sent meanwhile. To change a structure, a closure is run that knows nothing
//! about that lifetime: what it takes out of a structure can be looked at, dropped or put
//! elsewhere in the same one, but fits nowhere outside. Therefore nothing that was sent
//! can still be used:
//!
//! ```compile_fail,E0521
//! # use portolan::structure::{List, Structure, Text};
//! # let domain = portolan::Domain::private()?;
//! let mut words = Structure::<List<Text>>::build(&domain, |arena| Ok(arena.list()))?;
//! let mut kept = None;
//! words.edit(|list, _| kept = list.pop())?; // a text of an arena that is about to be sent
//! # drop(kept);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! ```
//! # use portolan::structure::{List, Structure, Text};
//! # let domain = portolan::Domain::private()?;
//! let mut words = Structure::<List<Text>>::build(&domain, |arena| Ok(arena.list()))?;
//! let mut kept = None;
//! words.edit(|list, _| kept = list.pop().map(|text| text.to_string()))?; // a copy may leave
//! # drop(kept);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! nor can a part of one structure be put into another:
//!
//! ```compile_fail,E0521
//! # use portolan::structure::{Structure, Text};
//! # let domain = portolan::Domain::private()?;
//! let mut one = Structure::<Text>::build(&domain, |arena| arena.text("one"))?;
//! let mut two = Structure::<Text>::build(&domain, |arena| arena.text("two"))?;
//! one.edit(|one, _| two.edit(|two, _| std::mem::swap(one, two)))??;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A structure that is used after it was sent does not compile either:
//!
//! ```compile_fail,E0382
//! # use portolan::structure::{Structure, Text};
//! # let domain = portolan::Domain::private()?;
//! let mut text = Structure::<Text>::build(&domain, |arena| arena.text("one"))?;
//! let message = text.into_message();
//! text.edit(|text, _| text.clear())?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! ```compile_fail,E0505
//! # use portolan::structure::{Structure, Text};
//! # let domain = portolan::Domain::private()?;
//! let message = Structure::<Text>::build(&domain, |arena| arena.text("one"))?.into_message();
//! let text = message.root::<Text>()?;
//! drop(message);
//! println!("{text}");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Memory
//!
//! A structure begins in one extent and grows by whole ones, each about as large as all
//! before it. What is removed, dropped or outgrown is used again. Each extent of a message costs a little to hand over, so of a structure
//! whose size is known [`Structure::with_capacity`] makes one that lies in a single extent.
//! What lies in an arena is freed with the message, and not dropped piece by piece.

mod place;

pub(crate) use place::root_in;
pub(crate) use portolan_arena::handover::layout_of;

use crate::port::message::Message;
use crate::{Disowned, Domain, Refused};
#[doc(inline)]
pub use portolan_arena::{
    Arena, Boxed, Describe, Full, Handover, List, Map, NoRoom, Root, Text, Tree,
};
use std::marker::PhantomData;

/// Bytes of a structure's first extent, unless asked for otherwise.
pub(crate) const FIRST: usize = 64 << 10;
/// Bytes of an extent that the head of an arena takes, and the root and roundings may.
const HEAD: usize = 4096;

/// A data structure in a message that is not sent yet, or was received.
///
/// ```
/// use portolan::structure::{NoRoom, Structure, Tree};
/// let domain = portolan::Domain::private()?;
/// let mut primes = Structure::<Tree<u32, ()>>::build(&domain, |arena| Ok(arena.tree()))?;
/// primes.edit(|tree, _| {
///     for prime in [7, 2, 5, 3] {
///         tree.insert(prime, ())?;
///     }
///     Ok::<_, NoRoom>(())
/// })??;
/// assert!(primes.root()?.keys().is_sorted());
/// let message = primes.into_message();
/// assert_eq!(message.root::<Tree<u32, ()>>()?.len(), 4);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a dropped structure gives its memory back"]
pub struct Structure<T> {
    message: Message,
    root: PhantomData<fn() -> T>,
}

/// Why a message's root was not lent out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RootError {
    /// The caller's: there is no structure in the message, or not any more.
    #[error(
        "the message holds no structure: none was built in it, or its extents were taken out, moved or opened for writing since"
    )]
    NoRoot,
    /// The caller's or the sender's: it is a structure of another type.
    #[error("the message holds a {found}, not a {asked}: ask for what was sent")]
    OtherType {
        /// The type that was asked for.
        asked: String,
        /// The type that is there, as its program calls it.
        found: String,
    },
    /// The sender's program was built with another compiler, for another processor, or with
    /// other versions of the collections: the same type may lie differently in memory.
    #[error(
        "the structure was made by another build: {theirs}; this program is {ours}; build both with the same compiler, target features and version of portolan"
    )]
    OtherBuild {
        /// This program's build.
        ours: &'static str,
        /// The other program's.
        theirs: String,
    },
    /// The sender's: the head of the structure is damaged, or some of its extents did not
    /// come with the message.
    #[error("the structure is not whole: its sender wrote past its memory, or is not Portolan")]
    Torn,
    /// See [`Disowned`].
    #[error(transparent)]
    Disowned(#[from] Disowned),
}

// The bound stands at each method, so that the compiler names the derive that is missing.
impl<T> Structure<T> {
    /// Builds a structure in fresh extents of the domain.
    ///
    /// # Errors
    ///
    /// [`NoRoom`] at the domain's limit; all memory is given back.
    pub fn build(
        domain: &Domain,
        make: impl for<'a> FnOnce(Arena<'a>) -> Result<T::At<'a>, NoRoom>,
    ) -> Result<Self, NoRoom>
    where
        T: Root,
    {
        Self::in_extent(domain, FIRST, make)
    }

    /// As [`Structure::build`], in one extent that has room for `bytes` bytes: a structure
    /// that does not outgrow it is handed over as fast as an empty message.
    ///
    /// # Errors
    ///
    /// [`NoRoom`] if there is no such extent, and as [`Structure::build`].
    pub fn with_capacity(
        domain: &Domain,
        bytes: usize,
        make: impl for<'a> FnOnce(Arena<'a>) -> Result<T::At<'a>, NoRoom>,
    ) -> Result<Self, NoRoom>
    where
        T: Root,
    {
        Self::in_extent(domain, bytes.saturating_add(HEAD), make)
    }

    /// As [`Structure::build`], beginning with an extent that has so many bytes, the head of the
    /// arena included.
    pub(crate) fn in_extent(
        domain: &Domain,
        bytes: usize,
        make: impl for<'a> FnOnce(Arena<'a>) -> Result<T::At<'a>, NoRoom>,
    ) -> Result<Self, NoRoom>
    where
        T: Root,
    {
        Ok(Self {
            message: place::build::<T>(domain.member(), bytes, make)?,
            root: PhantomData,
        })
    }
}

impl<T: Root> Structure<T> {
    /// The root, read where it lies.
    ///
    /// # Errors
    ///
    /// Its type was compared when the structure was built or received, so only what comes
    /// from outside is left: [`RootError::Torn`] if another member damaged the head since,
    /// and [`RootError::Disowned`] in a forked child, which has no part of the region.
    pub fn root(&self) -> Result<&T::At<'_>, RootError> {
        place::read::<T>(&self.message)
    }

    /// Runs `change` on the root. It may put in, take out and grow; see the module's
    /// documentation for what may leave it.
    ///
    /// # Errors
    ///
    /// As [`Structure::root`]; then `change` was not run.
    pub fn edit<R>(
        &mut self,
        change: impl for<'r, 'a> FnOnce(&'r mut T::At<'a>, Arena<'a>) -> R,
    ) -> Result<R, RootError> {
        place::edit::<T, R>(&mut self.message, change)
    }

    /// Bytes of all its extents.
    pub fn capacity(&self) -> usize {
        let extents = self.message.extents().iter().take(self.extents());
        extents.map(crate::Extent::capacity).sum()
    }

    /// How many extents it lies in.
    pub fn extents(&self) -> usize {
        self.message.structure_extents()
    }

    /// The message that it lies in, to add a header, rights or further extents, and to send.
    pub fn into_message(self) -> Message {
        self.message
    }
}

impl<T> Structure<T> {
    /// The structure in a message, which was found to hold one of this type.
    pub(crate) fn of(message: Message) -> Self {
        Self {
            message,
            root: PhantomData,
        }
    }
}

impl<T> std::fmt::Debug for Structure<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Structure")
            .field("root", &portolan_arena::handover::name_of::<T>())
            .field("message", &self.message)
            .finish()
    }
}

impl Message {
    /// The root of the structure in this message, read where it lies.
    ///
    /// # Errors
    ///
    /// [`RootError`]: there is none, or it is not a `T` as this program knows it. What can
    /// be told apart is what the type's description says: names, sizes and places of all
    /// fields, the compiler, and the collections' versions.
    pub fn root<T: Root>(&self) -> Result<&T::At<'_>, RootError> {
        place::read::<T>(self)
    }

    /// Runs `change` on the root of the structure in this message; what it needs is added
    /// to the message's extents.
    ///
    /// # Errors
    ///
    /// As [`Message::root`]; then `change` was not run.
    pub fn edit<T: Root, R>(
        &mut self,
        change: impl for<'r, 'a> FnOnce(&'r mut T::At<'a>, Arena<'a>) -> R,
    ) -> Result<R, RootError> {
        place::edit::<T, R>(self, change)
    }

    /// The structure in this message. Its header and rights stay with it, for
    /// [`Structure::into_message`].
    ///
    /// # Errors
    ///
    /// As [`Message::root`], with the message.
    pub fn into_structure<T: Root>(self) -> Result<Structure<T>, Refused<Message, RootError>> {
        match place::read::<T>(&self) {
            Ok(_) => Ok(Structure {
                message: self,
                root: PhantomData,
            }),
            Err(error) => Err(Refused::new(self, error)),
        }
    }

    /// Extents, from the first on, that hold a structure: no other may be written, moved or
    /// taken out without taking it apart.
    pub fn structure_extents(&self) -> usize {
        place::extents(self)
    }
}
