//! All descriptors of a node but those of its links and domains, as one.
//!
//! They are ready rarely, and a node sleeps for each message: so that sleep is told of one descriptor,
//! and not of all of them. A turn that has only carried messages has opened and closed none.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};

use portolan_sys::process::On;
use portolan_sys::stream::{Interest, Readiness};

use crate::engine::Engine;

#[derive(Debug)]
pub(super) struct Others {
    ready: Readiness,
    /// Another number each time, because a key stands for one descriptor.
    number: u64,
    /// They may be others by now.
    stale: bool,
}

impl Others {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            ready: Readiness::new()?,
            number: 0,
            stale: true,
        })
    }

    /// Something was done that may have opened or closed some.
    pub(super) fn may_differ(&mut self) {
        self.stale = true;
    }

    /// Watches these, if they may be others than before.
    pub(super) fn watch<'a>(
        &mut self,
        fds: impl FnOnce() -> Vec<BorrowedFd<'a>>,
    ) -> io::Result<()> {
        if !self.stale {
            return Ok(());
        }
        // A new one: of those that are open elsewhere by now the old one would tell still.
        let ready = Readiness::new()?;
        let receive = Interest {
            receive: true,
            send: false,
        };
        for fd in fds() {
            ready.watch(fd, receive)?;
        }
        self.ready = ready;
        self.number += 1;
        self.stale = false;
        Ok(())
    }

    pub(super) fn key(&self) -> u64 {
        Engine::OTHERS | self.number
    }

    pub(super) fn on(&self) -> (u64, On<'_>) {
        (self.key(), On::Descriptor(self.ready.as_fd()))
    }
}
