//! A case says what a row measures, and what it is called.

use serde::{Deserialize, Serialize};

use crate::out;

pub mod update;

use update::{Update, Way};

/// Bytes of a small message: what fits a cache line beside its sequence number.
pub const SMALL: u64 = 48;
/// Messages sent in a row where most are not to find the receiver waiting.
const BURST: u32 = 16;

/// One row's subject. It travels to the peers in their brief.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Case {
    /// The mechanism under test.
    pub system: System,
    /// Stands for the machine's limit in its group.
    pub limit: bool,
    /// How a receiver waits.
    pub mode: Mode,
    /// What happens to the sender's access.
    pub protection: Protection,
    /// What is done to the bytes.
    pub payload: Payload,
    /// Whether the bytes are in cache.
    pub temper: Temper,
    /// What is particular.
    pub shape: Shape,
    /// Bytes of a message.
    pub bytes: u64,
    /// Who sends when.
    pub pattern: Pattern,
    /// On how many CPUs.
    pub placement: Placement,
}

/// The mechanism under test; each has one file in `systems`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum System {
    /// One cache line each way.
    Line,
    /// A shared buffer with a flag: written there, read there.
    Buffer,
    /// The same with one copy into it (1), and one out of it (2).
    Memcpy {
        /// One or two.
        copies: u8,
    },
    /// A pipe each way.
    Pipe,
    /// A Unix socket of bytes.
    UnixStream,
    /// A Unix socket of whole packets.
    UnixSeqpacket,
    /// A TCP connection over the loopback.
    Tcp,
    /// A wake-up, and one copy by the kernel out of the sender's memory.
    OneCopy,
    /// A POSIX message queue each way.
    MessageQueue,
    /// A System V message queue each way.
    SystemV,
    /// A word each way, and a system call to wake.
    Futex,
    /// A single-writer ring of slots in shared memory.
    Ring,
    /// Messages through ports of a domain.
    Portolan,
    /// Requests and replies through them.
    Request,
    /// Signals of an address of a domain.
    Signal,
    /// The same, sent by a store to a page that is protected against stores.
    SignalOnWrite,
    /// Calls of a service, over channels.
    Call,
    /// What a call does to its bytes: one copy into a channel's memory, one out of it.
    Marshal {
        /// Whether a checksum is made in the first, and verified in the second.
        sum: bool,
    },
    /// Messages through channels.
    Channel,
    /// Samples by topic, over channels.
    Topic,
    /// A word written into memory that the other side exports, which looks for it.
    Word(Way),
    /// Units written into memory that the receiver exports, which reads them there.
    Units(Way),
    /// One operation on exported memory, by one side.
    Update(Update),
    /// Messages between domains, through a port that each offers to the other.
    Bridge,
    /// Publish and subscribe; for blocking with an event.
    #[cfg(feature = "peers")]
    Iceoryx,
    /// Requests and responses of the same.
    #[cfg(feature = "peers")]
    IceoryxCall,
    /// Calls by Cap'n Proto RPC, over a Unix socket.
    #[cfg(feature = "peers")]
    Capnp,
    /// Calls by gRPC, over a Unix socket.
    #[cfg(feature = "peers")]
    Tonic,
    /// Publish and subscribe, over a Unix socket and shared memory.
    #[cfg(feature = "peers")]
    Zenoh,
}

/// How a receiver waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Awake, looking again and again.
    Poll,
    /// Asleep.
    Block,
    /// As Portolan waits unless told otherwise: awake for an adaptive time, then asleep.
    Adaptive,
    /// Stopped until a line is written.
    Monitor,
    /// Busy with something else, and interrupted.
    Upcall,
}

/// What happens to the sender's access when it sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protection {
    /// Not a matter of this system.
    None,
    /// Nothing: the sender forgets.
    Trusted,
    /// Its pages are closed.
    Guarded,
    /// The same, but the peer is a member to which everything is always open.
    OpenPeer,
    /// Nothing: the receiver has a copy.
    Copied,
    /// Nobody can write it any more.
    Sealed,
}

