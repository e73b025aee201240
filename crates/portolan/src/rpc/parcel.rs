//! Moves extents with a call or an answer.
//!
//! Bytes go through the channel, where they may be lost and are sent again; an extent can
//! be sent once. So the extents of a call go through a port, as a *parcel* with a number,
//! and what goes through the channel names the parcel. A parcel is sent before the call
//! that names it, once there is a place for that, so it is there when the call arrives; that
//! of an answer before the answer, unless no caller waits for it any more. A parcel says whose
//! call it is of, and goes back as soon as its call is seen to be over ([`Parcels::tidy`]).

use crate::port::{ReceiveRight, SendRight, WhenFull};
use crate::schema::{Pack, Unpack};
use crate::space::region::Attached;
use crate::{Access, Deadline, Extent, Message, Refused, SendError};
use portolan_abi::beside::CallParcel;
use portolan_shm::mark;
use serde::de::Error as _;
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// An extent as an argument or a result, or a part of one: it moves, whatever its size.
///
/// It moves once. What was sent is empty afterwards.
///
/// ```
/// use portolan::rpc::Large;
/// let domain = portolan::Domain::private()?;
/// let large = Large::from(domain.allocate(1 << 20)?);
/// assert_eq!(large.into_extent().map(|e| e.len()), Some(1 << 20));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Default)]
pub struct Large(Cell<Option<Extent>>);

impl From<Extent> for Large {
    fn from(extent: Extent) -> Self {
        Self(Cell::new(Some(extent)))
    }
}

impl Large {
    /// The extent, unless it was sent.
    pub fn into_extent(self) -> Option<Extent> {
        self.0.into_inner()
    }
}

impl std::fmt::Debug for Large {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // A look takes it out for a moment: no other thread can have it, it is not `Sync`.
        let extent = self.0.take();
        let shown = f.debug_tuple("Large").field(&extent).finish();
        self.0.set(extent);
        shown
    }
}

impl super::Schema for Large {
    const HASH: u64 = super::Hash::new().text("extent").finish();
    const MOVES: bool = true;
}

/// How long a parcel may lag behind the call that names it. It was sent before.
pub(super) const LAG: Duration = Duration::from_secs(10);

/// Where the parcels of one connection come in and go out.
pub(super) struct Parcels {
    to: SendRight,
    from: Mutex<Inbox>,
    /// What tells without its lock whether there is anything to tidy.
    lag: Lag,
    next: AtomicU64,
    /// Answers that were taken and are being read: their calls are over, their parcels wanted.
    reading: AtomicUsize,
}

/// Says whether parcels may lag: lie in the port, or unopened.
struct Lag {
    /// The port that they come in at.
    port: Attached,
    /// The end of its queue, as its senders knew it, when all that was there was last taken in.
    looked: AtomicU64,
    /// Parcels that were taken in and not opened.
    unopened: AtomicUsize,
}

impl Lag {
    /// The end of the port's queue, as its senders know it. Every parcel that comes changes it.
    fn end(&self) -> u64 {
        // Acquire: the parcels before it are seen by a look from now on.
        self.port.queue().port.sender.tail.load(Ordering::Acquire)
    }

    /// Whether there is anything to tidy. A parcel that comes at this very moment is there the
    /// next time that it is asked.
    #[inline]
    fn is_there(&self) -> bool {
        // The first of these before the port is looked at: a forked child has none.
        self.port.member.present().is_ok()
            // Relaxed: written by who has the inbox; the next to ask sees what is missed here.
            && (self.unopened.load(Ordering::Relaxed) > 0
                || self.looked.load(Ordering::Relaxed) != self.end())
    }
}

struct Inbox {
    port: ReceiveRight,
    unopened: BTreeMap<u64, Unopened>,
}

struct Unopened {
    /// The number of its call.
    call: u64,
    extents: Vec<Option<Extent>>,
}

/// Extents on their way into a message.
pub(super) struct Parcel {
    number: u64,
    extents: Vec<Extent>,
}

/// While this is there, what has come is kept ([`Parcels::reading`]).
pub(super) struct Reading(Option<Arc<Parcels>>);

impl Drop for Reading {
    fn drop(&mut self) {
        if let Some(parcels) = &self.0 {
            // Release: a thread that finds none sees what was opened.
            parcels.reading.fetch_sub(1, Ordering::Release);
        }
    }
}

