//! The handshake as a state machine for each side: one request, one answer.
//!
//! ```text
//! asker:      waiting --grant, with its descriptors--> granted
//!                |----refusal, rubbish, hung up, too late--> failed
//!
//! answerer:   waiting --request--> asked: the caller grants or refuses
//!                |----rubbish, another version--> refuse
//!                |----hung up, too late--> gone
//! ```
//!
//! The caller owns the socket and the clock, and tells the machine what happens ([`Event`]). The
//! same machine opens every connection: of newcomers and observers to a host, of a process to a
//! port or channel of another domain, of an importer to an exporter. What is asked for, and why it
//! may be refused, are types ([`Ask`], [`Why`]).
//!
//! # Invariants
//!
//! - **H1** A machine ends once: after it has said anything but [`Step::Wait`], it says nothing
//!   else, whatever comes.
//! - **H2** Another version is never rubbish. It is found before anything else is looked at, and
//!   both sides learn the other one's.
//! - **H3** A packet that is longer or shorter than its record, was cut off, or comes with another
//!   number of descriptors than belong to it, is rubbish as a whole.
//! - **H4** What has come counts, even if the other side has hung up since, or the deadline has
//!   passed: the caller reads before it tells of either.

use core::marker::PhantomData;
use portolan_abi::codec::DecodeError;
use portolan_abi::handshake::{Answer, Ask, Grant, Refusal, Request, Why};

/// What has happened on a connection.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a, T> {
    /// A packet came.
    Came(Packet<'a>),
    /// Nothing is there, and this is the time.
    Quiet(T),
    /// Nothing is there, and nothing will come.
    HungUp,
}

/// A packet.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// Its bytes, as many as there was room for: [`Asker::ROOM`], [`Answerer::ROOM`].
    pub bytes: &'a [u8],
    /// There were more bytes, or more descriptors.
    pub truncated: bool,
    /// Descriptors that came with it.
    pub descriptors: usize,
}

impl Packet<'_> {
    fn whole(&self) -> Result<&[u8], Garbled> {
        let whole = !self.truncated;
        whole.then_some(self.bytes).ok_or(Garbled::Truncated)
    }
}

/// What a side is to do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step<D, F> {
    /// Wait for a packet, until the deadline.
    Wait,
    /// It is done: an asker has its grant, an answerer the request.
    Done(D),
    /// The handshake has failed.
    Failed(F),
}

/// Why an asker has no grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure<W: core::fmt::Debug> {
    /// The answerer says no. One that speaks another version is read as if it had refused for that.
    #[error("refused: {:?}", .0.why)]
    Refused(Refusal<W>),
    /// The answerer's: what came is no answer.
    #[error(transparent)]
    Garbled(Garbled),
    /// The answerer ended the connection without an answer.
    #[error("the other side hung up before it answered")]
    HungUp,
    /// No answer came by the deadline.
    #[error("the other side did not answer by the deadline")]
    Unanswered,
}

/// Why a packet is rubbish.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Garbled {
    /// It was cut off: it has more bytes or descriptors than any that belongs here.
    #[error("a packet has more bytes or descriptors than any that belongs here")]
    Truncated,
    /// It is no record that belongs here.
    #[error(transparent)]
    Record(DecodeError),
    /// It came with another number of descriptors than belong to it.
    #[error("a packet came with {found} descriptors instead of {wanted}")]
    Descriptors {
        /// How many came.
        found: usize,
        /// How many belong to it.
        wanted: usize,
    },
}

/// What an answerer does about an asker that made no request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unasked<W> {
    /// To say no, for this reason, and hang up. The number is the version of an asker that speaks
    /// another one, and 0 for rubbish.
    Refuse(W, u32),
    /// To hang up: there is nobody to answer, or it took too long.
    HangUp,
}

/// What both sides have.
#[derive(Clone, Copy, Debug)]
struct Side<T> {
    until: Option<T>,
    over: bool,
}

impl<T: Copy + Ord> Side<T> {
    fn step<D, F>(
        &mut self,
        event: Event<'_, T>,
        came: impl FnOnce(Packet<'_>) -> Result<D, F>,
        [late, hung_up]: [F; 2],
    ) -> Step<D, F> {
        if self.over {
            return Step::Failed(hung_up);
        }
        let step = match event {
            Event::Came(packet) => came(packet).map_or_else(Step::Failed, Step::Done),
            Event::Quiet(now) if self.until.is_some_and(|until| now >= until) => Step::Failed(late),
            Event::Quiet(_) => Step::Wait,
            Event::HungUp => Step::Failed(hung_up),
        };
        self.over = !matches!(step, Step::Wait);
        step
    }
}

/// The side that asks.
///
/// ```
/// use portolan_abi::handshake::Answer;
/// use portolan_abi::hello::{Look, Welcome};
/// use portolan_proto::handshake::{Asker, Event, Packet, Step};
///
/// let mut asker = Asker::<Look, u64>::new(Some(100));
/// assert_eq!(asker.step(Event::Quiet(99)), Step::Wait);
/// let welcome = Welcome { space: 0, by_host: true, incarnation: 0, base: 1 << 45, len: 1 << 35 };
/// let bytes = Answer::Granted(welcome).encode();
/// let packet = Packet { bytes: &bytes, truncated: false, descriptors: 1 };
/// assert_eq!(asker.step(Event::Came(packet)), Step::Done(welcome));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Asker<A, T> {
    side: Side<T>,
    asked: PhantomData<A>,
}

