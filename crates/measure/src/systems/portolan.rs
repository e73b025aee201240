//! Measures Portolan: a port each way; sent extents change owner.
//!
//! Every row has a domain of its own, which peers find by the coordinator's process
//! and the case. The coordinator drives; its port is "drive", a peer's is "echo".
//! A round trip sends the very message back that came, so after the first round
//! nothing is allocated.
//!
//! Polling ports poll. Blocking ones sleep at once in round trips, so that a wake is
//! what is measured; in streams they wait as a port does by default, spinning first.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::os::fd::OwnedFd;
use std::time::Duration;

use portolan::{
    Access, Deadline, Domain, Extent, Message, PortOptions, ReceiveError, ReceiveRight, SendRight,
    Waiting,
};

use super::Endpoint;
use super::memory::Spin;
use crate::case::{Case, Mode, Pattern, Payload, Placement, Protection, Shape, System, Temper};
use crate::error::{MeasureError, Result};
use crate::payload;

/// Bytes of a slot beside its state: with them a slot is one cache line.
const INLINE: usize = 48;
/// Messages that a queue holds: of a stream of small messages, of one of large
/// messages (each of which holds memory), else.
const QUEUE_STREAM: usize = 1023;
const QUEUE_LARGE: usize = 7;
const QUEUE: usize = 63;
/// Ports that do nothing, in the row that has them.
const IDLE: usize = 10_000;
/// Extents of a cold row together, as the shared buffer's.
const COLD: usize = 256 << 20;
/// Pages, of which each has one word touched.
const PAGE: usize = 4096;
/// Memory beyond a row's own extents: long headers, partly used chunks.
const SLACK: u64 = 64 << 20;
/// How long a side looks for the other's port, and for the domain: other processes may
/// keep it from running meanwhile.
pub(super) const MEETING: Duration = Duration::from_secs(60);

/// One side of a row that sends messages.
pub(crate) struct Portolan {
    to: Option<SendRight>,
    from: ReceiveRight,
    /// What is sent next, or was received last.
    message: Message,
    work: Work,
    count: u64,
    access: Access,
    /// Messages in a burst; then as many come back.
    burst: u32,
    /// Set where polling must let others run.
    yields: Option<Spin>,
    idle: Vec<ReceiveRight>,
    /// Last: it is left after all that belongs to it.
    domain: Domain,
}

/// What is done to each message.
enum Work {
    Nothing,
    /// The header is written and read.
    Header(Vec<u8>),
    /// All of the extent is written and read.
    Touch,
    /// The receiver changes one word in every page.
    Sparse,
    /// The same, with many extents in turn. Only the coordinator has any.
    SparseCold(VecDeque<Extent>),
    /// A new extent for every message, written and read: a stream.
    Produce(usize),
}

/// The domain of a row that this process coordinates.
pub fn domain_of(case: &Case) -> String {
    name(case, std::process::id())
}

/// The same name in every process of one run.
pub(super) fn name(case: &Case, coordinator: u32) -> String {
    let mut hasher = DefaultHasher::new();
    format!("{case:?}").hash(&mut hasher);
    format!("bench-{coordinator}-{:016x}", hasher.finish())
}

/// Joins the domain of a row.
pub(super) fn join(case: &Case, coordinator: u32) -> Result<Domain> {
    let name = name(case, coordinator);
    let protection = match case.protection {
        Protection::Guarded | Protection::OpenPeer => portolan::Protection::Guarded,
        _ => portolan::Protection::Trusted,
    };
    let drives = coordinator == std::process::id();
    let mut builder = Domain::builder(&name);
    if case.protection == Protection::OpenPeer && !drives {
        builder = builder.always_open();
    }
    builder
        .space_name(if drives { "bench drive" } else { "bench echo" })
        .protection(protection)
        .limit(extents(case) + queues(case) + SLACK)
        .deadline(MEETING)
        .join()
        .map_err(MeasureError::library("joining a benchmark's domain"))
}

/// An idle member of the domain that the coordinator hosts.
pub(crate) fn join_idle(case: &Case) -> Result<Domain> {
    join(case, parent()?)
}

