//! What a wait set waits for, and how each of them is armed.

use crate::channel::{FrameReader, ParcelReader, Reader, Subscribes};
use crate::space::Member;
use crate::vmmc::Notifications;
use crate::{Listener, ReceiveRight};
use portolan_shm::atomic::Ordering;
use std::sync::Arc;

/// Room for one port, one reader of a channel, one subscriber, one listener, or one export's
/// notifications.
#[derive(Default)]
pub(super) struct Place {
    /// Goes up when a port leaves, so that its token names nothing.
    pub(super) generation: u32,
    pub(super) guest: Option<Guest>,
    pub(super) armed: bool,
}

/// What is waited for.
pub(super) enum Guest {
    Port(ReceiveRight),
    Reader(Reader),
    Parcels(Box<ParcelReader>),
    Frames(FrameReader),
    Subscriber(Box<dyn Subscribes>),
    Listener(Listener),
    Notifications(Notifications),
}

impl Guest {
    fn may_have(&mut self) -> bool {
        match self {
            Self::Port(port) => port.may_have(),
            Self::Reader(reader) => reader.may_have(),
            Self::Parcels(reader) => reader.may_have(),
            Self::Frames(reader) => reader.may_have(),
            Self::Subscriber(subscriber) => subscriber.set().may_have(),
            Self::Listener(listener) => listener.may_have(),
            Self::Notifications(notifications) => notifications.may_have(),
        }
    }

    /// Arms it, also if it is armed; `false` if something is there.
    fn arm(&mut self, link: u64) -> bool {
        match self {
            Self::Port(port) => {
                port.disarm();
                port.settle();
                // W2. SeqCst: pairs with the look at the link in `wake`.
                let sleep = &port.at().queue().port.sleep;
                sleep.wait_set.store(link, Ordering::SeqCst);
                port.arm()
            }
            Self::Reader(reader) => reader.arm_for(link),
            Self::Parcels(reader) => reader.arm_for(link),
            Self::Frames(reader) => reader.arm_for(link),
            Self::Subscriber(subscriber) => subscriber.set().arm_for(link),
            Self::Listener(listener) => listener.arm_for(link),
            Self::Notifications(notifications) => notifications.arm_for(link),
        }
    }

    fn disarm(&mut self) {
        match self {
            Self::Port(port) => {
                port.disarm();
                // W2. SeqCst: as above, and before the port's receiver reads its doorbell.
                let sleep = &port.at().queue().port.sleep;
                sleep.wait_set.store(0, Ordering::SeqCst);
            }
            Self::Reader(reader) => {
                reader.arm_for(0);
            }
            Self::Parcels(reader) => {
                reader.arm_for(0);
            }
            Self::Frames(reader) => {
                reader.arm_for(0);
            }
            Self::Subscriber(subscriber) => {
                subscriber.set().arm_for(0);
            }
            Self::Listener(listener) => {
                listener.arm_for(0);
            }
            Self::Notifications(notifications) => {
                notifications.arm_for(0);
            }
        }
    }

    fn member(&self) -> &Arc<Member> {
        match self {
            Self::Port(port) => &port.at().member,
            Self::Reader(reader) => reader.member(),
            Self::Parcels(reader) => reader.member(),
            Self::Frames(reader) => reader.member(),
            Self::Subscriber(subscriber) => subscriber.member(),
            Self::Listener(listener) => listener.member(),
            Self::Notifications(notifications) => notifications.member(),
        }
    }
}

impl Place {
    pub(super) fn may_have(&mut self) -> bool {
        self.guest.as_mut().is_some_and(Guest::may_have)
    }

    /// Arms the guest, also if it is armed; `false` if something is there, and it is loose.
    pub(super) fn arm(&mut self, link: u64) -> bool {
        let Some(guest) = &mut self.guest else {
            return true;
        };
        self.armed = true;
        if guest.arm(link) {
            return true;
        }
        self.loosen();
        false
    }

    /// Disarms the guest; `false` if it was not armed.
    pub(super) fn loosen(&mut self) -> bool {
        let was = std::mem::take(&mut self.armed);
        if let Some(guest) = self
            .guest
            .as_mut()
            .filter(|g| was && g.member().present().is_ok())
        {
            guest.disarm();
        }
        was
    }
}

/// What a port's entry says about its wait set.
pub(super) fn link(set: u32, place: u32) -> u64 {
    u64::from(set + 1) | u64::from(place) << 32
}
