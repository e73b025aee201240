//! Starts the processes of one chain together, asks them again and again, and ends them together.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use portolan_measure::child::{Child, Control};
use portolan_measure::cpus::{self, Cpus};
use portolan_measure::run::Run;
use portolan_measure::sampler::Sampler;
use portolan_measure::{MeasureError, Result as Measured};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};
use serde::{Deserialize, Serialize};

use super::links::{Ask, Copied, End, Hint, Owned, Served};
use crate::error::{LabError, Result};
use crate::huge;

/// Blocks of the served file.
const BLOCKS: u32 = 8;
/// Rounds before anything is timed.
const WARM: u32 = 2;
/// A larger pipe and socket buffer, for the baselines at their best; what an unprivileged
/// process may set.
const BUFFER: usize = 1 << 20;

/// What carries the blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Carrier {
    /// Extents, in a domain that is guarded or not.
    Extents { guarded: bool, hint: Hint },
    /// Two pipes a link.
    Pipes,
    /// A Unix stream socket a link.
    Sockets,
}

/// What a forwarder or a file server is to do. Its descriptors: the file, if it is the
/// server; then the ends of its link up and of its link down.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Brief {
    carrier: Carrier,
    bytes: usize,
    seat: u32,
    seats: u32,
    domain: String,
    cpu: usize,
}

/// Child to coordinator: all links are there.
#[derive(Debug, Serialize, Deserialize)]
struct Ready {}

/// The client's end of a chain, with the others' processes.
pub(super) struct Chain {
    client: Client,
    others: Vec<Child>,
    asked: u32,
    /// Whether its blocks lie on huge pages, where they are as large as one.
    pub(super) huge: Option<bool>,
}

enum Client {
    Owned(Box<Owned>),
    Copied(Copied),
}

impl Chain {
    /// A chain with so many forwarders, all on one processor, over blocks of `bytes`; on huge pages
    /// if the kernel can be had to give some.
    pub(super) fn start(
        carrier: Carrier,
        forwarders: u32,
        bytes: usize,
        cpus: &Cpus,
    ) -> Result<Self> {
        let mut left = huge::ATTEMPTS;
        loop {
            let chain = Self::start_once(carrier, forwarders, bytes, cpus)?;
            left -= 1;
            if left == 0 || chain.huge != Some(false) {
                return Ok(chain);
            }
            Box::new(chain).finish()?;
            std::thread::sleep(huge::REST);
        }
    }

    fn start_once(carrier: Carrier, forwarders: u32, bytes: usize, cpus: &Cpus) -> Result<Self> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        // Relaxed: only to tell them apart.
        let made = MADE.fetch_add(1, Ordering::Relaxed);
        let domain = format!("lab-chain-{}-{made}", std::process::id());
        let file = file(bytes)?;
        let owned = match carrier {
            Carrier::Extents { guarded, hint } => Some(Owned::join(&domain, guarded, hint, 0)?),
            Carrier::Pipes | Carrier::Sockets => None,
        };
        let seats = forwarders + 2;
        let mut others = Vec::new();
        let (mut up, client_down) = link(carrier)?.unzip();
        for seat in 1..seats {
            let server = seat + 1 == seats;
            let (next_up, down) = if server {
                (None, None)
            } else {
                link(carrier)?.unzip()
            };
            let ends = up.iter().chain(&down).flatten().map(OwnedFd::as_fd);
            let descriptors: Vec<BorrowedFd<'_>> = server
                .then(|| file.as_fd())
                .into_iter()
                .chain(ends)
                .collect();
            let brief = crate::child::Brief::Chain(Brief {
                carrier,
                bytes,
                seat,
                seats,
                domain: domain.clone(),
                cpu: cpus.ours,
            });
            let role = if server { "file server" } else { "forwarder" };
            others.push(Child::start(role, &brief, &descriptors)?);
            // Our copies go, so that a dead process ends its neighbours' streams.
            up = next_up;
        }
        let client = match owned {
            Some(mut owned) => {
                owned.meet(1)?;
                Client::Owned(Box::new(owned))
            }
            None => Client::Copied(Copied::new(None, client_down.map(end), bytes)),
        };
        for other in &mut others {
            let Ready {} = other.expect()?;
            other.watch()?;
        }
        let mut chain = Self {
            client,
            others,
            asked: 0,
            huge: None,
        };
        // The first rounds map what was never touched.
        for _ in 0..WARM {
            chain.ask(false)?;
        }
        if bytes >= huge::PAGE {
            chain.huge = chain.pages()?;
        }
        Ok(chain)
    }

    /// Whether all blocks lie on huge pages; none where there are no pages of ours, or the system does
    /// not tell.
    fn pages(&mut self) -> Result<Option<bool>> {
        let Client::Owned(client) = &mut self.client else {
            return Ok(None);
        };
        let found = (0..BLOCKS).map(|block| client.ask_for_page(Ask { block, last: false }));
        Ok(huge::all(found.collect::<Result<Vec<_>>>()?.into_iter()))
    }

    fn ask(&mut self, last: bool) -> Result<()> {
        let ask = Ask {
            block: self.asked % BLOCKS,
            last,
        };
        self.asked = self.asked.wrapping_add(1);
        match &mut self.client {
            Client::Owned(client) => client.ask(ask),
            Client::Copied(client) => client.ask(ask),
        }
    }

    fn timed(&mut self) -> Measured<Duration> {
        let start = Instant::now();
        self.ask(false).map_err(LabError::into_measure)?;
        Ok(start.elapsed())
    }
}

