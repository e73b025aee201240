//! Measures a System V message queue each way.

use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;

use portolan_instruments::sysv::{Letter, Queue};

use super::Endpoint;
use super::memory::Spin;
use super::stream::exactly;
use crate::case::{Case, Mode, Payload};
use crate::error::{MeasureError, Result};
use crate::payload;

#[derive(Debug)]
pub(crate) struct SystemV {
    out: Queue,
    back: Queue,
    letter: Letter,
    polls: bool,
    touched: bool,
    count: u64,
    spin: Spin,
}

impl SystemV {
    fn new(case: &Case, out: Queue, back: Queue) -> Self {
        let bytes = usize::try_from(case.bytes).expect("64-bit only");
        Self {
            out,
            back,
            letter: Letter::new(bytes),
            polls: case.mode == Mode::Poll,
            touched: case.payload == Payload::Touched,
            count: 0,
            spin: Spin::new(case),
        }
    }
}

/// What a queue has instead of a descriptor travels through a pipe.
fn share(queues: [&Queue; 2]) -> io::Result<OwnedFd> {
    let (read, mut write) = io::pipe()?;
    for queue in queues {
        write.write_all(&queue.id().to_ne_bytes())?;
    }
    Ok(read.into())
}

fn shared(descriptor: OwnedFd) -> io::Result<[Queue; 2]> {
    let mut pipe = io::PipeReader::from(descriptor);
    let mut next = || {
        let mut bytes = [0; 4];
        pipe.read_exact(&mut bytes)?;
        Ok::<_, io::Error>(Queue::open(i32::from_ne_bytes(bytes)))
    };
    Ok([next()?, next()?])
}

impl Endpoint for SystemV {
    fn create(case: &Case) -> Result<(Self, Vec<OwnedFd>)> {
        let system = |result| MeasureError::system("making a System V message queue")(result);
        let out = Queue::create().map_err(system)?;
        let back = Queue::create().map_err(system)?;
        let descriptor = share([&out, &back]).map_err(system)?;
        Ok((Self::new(case, out, back), vec![descriptor]))
    }

    fn attach(case: &Case, _seat: u32, descriptors: Vec<OwnedFd>) -> Result<Self> {
        let [descriptor] = exactly(descriptors)?;
        let queues = shared(descriptor);
        let [back, out] =
            queues.map_err(MeasureError::system("finding a System V message queue"))?;
        Ok(Self::new(case, out, back))
    }

    #[inline(always)]
    fn send(&mut self) -> Result<()> {
        self.count += 1;
        if self.touched {
            payload::write(self.letter.text_mut(), self.count);
        }
        let (queue, letter) = (&self.out, &self.letter);
        let sent = if self.polls {
            until(self.spin, || queue.try_send(letter))
        } else {
            queue.send(letter)
        };
        sent.map_err(MeasureError::system("sending a benchmark's message"))
    }

    #[inline(always)]
    fn receive(&mut self) -> Result<()> {
        let (queue, letter) = (&self.back, &mut self.letter);
        let received = if self.polls {
            until(self.spin, || queue.try_receive(letter))
        } else {
            queue.receive(letter)
        };
        received.map_err(MeasureError::system("receiving a benchmark's message"))?;
        if self.touched {
            payload::read(self.letter.text());
        }
        Ok(())
    }
}

/// Calls until it would not block.
#[inline(always)]
fn until<T>(spin: Spin, mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let mut outcome = Err(io::ErrorKind::WouldBlock.into());
    spin.until(|| {
        outcome = call();
        !matches!(&outcome, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    });
    outcome
}
