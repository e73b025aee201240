#![doc = include_str!("../guide/introduction.md")]
//!
//! The chapters that follow are in the module `guide`: a tutorial, concepts, what to choose, deaths, and
//! what is where for those who come from other libraries.
//!
//! # What is where
//!
//! | to | see |
//! |---|---|
//! | join, and choose size, limit, protection, who may come in | [`Domain::join`], [`Domain::builder`] |
//! | have memory to send | [`Domain::allocate`], [`Extent`] |
//! | send and receive | [`SendRight`], [`ReceiveRight`], [`SharedReceiver`] for several threads |
//! | hand over maps, trees, lists and strings as they are | [`structure`], [`Handover`] |
//! | ask and answer | [`SendRight::request_reply`], [`ReceiveRight::get_request`], [`Request`] |
//! | pass rights on, hear of deaths | [`Right`], [`Notice`], [`SendRight::watch`] |
//! | share memory | [`Domain::make_segment`], [`Segment`]; to be read only, [`Domain::share_extent`] |
//! | be told of an address | [`Domain::signal`], [`Listener`], [`Delivery`] |
//! | have descriptors, timers and Unix signals signal one | [`Domain::bind_address`] |
//! | stream messages to any number of readers | [`Domain::make_channel`], [`channel`] |
//! | publish and subscribe, values and slices of any length | [`Domain::publisher`], [`Domain::subscriber`] |
//! | write and read another process's memory, across users | [`vmmc`], [`Domain::export`], [`Domain::import`] |
//! | go on sending and subscribing when the other process dies and comes back | [`reconnect`] |
//! | call methods of a trait in another process | [`rpc`], [`macro@service`] |
//! | wait for many ports, answers, channels, topics and listeners, or with epoll | [`WaitSet`] |
//! | learn of room in many full ports | [`SendRight::room`] |
//! | await, under tokio (feature `tokio`) | `ReceiveRight::receive_async`, `SendRight::request_reply_async` |
//! | let other users and domains send to a port | [`ReceiveRight::offer`], [`Domain::connect_to`] |
//! | fill memory once and show it to many, unchangeable | [`Unsealed`], [`Sealed`] |
//! | receive at ports on behalf of other nodes | [`proxy`] |
//! | see who holds what | [`Domain::survey`] |
//! | export counters (feature `metrics`) | `Survey::record_metrics` |
//! | see what all members do, event by event | [`Domain::trace`], [`Trace`] |
//!
//! # What to expect of it
//!
//! - Whatever is sent belongs to the receiver; a call that fails gives back what it took.
//! - A process may die at any instruction: its memory comes back, its ports are dead
//!   names, its clients get an error, and none hangs.
//! - No call waits without a [`Deadline`]; no callback runs on a foreign thread; one
//!   background thread a membership waits for deaths and uses no time otherwise.
//! - A forked child is not a member, and says so when it tries ([`Disowned`]).
//!
//! Ports, rights and the immediate-access hint follow DASH (Tzou and Anderson, *The
//! Performance of Message-passing using Restricted Virtual Memory Remapping*) and Mach.

#![deny(unsafe_code)]

// What the derives name, and what programs would otherwise have to depend on beside the library,
// in the same version.
pub use {bytemuck, serde};

#[macro_use]
pub mod probes;

mod bridge;
pub mod channel;
mod directory;
#[cfg(any(doc, doctest))]
pub mod guide;
mod hosting;
mod port;
pub mod proxy;
pub mod reconnect;
pub mod rpc;
#[cfg(feature = "marks")]
pub mod sabotage;
#[cfg(not(feature = "marks"))]
mod sabotage {
    pub(crate) const fn holds(_rule: &str) -> bool {
        true
    }
}
mod schema;
mod signal;
mod space;
pub mod structure;
mod survey;
mod trace;
pub mod vmmc;
mod wait;