impl Run for Chain {
    fn rounds(&mut self, rounds: u64) -> Measured<()> {
        for _ in 0..rounds {
            self.timed()?;
        }
        Ok(())
    }

    fn slice(&mut self, budget: Duration, sampler: &mut Sampler) -> Measured<()> {
        let start = Instant::now();
        loop {
            let took = self.timed()?;
            sampler.typical(took, 1);
            sampler.tail(took, 1);
            if start.elapsed() >= budget {
                return Ok(());
            }
        }
    }

    fn finish(mut self: Box<Self>) -> Measured<()> {
        self.ask(true).map_err(LabError::into_measure)?;
        self.others.into_iter().try_for_each(Child::dismiss)
    }
}

/// The whole life of a forwarder or a file server.
pub(crate) fn serve(brief: &Brief, control: &Control, descriptors: Vec<OwnedFd>) -> Result<()> {
    cpus::pin(brief.cpu)?;
    let mut descriptors = descriptors.into_iter();
    let server = brief.seat + 1 == brief.seats;
    let file = if server {
        let file = descriptors.next().ok_or(MeasureError::NoCoordinator)?;
        Some(File::from(file))
    } else {
        None
    };
    let served = file.as_ref().map(|file| Served {
        file,
        blocks: BLOCKS,
        bytes: brief.bytes,
    });
    match brief.carrier {
        Carrier::Extents { guarded, hint } => {
            let mut own = Owned::join(&brief.domain, guarded, hint, brief.seat)?;
            if !server {
                own.meet(brief.seat + 1)?;
            }
            control.send(&Ready {})?;
            match &served {
                Some(served) => while !own.serve(served)? {},
                None => while !own.forward()? {},
            }
            // The last answer may be on its way through us still: we leave when told.
            let _: Option<Ready> = control.receive()?;
        }
        Carrier::Pipes | Carrier::Sockets => {
            let mut next = || {
                let (read, write) = (descriptors.next()?, descriptors.next()?);
                Some(End::new(read, write))
            };
            let (up, down) = (next(), next());
            let mut own = Copied::new(up, down, brief.bytes);
            control.send(&Ready {})?;
            match &served {
                Some(served) => while !own.serve(served)? {},
                None => while !own.forward()? {},
            }
            let _: Option<Ready> = control.receive()?;
        }
    }
    Ok(())
}

type Pair = [OwnedFd; 2];

fn end([read, write]: Pair) -> End {
    End::new(read, write)
}

/// The two ends of a link: of who is asked, and of who asks. None for a carrier whose
/// processes find each other by name.
fn link(carrier: Carrier) -> Measured<Option<(Pair, Pair)>> {
    match carrier {
        Carrier::Extents { .. } => Ok(None),
        Carrier::Pipes => {
            let pipe = || {
                let doing = "making a pipe";
                let (read, write) =
                    pipe_with(PipeFlags::CLOEXEC).map_err(MeasureError::system(doing))?;
                // A user's quota may refuse; the default size works as well.
                let _ = fcntl_setpipe_size(&write, BUFFER);
                Ok::<_, MeasureError>((read, write))
            };
            let ((ask_read, ask_write), (block_read, block_write)) = (pipe()?, pipe()?);
            Ok(Some(([ask_read, block_write], [block_read, ask_write])))
        }
        Carrier::Sockets => {
            let doing = "making a pair of Unix sockets";
            let (up, down) = socketpair(
                AddressFamily::UNIX,
                SocketType::STREAM,
                SocketFlags::CLOEXEC,
                None,
            )
            .map_err(MeasureError::system(doing))?;
            let both = |socket: OwnedFd| -> io::Result<Pair> {
                rustix::net::sockopt::set_socket_send_buffer_size(&socket, BUFFER)?;
                Ok([socket.try_clone()?, socket])
            };
            Ok(Some((
                both(up).map_err(MeasureError::system(doing))?,
                both(down).map_err(MeasureError::system(doing))?,
            )))
        }
    }
}

/// The file to be served, all of it in memory.
fn file(bytes: usize) -> Measured<File> {
    let doing = "making a file to serve";
    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    let file = rustix::fs::memfd_create("lab-chain", flags).map_err(MeasureError::system(doing))?;
    let file = File::from(file);
    let block = vec![1; bytes];
    for _ in 0..BLOCKS {
        io::Write::write_all(&mut &file, &block).map_err(MeasureError::system(doing))?;
    }
    Ok(file)
}