/// The host of idle members' domain.
pub(crate) fn host_idle(case: &Case) -> Result<Domain> {
    join(case, std::process::id())
}

/// Bytes of the queues of idle ports: two pages each, one a line of its slots.
fn queues(case: &Case) -> u64 {
    match case.shape {
        Shape::IdlePorts => IDLE as u64 * 8192,
        _ => 0,
    }
}

/// Bytes of extents that a row has at one time.
pub fn extents(case: &Case) -> u64 {
    if case.system == System::Call {
        return super::call::channels(case);
    }
    let one = case.bytes.next_power_of_two();
    if case.system == System::Topic {
        return one * super::topic::KEPT;
    }
    let under_way = match (case.pattern, case.temper) {
        (Pattern::RoundTrip { .. }, Temper::Cold) => (COLD as u64).div_ceil(case.bytes) + 1,
        (Pattern::RoundTrip { .. }, Temper::Hot) if case.protection == Protection::Copied => 4,
        (Pattern::RoundTrip { .. }, Temper::Hot) => 1,
        _ => QUEUE_LARGE as u64 + 4,
    };
    one * under_way
}

/// Process id of the coordinator, from a peer.
pub(super) fn parent() -> Result<u32> {
    let parent = rustix::process::getppid().ok_or(MeasureError::NoCoordinator)?;
    Ok(parent.as_raw_nonzero().get().unsigned_abs())
}

fn bytes(case: &Case) -> usize {
    usize::try_from(case.bytes).expect("64-bit only")
}

/// Whether the message's bytes lie in its header.
fn in_header(case: &Case) -> bool {
    matches!(case.shape, Shape::Header { .. }) || case.bytes <= crate::case::SMALL
}

fn streams(case: &Case) -> bool {
    !matches!(case.pattern, Pattern::RoundTrip { .. })
}

fn waiting(case: &Case) -> Waiting {
    match case.mode {
        Mode::Poll => Waiting::Poll,
        Mode::Block if streams(case) => Waiting::Adaptive,
        Mode::Adaptive => Waiting::Adaptive,
        Mode::Block | Mode::Monitor | Mode::Upcall => Waiting::Sleep,
    }
}

fn bind(case: &Case, domain: &Domain, options: PortOptions) -> Result<ReceiveRight> {
    let queue = match (streams(case), in_header(case)) {
        (true, true) => QUEUE_STREAM,
        (true, false) => QUEUE_LARGE,
        (false, _) => QUEUE,
    };
    let mut options = options.queue(queue).inline_bytes(INLINE);
    if case.protection == Protection::Copied {
        options = options.copied();
    }
    let mut port = domain.bind(options).map_err(binding)?;
    port.set_waiting(waiting(case));
    Ok(port)
}

fn binding(error: portolan::BindError) -> MeasureError {
    MeasureError::library("binding a benchmark's port")(error)
}

pub(super) fn allocate(domain: &Domain, bytes: usize) -> Result<Extent> {
    let mut extent = domain
        .allocate(bytes)
        .map_err(MeasureError::library("allocating a benchmark's extent"))?;
    // Resident before it is timed.
    extent.iter_mut().step_by(PAGE).for_each(|byte| *byte = 1);
    Ok(extent)
}

pub(super) fn push(message: &mut Message, extent: Extent) {
    message
        .push(extent)
        .expect("an empty message takes an extent");
}

/// One word in every page.
#[inline(always)]
fn touch_sparsely(extent: &mut [u8]) {
    for page in extent.chunks_mut(PAGE) {
        let word = page.first_chunk_mut().expect("a page has a word");
        *word = u64::from_ne_bytes(*word).wrapping_add(1).to_ne_bytes();
    }
}

