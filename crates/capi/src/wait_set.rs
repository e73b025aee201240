//! Wait sets, and the seats of what can be in one.
//!
//! In Rust a wait set owns its members and lends them out by tokens. Here a member stays its
//! handle's: the same handle is used to receive, in a set or not, and a wait names handles. The
//! value is in its handle's slot or, while it is in a set, there; its slot then says where.

use crate::causes::cause;
use crate::deadline::{deadline, portolan_deadline};
use crate::handles::{Handle, Sole};
use crate::kinds::{
    portolan_domain, portolan_listener, portolan_notifications, portolan_pending_reply,
    portolan_reader, portolan_receive_right, portolan_reconnecting_sender,
    portolan_reconnecting_subscriber, portolan_subscriber, portolan_wait_set,
};
use crate::pointers::{bad, place, places};
use crate::port::{portolan_waiting, waiting};
use crate::status::{enter, fail, portolan_status};
use portolan::{Ready, Token, WaitSet, Waitable};
use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;

/// Where a value is that can be in a wait set. The tag is a byte of its own, so that to find the value
/// here takes one comparison.
#[repr(u8)]
pub(crate) enum Seat<T> {
    /// With its handle.
    Own(T),
    /// In a wait set.
    In(portolan_wait_set, Token<T>),
    /// On its way to one; a call that finds it here follows one that panicked.
    Lost,
}

/// A wait set, and whose its members are.
pub(crate) struct Waiting {
    set: WaitSet,
    members: HashMap<Token, Member>,
    /// What the last wait has found, and had no room to name.
    left: Ready,
}

/// A member: its handle, and what gives it back to that.
struct Member {
    id: u64,
    restore: fn(&mut WaitSet, u64, Token) -> Result<(), portolan_status>,
}

impl<T: Waitable> Seat<T> {
    /// Uses the value, wherever it is.
    #[inline(always)]
    pub(crate) fn with<R>(
        &mut self,
        work: impl FnOnce(&mut T) -> Result<R, portolan_status>,
    ) -> Result<R, portolan_status> {
        match self {
            Self::Own(item) => work(item),
            Self::In(set, token) => with_member(*set, *token, work),
            Self::Lost => Err(lost()),
        }
    }
}

/// A handle whose value can be in a wait set.
pub(crate) trait Seated: Handle<Value = Seat<Self::Item>> {
    type Item: Waitable;

    /// Uses the value, wherever it is.
    #[inline(always)]
    fn with<R>(
        self,
        work: impl FnOnce(&mut Self::Item) -> Result<R, portolan_status>,
    ) -> Result<R, portolan_status> {
        self.hold()?.with(work)
    }

    /// Takes the value out of its set, if it is in one, and then out of its handle.
    fn take_seated(self) -> Result<Self::Item, portolan_status> {
        let seat = self.hold()?;
        Self::take_item(Self::unseat(seat)?)
    }

    /// Takes the value out of its set, if it is in one.
    fn unseat(mut seat: Sole<Seat<Self::Item>>) -> Result<Sole<Seat<Self::Item>>, portolan_status> {
        if let Seat::In(set, token) = *seat {
            let mut set = set.hold()?;
            let item = set.set.remove(token).ok_or_else(lost)?;
            set.members.remove(&token.any());
            *seat = Seat::Own(item);
        }
        Ok(seat)
    }

    /// Frees the handle of a value that is in no set.
    fn take_item(seat: Sole<Seat<Self::Item>>) -> Result<Self::Item, portolan_status> {
        match Self::take_out(seat) {
            Seat::Own(item) => Ok(item),
            Seat::In(..) | Seat::Lost => Err(lost()),
        }
    }

    /// Puts the value into a set.
    fn add_to(self, to: portolan_wait_set) -> Result<(), portolan_status> {
        let mut waiting = to.hold()?;
        let mut seat = self.hold()?;
        if let Seat::In(..) = *seat {
            return Err(fail(
                portolan_status::PORTOLAN_BUSY,
                format_args!(
                    "the {} is in a wait set already: remove it there",
                    Self::NAME
                ),
            ));
        }
        let id = self.id();
        // Its handle is held meanwhile, so no call sees it in neither place.
        let Seat::Own(item) = std::mem::replace(&mut *seat, Seat::Lost) else {
            return Err(lost());
        };
        match waiting.set.add(item) {
            Ok(token) => {
                *seat = Seat::In(to, token);
                let restore = restore::<Self>;
                waiting.members.insert(token.any(), Member { id, restore });
                Ok(())
            }
            Err(refused) => {
                let status = cause(refused.why);
                *seat = Seat::Own(*refused.item);
                Err(status)
            }
        }
    }
}