/// What is particular about the message, or about its surroundings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Shape {
    /// Nothing.
    Plain,
    /// All bytes in the header. `queued`: several are sent before any comes back, so
    /// that most are not waited for.
    Header {
        /// Whether several go one way first.
        queued: bool,
    },
    /// Opened at once, and one word in every 4 KiB of it touched.
    Sparse,
    /// The same, opened by these touches.
    Accessed,
    /// Beside thousands of ports that nothing is sent to.
    IdlePorts,
    /// While `portolan top` looks at the domain.
    Watched,
    /// Woken by the descriptor of a wait set.
    Descriptor,
    /// Beside the handlers of so many other ranges, of one listener that is never told.
    Ranges(u32),
    /// Beside the handlers of so many other ranges, of the listener that is told.
    OwnRanges(u32),
    /// Beside so many listeners that are never told, each with a range of its own.
    Listeners(u32),
    /// Every event of whose domain is recorded, and nobody reads them.
    Traced,
    /// Calls over reliable channels.
    Reliable,
    /// Calls whose bytes have no checksum.
    Unchecked,
    /// Calls whose bytes lie in memory that moves.
    Loaned,
    /// Calls of other libraries' services that answer with the bytes that they were sent;
    /// else they answer with none.
    Answered,
    /// Beside a thousand clients of the same server that call nothing.
    IdleClients,
    /// What a client keeps that has made one call, and calls nothing: on channels that others
    /// call on too, or on its own.
    IdleClient {
        /// On others'.
        sharing: bool,
    },
    /// A busy client of those that share is given channels of its own.
    Promotion,
    /// It calls again after they went to another.
    Demotion,
    /// Calls whose answer takes its time.
    Late {
        /// Longer than the transport's timer has its period.
        timer: bool,
    },
    /// What that timer costs whenever its period has passed.
    Timer,
    /// Over a channel of units of a line, with signals as said.
    Signalled(Signal),
    /// Beside one more subscriber, which reads nothing.
    BesideIdle,
    /// Beside one more subscriber, whose process is stopped.
    BesideStopped,
    /// With the push hint after each store.
    Pushed,
    /// No message: a process that does nothing, or one that has joined a domain and
    /// does nothing.
    Idle,
}

/// When a channel's sleeping readers are woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Signal {
    /// At the end of a message.
    Message,
    /// At every so many bytes of units.
    Bytes(u32),
    /// Never.
    Never,
}

/// What sender and receiver do to the bytes of each message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Payload {
    /// Nothing.
    Untouched,
    /// All written by the sender, all read by the receiver.
    Touched,
}

/// Whether a message's bytes were in cache before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Temper {
    /// The same buffers again and again.
    Hot,
    /// Rotating over more buffers than any cache holds.
    Cold,
}

/// Who sends when.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Pattern {
    /// There and back. `one_way` halves the time.
    RoundTrip {
        /// Whether the time is halved.
        one_way: bool,
    },
    /// One sender, as fast as it goes; we receive.
    Stream,
    /// We write, as fast as it goes, and all of them read; what counts is our time.
    Multicast {
        /// How many.
        readers: u32,
    },
    /// We send one message at a time, to a receiver that has had time to fall asleep; what
    /// counts is the time of our call.
    Paced,
    /// Many senders at once; what counts is processor time.
    FanIn {
        /// How many.
        senders: u32,
    },
}

/// On how many CPUs the two sides run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Placement {
    /// Both sides on one.
    OneCpu,
    /// Each on its own.
    TwoCpus,
}

/// What a row's figures are in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Unit {
    /// Half of a round trip.
    #[serde(rename = "ns one way")]
    OneWay,
    /// There and back.
    #[serde(rename = "ns round trip")]
    RoundTrip,
    /// Small messages by time.
    #[serde(rename = "msg/s")]
    Messages,
    /// Bytes of large messages by time.
    #[serde(rename = "GB/s")]
    Gigabytes,
    /// The writer's time by message.
    #[serde(rename = "ns/write")]
    Written,
    /// Processor time of all processes by message.
    #[serde(rename = "ns CPU/msg")]
    CpuTime,
    /// One operation of one side.
    #[serde(rename = "ns each")]
    Operation,
    /// Memory.
    #[serde(rename = "KiB")]
    Kibibytes,
}