impl Portolan {
    fn new(case: &Case, domain: Domain, name: &str, drives: bool) -> Result<Self> {
        let from = bind(case, &domain, PortOptions::named(name))?;
        let mut message = Message::default();
        let header = |len| {
            if len == 0 {
                Work::Nothing
            } else {
                Work::Header(vec![1; len])
            }
        };
        let work = match (case.shape, case.payload) {
            _ if in_header(case) => header(bytes(case)),
            _ if streams(case) => Work::Produce(bytes(case)),
            (Shape::Sparse, _) if case.temper == Temper::Cold => Work::SparseCold(if drives {
                let extents = (0..COLD.div_ceil(bytes(case)))
                    .map(|_| allocate(&domain, bytes(case)))
                    .collect::<Result<VecDeque<_>>>();
                extents?
            } else {
                VecDeque::new()
            }),
            (shape, payload) => {
                if drives {
                    push(&mut message, allocate(&domain, bytes(case))?);
                }
                match (shape, payload) {
                    (Shape::Sparse | Shape::Accessed, _) => Work::Sparse,
                    (_, Payload::Touched) => Work::Touch,
                    (_, Payload::Untouched) => Work::Nothing,
                }
            }
        };
        let idle = if case.shape == Shape::IdlePorts && drives {
            let idle = (0..IDLE).map(|_| domain.bind(PortOptions::unnamed().queue(1)));
            idle.collect::<std::result::Result<_, _>>()
                .map_err(binding)?
        } else {
            Vec::new()
        };
        let touched_at_once = case.shape == Shape::Sparse;
        Ok(Self {
            to: None,
            from,
            message,
            work,
            count: 0,
            access: if touched_at_once {
                Access::Now
            } else {
                Access::Later
            },
            burst: case.burst(),
            yields: (case.mode == Mode::Poll && case.placement == Placement::OneCpu)
                .then(|| Spin::new(case)),
            idle,
            domain,
        })
    }

    fn find(&mut self, name: &str) -> Result<()> {
        let right = self.domain.connect(name, MEETING);
        self.to = Some(right.map_err(MeasureError::library("finding a benchmark's port"))?);
        Ok(())
    }

    #[inline(always)]
    fn send_one(&mut self) -> Result<()> {
        self.count += 1;
        match &mut self.work {
            Work::Nothing | Work::Sparse => {}
            Work::Header(bytes) => {
                payload::write(bytes, self.count);
                // Within the limit; the message would say so.
                let _ = self.message.set_header(bytes);
            }
            Work::Touch => payload::write(&mut self.message.extents_mut()[0], self.count),
            Work::SparseCold(pool) => {
                if let Some(extent) = pool.pop_front() {
                    push(&mut self.message, extent);
                }
            }
            Work::Produce(len) => {
                let extent = self.domain.allocate(*len);
                let mut extent = extent.map_err(MeasureError::library("allocating a message"))?;
                payload::write(&mut extent, self.count);
                push(&mut self.message, extent);
            }
        }
        let to = self.to.as_ref().ok_or(MeasureError::Gone)?;
        to.send_from(&mut self.message, Deadline::NEVER)
            .map_err(MeasureError::library("sending a benchmark's message"))
    }

    #[inline(always)]
    fn receive_one(&mut self) -> Result<()> {
        let (from, message, access) = (&mut self.from, &mut self.message, self.access);
        let received = match self.yields {
            None => from.receive_into(message, access, Deadline::NEVER),
            Some(spin) => {
                let mut outcome = Err(ReceiveError::TimedOut);
                spin.until(|| {
                    outcome = from.receive_into(message, access, Deadline::NOW);
                    outcome != Err(ReceiveError::TimedOut)
                });
                outcome
            }
        };
        received.map_err(MeasureError::library("receiving a benchmark's message"))?;
        match &mut self.work {
            Work::Nothing => {}
            Work::Header(_) => payload::read(message.header()),
            Work::Touch | Work::Produce(_) => payload::read(&message.extents()[0]),
            Work::Sparse => touch_sparsely(&mut message.extents_mut()[0]),
            Work::SparseCold(pool) => {
                touch_sparsely(&mut message.extents_mut()[0]);
                // A peer has no pool: it sends the same extent back.
                if !pool.is_empty()
                    && let Some(extent) = message.remove(0)
                {
                    pool.push_back(extent);
                }
            }
        }
        Ok(())
    }
}

impl Endpoint for Portolan {
    fn create(case: &Case) -> Result<(Self, Vec<OwnedFd>)> {
        let domain = join(case, std::process::id())?;
        Ok((Self::new(case, domain, "drive", true)?, Vec::new()))
    }

