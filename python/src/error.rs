//! Errors of the library become exceptions of `portolan.errors`, which carry their values.

use portolan::channel::{
    ChannelError, PublishError, ReadError, SubscribeError, TopicError, WriteError,
};
use portolan::vmmc::{ExportError, ImportError, MappingError, NotificationError, UpdateError};
use portolan::{
    AllocateError, BindError, ConnectError, ConnectToError, Disowned, JoinError, LeaveError,
    MessageError, NoDescriptor, OfferError, ReceiveError, RequestError, SendError, SignalError,
    WaitSetError,
};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use std::fmt::Display;

/// An exception to be raised: made by threads that do not hold the interpreter's lock.
#[derive(Debug)]
pub(crate) struct Fault {
    /// Its class in `portolan.errors`, or a built-in one.
    class: &'static str,
    text: String,
    values: Vec<(&'static str, Value)>,
}

#[derive(Debug)]
enum Value {
    Number(u64),
    Text(String),
    Texts(Vec<String>),
}

impl From<u64> for Value {
    fn from(value: u64) -> Self {
        Self::Number(value)
    }
}

impl From<usize> for Value {
    fn from(value: usize) -> Self {
        Self::Number(value as u64)
    }
}

impl From<&String> for Value {
    fn from(value: &String) -> Self {
        Self::Text(value.clone())
    }
}

impl Fault {
    pub(crate) fn new(class: &'static str, why: impl Display) -> Self {
        Self {
            class,
            text: why.to_string(),
            values: Vec::new(),
        }
    }

    fn with(mut self, name: &'static str, value: impl Into<Value>) -> Self {
        self.values.push((name, value.into()));
        self
    }

    /// The caller's: the object was sent, closed or used up.
    pub(crate) fn closed(what: &str) -> Self {
        Self::new("Closed", format!("this {what} is closed"))
    }

    /// The state's: nothing came in time.
    pub(crate) fn timed_out(what: &str) -> Self {
        Self::new("TimedOut", format!("no {what} came before the deadline"))
    }

    /// The caller's: views of the memory live.
    pub(crate) fn viewed(views: usize, verb: &str) -> Self {
        let live = match views {
            1 => "1 view of this array lives".to_owned(),
            _ => format!("{views} views of this array live"),
        };
        let text = format!(
            "{live} (memoryviews, numpy arrays, tensors), so it cannot be {verb}: \
             drop it first, or use `with array.view() as v`"
        );
        Self::new("BufferError", text).with("views", views)
    }