/// Why a parcel was not sent.
#[derive(thiserror::Error)]
pub(super) enum NotSent {
    #[error("no method of this service takes or returns a `Large`")]
    NoWay,
    #[error(transparent)]
    Refused(#[from] crate::MessageError),
    /// It comes back.
    #[error("the other side has too many extents to open: call again later")]
    Full(Parcel),
    #[error("{0}")]
    Unsent(SendError),
}

impl std::fmt::Debug for NotSent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self}")
    }
}

impl Parcels {
    pub(super) fn new(to: SendRight, port: ReceiveRight) -> Self {
        Self {
            to,
            lag: Lag {
                port: port.at().clone(),
                // No queue ends there: what has come already is taken in first.
                looked: AtomicU64::new(0),
                unopened: AtomicUsize::new(0),
            },
            from: Mutex::new(Inbox {
                port,
                unopened: BTreeMap::new(),
            }),
            next: AtomicU64::new(1),
            reading: AtomicUsize::new(0),
        }
    }

    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        // A panic in here leaves nothing half done.
        self.from.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Both ways, and the number of the next parcel, for the next server. Parcels that were
    /// received and not opened go back to the port.
    pub(super) fn into_parts(self) -> (SendRight, ReceiveRight, u64) {
        let inbox = self.from.into_inner();
        let inbox = inbox.unwrap_or_else(PoisonError::into_inner);
        let own = inbox.port.make_send();
        for (number, Unopened { call, extents }) in inbox.unopened {
            let extents = extents.into_iter().flatten();
            // As many as came in one message.
            if let Ok(message) = message(number, call, extents) {
                let _ = own.send(message, WhenFull::Wait(Deadline::after(LAG)));
            }
        }
        (self.to, inbox.port, self.next.into_inner())
    }

    /// Goes on where another stopped.
    pub(super) fn from_parts(to: SendRight, port: ReceiveRight, next: u64) -> Self {
        let parcels = Self::new(to, port);
        parcels.next.store(next, Ordering::Relaxed);
        parcels
    }

    /// Sends the parcel of the call with this number.
    pub(super) fn send(&self, parcel: Parcel, call: u64, when: WhenFull) -> Result<(), NotSent> {
        let Parcel { number, extents } = parcel;
        let message = message(number, call, extents.into_iter())?;
        match self.to.send(message, when) {
            Ok(()) => {
                mark!("call.parcel_sent");
                Ok(())
            }
            Err(Refused {
                why: SendError::Full { .. },
                mut item,
            }) => {
                let extents = item.split_off(0);
                Err(NotSent::Full(Parcel { number, extents }))
            }
            Err(error) => Err(NotSent::Unsent(error.why)),
        }
    }

    /// Takes in what has come, so that the port has room, and gives back the parcels of calls
    /// that no caller waits for.
    #[inline]
    pub(super) fn tidy(&self, waits: impl Fn(u64) -> bool) {
        if self.lag.is_there() {
            self.tidy_up(waits);
        }
    }

    #[cold]
    fn tidy_up(&self, waits: impl Fn(u64) -> bool) {
        // The thread that has the lock takes the messages in.
        let Ok(mut inbox) = self.from.try_lock() else {
            return;
        };
        // Before the look: what comes after it changes this.
        let end = self.lag.end();
        while let Ok(message) = inbox.port.receive(Access::Later, Deadline::NOW) {
            inbox.put(message);
        }
        if self.reading.load(Ordering::Acquire) == 0 {
            inbox.unopened.retain(|_, parcel| waits(parcel.call));
        }
        self.lag.looked.store(end, Ordering::Relaxed);
        self.count(&inbox);
    }

    /// Notes how many parcels of the inbox are unopened, for those who do not have it.
    fn count(&self, inbox: &Inbox) {
        let unopened = inbox.unopened.len();
        self.lag.unopened.store(unopened, Ordering::Relaxed);
    }

    /// An answer is taken whose parcel may still be opened: to be asked for under the lock
    /// under which others tidy, before the call is over. Never waits, while a thread that opens one
    /// may.
    pub(super) fn reading(parcels: Option<&Arc<Self>>) -> Reading {
        if let Some(parcels) = parcels {
            parcels.reading.fetch_add(1, Ordering::Relaxed);
        }
        Reading(parcels.cloned())
    }

    /// One extent of a parcel that has come, or is about to.
    fn open(&self, number: u64, index: usize) -> Option<Extent> {
        let mut inbox = self.inbox();
        let extent = self.open_in(&mut inbox, number, index);
        self.count(&inbox);
        extent
    }

