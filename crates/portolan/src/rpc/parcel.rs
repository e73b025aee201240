//! Extents that move with a call or an answer.
//!
//! Bytes go through the channel, where they may be lost and are sent again; an extent can
//! be sent once. So the extents of a call go through a port, as a *parcel* with a number,
//! and what goes through the channel names the parcel. A parcel is sent before the call
//! that names it, so it is there when the call arrives. The parcel of a call that is given
//! up lies until a later one shows that nobody will ask for it.

use super::wire::Unpack;
use crate::port::{ReceiveRight, SendRight, WhenFull};
use crate::{Access, Deadline, Extent, Message};
use portolan_shm::mark;
use serde::de::Error as _;
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
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
        // A look takes it out for a moment: nobody else can have it, it is not `Sync`.
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

/// Parcels that were named and not opened are kept while fewer than so many are newer.
const KEPT: u64 = 2 * portolan_proto::WINDOW;
/// How long a parcel may lag behind the call that names it. It was sent before.
const LAG: Duration = Duration::from_secs(10);

/// Where the parcels of one connection come in and go out.
pub(super) struct Parcels {
    to: SendRight,
    from: Mutex<Inbox>,
    next: AtomicU64,
}

struct Inbox {
    port: ReceiveRight,
    unopened: BTreeMap<u64, Vec<Option<Extent>>>,
}

/// Why a parcel was not sent.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotSent {
    #[error("no method of this service takes or returns a `Large`")]
    NoWay,
    #[error(transparent)]
    Refused(#[from] crate::MessageError),
    #[error("{0}")]
    Unsent(crate::Unsent),
}

impl Parcels {
    pub(super) fn new(to: SendRight, port: ReceiveRight) -> Self {
        Self {
            to,
            from: Mutex::new(Inbox {
                port,
                unopened: BTreeMap::new(),
            }),
            next: AtomicU64::new(1),
        }
    }

    /// Both ways, and the number of the next parcel, for whoever goes on. What was received
    /// and not opened goes back to the port.
    pub(super) fn into_parts(self) -> (SendRight, ReceiveRight, u64) {
        let inbox = self.from.into_inner();
        let inbox = inbox.unwrap_or_else(PoisonError::into_inner);
        let own = inbox.port.make_send();
        for (number, extents) in inbox.unopened {
            if let Ok(mut message) = Message::new(&number.to_le_bytes()) {
                for extent in extents.into_iter().flatten() {
                    // As many as came in one message.
                    let _ = message.push(extent);
                }
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

    /// Sends a parcel.
    pub(super) fn send(&self, number: u64, extents: Vec<Extent>) -> Result<(), NotSent> {
        let mut message = Message::new(&number.to_le_bytes())?;
        for extent in extents {
            message.push(extent).map_err(|refused| refused.error)?;
        }
        self.to
            .send(message, WhenFull::Wait(Deadline::after(LAG)))
            .map_err(|error| NotSent::Unsent(error.reason))?;
        mark!("call.parcel_sent");
        Ok(())
    }

    /// One extent of a parcel that has come, or is about to.
    fn open(&self, number: u64, index: usize) -> Option<Extent> {
        let mut inbox = self.from.lock().unwrap_or_else(PoisonError::into_inner);
        let deadline = Deadline::after(LAG);
        while !inbox.unopened.contains_key(&number) {
            let mut message = inbox.port.receive(Access::Later, deadline).ok()?;
            mark!("call.parcel_came");
            let Ok(came) = <[u8; 8]>::try_from(message.header()) else {
                continue;
            };
            let came = u64::from_le_bytes(came);
            let extents = message.split_off(0).into_iter().map(Some).collect();
            inbox.unopened.insert(came, extents);
            inbox.unopened.retain(|&n, _| n + KEPT > came);
        }
        let parcel = inbox.unopened.get_mut(&number)?;
        let extent = parcel.get_mut(index)?.take();
        if parcel.iter().all(Option::is_none) {
            inbox.unopened.remove(&number);
        }
        extent
    }
}

/// What this thread is packing or unpacking, for the connection with these parcels.
#[derive(Default)]
struct Desk {
    parcels: Option<Arc<Parcels>>,
    /// The number of the parcel that is packed, and what is in it.
    packed: Option<(u64, Vec<Extent>)>,
}

thread_local! {
    static DESK: RefCell<Desk> = RefCell::default();
}

/// What was on the desk before; comes back even if serialising panics.
struct Before(Option<Desk>);

impl Before {
    fn clear(parcels: &Arc<Parcels>) -> Self {
        let desk = Desk {
            parcels: Some(Arc::clone(parcels)),
            packed: None,
        };
        Self(Some(DESK.replace(desk)))
    }

    fn put_back(mut self) -> Desk {
        self.0.take().map(|d| DESK.replace(d)).unwrap_or_default()
    }
}

impl Drop for Before {
    fn drop(&mut self) {
        if let Some(desk) = self.0.take() {
            DESK.replace(desk);
        }
    }
}

/// Runs a serialiser; the parcel of the extents that it met.
#[inline]
pub(super) fn packing<T>(
    parcels: Option<&Arc<Parcels>>,
    serialise: impl FnOnce() -> T,
) -> (T, Option<(u64, Vec<Extent>)>) {
    let Some(parcels) = parcels else {
        return (serialise(), None);
    };
    let before = Before::clear(parcels);
    let written = serialise();
    (written, before.put_back().packed)
}

/// Runs a deserialiser that may meet extents.
#[inline]
fn unpacking<T>(parcels: Option<&Arc<Parcels>>, deserialise: impl FnOnce() -> T) -> T {
    let Some(parcels) = parcels else {
        return deserialise();
    };
    let before = Before::clear(parcels);
    let read = deserialise();
    before.put_back();
    read
}

/// Values from all of `bytes`; `None` if they are something else.
#[inline]
pub(super) fn read<'a, T: Unpack<'a>>(
    mut bytes: &'a [u8],
    parcels: Option<&Arc<Parcels>>,
) -> Option<T> {
    let values = unpacking(parcels, || T::unpack(&mut bytes))?;
    bytes.is_empty().then_some(values)
}

impl Serialize for Large {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let place = DESK.with_borrow_mut(|desk| {
            let parcels = desk.parcels.as_ref()?;
            let Some(extent) = self.0.take() else {
                return Some((0, 0));
            };
            // Relaxed: only that numbers differ matters.
            let number = || parcels.next.fetch_add(1, Ordering::Relaxed);
            let (number, extents) = desk.packed.get_or_insert_with(|| (number(), Vec::new()));
            extents.push(extent);
            Some((*number, extents.len() - 1))
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
        let parcels = DESK.with_borrow(|desk| desk.parcels.clone());
        let extent = parcels.and_then(|p| p.open(number, index));
        let extent = extent.ok_or_else(|| D::Error::custom("its extent did not come"))?;
        Ok(extent.into())
    }
}
