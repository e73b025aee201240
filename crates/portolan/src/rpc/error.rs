//! Errors say why a call has no result, and whose fault it is.

use crate::channel::{ChannelError, WriteError};
use crate::{
    AllocateError, BindError, Disowned, MessageError, ReceiveError, RequestError, SendError,
};
use portolan_proto::{Closed, NotCalled, NotFrozen};
use std::error::Error;
use std::fmt::{self, Debug, Display, Formatter};

/// Why a call has no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RpcError {
    /// The state's: no answer came in time. The method may have run, or run yet.
    #[error("no answer came before the deadline; the method may have run")]
    Deadline,
    /// The peer's: the server died, or was restarted. The method may have run.
    #[error("the server died before it answered; the method may have run: connect again")]
    ServerDied,
    /// The caller's: the call was given up.
    #[error("the call was given up")]
    Cancelled,
    /// The server's: it has no such method. It was not run.
    #[error("the server has no method {method:?}: it serves another version, or another service")]
    UnknownMethod {
        /// Its name.
        method: &'static str,
    },
    /// Client and server were built from different versions. It was not run.
    #[error(
        "method {method:?} has other arguments or another result at the server (layout {theirs:#x}, here {ours:#x}): build both from one version"
    )]
    OtherVersion {
        /// Its name.
        method: &'static str,
        /// The hash of its arguments and result here.
        ours: u64,
        /// And at the server.
        theirs: u64,
    },
    /// The caller's: a one-way method has no answer. It was not called.
    #[error("method {method:?} is one-way: `post` it, or await it")]
    OneWay {
        /// Its name.
        method: &'static str,
    },
    /// The caller's: its answer would reach no caller. It was not called.
    #[error("method {method:?} is not one-way: `call` it, `begin` it, or await it")]
    NotOneWay {
        /// Its name.
        method: &'static str,
    },
    /// The server's: the method panicked.
    #[error("the method panicked: {message}")]
    Panicked {
        /// What it said.
        message: String,
    },
    /// The state's: the server, or the connection, has too much to do. It was not run.
    #[error("too many calls are under way: call again later")]
    Backpressure,
    /// The peer's: the bytes that came cannot be read, although the hashes agree.
    #[error("{what} cannot be read: does a hand-written Serialize fit its Deserialize?")]
    Unreadable {
        /// Arguments, or a result.
        what: &'static str,
    },
    /// The caller's, or the method's: it cannot be written, or is too long.
    #[error("{what} cannot be sent: {why}")]
    Unsendable {
        /// Arguments, or a result.
        what: &'static str,
        /// Why.
        why: String,
    },
    /// The server's: it ended the call without an answer.
    #[error("the server ended the call without an answer")]
    Dropped,
    /// The connection was closed.
    #[error(transparent)]
    Closed(#[from] Closed),
    /// See [`Disowned`].
    #[error(transparent)]
    Disowned(#[from] Disowned),
}

impl From<NotCalled> for RpcError {
    fn from(why: NotCalled) -> Self {
        match why {
            NotCalled::WindowFull { .. } => Self::Backpressure,
            NotCalled::Closed(Closed::Left) => Self::ServerDied,
            NotCalled::Closed(why) => why.into(),
            other => Self::Unsendable {
                what: "arguments",
                why: other.to_string(),
            },
        }
    }
}

/// What a method that returns a `Result` gives its caller.
///
/// It is an error whatever the method's own is, if that can be printed for debugging: so `?`
/// takes it into `Box<dyn Error>`, `Box<dyn Error + Send + Sync>` and the like. The method's
/// error need not be one, and is printed by its `Debug`; [`Self::into_method`] gives it itself.
///
/// ```
/// use portolan::rpc::{CallError, RpcError};
///
/// #[derive(Debug)]
/// enum NoPicture {
///     Unknown { name: &'static str },
/// }
///
/// fn show(answer: Result<u32, CallError<NoPicture>>) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
///     println!("{} bytes", answer?);
///     Ok(())
/// }
///
/// let refused = CallError::Method(NoPicture::Unknown { name: "a" });
/// let why = show(Err(refused)).unwrap_err().to_string();
/// assert_eq!(why, r#"the method failed: Unknown { name: "a" }"#);
/// assert!(show(Err(RpcError::Deadline.into())).is_err());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallError<E> {
    /// The method's own error.
    Method(E),
    /// The call has no result.
    Rpc(RpcError),
}

