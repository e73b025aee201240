//! Turns an extent into the head of an arena. This is the one file of this room that does so.
//!
//! Its promises: an arena's extents are held by one message, which no other code can write
//! to while it says [`Message::structure`]; and a root is lent out only after the message
//! was found to hold every extent of the arena, and build and type to be the same.
#![allow(unsafe_code)]

use super::RootError;
use crate::port::message::Message;
use crate::space::Member;
use crate::space::extent::allocate;
use crate::{AllocateError, Extent, SharedExtent};
use portolan_abi::limits::MAX_EXTENTS;
use portolan_arena::growth::Grow;
use portolan_arena::handover::{BUILD, BUILD_HASH, layout_of, name_of};
use portolan_arena::header::Header;
use portolan_arena::{Arena, NoRoom, Root, root};
use std::cell::RefCell;
use std::ptr::{NonNull, with_exposed_provenance_mut};
use std::rc::Rc;
use std::sync::Arc;

/// Builds a root of type `T` in a fresh extent of `bytes` bytes or more.
pub(super) fn build<T: Root>(
    member: &Arc<Member>,
    bytes: usize,
    make: impl for<'a> FnOnce(Arena<'a>) -> Result<T::At<'a>, NoRoom>,
) -> Result<Message, NoRoom> {
    let first = fresh(member, bytes)?;
    let start = start(&first).ok_or(NoRoom::TooLarge)?;
    // SAFETY:
    // - aligned, readable, writable: extents begin on a page and are mapped;
    // - no other code uses it: it was handed out just now, and `first` lends no slice out
    //   before the arena is closed.
    let header = unsafe { Header::begin(start, first.capacity()) }.ok_or(NoRoom::TooLarge)?;
    let growth = Growth::new(member, MAX_EXTENTS - 1);
    let built = root::build::<T, NoRoom>(header, Rc::clone(&growth) as Rc<dyn Grow>, make);
    let mut message = Message::default();
    message.extents.push(first);
    message.extents.extend(growth.extents.take());
    built?;
    message.structure = true;
    Ok(message)
}

/// The root of type `T` in a message.
pub(super) fn read<T: Root>(message: &Message) -> Result<&T::At<'_>, RootError> {
    let header = checked::<T>(message)?;
    // SAFETY:
    // - a `T`, of this build: `checked`;
    // - readable and unchanged: the message holds every extent (`checked`) and is borrowed,
    //   and a write to them through it makes it say that it holds no structure.
    unsafe { root::read::<T>(header) }.ok_or(RootError::Torn)
}

/// The root of type `T` in extents that no space writes any more, in the order in which its arena
/// has them.
pub(crate) fn root_in<T: Root>(extents: &[SharedExtent]) -> Result<&T::At<'_>, RootError> {
    let first = extents.first().ok_or(RootError::NoRoot)?.segment();
    // A forked child has no part of the region.
    first.right().to.member.present()?;
    let start = NonNull::new(with_exposed_provenance_mut(first.address()));
    // SAFETY:
    // - readable, aligned, initialised: a whole extent, which is file memory, and is kept by our
    //   right on it;
    // - not written: shared extents are read only (`SharedExtent`).
    let header = start.and_then(|start| unsafe { Header::find(start, first.len()) });
    let held = extents.iter().map(|e| (e.segment().address(), e.len()));
    let header = same::<T>(header.ok_or(RootError::Torn)?, held)?;
    // SAFETY:
    // - a `T`, of this build: `same`;
    // - readable and unchanged: every extent of the arena is held (`same`), and read only.
    unsafe { root::read::<T>(header) }.ok_or(RootError::Torn)
}

/// Runs `change` on the root of type `T` in a message.
pub(super) fn edit<T: Root, R>(
    message: &mut Message,
    change: impl for<'r, 'a> FnOnce(&'r mut T::At<'a>, Arena<'a>) -> R,
) -> Result<R, RootError> {
    let member = Arc::clone(message.extents.first().ok_or(RootError::NoRoot)?.member());
    let room = MAX_EXTENTS.saturating_sub(message.extents.len());
    let header = checked::<T>(message)?;
    let end = header.parts().count();
    let growth = Growth::new(&member, room);
    let given = Rc::clone(&growth) as Rc<dyn Grow>;
    // SAFETY:
    // - a `T`, of this build, in extents that the message holds: `checked`;
    // - no other code uses them: the message is borrowed exclusively.
    let changed = Taking { growth, end }.run(message, |_| unsafe {
        root::edit::<T, R>(header, given, change)
    });
    changed.ok_or(RootError::Torn)
}

/// How many extents of a message belong to its structure.
pub(super) fn extents(message: &Message) -> usize {
    head(message).map_or(0, |header| header.parts().count())
}

/// The head of the arena in a message, after every check that comes before a reference.
fn checked<T: Root>(message: &Message) -> Result<&'static Header, RootError> {
    let first = message.extents.first().ok_or(RootError::NoRoot)?;
    first.member().present()?;
    let header = head(message).ok_or(if message.structure {
        RootError::Torn
    } else {
        RootError::NoRoot
    })?;
    let extents = message.extents.iter();
    same::<T>(header, extents.map(|e| (e.address(), e.capacity())))
}