impl Shape {
    /// Whether it is about clients rather than about one call.
    pub(crate) fn is_about_clients(self) -> bool {
        matches!(
            self,
            Self::IdleClient { .. }
                | Self::Promotion
                | Self::Demotion
                | Self::Late { .. }
                | Self::Timer
        )
    }
}

impl System {
    /// Whether it is calls, or the copies that calls make.
    pub fn calls(self) -> bool {
        match self {
            Self::Call | Self::Marshal { .. } => true,
            #[cfg(feature = "peers")]
            Self::IceoryxCall | Self::Capnp | Self::Tonic => true,
            _ => false,
        }
    }
}

impl Case {
    /// A touched, hot, two-CPU round trip of `bytes`; the plan changes what differs.
    pub fn new(system: System, bytes: u64) -> Self {
        Self {
            system,
            limit: false,
            mode: Mode::Poll,
            protection: Protection::None,
            payload: Payload::Touched,
            temper: Temper::Hot,
            shape: Shape::Plain,
            bytes,
            pattern: Pattern::RoundTrip { one_way: true },
            placement: Placement::TwoCpus,
        }
    }

    /// What its figures are in.
    pub fn unit(&self) -> Unit {
        if let System::Update(update) = self.system {
            return update.unit(self.bytes);
        }
        match self.pattern {
            _ if matches!(self.shape, Shape::Idle | Shape::IdleClient { .. }) => Unit::Kibibytes,
            _ if self.shape == Shape::Timer => Unit::CpuTime,
            Pattern::RoundTrip { one_way: true } => Unit::OneWay,
            Pattern::RoundTrip { one_way: false } => Unit::RoundTrip,
            Pattern::Stream if self.bytes <= SMALL => Unit::Messages,
            Pattern::Stream => Unit::Gigabytes,
            Pattern::Multicast { .. } | Pattern::Paced => Unit::Written,
            Pattern::FanIn { .. } => Unit::CpuTime,
        }
    }

