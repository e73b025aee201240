//! A publisher builds structures in extents, which become buffers that subscribers read in place.
//!
//! ```text
//! loan: an arena in extents of its own --share each--> buffers --names--> reference in the ring
//!         grows by whole extents            |
//!                                           +-- the store keeps a right on each (B3)
//! ```

use super::PublishError;
use super::publisher::Publisher;
use crate::structure::{Arena, NoRoom, Root, RootError, Structure};
use crate::{Deadline, Refused};
use portolan_shm::mark;
use std::sync::Arc;

impl<T: Root + 'static> Publisher<Structure<T>> {
    /// A structure that is built where its readers read it, in memory of its own; it grows as it
    /// is filled ([`StructureLoan::edit`]). It begins with as much memory as the last one had,
    /// so that samples of about one size lie in one extent each.
    ///
    /// # Errors
    ///
    /// [`PublishError::NoRoom`] at the domain's limit; all memory is given back.
    ///
    /// # Examples
    ///
    /// ```
    /// use portolan::channel::TopicOptions;
    /// use portolan::structure::{Map, NoRoom, Structure, Text};
    /// use portolan::{Deadline, Domain, Handover};
    ///
    /// #[derive(Handover)]
    /// struct Prices<'a> {
    ///     of: Map<'a, Text<'a>, f64>,
    /// }
    ///
    /// let domain = Domain::private()?;
    /// let options = TopicOptions::default();
    /// let mut publisher = domain.publisher::<Structure<Prices>>("prices", options)?;
    /// let mut subscriber = domain.subscriber::<Structure<Prices>>("prices", options)?;
    ///
    /// let mut loan = publisher.loan(|arena| Ok(Prices { of: arena.map() }))?;
    /// loan.edit(|prices, arena| {
    ///     prices.of.insert(arena.text("saffron")?, 4.5)?;
    ///     Ok::<_, NoRoom>(())
    /// })??;
    /// loan.publish()?;
    ///
    /// // In any process: read where it lies, for as long as the sample is kept.
    /// let sample = subscriber.receive(Deadline::NEVER)?;
    /// assert_eq!(sample.root()?.of.get("saffron"), Some(&4.5));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn loan(
        &mut self,
        make: impl for<'a> FnOnce(Arena<'a>) -> Result<T::At<'a>, NoRoom>,
    ) -> Result<StructureLoan<'_, T>, PublishError> {
        // Before there is need for more.
        self.store.let_go(self.writer.position());
        let structure = Structure::in_extent(self.store.domain(), self.usual, make)?;
        Ok(StructureLoan {
            publisher: self,
            structure,
        })
    }

    /// Publishes a structure that was built, or received; its position. Nothing is copied: its
    /// extents become memory that every subscriber reads and no space writes any more. Never waits
    /// for a reader.
    ///
    /// # Errors
    ///
    /// [`Refused`] has the structure, or nothing if a part of it was shared before something failed;
    /// no subscriber was told.
    pub fn publish(
        &mut self,
        structure: Structure<T>,
    ) -> Result<u64, Refused<Option<Structure<T>>, PublishError>> {
        let begun = self.begins();
        let refuse = |why: PublishError, structure| Err(Refused::new(Some(structure), why));
        if let Err(error) = structure.root() {
            return refuse(error.into(), structure);
        }
        let capacity = structure.capacity();
        let mut message = structure.into_message();
        let alone = message.structure_extents() == message.extents.len()
            && message.header().is_empty()
            && message.rights().is_empty()
            && message.sealed().is_empty();
        if !alone {
            return refuse(PublishError::NotAlone, Structure::of(message));
        }
        let ours = self.store.domain().member();
        if message
            .extents
            .iter()
            .any(|e| !Arc::ptr_eq(e.member(), ours))
        {
            return refuse(PublishError::Foreign, Structure::of(message));
        }
        let mut buffers = Vec::with_capacity(message.extents.len());
        let mut extents = std::mem::take(&mut message.extents).into_iter();
        while let Some(extent) = extents.next() {
            match self.store.domain().share_extent(extent) {
                Ok(buffer) => buffers.push(buffer.into_segment()),
                // Whole only as long as none of it is shared.
                Err(Refused { why, item }) => {
                    let extent = item.filter(|_| buffers.is_empty());
                    let structure = extent.map(|first| {
                        message.extents = std::iter::once(first).chain(extents).collect();
                        message.structure = true;
                        Structure::of(message)
                    });
                    return Err(Refused::new(structure, why));
                }
            }
            mark!("topic.shared");
        }
        let position = self.writer.position();
        self.store.let_go(position);
        // Kept first, so that a subscriber that reads the reference finds the buffers.
        let reference = self.store.keep_all(buffers, position);
        mark!("topic.kept");
        let told = self.writer.write(&reference, Deadline::NOW);
        self.usual = capacity;
        if let Ok(position) = told {
            self.has_published(begun, position, capacity);
        }
        told.map_err(|why| Refused::new(None, why))
    }
}

/// A structure that is to be published; given up if it is dropped instead.
#[must_use = "a loan that is not published writes nothing"]
pub struct StructureLoan<'p, T: Root + 'static> {
    publisher: &'p mut Publisher<Structure<T>>,
    structure: Structure<T>,
}

impl<T: Root + 'static> StructureLoan<'_, T> {
    /// The root.
    ///
    /// # Errors
    ///
    /// As [`Structure::root`].
    pub fn root(&self) -> Result<&T::At<'_>, RootError> {
        self.structure.root()
    }

    /// Runs `change` on the root, which may put in, take out and grow, as [`Structure::edit`].
    ///
    /// # Errors
    ///
    /// As [`Structure::root`]; then `change` was not run.
    pub fn edit<R>(
        &mut self,
        change: impl for<'r, 'a> FnOnce(&'r mut T::At<'a>, Arena<'a>) -> R,
    ) -> Result<R, RootError> {
        self.structure.edit(change)
    }

    /// Publishes it; its position. Never waits.
    ///
    /// # Errors
    ///
    /// As [`Publisher::publish`](Publisher#method.publish-1), which has the structure; no
    /// subscriber was told.
    pub fn publish(self) -> Result<u64, Refused<Option<Structure<T>>, PublishError>> {
        self.publisher.publish(self.structure)
    }
}

impl<T: Root + 'static> std::fmt::Debug for StructureLoan<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("StructureLoan")
            .field(&self.structure)
            .finish()
    }
}