    fn raise(self, py: Python<'_>) -> PyResult<PyErr> {
        let module = match self.class {
            "BufferError" | "TypeError" | "ValueError" => "builtins",
            _ => "portolan.errors",
        };
        let class = py.import(module)?.getattr(self.class)?;
        let error = class.call1((self.text,))?;
        let values = PyDict::new(py);
        for (name, value) in self.values {
            match value {
                Value::Number(value) => values.set_item(name, value)?,
                Value::Text(value) => values.set_item(name, value)?,
                Value::Texts(value) => values.set_item(name, value)?,
            }
        }
        for (name, value) in values.iter() {
            error.setattr(name.extract::<String>()?.as_str(), value)?;
        }
        Ok(PyErr::from_value(error))
    }
}

/// What a `with` block ends in: of two errors its own matters more than that something could not be
/// closed.
pub(crate) fn unless_failed(why: &Bound<'_, PyTuple>, closed: PyResult<()>) -> PyResult<()> {
    match why.get_item(0) {
        Ok(kind) if !kind.is_none() => Ok(()),
        _ => closed,
    }
}

impl From<Fault> for PyErr {
    fn from(fault: Fault) -> Self {
        Python::attach(|py| fault.raise(py).unwrap_or_else(|error| error))
    }
}

impl From<Disowned> for Fault {
    fn from(why: Disowned) -> Self {
        Self::new("Disowned", why)
    }
}

impl From<NoDescriptor> for Fault {
    fn from(why: NoDescriptor) -> Self {
        let errno = u64::from(why.errno.unsigned_abs());
        Self::new("NoDescriptor", why).with("errno", errno)
    }
}

impl From<AllocateError> for Fault {
    fn from(why: AllocateError) -> Self {
        match why {
            AllocateError::OutOfPages {
                wanted,
                free,
                limit,
            } => Self::new("AllocateError", why)
                .with("wanted", wanted)
                .with("free", free)
                .with("limit", limit),
            AllocateError::Disowned(why) => why.into(),
            other => Self::new("AllocateError", other),
        }
    }
}

impl From<JoinError> for Fault {
    fn from(why: JoinError) -> Self {
        Self::new("JoinError", why)
    }
}

impl From<LeaveError> for Fault {
    fn from(why: LeaveError) -> Self {
        match why {
            LeaveError::Disowned(why) => why.into(),
            LeaveError::StillHeld { handles } => {
                Self::new("LeaveError", why).with("handles", handles)
            }
            other => Self::new("LeaveError", other),
        }
    }
}

impl From<BindError> for Fault {
    fn from(why: BindError) -> Self {
        match why {
            BindError::NameTaken { ref name, owner } => Self::new("NameTaken", &why)
                .with("name", name)
                .with("owner", u64::from(owner)),
            BindError::Allocate(why) => why.into(),
            BindError::Unsent(why) => why.into(),
            BindError::Disowned(why) => why.into(),
            other => Self::new("BindError", other),
        }
    }
}

impl From<ConnectError> for Fault {
    fn from(why: ConnectError) -> Self {
        let said = why.to_string();
        match why {
            ConnectError::NoSuchPort { name } => Self::new("NoSuchPort", said).with("name", &name),
            ConnectError::Ambiguous { name, nodes } => {
                let mut fault = Self::new("ConnectError", said).with("name", &name);
                fault.values.push(("nodes", Value::Texts(nodes)));
                fault
            }
            ConnectError::Disowned(why) => why.into(),
            _ => Self::new("ConnectError", said),
        }
    }
}

impl From<MessageError> for Fault {
    fn from(why: MessageError) -> Self {
        match why {
            MessageError::Allocate(why) => why.into(),
            MessageError::Header { len, limit } => Self::new("MessageError", why)
                .with("len", len)
                .with("limit", limit),
            MessageError::Extents { limit } | MessageError::Rights { limit } => {
                Self::new("MessageError", why).with("limit", limit)
            }
            other => Self::new("MessageError", other),
        }
    }
}

impl From<SendError> for Fault {
    fn from(why: SendError) -> Self {
        let said = why.to_string();
        match why {
            SendError::Full { slots } => Self::new("Full", said).with("slots", slots),
            SendError::DeadName => Self::new("DeadName", said),
            SendError::Unreachable { node, .. } => {
                Self::new("Unreachable", said).with("node", &node)
            }
            SendError::Allocate(why) => why.into(),
            SendError::Connect(why) => why.into(),
            SendError::Disowned(why) => why.into(),
            SendError::NoDescriptor(why) => why.into(),
            _ => Self::new("SendError", said),
        }
    }
}

impl From<ReceiveError> for Fault {
    fn from(why: ReceiveError) -> Self {
        match why {
            ReceiveError::TimedOut => Self::new("TimedOut", why),
            ReceiveError::Closed => Self::new("Closed", why),
            ReceiveError::Disowned(why) => why.into(),
            ReceiveError::NoDescriptor(why) => why.into(),
            other => Self::new("ReceiveError", other),
        }
    }
}

impl From<RequestError> for Fault {
    fn from(why: RequestError) -> Self {
        let said = why.to_string();
        match why {
            RequestError::Unsent(refused) => refused.why.into(),
            RequestError::NoReplyPort(why, _) => (*why).into(),
            RequestError::TimedOut => Self::new("TimedOut", said),
            RequestError::Dropped => Self::new("Dropped", said),
            RequestError::ServerDead => Self::new("ServerDead", said),
            RequestError::NodeLost { node } => Self::new("NodeLost", said).with("node", &node),
            RequestError::Disowned(why) => why.into(),
            RequestError::NoDescriptor(why) => why.into(),
            _ => Self::new("RequestError", said),
        }
    }
}

impl From<WaitSetError> for Fault {
    fn from(why: WaitSetError) -> Self {
        match why {
            WaitSetError::NoDescriptor(why) => why.into(),
            WaitSetError::Disowned(why) => why.into(),
            other => Self::new("WaitSetError", other),
        }
    }
}

impl From<TopicError> for Fault {
    fn from(why: TopicError) -> Self {
        match why {
            TopicError::WaitSet(why) => why.into(),
            TopicError::OtherType { .. } => Self::new("OtherType", why),
            other => Self::new("TopicError", other),
        }
    }
}

impl From<PublishError> for Fault {
    fn from(why: PublishError) -> Self {
        match why {
            PublishError::NoMemory(why) => why.into(),
            other => Self::new("PublishError", other),
        }
    }
}

impl From<SubscribeError> for Fault {
    fn from(why: SubscribeError) -> Self {
        match why {
            SubscribeError::TimedOut => Self::new("TimedOut", why),
            SubscribeError::WaitSet(why) => why.into(),
            SubscribeError::Disowned(why) => why.into(),
            SubscribeError::Topic(why) => why.into(),
            other => Self::new("SubscribeError", other),
        }
    }
}

impl From<ChannelError> for Fault {
    fn from(why: ChannelError) -> Self {
        let said = why.to_string();
        match why {
            ChannelError::Bind(why) => why.into(),
            ChannelError::Connect(why) => why.into(),
            ChannelError::Disowned(why) => why.into(),
            ChannelError::Written { space } => {
                Self::new("ChannelError", said).with("space", u64::from(space))
            }
            ChannelError::NoEntry { entries } => {
                Self::new("ChannelError", said).with("entries", entries)
            }
            _ => Self::new("ChannelError", said),
        }
    }
}

impl From<WriteError> for Fault {
    fn from(why: WriteError) -> Self {
        match why {
            WriteError::Full { room, wanted } => Self::new("Full", why)
                .with("room", room)
                .with("wanted", wanted),
            WriteError::TooLong { len, most } => Self::new("WriteError", why)
                .with("len", len)
                .with("most", most),
            WriteError::Disowned(why) => why.into(),
            WriteError::NoDescriptor(why) => why.into(),
            other => Self::new("WriteError", other),
        }
    }
}

impl From<ReadError> for Fault {
    fn from(why: ReadError) -> Self {
        match why {
            ReadError::TimedOut => Self::new("TimedOut", why),
            ReadError::Missed(missed) => Self::new("Missed", why)
                .with("start", missed.from)
                .with("stop", missed.to),
            ReadError::Dropped => Self::new("Lagged", why),
            ReadError::WriterGone => Self::new("WriterGone", why),
            ReadError::Disowned(why) => why.into(),
            ReadError::NoDescriptor(why) => why.into(),
            other => Self::new("ReadError", other),
        }
    }
}

impl From<SignalError> for Fault {
    fn from(why: SignalError) -> Self {
        match why {
            SignalError::NotShared { address, .. } => {
                Self::new("SignalError", why).with("address", address)
            }
            SignalError::Disowned(why) => why.into(),
            other => Self::new("SignalError", other),
        }
    }
}

impl From<ExportError> for Fault {
    fn from(why: ExportError) -> Self {
        Self::new("ExportError", why)
    }
}

impl From<ImportError> for Fault {
    fn from(why: ImportError) -> Self {
        match why {
            ImportError::Disowned(why) => why.into(),
            other => Self::new("NotImported", other),
        }
    }
}

impl From<UpdateError> for Fault {
    fn from(why: UpdateError) -> Self {
        match why {
            UpdateError::Revoked => Self::new("Revoked", why),
            UpdateError::ExporterDied => Self::new("ExporterDied", why),
            other => Self::new("UpdateError", other),
        }
    }
}

impl From<NotificationError> for Fault {
    fn from(why: NotificationError) -> Self {
        match why {
            NotificationError::TimedOut => Self::new("TimedOut", why),
            NotificationError::Ended => Self::new("Revoked", why),
            NotificationError::Disowned(why) => why.into(),
            other => Self::new("NotificationError", other),
        }
    }
}

impl From<MappingError> for Fault {
    fn from(why: MappingError) -> Self {
        match why {
            MappingError::Update(why) => why.into(),
            other => Self::new("UpdateError", other),
        }
    }
}

impl From<OfferError> for Fault {
    fn from(why: OfferError) -> Self {
        match why {
            OfferError::Disowned(why) => why.into(),
            OfferError::NoDescriptor(why) => why.into(),
            other => Self::new("OfferError", other),
        }
    }
}

impl From<ConnectToError> for Fault {
    fn from(why: ConnectToError) -> Self {
        match why {
            ConnectToError::Bind(why) => why.into(),
            ConnectToError::NoDescriptor(why) => why.into(),
            other => Self::new("ConnectError", other),
        }
    }
}
