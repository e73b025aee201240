//! Measures a POSIX message queue each way.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use portolan_instruments::mqueue::Queue;
use rustix::io::Errno;

use super::Endpoint;
use super::stream::{Transfer, exactly};
use crate::case::{Case, Mode};
use crate::error::{MeasureError, Result};

/// What an unprivileged process may ask for (`/proc/sys/fs/mqueue/msg_max`).
const DEPTH: usize = 10;

#[derive(Debug)]
pub(crate) struct MessageQueue {
    out: Queue,
    back: Queue,
    polls: bool,
    transfer: Transfer,
}

impl MessageQueue {
    fn new(case: &Case, out: Queue, back: Queue) -> Self {
        Self {
            out,
            back,
            polls: case.mode == Mode::Poll,
            transfer: Transfer::new(case),
        }
    }
}

impl Endpoint for MessageQueue {
    fn create(case: &Case) -> Result<(Self, Vec<OwnedFd>)> {
        let doing = "making a POSIX message queue";
        let bytes = usize::try_from(case.bytes).expect("64-bit only");
        let mut queues = Vec::new();
        let mut descriptors = Vec::new();
        for _ in 0..2 {
            let mut queue = Queue::create(DEPTH, bytes).map_err(MeasureError::system(doing))?;
            // The descriptor is passed on; a name would outlive a killed benchmark.
            queue.unlink();
            descriptors.push(
                queue
                    .as_fd()
                    .try_clone_to_owned()
                    .map_err(MeasureError::system(doing))?,
            );
            queues.push(queue);
        }
        let [out, back] = queues.try_into().expect("made two");
        Ok((Self::new(case, out, back), descriptors))
    }

    fn attach(case: &Case, _seat: u32, descriptors: Vec<OwnedFd>) -> Result<Self> {
        let [back, out] = exactly(descriptors)?;
        Ok(Self::new(case, Queue::from_fd(out), Queue::from_fd(back)))
    }

    #[inline(always)]
    fn send(&mut self) -> Result<()> {
        let (queue, polls) = (&self.out, self.polls);
        self.transfer.send(|bytes| {
            let sent = if polls {
                queue.try_send(bytes)
            } else {
                queue.send(bytes)
            };
            sent.map(|()| bytes.len()).map_err(errno)
        })
    }

    #[inline(always)]
    fn receive(&mut self) -> Result<()> {
        let (queue, polls) = (&self.back, self.polls);
        self.transfer.receive(|bytes| {
            if polls {
                queue.try_receive(bytes)
            } else {
                queue.receive(bytes)
            }
            .map_err(errno)
        })
    }
}

fn errno(error: io::Error) -> Errno {
    if error.kind() == io::ErrorKind::WouldBlock {
        return Errno::AGAIN;
    }
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}
