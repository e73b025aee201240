//! The kinds of handles, and how many there may be of each in a process.

use crate::handles::{Handle, Slot, Table, no_slots};
use crate::loan::Publishing;
use crate::wait_set::{Seat, Waiting};
use portolan::reconnect::{ReconnectingSender, ReconnectingSubscriber};
use std::sync::atomic::AtomicU64;

/// A membership in a domain. It ends when its last handle of any kind is freed.
///
/// Threads: any number of threads at once.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct portolan_domain {
    /// 0 for none. Nothing else is to be read from it.
    pub id: u64,
}

/// Exclusive use of a run of pages, at the same address in every member of the domain.
///
/// Threads: one thread at a time, any; a call beside another one is `PORTOLAN_BUSY`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct portolan_extent {
    /// 0 for none. Nothing else is to be read from it.
    pub id: u64,
}

/// A header, extents and rights, to be sent or received.
///
/// Threads: one thread at a time, any; a call beside another one is `PORTOLAN_BUSY`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct portolan_message {
    /// 0 for none. Nothing else is to be read from it.
    pub id: u64,
}

/// The right to receive from a port. Freed, it closes the port.
///
/// Threads: one thread at a time, any; a call beside another one is `PORTOLAN_BUSY`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct portolan_receive_right {
    /// 0 for none. Nothing else is to be read from it.
    pub id: u64,
}

/// The right to send any number of messages to a port.
///
/// Threads: any number of threads at once.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct portolan_send_right {
    /// 0 for none. Nothing else is to be read from it.
    pub id: u64,
}

/// The right to send one message, most often the answer to a request. Freed unused, it tells
/// the client that no answer will come.
///
/// Threads: one thread at a time, any; a call beside another one is `PORTOLAN_BUSY`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct portolan_send_once_right {
    /// 0 for none. Nothing else is to be read from it.
    pub id: u64,
}

/// A request on its way, whose answer is waited for. Freed, it is abandoned.
///
/// Threads: one thread at a time, any; a call beside another one is `PORTOLAN_BUSY`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct portolan_pending_reply {
    /// 0 for none. Nothing else is to be read from it.
    pub id: u64,
}

/// Memory that members share: all of them write and read it where it lies.
///
/// Threads: any number of threads at once.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct portolan_segment {
    /// 0 for none. Nothing else is to be read from it.
    pub id: u64,
}

/// Memory that was filled once, and that no program writes any more.
///
/// Threads: any number of threads at once.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct portolan_shared_extent {
    /// 0 for none. Nothing else is to be read from it.
    pub id: u64,
}

/// The right to a channel: to write to it, to read it, to pass it on.
///
/// Threads: any number of threads at once.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct portolan_channel {
    /// 0 for none. Nothing else is to be read from it.
    pub id: u64,
}

/// The writer of a channel.
///
/// Threads: one thread at a time, any; a call beside another one is `PORTOLAN_BUSY`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct portolan_writer {
    /// 0 for none. Nothing else is to be read from it.
    pub id: u64,
}

/// A reader of a channel, at its own pace.
///
/// Threads: one thread at a time, any; a call beside another one is `PORTOLAN_BUSY`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct portolan_reader {
    /// 0 for none. Nothing else is to be read from it.
    pub id: u64,
}

/// A publisher of a topic.
///
/// Threads: one thread at a time, any; a call beside another one is `PORTOLAN_BUSY`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct portolan_publisher {
    /// 0 for none. Nothing else is to be read from it.
    pub id: u64,
}

/// A subscriber of a topic.
///
/// Threads: one thread at a time, any; a call beside another one is `PORTOLAN_BUSY`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct portolan_subscriber {
    /// 0 for none. Nothing else is to be read from it.
    pub id: u64,
}

/// One published value. A long one lies where its publisher filled it, until its last sample is
/// freed.
///
/// Threads: any number of threads at once.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct portolan_sample {
    /// 0 for none. Nothing else is to be read from it.
    pub id: u64,
}

/// The one thread that handles signals, with its handlers.
///
/// Threads: one thread at a time, any; a call beside another one is `PORTOLAN_BUSY`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct portolan_listener {
    /// 0 for none. Nothing else is to be read from it.
    pub id: u64,
}

/// Memory of this process that can be exported.
///
/// Threads: any number of threads at once.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct portolan_export_memory {
    /// 0 for none. Nothing else is to be read from it.
    pub id: u64,
}

/// An export of memory. Freed, it ends as by `portolan_export_unexport`.
///
/// Threads: any number of threads at once.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct portolan_export {
    /// 0 for none. Nothing else is to be read from it.
    pub id: u64,
}

/// An import of another process's memory.
///
/// Threads: any number of threads at once.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct portolan_import {
    /// 0 for none. Nothing else is to be read from it.
    pub id: u64,
}