    fn attach(case: &Case, seat: u32, _descriptors: Vec<OwnedFd>) -> Result<Self> {
        let domain = join(case, parent()?)?;
        let mut end = Self::new(case, domain, &echo(seat), false)?;
        end.find("drive")?;
        Ok(end)
    }

    fn meet(&mut self, case: &Case) -> Result<()> {
        if streams(case) {
            return Ok(());
        }
        self.find(&echo(0))
    }

    #[inline(always)]
    fn send(&mut self) -> Result<()> {
        for _ in 0..self.burst {
            self.send_one()?;
        }
        Ok(())
    }

    #[inline(always)]
    fn receive(&mut self) -> Result<()> {
        for _ in 0..self.burst {
            self.receive_one()?;
        }
        Ok(())
    }
}

fn echo(seat: u32) -> String {
    format!("echo {seat}")
}

impl Drop for Portolan {
    fn drop(&mut self) {
        // Ten thousand ports close before the domain is left.
        self.idle.clear();
    }
}

/// One side of a row of requests and replies: the coordinator asks, the peer answers.
pub(crate) struct Request {
    to: Option<SendRight>,
    serves: Option<ReceiveRight>,
    /// What is asked and answered; used again and again.
    message: Message,
    request: portolan::Request,
    waiting: Waiting,
    /// Whether the receiver of a message touches each of its pages.
    touches: bool,
    domain: Domain,
}

impl Endpoint for Request {
    fn create(case: &Case) -> Result<(Self, Vec<OwnedFd>)> {
        let domain = join(case, std::process::id())?;
        let mut message = Message::default();
        if case.bytes > 0 {
            push(&mut message, allocate(&domain, bytes(case))?);
        }
        let end = Self {
            to: None,
            serves: None,
            message,
            request: portolan::Request::default(),
            waiting: Self::waiting(case),
            touches: case.shape == Shape::Accessed,
            domain,
        };
        Ok((end, Vec::new()))
    }

    fn attach(case: &Case, seat: u32, _descriptors: Vec<OwnedFd>) -> Result<Self> {
        let domain = join(case, parent()?)?;
        let mut port = bind(case, &domain, PortOptions::named(&echo(seat)).synchronous())?;
        port.set_waiting(Self::waiting(case));
        Ok(Self {
            to: None,
            serves: Some(port),
            message: Message::default(),
            request: portolan::Request::default(),
            waiting: Self::waiting(case),
            touches: case.shape == Shape::Accessed,
            domain,
        })
    }

    fn meet(&mut self, _case: &Case) -> Result<()> {
        let right = self.domain.connect(&echo(0), MEETING);
        self.to = Some(right.map_err(MeasureError::library("finding a benchmark's port"))?);
        Ok(())
    }

    fn send(&mut self) -> Result<()> {
        Err(MeasureError::Gone)
    }

    fn receive(&mut self) -> Result<()> {
        Err(MeasureError::Gone)
    }

    #[inline(always)]
    fn round_trip(&mut self) -> Result<()> {
        let to = self.to.as_ref().ok_or(MeasureError::Gone)?;
        to.request_reply_in_place(
            &mut self.message,
            Access::Later,
            Deadline::NEVER,
            self.waiting,
        )
        .map_err(MeasureError::library("asking in a benchmark"))?;
        if self.touches {
            touch_sparsely(&mut self.message.extents_mut()[0]);
        }
        Ok(())
    }

    #[inline(always)]
    fn echo(&mut self) -> Result<()> {
        let port = self.serves.as_mut().ok_or(MeasureError::Gone)?;
        port.get_request_into(&mut self.request, Access::Later, Deadline::NEVER)
            .map_err(MeasureError::library("receiving a benchmark's request"))?;
        if self.touches {
            touch_sparsely(&mut self.request.message.extents_mut()[0]);
        }
        self.request
            .reply_from()
            .map_err(MeasureError::library("answering in a benchmark"))
    }
}

impl Request {
    /// Polling on one CPU would only keep the other side from running.
    pub(super) fn waiting(case: &Case) -> Waiting {
        match case.placement {
            Placement::OneCpu => Waiting::Sleep,
            Placement::TwoCpus => waiting(case),
        }
    }
}