/// The head of an arena, if these are all extents that it has, and it holds a `T` of this build.
fn same<T: Root>(
    header: &Header,
    mut held: impl Iterator<Item = (usize, usize)>,
) -> Result<&Header, RootError> {
    if !header.parts().all(|part| held.next() == Some(part)) {
        return Err(RootError::Torn);
    }
    let (layout, build) = header.hashes();
    if build != BUILD_HASH {
        return Err(RootError::OtherBuild {
            ours: BUILD,
            theirs: header.identity().made_by,
        });
    }
    if layout != layout_of::<T>() {
        return Err(RootError::OtherType {
            asked: name_of::<T>(),
            found: header.identity().name,
        });
    }
    Ok(header)
}

/// The head of the arena in a message that says that it has one.
///
/// `'static` stands for "while the message holds its first extent": callers here lend
/// nothing out for longer than they borrow the message.
fn head(message: &Message) -> Option<&'static Header> {
    let first = message.extents.first().filter(|_| message.structure)?;
    // A forked child has no part of the region.
    first.member().present().ok()?;
    // SAFETY:
    // - readable, aligned, initialised: a whole extent, which is file memory;
    // - not written by others: the message holds it, and lends it to no one to write
    //   without saying that it holds no structure.
    unsafe { Header::find(start(first)?, first.capacity()) }
}

fn start(extent: &Extent) -> Option<NonNull<u8>> {
    NonNull::new(with_exposed_provenance_mut(extent.address()))
}

/// An extent, all of which belongs to the message.
fn fresh(member: &Arc<Member>, bytes: usize) -> Result<Extent, NoRoom> {
    let mut extent = allocate(member, bytes).map_err(no_room)?;
    let all = extent.capacity();
    // Cannot fail: it is the capacity.
    let _ = extent.set_len(all);
    Ok(extent)
}

fn no_room(error: AllocateError) -> NoRoom {
    match error {
        AllocateError::OutOfPages {
            wanted,
            free,
            limit,
        } => NoRoom::OutOfPages {
            wanted,
            free,
            limit,
        },
        AllocateError::Disowned(_) => NoRoom::Disowned,
    }
}

/// Gives an open arena more extents.
struct Growth {
    member: Arc<Member>,
    /// How many more the message can take.
    room: usize,
    extents: RefCell<Vec<Extent>>,
}

impl Growth {
    fn new(member: &Arc<Member>, room: usize) -> Rc<Self> {
        Rc::new(Self {
            member: Arc::clone(member),
            room,
            extents: RefCell::default(),
        })
    }
}

// SAFETY:
// - readable, writable, aligned: extents begin on a page and are mapped;
// - used by no other code, for as long as the arena: they go into the arena's message, which
//   holds no structure any more once one of them is taken out or lent to be written.
unsafe impl Grow for Growth {
    fn grow(&self, need: usize, wish: usize) -> Result<(NonNull<u8>, usize), NoRoom> {
        let mut extents = self.extents.borrow_mut();
        if extents.len() >= self.room {
            return Err(NoRoom::Message { limit: MAX_EXTENTS });
        }
        // Near the limit less will do, but not so little that there would be ever so many.
        let least = need.max(wish / 16);
        let sizes = (0..4).map(|halved| wish >> halved);
        let mut sizes = sizes.filter(|bytes| *bytes > least);
        let extent = sizes
            .find_map(|bytes| fresh(&self.member, bytes).ok())
            .map_or_else(|| fresh(&self.member, least), Ok)?;
        let given = (start(&extent).ok_or(NoRoom::TooLarge)?, extent.capacity());
        extents.push(extent);
        Ok(given)
    }
}

/// Puts the extents that an arena took into its message, behind those that it had, also
/// when the closure panics.
struct Taking {
    growth: Rc<Growth>,
    end: usize,
}

impl Taking {
    fn run<R>(self, message: &mut Message, change: impl FnOnce(&Growth) -> R) -> R {
        struct Put<'m>(Taking, &'m mut Message);
        impl Drop for Put<'_> {
            fn drop(&mut self) {
                let new = self.0.growth.extents.take();
                let end = self.0.end.min(self.1.extents.len());
                if !new.is_empty() {
                    self.1.extents.insert_many(end, new);
                }
            }
        }
        let put = Put(self, message);
        change(&put.0.growth)
    }
}