/// What the importers of one export say that they have written.
///
/// Threads: one thread at a time, any; a call beside another one is `PORTOLAN_BUSY`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct portolan_notifications {
    /// 0 for none. Nothing else is to be read from it.
    pub id: u64,
}

/// Waits for any number of things at once.
///
/// Threads: one thread at a time, any; a call beside another one is `PORTOLAN_BUSY`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct portolan_wait_set {
    /// 0 for none. Nothing else is to be read from it.
    pub id: u64,
}

/// A handler of a listener.
///
/// Threads: one thread at a time, any; a call beside another one is `PORTOLAN_BUSY`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct portolan_handler {
    /// 0 for none. Nothing else is to be read from it.
    pub id: u64,
}

/// Sends to the port that has a name, whichever process has bound it.
///
/// Threads: one thread at a time, any; a call beside another one is `PORTOLAN_BUSY`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct portolan_reconnecting_sender {
    /// 0 for none. Nothing else is to be read from it.
    pub id: u64,
}

/// A subscriber of a topic that is told of each publisher that left or died.
///
/// Threads: one thread at a time, any; a call beside another one is `PORTOLAN_BUSY`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct portolan_reconnecting_subscriber {
    /// 0 for none. Nothing else is to be read from it.
    pub id: u64,
}

/// A descriptor, a timer or a Unix signal that signals an address. Freed, it does not any more.
///
/// Threads: any number of threads at once.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct portolan_source {
    /// 0 for none. Nothing else is to be read from it.
    pub id: u64,
}

/// Stores to memory of this process that reach an import too, one after another.
///
/// Threads: one thread at a time, any; a call beside another one is `PORTOLAN_BUSY`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct portolan_log {
    /// 0 for none. Nothing else is to be read from it.
    pub id: u64,
}

/// A port that other domains can connect to. Freed, it is offered no more.
///
/// Threads: any number of threads at once.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct portolan_offered_port {
    /// 0 for none. Nothing else is to be read from it.
    pub id: u64,
}

/// Gives each kind its number and its table, of two to the power of its last number slots but one.
macro_rules! kinds {
    ($($number:literal $handle:ident, $name:literal: $value:ty, $bits:literal;)*) => {$(
        impl Handle for $handle {
            type Value = $value;

            const KIND: u8 = $number;
            const NAME: &'static str = $name;
            const BITS: u32 = $bits;

            #[inline(always)]
            fn table() -> &'static Table<$value> {
                static NONE: [AtomicU64; Slot::<$value>::WORDS] = no_slots($handle::ONE);
                static TABLE: Table<$value> = Table::new(&NONE);
                &TABLE
            }

            #[inline(always)]
            fn id(self) -> u64 {
                self.id
            }

            #[inline(always)]
            fn of(id: u64) -> Self {
                Self { id }
            }
        }
    )*};
}

kinds! {
    1 portolan_domain, "domain": portolan::Domain, 10;
    2 portolan_extent, "extent": portolan::Extent, 16;
    3 portolan_message, "message": portolan::Message, 16;
    4 portolan_receive_right, "receive right": Seat<portolan::ReceiveRight>, 15;
    5 portolan_send_right, "send right": portolan::SendRight, 16;
    6 portolan_send_once_right, "send once right": portolan::SendOnceRight, 16;
    7 portolan_pending_reply, "pending reply": Seat<portolan::PendingReply>, 16;
    8 portolan_segment, "segment": portolan::Segment, 14;
    9 portolan_shared_extent, "shared extent": portolan::SharedExtent, 16;
    10 portolan_channel, "channel": portolan::channel::Channel, 14;
    11 portolan_writer, "writer": portolan::channel::Writer, 14;
    12 portolan_reader, "reader": Seat<portolan::channel::Reader>, 14;
    13 portolan_publisher, "publisher": Publishing, 12;
    14 portolan_subscriber, "subscriber": Seat<portolan::channel::Subscriber<[u8]>>, 12;
    15 portolan_sample, "sample": portolan::channel::Sample<[u8]>, 16;
    16 portolan_listener, "listener": Seat<portolan::Listener>, 10;
    17 portolan_export_memory, "export memory": portolan::vmmc::ExportMemory, 12;
    18 portolan_export, "export": portolan::vmmc::Export, 12;
    19 portolan_import, "import": portolan::vmmc::Import, 14;
    20 portolan_notifications, "notifications": Seat<portolan::vmmc::Notifications>, 12;
    21 portolan_wait_set, "wait set": Waiting, 10;
    22 portolan_handler, "handler": (portolan_listener, portolan::HandlerId), 15;
    23 portolan_reconnecting_sender, "reconnecting sender": Seat<ReconnectingSender>, 12;
    24 portolan_reconnecting_subscriber, "reconnecting subscriber": Seat<ReconnectingSubscriber<[u8]>>, 12;
    25 portolan_source, "source": portolan::Source, 12;
    26 portolan_log, "log": portolan::vmmc::Log, 12;
    27 portolan_offered_port, "offered port": portolan::OfferedPort, 10;
}
