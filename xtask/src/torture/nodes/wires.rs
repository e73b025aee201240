//! Wires: TCP forwarders between nodes, which can be cut, and held in one direction or both.
//!
//! ```text
//! node that dials --socket--> Wire --socket--> node that listens      a wire for each pair and dialer
//!                            cut, hold
//! ```
//!
//! A wire that is held reads nothing, so what its ends write stays in the sockets' buffers, and is
//! gone if the wire is cut then. What it carries is encrypted: it can delay and cut, and no more.

use rustix::net::sockopt::set_socket_linger;
use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long a node has to accept, which may be stopped: its backlog takes the connection.
const ANSWER: Duration = Duration::from_secs(1);
/// Bytes that are forwarded at once.
const BUFFER: usize = 32 * 1024;
/// Threads that only copy need little.
const STACK: usize = 128 * 1024;

/// A wire.
pub(super) struct Wire {
    /// The nodes that dial and listen.
    pub(super) ends: (usize, usize),
    /// Where the wire listens.
    pub(super) address: SocketAddr,
    target: SocketAddr,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    last: u64,
    open: Vec<(u64, [TcpStream; 2])>,
    /// From the dialer to the listener, and back.
    held: [bool; 2],
    refuses: bool,
    /// It cuts itself after so many bytes.
    fuse: Option<u64>,
    cuts: u64,
}

impl State {
    /// Ends all connections; whether there were some.
    fn cut(&mut self) {
        self.fuse = None;
        for (_, streams) in self.open.drain(..) {
            for stream in streams {
                // What is on its way is gone, and both ends hear so at once.
                let _ = set_socket_linger(&stream, Some(Duration::ZERO));
                let _ = stream.shutdown(Shutdown::Both);
            }
        }
    }
}

