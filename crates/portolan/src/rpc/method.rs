//! Identifies methods, and lets a server find the one that was called.

use super::parcel::{self, LAG, Parcel, Parcels};
use super::task::{MethodFuture, OwnedCall};
use super::work::Context;
use crate::Deadline;
use crate::port::WhenFull;
use crate::schema::{Hash, Schema};
use crate::schema::{Pack, Unpack};
use portolan_proto::Flags;
use serde::Serialize;
use std::cell::Cell;
use std::sync::Arc;
use std::time::Instant;

/// One method of a service, as `#[portolan::service]` describes it.
///
/// ```
/// use portolan::rpc::{Hash, Method, Schema};
/// let layout = Hash::new().word(u64::HASH).finish();
/// let (old, new) = (Method::new("add", layout, false), Method::new("add", layout + 1, false));
/// assert_ne!(old.id(), new.id());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Method {
    name: &'static str,
    layout: u64,
    id: u32,
    moves: bool,
    flags: Flags,
}

impl Method {
    /// The method that every service has: which methods it has.
    pub(super) const DESCRIBE: u32 = 0;

    /// A method whose arguments and result have this hash together.
    pub const fn new(name: &'static str, layout: u64, moves: bool) -> Self {
        let hash = Hash::new().text(name).word(layout).finish();
        let [a, b, c, d, e, f, g, h] = hash.to_le_bytes();
        let id = u32::from_le_bytes([a ^ e, b ^ f, c ^ g, d ^ h]);
        Self {
            name,
            layout,
            id: if id == Self::DESCRIBE { 1 } else { id },
            moves,
            flags: Flags(0),
        }
    }

    /// See [`Self::DESCRIBE`].
    pub(super) const fn describe() -> Self {
        Self {
            name: "describe",
            layout: 0,
            id: Self::DESCRIBE,
            moves: false,
            flags: Flags(0),
        }
    }

    const fn with(mut self, flag: Flags, on: bool) -> Self {
        if on {
            self.flags = self.flags.with(flag);
        }
        self
    }

    /// No caller waits for it to end.
    #[must_use]
    pub const fn one_way(self, on: bool) -> Self {
        self.with(Flags::ONE_WAY, on)
    }

    /// What is lost stays lost.
    #[must_use]
    pub const fn best_effort(self, on: bool) -> Self {
        self.with(Flags::BEST_EFFORT, on)
    }

    /// Its arguments and results have no checksum; the packets' heads have.
    #[must_use]
    pub const fn unchecked(self, on: bool) -> Self {
        self.with(Flags::UNCHECKED, on)
    }

    /// Its name.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// The hash of arguments and result.
    pub const fn layout(&self) -> u64 {
        self.layout
    }

    /// What a call says: 32 bits of the hash of name and layout.
    pub const fn id(&self) -> u32 {
        self.id
    }

    /// Whether extents may move with it.
    pub const fn moves(&self) -> bool {
        self.moves
    }

    pub(super) const fn flags(&self) -> Flags {
        self.flags
    }

    /// Whether no two have the same id.
    pub const fn are_distinct(methods: &[Self]) -> bool {
        let mut a = 0;
        while a < methods.len() {
            let mut b = a + 1;
            while b < methods.len() {
                if methods[a].id == methods[b].id {
                    return false;
                }
                b += 1;
            }
            a += 1;
        }
        true
    }
}

/// What [`super::serve`] serves; `#[portolan::service]` implements it.
pub trait Service: Send + Sync + 'static {
    /// Its name.
    const NAME: &'static str;
    /// Its methods.
    const METHODS: &'static [Method];

    /// Runs the method with this [`Method::id`].
    ///
    /// # Errors
    ///
    /// [`NotDispatched`]; it was not run.
    fn dispatch(&self, method: u32, call: &mut Dispatch<'_>) -> Result<(), NotDispatched>;

    /// Runs the method with this [`Method::id`] when it is polled.
    ///
    /// # Errors
    ///
    /// It is not `async`, or there is none: the call again, for [`Self::dispatch`].
    fn dispatch_async(
        self: Arc<Self>,
        method: u32,
        call: OwnedCall,
    ) -> Result<MethodFuture, OwnedCall> {
        let _ = method;
        Err(call)
    }
}

