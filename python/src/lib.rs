//! The native part of the Python package `portolan`: what Python sees of the library.
//!
//! | file | what it has |
//! |---|---|
//! | `error` | errors of the library become exceptions of `portolan.errors` |
//! | `wait` | timeouts, waits that release the interpreter's lock, handles that one thread uses at a time |
//! | `watched` | what can be awaited, with its descriptor |
//! | `closing` | `close` and `with` blocks of all classes |
//! | `description` | element type and shape of arrays, in a message |
//! | `data` | bytes that Python gives |
//! | `buffer` | memory that Python sees through the buffer protocol |
//! | `array` | `Array` |
//! | `domain` | `Domain` |
//! | `message` | `Message`, and what is sent |
//! | `port` | `ReceiveRight` |
//! | `bridge` | `OfferedPort`, connections to ports of other domains |
//! | `rights` | `SendRight`, `SendOnceRight`, `OtherRight` |
//! | `request` | `PendingReply`, `Request` |
//! | `reconnect` | `ReconnectingSender`, `ReconnectingSubscriber` |
//! | `segment` | `Segment` |
//! | `channel` | `Channel`, `Writer`, `Reader` and what it `Received` |
//! | `signal` | `Listener`, `HandlerId` |
//! | `export` | `ExportMemory`, `Export`, `Notifications`, `Import`, `Log` |
//! | `topic` | `Publisher`, `Subscriber`, `Sample` |
//! | `broker` | the thread that hands out what was put into a queue |
//!
//! What needs no native code is Python, in `python/portolan/`.

#![deny(unsafe_code)]

mod array;
mod bridge;
mod broker;
mod buffer;
mod channel;
mod closing;
mod data;
mod description;
mod domain;
mod error;
mod export;
mod message;
mod port;
mod reconnect;
mod request;
mod rights;
mod segment;
mod signal;
mod topic;
mod wait;
mod watched;

/// The native module.
#[pyo3::pymodule]
mod _portolan {
    #[pymodule_export]
    use crate::array::Array;
    #[pymodule_export]
    use crate::bridge::OfferedPort;
    #[pymodule_export]
    use crate::broker::Broker;
    #[pymodule_export]
    use crate::channel::{Channel, Reader, Received, Writer};
    #[pymodule_export]
    use crate::domain::Domain;
    #[pymodule_export]
    use crate::export::{Export, ExportMemory, Import, Log, Notification, Notifications};
    #[pymodule_export]
    use crate::message::Message;
    #[pymodule_export]
    use crate::port::ReceiveRight;
    #[pymodule_export]
    use crate::reconnect::{ReconnectingSender, ReconnectingSubscriber};
    #[pymodule_export]
    use crate::request::{PendingReply, Request};
    #[pymodule_export]
    use crate::rights::{OtherRight, Room, SendOnceRight, SendRight};
    #[pymodule_export]
    use crate::segment::Segment;
    #[pymodule_export]
    use crate::signal::{HandlerId, Listener};
    #[pymodule_export]
    use crate::topic::{Publisher, Sample, Subscriber};
}