impl Wire {
    /// A wire from the node `dials` to the node `listens`, which is at `target`.
    pub(super) fn new(dials: usize, listens: usize, target: SocketAddr) -> io::Result<Arc<Self>> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let wire = Arc::new(Self {
            ends: (dials, listens),
            address: listener.local_addr()?,
            target,
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let accepts = Arc::clone(&wire);
        thread("wire", move || {
            // Both threads end with this process.
            for stream in listener.incoming().flatten() {
                let _ = accepts.connect(stream);
            }
        })?;
        Ok(wire)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn connect(self: &Arc<Self>, near: TcpStream) -> io::Result<()> {
        if self.state().refuses {
            return Ok(());
        }
        let far = TcpStream::connect_timeout(&self.target, ANSWER)?;
        near.set_nodelay(true)?;
        far.set_nodelay(true)?;
        let ways = [
            (near.try_clone()?, far.try_clone()?),
            (far.try_clone()?, near.try_clone()?),
        ];
        let id = {
            let mut state = self.state();
            if state.refuses {
                return Ok(());
            }
            state.last += 1;
            let id = state.last;
            state.open.push((id, [near, far]));
            id
        };
        for (way, (from, to)) in ways.into_iter().enumerate() {
            let wire = Arc::clone(self);
            thread("wire-way", move || {
                let _ = wire.forward(id, way, from, to);
                wire.ended(id);
            })?;
        }
        Ok(())
    }

    /// Forwards what comes in one direction until the connection ends.
    fn forward(
        &self,
        id: u64,
        way: usize,
        mut from: TcpStream,
        mut to: TcpStream,
    ) -> io::Result<()> {
        let mut buffer = vec![0; BUFFER];
        loop {
            let filled = from.read(&mut buffer)?;
            if filled == 0 {
                return Ok(());
            }
            let mut goes = filled;
            {
                let mut state = self.state();
                let is_open = |state: &State| state.open.iter().any(|(open, _)| *open == id);
                while state.held[way] && is_open(&state) {
                    let waited = self.changed.wait(state);
                    state = waited.unwrap_or_else(PoisonError::into_inner);
                }
                if !is_open(&state) {
                    return Ok(());
                }
                if let Some(fuse) = &mut state.fuse {
                    let left = usize::try_from(*fuse).unwrap_or(usize::MAX);
                    goes = filled.min(left);
                    *fuse -= goes as u64;
                }
            }
            to.write_all(&buffer[..goes])?;
            let mut state = self.state();
            if state.fuse == Some(0) {
                state.cuts += 1;
                state.cut();
                self.changed.notify_all();
                return Ok(());
            }
        }
    }

    /// One direction has ended, and with it the connection.
    fn ended(&self, id: u64) {
        let mut state = self.state();
        let ended = state.open.iter().position(|(open, _)| *open == id);
        for stream in ended
            .map(|at| state.open.remove(at).1)
            .into_iter()
            .flatten()
        {
            let _ = stream.shutdown(Shutdown::Both);
        }
        self.changed.notify_all();
    }

    /// Whether it carries a connection.
    pub(super) fn is_open(&self) -> bool {
        !self.state().open.is_empty()
    }

    /// Ends all connections, and takes none while it `refuses`.
    pub(super) fn cut(&self, refuses: bool) {
        let mut state = self.state();
        state.cut();
        state.refuses = refuses;
        self.changed.notify_all();
    }

    /// Is to cut itself after so many bytes.
    pub(super) fn light(&self, fuse: u64) {
        self.state().fuse = Some(fuse.max(1));
    }

    /// How often it has cut itself since this was asked last.
    pub(super) fn own_cuts(&self) -> u64 {
        std::mem::take(&mut self.state().cuts)
    }

    /// Forwards nothing in the directions that are held.
    pub(super) fn hold(&self, held: [bool; 2]) {
        self.state().held = held;
        self.changed.notify_all();
    }

    /// Takes connections, and forwards all that comes.
    pub(super) fn heal(&self) {
        let mut state = self.state();
        state.refuses = false;
        state.held = [false; 2];
        state.fuse = None;
        self.changed.notify_all();
    }
}

fn thread(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let thread = std::thread::Builder::new().name(name.to_owned());
    thread.stack_size(STACK).spawn(run).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    /// A wire, and a socket at each end of it.
    fn wired() -> (Arc<Wire>, TcpStream, TcpStream) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let wire = Wire::new(0, 1, listener.local_addr().unwrap()).unwrap();
        let near = TcpStream::connect(wire.address).unwrap();
        let (far, _) = listener.accept().unwrap();
        for stream in [&near, &far] {
            stream
                .set_read_timeout(Some(Duration::from_secs(60)))
                .unwrap();
        }
        (wire, near, far)
    }

    fn says(from: &mut TcpStream, to: &mut TcpStream, word: &[u8]) {
        from.write_all(word).unwrap();
        let mut heard = vec![0; word.len()];
        to.read_exact(&mut heard).unwrap();
        assert_eq!(heard, word);
    }

    #[test]
    fn it_forwards_holds_one_direction_and_cuts() {
        let (wire, mut near, mut far) = wired();
        says(&mut near, &mut far, b"there");
        says(&mut far, &mut near, b"back");
        wire.hold([true, false]);
        near.write_all(b"held").unwrap();
        says(&mut far, &mut near, b"back again");
        let brief = Duration::from_millis(30);
        far.set_read_timeout(Some(brief)).unwrap();
        assert!(far.read(&mut [0; 4]).is_err());
        far.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        wire.heal();
        let mut heard = [0; 4];
        far.read_exact(&mut heard).unwrap();
        assert_eq!(&heard, b"held");
        wire.cut(true);
        assert!(!wire.is_open());
        // Both hear the end, whichever way the kernel says so.
        for stream in [&mut near, &mut far] {
            assert!(matches!(stream.read(&mut [0; 4]), Ok(0) | Err(_)));
        }
        let mut refused = TcpStream::connect(wire.address).unwrap();
        assert!(matches!(refused.read(&mut [0; 4]), Ok(0) | Err(_)));
    }

    #[test]
    fn it_cuts_itself_after_so_many_bytes() {
        let (wire, mut near, mut far) = wired();
        wire.light(5);
        says(&mut near, &mut far, b"four");
        near.write_all(b"more").unwrap();
        let end = Instant::now() + Duration::from_secs(60);
        while wire.own_cuts() == 0 {
            assert!(Instant::now() < end);
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(!wire.is_open());
    }
}