pub use bridge::{
    ConnectOptions, ConnectToError, Followed, OfferOptions, OfferedChannel, OfferedPort, Skipped,
    Violation, ViolationKind,
};
pub use directory::{AccessToken, OfferConnectError, OfferError, Permissions};
pub use port::message::{INLINE_HEADER, Message, MessageError, Notice, Urgency};
pub use port::sealed::{FreezeError, Sealed, Unsealed};
pub use port::segment::Segment;
pub use port::shared_extent::SharedExtent;
pub use port::{
    Access, BindError, ConnectError, PendingReply, PortOptions, ReceiveError, ReceiveRight,
    Request, RequestError, Right, RightState, Room, SendError, SendOnceRight, SendRight,
    SharedReceiver, WhenFull,
};
#[doc(hidden)]
pub use port::{Given, Straight, Unfinished};
pub use portolan_arena::Handover;
/// Implements the trait [`trait@Handover`] (and [`structure::Root`]) for a struct or an enum.
///
/// The type has one lifetime parameter, which stands for the arena, or none; type and
/// constant parameters are allowed, without bounds. Each field must be `Handover`:
///
/// ```
/// use portolan::Handover;
/// use portolan::structure::{Boxed, List, Map, Text, Tree};
///
/// #[derive(Handover)]
/// struct Everything<'a, T, const N: usize> {
///     plain: (u8, f64, [char; 3], Option<bool>, Result<(), i32>),
///     text: Text<'a>,
///     collections: Map<'a, Text<'a>, List<'a, Tree<'a, u64, T>>>,
///     own: [Kind<'a>; N],
/// }
///
/// #[derive(Handover)]
/// enum Kind<'a> {
///     Leaf,
///     Branch { left: Boxed<'a, Kind<'a>>, right: Boxed<'a, Kind<'a>> },
///     Number(u64),
/// }
/// ```
///
/// What would not be valid in another program does not compile. References, even to what
/// lives as long as the program:
///
/// ```compile_fail,E0277
/// #[derive(portolan::Handover)]
/// struct Refused {
///     field: &'static str,
/// }
/// ```
///
/// Memory of the program's own:
///
/// ```compile_fail,E0277
/// #[derive(portolan::Handover)]
/// struct Refused {
///     field: String,
/// }
/// ```
///
/// ```compile_fail,E0277
/// #[derive(portolan::Handover)]
/// struct Refused<'a> {
///     field: portolan::structure::List<'a, Box<u64>>,
/// }
/// ```
///
/// Function pointers and trait objects:
///
/// ```compile_fail,E0277
/// #[derive(portolan::Handover)]
/// struct Refused {
///     field: fn(u64) -> u64,
/// }
/// ```
///
/// ```compile_fail,E0277
/// #[derive(portolan::Handover)]
/// struct Refused<'a> {
///     field: portolan::structure::Boxed<'a, dyn std::fmt::Debug>,
/// }
/// ```
///
/// Raw pointers, and what changes through a shared reference:
///
/// ```compile_fail,E0277
/// #[derive(portolan::Handover)]
/// struct Refused {
///     field: *const u64,
/// }
/// ```
///
/// ```compile_fail,E0277
/// #[derive(portolan::Handover)]
/// struct Refused {
///     field: std::cell::Cell<u64>,
/// }
/// ```
///
/// Types that rely on their `Drop`, which would not run:
///
/// ```compile_fail,E0119
/// #[derive(portolan::Handover)]
/// struct Refused {
///     field: u64,
/// }
/// impl Drop for Refused {
///     fn drop(&mut self) {}
/// }
/// ```
///
/// Parts of another arena, which may be gone when this one arrives:
///
/// ```compile_fail
/// #[derive(portolan::Handover)]
/// struct Refused {
///     field: portolan::structure::Text<'static>,
/// }
/// ```
///
/// Unions, whose bytes may mean anything:
///
/// ```compile_fail
/// #[derive(portolan::Handover)]
/// union Refused {
///     field: u64,
/// }
/// ```
pub use portolan_derive::Handover;
/// Makes client and server of a trait; see [`rpc`].
///
/// For `trait Bank` there are `BankClient`, which has the trait's methods and calls them in
/// another process, and `BankService`, which makes an implementation something to
/// [`rpc::serve`]. Arguments are owned, or `&str` and `&[u8]`; types implement `serde`'s
/// traits and [`rpc::Schema`].
///
/// A method may be `async`, which only its server sees: clients have each method to block
/// (`method`), to begin (`begin_method`) and to await (`method_async`). No method may be called
/// as one of these of another, or `connect`, `connect_with`, `within` or `stub`, which are the
/// client's own.
///
/// ```
/// #[portolan::service]
/// pub trait Clock {
///     /// An answer that is lost is not asked for.
///     #[rpc(best_effort, no_checksum)]
///     fn now(&self) -> u64;
///     #[rpc(one_way)]
///     fn set(&self, to: u64);
/// }
/// ```
///
/// ```compile_fail
/// #[portolan::service]
/// pub trait Refused {
///     #[rpc(one_way)]
///     fn returns(&self) -> u64;
/// }
/// ```
pub use portolan_derive::service;
pub use portolan_shm::owner::OwnerError;
pub use signal::{
    Delivery, HandlerId, Listener, ListenerOptions, Note, Origin, Outbox, SignalError, Source,
};
pub use space::{
    AllocateError, Builder, Disowned, Domain, Extent, JoinError, LeaveError, Protection, RawExtent,
    Refused,
};
pub use survey::{
    AGES, ChannelSurvey, ConnectionKind, ConnectionSurvey, ExportSurvey, Holder, HoldingSurvey,
    ListenerSurvey, MemorySurvey, Observer, PortKind, PortState, PortSurvey, ReaderSurvey,
    SegmentKind, SegmentSurvey, SpaceState, SpaceSurvey, Survey,
};
pub use trace::{Drained, Event, EventKind, Trace, TraceError, TraceOptions, TracedSpace};
pub use wait::{
    Armed, Deadline, NoDescriptor, Ready, Token, WaitSet, WaitSetError, Waitable, Waiting,
};