impl<E> CallError<E> {
    /// The method's own error.
    ///
    /// # Errors
    ///
    /// The call has no result.
    pub fn into_method(self) -> Result<E, RpcError> {
        match self {
            Self::Method(error) => Ok(error),
            Self::Rpc(error) => Err(error),
        }
    }
}

impl<E> From<RpcError> for CallError<E> {
    fn from(error: RpcError) -> Self {
        Self::Rpc(error)
    }
}

impl<E: Debug> Display for CallError<E> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Method(error) => write!(f, "the method failed: {error:?}"),
            Self::Rpc(error) => Display::fmt(error, f),
        }
    }
}

impl<E: Debug> Error for CallError<E> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Method(_) => None,
            Self::Rpc(error) => error.source(),
        }
    }
}

/// Why a client is not connected to a service.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// No server has this name.
    #[error(transparent)]
    NoService(#[from] crate::ConnectError),
    /// The peer's: what is served under this name is another service.
    #[error("{name:?} serves {theirs:?}, and not {ours:?}")]
    OtherService {
        /// Under which name.
        name: String,
        /// What is wanted.
        ours: &'static str,
        /// What is served.
        theirs: String,
    },
    /// The peer's: it answers as no server of calls does.
    #[error("who receives at {name:?} does not serve calls")]
    NotServed {
        /// Under which name.
        name: String,
    },
    /// The server's: it has no memory, or no thread, for channels that are shared.
    #[error(
        "who serves {name:?} has no room for shared channels: connect later, or give its domain more memory"
    )]
    NoRoom {
        /// Under which name.
        name: String,
    },
    /// The peer's: it did not answer.
    #[error("the server did not answer: {0}")]
    Unanswered(#[from] RequestError),
    /// The state's, or the server's: it was called, and no answer came.
    #[error("nobody answered over the channel for {name:?}: is it served with `on_channel`?")]
    Unheard {
        /// What was called.
        name: String,
    },
    /// It cannot be called.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// No channel of this name is there to call a server over; or none was made; or one that was made is
    /// taken.
    #[error(transparent)]
    Channel(#[from] ChannelError),
    /// No port.
    #[error(transparent)]
    Port(#[from] BindError),
    /// The greeting cannot be sent.
    #[error(transparent)]
    Message(#[from] MessageError),
}

/// Why nothing is served; or why a server did not move: it has ended then, and its clients get
/// errors and connect again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The name is taken, or there is no port.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// No channel to be called on ([`super::ServerOptions::on_channel`]), or it cannot be listened
    /// to.
    #[error(transparent)]
    Channel(#[from] ChannelError),
    /// The system's: no thread.
    #[error("no thread to serve with: {0}")]
    Thread(#[from] std::io::Error),
    /// The state's: calls ran until the deadline.
    #[error("calls were still running at the deadline: give it more time")]
    Running,
    /// The caller's: what came is no server of this service.
    #[error("what came is no server of {service:?}")]
    NotThis {
        /// What is served here.
        service: &'static str,
    },
    /// The peer's: what came is damaged.
    #[error(transparent)]
    State(#[from] NotFrozen),
    /// A server that moves was not sent.
    #[error("it was not sent: {0}")]
    Unsent(#[source] SendError),
    /// A server that moves did not come.
    #[error(transparent)]
    Receive(#[from] ReceiveError),
    /// The state of a server does not fit a message.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// No memory for the state of a server.
    #[error(transparent)]
    Allocate(#[from] AllocateError),
}