    /// The row's `system`.
    pub fn system_name(&self) -> &'static str {
        if self.limit {
            return "limit";
        }
        match self.system {
            System::Line => "line",
            System::Buffer => "shared buffer",
            System::Memcpy { .. } => "memcpy",
            System::Pipe => "pipe",
            System::UnixStream => "unix stream",
            System::UnixSeqpacket => "unix seqpacket",
            System::Tcp => "tcp loopback",
            System::OneCopy => "process_vm_readv",
            System::MessageQueue => "mqueue",
            System::SystemV => "system v queue",
            System::Futex => "futex",
            System::Ring => "ring",
            System::Portolan
            | System::Request
            | System::Signal
            | System::SignalOnWrite
            | System::Call
            | System::Word(_)
            | System::Units(_)
            | System::Bridge => "portolan",
            System::Update(update) => update.system_name(),
            System::Marshal { .. } => "marshalling",
            System::Channel => "channel",
            System::Topic => "topic",
            #[cfg(feature = "peers")]
            System::Iceoryx | System::IceoryxCall => "iceoryx2",
            #[cfg(feature = "peers")]
            System::Capnp => "capnp-rpc",
            #[cfg(feature = "peers")]
            System::Tonic => "tonic",
            #[cfg(feature = "peers")]
            System::Zenoh => "zenoh",
        }
    }

    /// Messages that go one way before any comes back.
    pub fn burst(&self) -> u32 {
        match self.shape {
            Shape::Header { queued: true } => BURST,
            _ => 1,
        }
    }

    /// The row's `case`: what the other columns do not say.
    pub fn name(&self) -> String {
        let mut parts = Vec::new();
        match self.system {
            _ if self.shape == Shape::Idle => parts.push(
                if self.limit {
                    "empty process"
                } else {
                    "idle member"
                }
                .to_owned(),
            ),
            System::Line if self.shape == Shape::Pushed => {
                parts.push("cache line, pushed".to_owned());
            }
            System::Line => parts.push("cache line".to_owned()),
            System::Futex => parts.push("futex ping-pong".to_owned()),
            System::Ring if self.limit => parts.push("bare ring".to_owned()),
            System::Memcpy { copies: 1 } => parts.push("one copy".to_owned()),
            System::Memcpy { .. } => parts.push("two copies".to_owned()),
            System::Request if self.shape == Shape::Accessed => {
                parts.push("request, word/page, on demand".to_owned());
            }
            System::Request => parts.push("request".to_owned()),
            System::Signal => parts.push(self.signal_name()),
            System::SignalOnWrite => parts.push("signal on write, by a trap".to_owned()),
            System::Word(way) => parts.push(way.name()),
            System::Units(way) => parts.push(format!("units read, {}", way.word())),
            System::Update(update) => parts.push(update.name().to_owned()),
            System::Bridge => parts.push("message between domains".to_owned()),
            System::Marshal { sum: false } => parts.push("both copies".to_owned()),
            System::Marshal { sum: true } => parts.push("both copies, checksum".to_owned()),
            #[cfg(feature = "peers")]
            System::IceoryxCall | System::Capnp | System::Tonic => parts.push(
                match self.shape {
                    Shape::Answered => "call, answered",
                    _ => "call",
                }
                .to_owned(),
            ),
            System::Call => parts.push(
                match self.shape {
                    Shape::Reliable => "call, reliable channels",
                    Shape::Unchecked => "call, no checksum",
                    Shape::Loaned => "call, by loan",
                    Shape::IdleClients => "call, 1,000 clients",
                    Shape::IdleClient { sharing: true } => "idle client, sharing",
                    Shape::IdleClient { sharing: false } => "idle client, own channels",
                    Shape::Promotion => "client promoted",
                    Shape::Demotion => "client demoted, next call",
                    Shape::Late { timer: true } => "call, answer after 2 ms, timer",
                    Shape::Late { timer: false } => "call, answer after 2 ms",
                    Shape::Timer => "timer, each period",
                    _ => "call",
                }
                .to_owned(),
            ),
            _ => parts.push(
                match self.shape {
                    Shape::Plain
                    | Shape::Idle
                    | Shape::Descriptor
                    | Shape::Ranges(_)
                    | Shape::OwnRanges(_)
                    | Shape::Listeners(_) => "message",
                    Shape::Header { queued: false } => "header",
                    Shape::Header { queued: true } => "header, queued",
                    Shape::Sparse => "word/page",
                    Shape::Accessed => "word/page, on demand",
                    Shape::IdlePorts => "10,000 idle ports",
                    Shape::Watched => "watched by top",
                    Shape::Traced => "traced",
                    Shape::Pushed => "pushed",
                    Shape::Reliable => "reliable",
                    Shape::Unchecked => "no checksum",
                    Shape::Loaned => "by loan",
                    Shape::Answered => "answered",
                    Shape::IdleClients => "1,000 clients",
                    Shape::IdleClient { .. } => "idle client",
                    Shape::Promotion => "promoted",
                    Shape::Demotion => "demoted",
                    Shape::Late { .. } => "late",
                    Shape::Timer => "timer",
                    Shape::Signalled(signal) => signal.name(),
                    Shape::BesideIdle => "beside one that does not read",
                    Shape::BesideStopped => "beside a stopped one",
                }
                .to_owned(),
            ),
        }
        if self.temper == Temper::Cold {
            parts.push("cold".to_owned());
        }
        match self.pattern {
            _ if matches!(self.system, System::Update(_)) => {}
            Pattern::RoundTrip { one_way: true } => {}
            Pattern::RoundTrip { one_way: false } if self.mode == Mode::Poll => {}
            Pattern::RoundTrip { one_way: false } => parts.push(
                match self.placement {
                    Placement::OneCpu => "one CPU",
                    Placement::TwoCpus => "two CPUs",
                }
                .to_owned(),
            ),
            Pattern::Stream => parts.push("stream".to_owned()),
            Pattern::Paced => parts.push("one at a time".to_owned()),
            Pattern::Multicast { readers } => {
                let who = match self.system {
                    System::Channel => "reader",
                    _ => "subscriber",
                };
                let more = if readers == 1 { "" } else { "s" };
                parts.push(format!("{readers} {who}{more}"));
            }
            Pattern::FanIn { senders: 1 } => parts.push("1 sender".to_owned()),
            Pattern::FanIn { senders } => parts.push(format!("{senders} senders")),
        }
        parts.join(", ")
    }

    fn signal_name(&self) -> String {
        match self.shape {
            Shape::Descriptor => "signal by descriptor".to_owned(),
            Shape::Ranges(ranges) => format!("signal beside {ranges} ranges"),
            Shape::OwnRanges(ranges) => format!("signal beside {ranges} own ranges"),
            Shape::Listeners(listeners) => format!("signal beside {listeners} listeners"),
            _ => "signal".to_owned(),
        }
    }

    /// Whether `word` occurs in any column, in any case of letters.
    pub fn contains(&self, word: &str) -> bool {
        let columns = [
            self.system_name().to_owned(),
            self.name(),
            self.mode.name().to_owned(),
            self.protection.name().to_owned(),
            self.payload.name().to_owned(),
            self.bytes.to_string(),
            out::size(self.bytes),
            self.unit().name().to_owned(),
        ];
        let word = word.to_lowercase();
        columns
            .iter()
            .any(|column| column.to_lowercase().contains(&word))
    }
}