impl<A: Ask, T: Copy + Ord> Asker<A, T> {
    /// Bytes to have room for: one more than an answer has, so that a longer one shows.
    pub const ROOM: usize = Answer::<A::Granted>::BYTES + 1;

    /// An asker, whose caller sends the request; it waits for the answer until then, if it is said.
    pub const fn new(until: Option<T>) -> Self {
        let over = false;
        Self {
            side: Side { until, over },
            asked: PhantomData,
        }
    }

    /// Until when it waits.
    pub const fn until(&self) -> Option<T> {
        self.side.until
    }

    /// What is to be done after this.
    pub fn step(
        &mut self,
        event: Event<'_, T>,
    ) -> Step<A::Granted, Failure<<A::Granted as Grant>::Why>> {
        let without = [Failure::Unanswered, Failure::HungUp];
        self.side.step(event, Self::came, without)
    }

    fn came(packet: Packet<'_>) -> Result<A::Granted, Failure<<A::Granted as Grant>::Why>> {
        let bytes = packet.whole().map_err(Failure::Garbled)?;
        let granted = match Answer::<A::Granted>::decode(bytes) {
            Ok(Answer::Granted(granted)) => granted,
            Ok(Answer::Refused(refusal)) => return Err(Failure::Refused(refusal)),
            Err(DecodeError::Version { found: version }) => {
                let (why, value) = (Why::VERSION, 0);
                return Err(Failure::Refused(Refusal {
                    version,
                    why,
                    value,
                }));
            }
            Err(error) => return Err(Failure::Garbled(Garbled::Record(error))),
        };
        let (found, wanted) = (packet.descriptors, A::descriptors(&granted));
        if found != wanted {
            return Err(Failure::Garbled(Garbled::Descriptors { found, wanted }));
        }
        Ok(granted)
    }
}

/// The side that answers.
///
/// ```
/// use portolan_abi::denied::Denied;
/// use portolan_abi::vmmc::Ask;
/// use portolan_proto::handshake::{Answerer, Event, Packet, Step, Unasked};
///
/// let ask = Ask { barriers: true, brokered: false };
/// let mut bytes = ask.encode();
/// let came = |bytes: &[u8]| {
///     let packet = Packet { bytes, truncated: false, descriptors: 0 };
///     Answerer::<Ask, u64>::new(None).step(Event::Came(packet))
/// };
/// assert_eq!(came(&bytes), Step::Done(ask));
/// // Of another version: the rest may be anything.
/// bytes[4] = 99;
/// assert_eq!(came(&bytes[..9]), Step::Failed(Unasked::Refuse(Denied::Version, 99)));
/// assert_eq!(came(b"?"), Step::Failed(Unasked::Refuse(Denied::Garbled, 0)));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Answerer<R, T> {
    side: Side<T>,
    asked: PhantomData<R>,
}

impl<R: Request, T: Copy + Ord> Answerer<R, T> {
    /// Bytes to have room for: one more than a request has, so that a longer one shows.
    pub const ROOM: usize = <R as Request>::BYTES + 1;

    /// An answerer; it waits for the request until then, if it is said.
    pub const fn new(until: Option<T>) -> Self {
        let over = false;
        Self {
            side: Side { until, over },
            asked: PhantomData,
        }
    }

    /// Until when it waits.
    pub const fn until(&self) -> Option<T> {
        self.side.until
    }

    /// What is to be done after this.
    pub fn step(&mut self, event: Event<'_, T>) -> Step<R, Unasked<R::Why>> {
        let without = [Unasked::HangUp, Unasked::HangUp];
        self.side.step(event, Self::came, without)
    }

    fn came(packet: Packet<'_>) -> Result<R, Unasked<R::Why>> {
        let garbled = Unasked::Refuse(R::Why::GARBLED, 0);
        // Of another version even a record that does not fit (H2).
        match R::read(packet.bytes) {
            Err(DecodeError::Version { found }) => Err(Unasked::Refuse(R::Why::VERSION, found)),
            Ok(request) if !packet.truncated && packet.descriptors == 0 => Ok(request),
            _ => Err(garbled),
        }
    }
}