    fn open_in(&self, inbox: &mut Inbox, number: u64, index: usize) -> Option<Extent> {
        let deadline = Deadline::after(LAG);
        while !inbox.unopened.contains_key(&number) {
            let message = inbox.port.receive(Access::Later, deadline).ok()?;
            inbox.put(message);
        }
        let parcel = inbox.unopened.get_mut(&number)?;
        let extent = parcel.extents.get_mut(index)?.take();
        if parcel.extents.iter().all(Option::is_none) {
            inbox.unopened.remove(&number);
        }
        extent
    }
}

impl Inbox {
    fn put(&mut self, mut message: Message) {
        mark!("call.parcel_came");
        let Ok(CallParcel { number, call }) = CallParcel::decode(message.header()) else {
            return;
        };
        let extents = message.split_off(0).into_iter().map(Some).collect();
        self.unopened.insert(number, Unopened { call, extents });
    }
}

/// A parcel as it travels: its number, the number of its call, and the extents.
fn message(
    number: u64,
    call: u64,
    extents: impl Iterator<Item = Extent>,
) -> Result<Message, crate::MessageError> {
    let mut message = Message::new(&CallParcel { number, call }.encode())?;
    for extent in extents {
        message.push(extent).map_err(|refused| refused.why)?;
    }
    Ok(message)
}

/// What this thread is packing or unpacking, for the connection with these parcels.
#[derive(Default)]
struct Packing {
    parcels: Option<Arc<Parcels>>,
    /// What is packed.
    packed: Option<Parcel>,
}

thread_local! {
    static PACKING: RefCell<Packing> = RefCell::default();
}

/// The state before; its drop restores it, also if serialising panics.
struct Before(Option<Packing>);

impl Before {
    fn clear(parcels: &Arc<Parcels>) -> Self {
        let packing_now = Packing {
            parcels: Some(Arc::clone(parcels)),
            packed: None,
        };
        Self(Some(PACKING.replace(packing_now)))
    }

    fn put_back(mut self) -> Packing {
        self.0
            .take()
            .map(|d| PACKING.replace(d))
            .unwrap_or_default()
    }
}

impl Drop for Before {
    fn drop(&mut self) {
        if let Some(packing_now) = self.0.take() {
            PACKING.replace(packing_now);
        }
    }
}

/// Adds values to `out`; the parcel of the extents that are in them.
#[inline]
pub(super) fn write<T: Pack>(
    values: &T,
    out: &mut Vec<u8>,
    parcels: Option<&Arc<Parcels>>,
) -> Result<Option<Parcel>, postcard::Error> {
    let Some(parcels) = parcels.filter(|_| T::MOVES) else {
        return values.pack(out).map(|()| None);
    };
    let before = Before::clear(parcels);
    let written = values.pack(out);
    let packed = before.put_back().packed;
    written.map(|()| packed)
}

/// Values from all of `bytes`; `None` if they are something else.
#[inline]
pub(super) fn read<'a, T: Unpack<'a>>(
    mut bytes: &'a [u8],
    parcels: Option<&Arc<Parcels>>,
) -> Option<T> {
    let before = parcels.filter(|_| T::MOVES).map(Before::clear);
    let values = T::unpack(&mut bytes);
    drop(before);
    bytes.is_empty().then_some(values?)
}

impl Serialize for Large {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let place = PACKING.with_borrow_mut(|packing_now| {
            let parcels = packing_now.parcels.as_ref()?;
            let Some(extent) = self.0.take() else {
                return Some((0, 0));
            };
            // Relaxed: only that numbers differ matters.
            let number = || parcels.next.fetch_add(1, Ordering::Relaxed);
            let parcel = packing_now.packed.get_or_insert_with(|| Parcel {
                number: number(),
                extents: Vec::new(),
            });
            parcel.extents.push(extent);
            Some((parcel.number, parcel.extents.len() - 1))
        });
        let place = place.ok_or_else(|| S::Error::custom("an extent moves in calls only"))?;
        place.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Large {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (number, index) = <(u64, usize)>::deserialize(deserializer)?;
        if number == 0 {
            return Ok(Self::default());
        }
        let parcels = PACKING.with_borrow(|packing_now| packing_now.parcels.clone());
        let extent = parcels.and_then(|p| p.open(number, index));
        let extent = extent.ok_or_else(|| D::Error::custom("its extent did not come"))?;
        Ok(extent.into())
    }
}