impl Mode {
    /// As reports print it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Poll => "poll",
            Self::Block => "block",
            Self::Adaptive => "adaptive",
            Self::Monitor => "monitor",
            Self::Upcall => "upcall",
        }
    }
}

impl Signal {
    /// As reports print it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Message => "message, signal a message",
            Self::Bytes(..=64) => "message, signal a line",
            Self::Bytes(..=4096) => "message, signal a page",
            Self::Bytes(_) => "message, signal now and then",
            Self::Never => "message, no signal",
        }
    }
}

impl Protection {
    /// As reports print it.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Trusted => "trusted",
            Self::Guarded => "guarded",
            Self::OpenPeer => "guarded, open peer",
            Self::Copied => "copied",
            Self::Sealed => "sealed",
        }
    }
}

impl Payload {
    /// As reports print it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Untouched => "untouched",
            Self::Touched => "touched",
        }
    }
}

impl Unit {
    /// As reports print it.
    pub fn name(self) -> &'static str {
        match self {
            Self::OneWay => "ns one way",
            Self::RoundTrip => "ns round trip",
            Self::Messages => "msg/s",
            Self::Gigabytes => "GB/s",
            Self::Written => "ns/write",
            Self::CpuTime => "ns CPU/msg",
            Self::Operation => "ns each",
            Self::Kibibytes => "KiB",
        }
    }

    /// The figure for `picos` picoseconds per event of `bytes` bytes; memory is counted in
    /// bytes instead.
    pub fn value(self, picos: f64, bytes: u64) -> f64 {
        match self {
            Self::OneWay | Self::RoundTrip | Self::Written | Self::CpuTime | Self::Operation => {
                picos / 1e3
            }
            Self::Messages => 1e12 / picos,
            Self::Gigabytes => bytes as f64 * 1e3 / picos,
            Self::Kibibytes => picos / 1024.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_looks_at_every_column() {
        let case = Case {
            mode: Mode::Block,
            ..Case::new(System::Pipe, 64 << 10)
        };
        for word in ["PIPE", "block", "65536", "64 KiB", "one way", "touched"] {
            assert!(case.contains(word), "{word}");
        }
        assert!(!case.contains("mqueue"));
    }

    #[test]
    fn units_convert_from_picoseconds_an_event() {
        assert_eq!(Unit::OneWay.value(60_000.0, 0), 60.0);
        assert_eq!(Unit::Messages.value(2_000.0, 48), 5e8);
        assert_eq!(Unit::Gigabytes.value(1e6, 1000), 1.0);
    }
}