#[cold]
#[inline(never)]
fn with_member<T: Waitable, R>(
    set: portolan_wait_set,
    token: Token<T>,
    work: impl FnOnce(&mut T) -> Result<R, portolan_status>,
) -> Result<R, portolan_status> {
    let mut set = set.hold()?;
    work(set.set.get_mut(token).ok_or_else(lost)?)
}

/// Gives a member back to its handle, because its set ends.
fn restore<H: Seated>(set: &mut WaitSet, id: u64, token: Token) -> Result<(), portolan_status> {
    let mut seat = H::of(id).hold()?;
    let item = set.remove(token.of::<H::Item>()).ok_or_else(lost)?;
    *seat = Seat::Own(item);
    Ok(())
}

#[cold]
fn lost() -> portolan_status {
    fail(
        portolan_status::PORTOLAN_PANICKED,
        format_args!("what the handle stands for was lost in a call that panicked: free it"),
    )
}

impl Waiting {
    /// Gives all members back to their handles; those whose handles are in use stay.
    fn empty(&mut self) -> Result<(), portolan_status> {
        let mut refused = Ok(());
        let Self { set, members, .. } = self;
        members.retain(
            |token, member| match (member.restore)(set, member.id, *token) {
                Ok(()) => false,
                Err(status) => {
                    refused = Err(status);
                    true
                }
            },
        );
        refused
    }
}

/// A wait set without members.
///
/// Threads: any, also several at once.
/// Owns: `*set` is the caller's, to be freed.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_wait_set_new(
    domain: portolan_domain,
    set: Option<&mut MaybeUninit<portolan_wait_set>>,
) -> portolan_status {
    enter(|| {
        let place = place(set)?;
        let made = WaitSet::new(&*domain.share()?).map_err(cause)?;
        let waiting = Waiting {
            set: made,
            members: HashMap::new(),
            left: Ready::default(),
        };
        place.write(Handle::insert(waiting)?);
        Ok(())
    })
}

/// Frees the set. Its members are their handles' still, and in no set.
///
/// Threads: any.
/// Owns: `set` is freed, unless another call uses a member (`PORTOLAN_BUSY`).
#[unsafe(no_mangle)]
pub extern "C" fn portolan_wait_set_free(set: portolan_wait_set) -> portolan_status {
    enter(|| {
        let mut waiting = set.hold()?;
        waiting.empty()?;
        drop(portolan_wait_set::take_out(waiting));
        Ok(())
    })
}

/// Adds a port. If something is there already, the next wait names it. The port's handle is used
/// as before; freed or sent, it leaves the set.
///
/// Threads: one at a time.
/// Owns: `port` is the caller's still.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_wait_set_add_receive_right(
    set: portolan_wait_set,
    port: portolan_receive_right,
) -> portolan_status {
    enter(|| port.add_to(set))
}

/// Adds a request that waits for its answer. See `portolan_wait_set_add_receive_right`.
///
/// Threads: one at a time.
/// Owns: `pending` is the caller's still.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_wait_set_add_pending_reply(
    set: portolan_wait_set,
    pending: portolan_pending_reply,
) -> portolan_status {
    enter(|| pending.add_to(set))
}

/// Adds a reader of a channel. See `portolan_wait_set_add_receive_right`.
///
/// Threads: one at a time.
/// Owns: `reader` is the caller's still.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_wait_set_add_reader(
    set: portolan_wait_set,
    reader: portolan_reader,
) -> portolan_status {
    enter(|| reader.add_to(set))
}

/// Adds a subscriber of a topic. See `portolan_wait_set_add_receive_right`.
///
/// Threads: one at a time.
/// Owns: `subscriber` is the caller's still.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_wait_set_add_subscriber(
    set: portolan_wait_set,
    subscriber: portolan_subscriber,
) -> portolan_status {
    enter(|| subscriber.add_to(set))
}

/// Adds a reconnecting sender. It is named when a send may succeed, or says something: a port of
/// this machine has the name and its queue has room, or the port has died. Take it out while there
/// is nothing to send. See `portolan_wait_set_add_receive_right`.
///
/// Threads: one at a time.
/// Owns: `sender` is the caller's still.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_wait_set_add_reconnecting_sender(
    set: portolan_wait_set,
    sender: portolan_reconnecting_sender,
) -> portolan_status {
    enter(|| sender.add_to(set))
}

