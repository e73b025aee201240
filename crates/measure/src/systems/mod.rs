//! Lists the mechanisms under test, and defines the traits of their ends.
//!
//! Each is one [`Endpoint`] type. To add one: a variant of
//! [`System`](crate::case::System), a file here, a line in [`with_endpoint`], and
//! its rows in the plans of the programs.

#[cfg(feature = "peers")]
mod answer;
mod bridge;
mod buffer;
mod call;
#[cfg(feature = "peers")]
mod capnp;
mod channel;
pub(crate) mod clients;
mod futex;
#[cfg(feature = "peers")]
mod iceoryx;
mod line;
mod marshal;
mod memory;
mod mqueue;
mod on_write;
mod one_copy;
#[cfg(feature = "peers")]
mod over_socket;
mod pipe;
mod portolan;
mod ring;
mod signal;
mod socket;
mod stream;
mod sysv;
#[cfg(feature = "peers")]
mod tonic;
mod topic;
pub(crate) mod update;
#[cfg(feature = "peers")]
mod zenoh;

use std::os::fd::OwnedFd;

pub(crate) use bridge::Bridge;
pub(crate) use buffer::Buffer;
pub(crate) use call::Call;
#[cfg(feature = "peers")]
pub(crate) use capnp::Capnp;
pub(crate) use channel::Channel;
pub(crate) use futex::Futex;
#[cfg(feature = "peers")]
pub(crate) use iceoryx::{Iceoryx, IceoryxCall};
pub(crate) use line::Line;
pub(crate) use marshal::Marshal;
pub(crate) use mqueue::MessageQueue;
pub(crate) use on_write::OnWrite;
pub(crate) use one_copy::OneCopy;
#[cfg(feature = "peers")]
pub(crate) use over_socket::OverSocket;
pub(crate) use pipe::Pipe;
pub(crate) use portolan::{Portolan, Request, host_idle, join_idle};
pub use portolan::{domain_of, extents};
pub(crate) use ring::Ring;
pub(crate) use signal::Signal;
pub(crate) use socket::Socket;
pub(crate) use sysv::SystemV;
#[cfg(feature = "peers")]
pub(crate) use tonic::Tonic;
pub(crate) use topic::Topic;
pub use update::processor_time;
pub(crate) use update::{Exporter, Units, Word};
#[cfg(feature = "peers")]
pub(crate) use zenoh::Zenoh;

use crate::case::Case;
use crate::error::Result;
use crate::run::Counted;

/// One process's end of a two-way (for [`Ring`] one-way) connection.
///
/// The measured loops are generic over this type, so nothing is called through a
/// pointer inside them. The process that made the end with [`create`](Self::create) drives
/// (round trips) or receives (streams); the others echo or send.
pub(crate) trait Endpoint: Sized {
    /// Makes the connection: our end, and the descriptors for every peer's.
    fn create(case: &Case) -> Result<(Self, Vec<OwnedFd>)>;

    /// Makes a peer's end from the descriptors. Peers are numbered by `seat`.
    fn attach(case: &Case, seat: u32, descriptors: Vec<OwnedFd>) -> Result<Self>;

    /// Called once in the coordinator, when every peer has attached.
    fn meet(&mut self, _case: &Case) -> Result<()> {
        Ok(())
    }

    /// What this end, as a sender, has counted so far, if the row is about that.
    fn counts(&self) -> Vec<Counted> {
        Vec::new()
    }

    /// Sends the next message: writes its payload first if the case says touched.
    fn send(&mut self) -> Result<()>;

    /// Waits for the next message, as the case's mode says, and reads its payload.
    fn receive(&mut self) -> Result<()>;

    /// One round, as the side that is timed.
    #[inline(always)]
    fn round_trip(&mut self) -> Result<()> {
        self.send()?;
        self.receive()
    }

    /// One round, as the other side.
    #[inline(always)]
    fn echo(&mut self) -> Result<()> {
        self.receive()?;
        self.send()
    }
}

/// Runs `$body` with `$E` standing for the endpoint type of `$system`.
macro_rules! with_endpoint {
    ($system:expr, $E:ident => $body:expr) => {{
        use $crate::case::System;
        use $crate::systems as s;
        macro_rules! with {
            ($type:ty) => {{
                type $E = $type;
                $body
            }};
        }
        match $system {
            System::Line => with!(s::Line),
            System::Buffer | System::Memcpy { .. } => with!(s::Buffer),
            System::Pipe => with!(s::Pipe),
            System::UnixStream | System::UnixSeqpacket | System::Tcp => with!(s::Socket),
            System::OneCopy => with!(s::OneCopy),
            System::MessageQueue => with!(s::MessageQueue),
            System::SystemV => with!(s::SystemV),
            System::Futex => with!(s::Futex),
            System::Ring => with!(s::Ring),
            System::Portolan => with!(s::Portolan),
            System::Request => with!(s::Request),
            System::Signal => with!(s::Signal),
            System::SignalOnWrite => with!(s::OnWrite),
            System::Call => with!(s::Call),
            System::Marshal { .. } => with!(s::Marshal),
            System::Channel => with!(s::Channel),
            System::Topic => with!(s::Topic),
            System::Word(_) => with!(s::Word),
            System::Units(_) => with!(s::Units),
            System::Update(_) => with!(s::Exporter),
            System::Bridge => with!(s::Bridge),
            #[cfg(feature = "peers")]
            System::Iceoryx => with!(s::Iceoryx),
            #[cfg(feature = "peers")]
            System::IceoryxCall => with!(s::IceoryxCall),
            #[cfg(feature = "peers")]
            System::Capnp => with!(s::OverSocket<s::Capnp>),
            #[cfg(feature = "peers")]
            System::Tonic => with!(s::OverSocket<s::Tonic>),
            #[cfg(feature = "peers")]
            System::Zenoh => with!(s::Zenoh),
        }
    }};
}
pub(crate) use with_endpoint;