/// Why a method was not run, or its result is not to be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotDispatched {
    /// There is no such method.
    UnknownMethod,
    /// The arguments are not what it takes.
    Unreadable,
    /// The result cannot be written.
    Unwritable,
    /// Its client gave it up: if it is `async`, it was dropped; a result with extents is not
    /// sent.
    GivenUp,
}

/// A call on its way to its method.
pub struct Dispatch<'a> {
    pub(super) arguments: &'a [u8],
    pub(super) result: &'a mut Vec<u8>,
    pub(super) parcels: Option<&'a Arc<Parcels>>,
}

impl<'a> Dispatch<'a> {
    /// Its arguments.
    ///
    /// # Errors
    ///
    /// [`NotDispatched::Unreadable`].
    pub fn arguments<T: Unpack<'a>>(&self) -> Result<T, NotDispatched> {
        parcel::read(self.arguments, self.parcels).ok_or(NotDispatched::Unreadable)
    }

    /// Its result.
    ///
    /// # Errors
    ///
    /// [`NotDispatched::Unwritable`].
    pub fn returns<T: Schema + Serialize>(&mut self, result: &T) -> Result<(), NotDispatched> {
        answer(result, self.result, self.parcels)
    }
}

/// A thread keeps so many bytes between its calls, at most.
const MOST_SPARE: usize = 64 << 10;

thread_local! {
    static SPARE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Memory for arguments that an earlier call of this thread left ([`spare`]).
#[inline]
pub(super) fn spared() -> Vec<u8> {
    SPARE.take()
}

/// Leaves memory for the next call of this thread.
#[inline]
pub(super) fn spare(bytes: Vec<u8>) {
    if bytes.capacity() <= MOST_SPARE {
        // Not `set`, which the compiler leaves out of line.
        SPARE.with(|spare| spare.set(bytes));
    }
}

/// Writes values without extents to `out`, in place of what was there.
#[inline]
pub(super) fn pack_plain<T: Pack>(values: &T, out: &mut Vec<u8>) -> Result<(), postcard::Error> {
    out.clear();
    values.pack(out)
}

/// Writes values to `out`, in place of what was there; and their extents.
#[inline]
pub(super) fn pack<T: Pack>(
    values: &T,
    out: &mut Vec<u8>,
    parcels: Option<&Arc<Parcels>>,
) -> Result<Option<Parcel>, postcard::Error> {
    out.clear();
    parcel::write(values, out, parcels)
}

/// Writes the result of the call that this thread runs; its extents are on their way then.
#[inline]
pub(super) fn answer<T: Schema + Serialize>(
    result: &T,
    out: &mut Vec<u8>,
    parcels: Option<&Arc<Parcels>>,
) -> Result<(), NotDispatched> {
    let Some(parcels) = parcels else {
        return pack_plain(&(result,), out).map_err(|_| NotDispatched::Unwritable);
    };
    let parcel = pack(&(result,), out, Some(parcels)).map_err(|_| NotDispatched::Unwritable)?;
    parcel.map_or(Ok(()), |parcel| answer_with(parcel, parcels))
}

/// Sends the extents of the result of the call that this thread runs.
fn answer_with(parcel: Parcel, parcels: &Parcels) -> Result<(), NotDispatched> {
    let call = Context::current().ok_or(NotDispatched::Unwritable)?;
    if call.is_given_up() {
        return Err(NotDispatched::GivenUp);
    }
    let longest = Instant::now() + LAG;
    let until = call.deadline().map_or(longest, |d| d.min(longest));
    parcels
        .send(parcel, call.number(), WhenFull::Wait(Deadline::at(until)))
        .map_err(|_| NotDispatched::Unwritable)
}