/// Adds a reconnecting subscriber. See `portolan_wait_set_add_receive_right`.
///
/// Threads: one at a time.
/// Owns: `subscriber` is the caller's still.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_wait_set_add_reconnecting_subscriber(
    set: portolan_wait_set,
    subscriber: portolan_reconnecting_subscriber,
) -> portolan_status {
    enter(|| subscriber.add_to(set))
}

/// Adds a listener for signals. See `portolan_wait_set_add_receive_right`.
///
/// Threads: one at a time.
/// Owns: `listener` is the caller's still.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_wait_set_add_listener(
    set: portolan_wait_set,
    listener: portolan_listener,
) -> portolan_status {
    enter(|| listener.add_to(set))
}

/// Adds the notifications of an export. See `portolan_wait_set_add_receive_right`.
///
/// Threads: one at a time.
/// Owns: `notifications` is the caller's still.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_wait_set_add_notifications(
    set: portolan_wait_set,
    notifications: portolan_notifications,
) -> portolan_status {
    enter(|| notifications.add_to(set))
}

/// Takes a member out of the set: the thing whose handle has this `id`.
///
/// Threads: one at a time.
/// Owns: the member is its handle's, as before.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_wait_set_remove(set: portolan_wait_set, id: u64) -> portolan_status {
    enter(|| {
        let mut waiting = set.hold()?;
        let Waiting { set, members, .. } = &mut *waiting;
        let found = members.iter().find(|(_, member)| member.id == id);
        let Some((token, member)) = found else {
            return Err(fail(
                portolan_status::PORTOLAN_NOT_FOUND,
                format_args!("{id:#x} is not in the wait set"),
            ));
        };
        let token = *token;
        (member.restore)(set, id, token)?;
        members.remove(&token);
        Ok(())
    })
}

/// Waits until something is at a member, or until the deadline. `ready` gets the `id` of the handle
/// of each, up to `most`; `*count` says how many, 0 if the deadline came first, which is no error.
/// What found no room is named by the next wait. A member that still has something is named again.
///
/// Threads: one at a time; meanwhile no other thread can use the set's members.
/// Owns: the array is the caller's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn portolan_wait_set_wait(
    set: portolan_wait_set,
    until: portolan_deadline,
    ready: *mut u64,
    most: usize,
    count: Option<&mut MaybeUninit<usize>>,
) -> portolan_status {
    enter(|| {
        let count = place(count)?;
        if most == 0 {
            return Err(bad("there is no room to name what is ready"));
        }
        // SAFETY:
        // - C's promise.
        let places = unsafe { places(ready, most) }?;
        let mut waiting = set.hold()?;
        let Waiting { set, members, left } = &mut *waiting;
        let mut named = name(left, members, places);
        if named == 0 {
            *left = set.wait(deadline(until)).map_err(cause)?;
            named = name(left, members, places);
        }
        count.write(named);
        Ok(())
    })
}

/// Names members that are there still; how many.
fn name(
    ready: &mut Ready,
    members: &HashMap<Token, Member>,
    places: &mut [MaybeUninit<u64>],
) -> usize {
    let mut named = 0;
    while named < places.len() {
        let Some(token) = ready.next() else { break };
        if let Some(member) = members.get(&token) {
            places[named].write(member.id);
            named += 1;
        }
    }
    named
}

/// The set as a descriptor for epoll: readable while `portolan_wait_set_wait` may find something.
/// Whenever it is, call that with `PORTOLAN_NOW` until it finds nothing.
///
/// Threads: one at a time.
/// Owns: the descriptor is the set's: do not close it, nor read from it.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_wait_set_descriptor(
    set: portolan_wait_set,
    descriptor: Option<&mut MaybeUninit<i32>>,
) -> portolan_status {
    enter(|| {
        let place = place(descriptor)?;
        place.write(set.hold()?.set.as_raw_fd());
        Ok(())
    })
}

/// Chooses how the set waits.
///
/// Threads: one at a time.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_wait_set_set_waiting(
    set: portolan_wait_set,
    how: portolan_waiting,
) -> portolan_status {
    enter(|| {
        let how = waiting(how)?;
        set.hold()?.set.set_waiting(how);
        Ok(())
    })
}
