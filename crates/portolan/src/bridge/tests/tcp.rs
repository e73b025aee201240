//! A wire over TCP, to show that a bridge needs no shared memory.

use super::super::carrier::{self, Context};
use super::super::clients::Admission;
use super::super::connect::{Sought, bind_proxy, cap, send_over};
use super::super::error::{Over, ViolationKind};
use super::super::ingress::carry;
use super::super::sharing::{Alike, Served, Used};
use super::super::side::Side;
use super::super::wire::{Agreed, Wire};
use super::super::{ConnectOptions, OfferedPort};
use super::nobody;
use crate::{Domain, SendRight};
use portolan_abi::bridge::{Ask, Granted, RING_BYTES, Secret};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_send_buffer_size};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes that a socket holds, about, so that it can be full.
const HOLDS: usize = 64 << 10;
/// By which a connection over it is named.
const SECRET: Secret = [9; 16];
/// Bytes that are moved in one call.
const PIECE: usize = 64 << 10;

/// A socket that a task will have.
struct Socket(TcpStream);

/// A task's end of a connection.
struct Stream {
    socket: TcpStream,
    context: Rc<Context>,
    gone: bool,
}

fn pair() -> [TcpStream; 2] {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    set_socket_recv_buffer_size(&listener, HOLDS).unwrap();
    let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let other = listener.accept().unwrap().0;
    for socket in [&one, &other] {
        set_socket_send_buffer_size(socket, HOLDS).unwrap();
        socket.set_nodelay(true).unwrap();
    }
    [one, other]
}

/// The client's end of a connection that an offer serves as that of a client, which takes answers of so
/// many bytes.
pub(super) fn stranger(offered: &OfferedPort, most: u64) -> TcpStream {
    served(offered, most).0
}

/// The same, and where further ports of it come.
pub(super) fn served(offered: &OfferedPort, most: u64) -> (TcpStream, Arc<Served>) {
    let [ours, theirs] = pair();
    let bridge = Arc::clone(&offered.open.bridge);
    let admission = Admission::take(&bridge);
    let member = Arc::clone(&bridge.what.right.to.member);
    let alike = Alike {
        sealed: false,
        there: 0,
    };
    let served = Served::new(&member, SECRET, (0, 0), alike);
    let its_own = Arc::clone(&served);
    let task = move |context: Rc<Context>| async move {
        let wire = Box::new(Socket(theirs)).of_task(&context).unwrap();
        let side = Side::new(wire, &context);
        carry(bridge, admission, side, most, its_own).await;
    };
    carrier::launch(&member, task).unwrap();
    (ours, served)
}

/// Connects to an offer.
pub(super) fn join(ours: &Domain, offered: &OfferedPort, options: &ConnectOptions) -> SendRight {
    Connected::new(ours, offered, options).1
}

/// A connection that further ports go over.
pub(super) struct Connected {
    served: Arc<Served>,
}

fn agreed(ours: &Domain, offered: &OfferedPort, options: &ConnectOptions) -> (Granted, Ask) {
    let bridge = &offered.open.bridge;
    let granted = Granted {
        synchronous: bridge.what.synchronous,
        most: bridge.most,
        there: *RING_BYTES.start(),
        back: *RING_BYTES.start(),
        window: bridge.what.window(),
        shares: false,
        port: 0,
        secret: SECRET,
    };
    let ask = Ask {
        sealed: false,
        most: cap(ours.member(), options.most),
        there: granted.there,
        named: Default::default(),
    };
    (granted, ask)
}

/// Adds a port to a connection; its number.
pub(super) fn add(served: &Served, offered: &OfferedPort) -> u32 {
    let bridge = Arc::clone(&offered.open.bridge);
    let admission = Admission::take(&bridge);
    match served.add(bridge, admission, 256 << 20) {
        Ok(number) => number,
        Err(_) => panic!("the connection is over"),
    }
}

impl Connected {
    pub(super) fn new(
        ours: &Domain,
        offered: &OfferedPort,
        options: &ConnectOptions,
    ) -> (Self, SendRight) {
        let (granted, ask) = agreed(ours, offered, options);
        let (socket, served) = served(offered, ask.most);
        let wire = Box::new(Socket(socket));
        let other = nobody();
        let sought = Sought::of(&other, "frames");
        let used = Used::new(ours.member(), sought.of_whom(), SECRET, false, None);
        let right = send_over(ours, &granted, &ask, wire, &sought, used, options).unwrap();
        (Self { served }, right)
    }

    pub(super) fn more(
        &self,
        ours: &Domain,
        offered: &OfferedPort,
        options: &ConnectOptions,
    ) -> SendRight {
        let (granted, ask) = agreed(ours, offered, options);
        let other = nobody();
        let sought = Sought::of(&other, "frames");
        let reserved = Used::reserve(ours.member(), sought.of_whom(), false);
        let port = add(&self.served, offered);
        let granted = Granted { port, ..granted };
        let (right, port) = bind_proxy(ours, &granted, &ask, &sought, None, options).unwrap();
        assert!(reserved[0].add(port));
        right
    }
}

impl Agreed for Socket {
    fn of_task(self: Box<Self>, context: &Rc<Context>) -> io::Result<Box<dyn Wire>> {
        self.0.set_nonblocking(true)?;
        context.watch(&self.0, None::<&TcpStream>)?;
        Ok(Box::new(Stream {
            socket: self.0,
            context: Rc::clone(context),
            gone: false,
        }))
    }
}

impl Stream {
    /// How many bytes a call has moved; none, if it would wait, or the other side is gone.
    fn moved(&mut self, moved: io::Result<usize>) -> Result<usize, Over> {
        match moved.map_err(|error| (error.kind(), error)) {
            Ok(bytes) => {
                self.gone |= bytes == 0;
                Ok(bytes)
            }
            Err((ErrorKind::WouldBlock | ErrorKind::Interrupted, _)) => Ok(0),
            Err((ErrorKind::BrokenPipe | ErrorKind::ConnectionReset, _)) => {
                self.gone = true;
                Ok(0)
            }
            Err((_, error)) => Err(error.into()),
        }
    }
}

impl Wire for Stream {
    fn push(&mut self, bytes: &[u8]) -> Result<usize, Over> {
        let written = (&self.socket).write(&bytes[..bytes.len().min(PIECE)]);
        self.moved(written)
    }

    fn pull(&mut self, out: &mut [u8]) -> Result<usize, Over> {
        let most = out.len().min(PIECE);
        let read = (&self.socket).read(&mut out[..most]);
        self.moved(read)
    }

    fn has_room(&mut self, arms: bool) -> Result<bool, Over> {
        if self.gone {
            return Ok(false);
        }
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let room = poll(&mut [PollFd::new(&self.socket, PollFlags::OUT)], Some(&now));
        let room = room.map_err(io::Error::from)? > 0;
        if arms && !room {
            // Carriers are told of what comes, and not of room: only this wire would need it.
            self.context.by(Instant::now() + Duration::from_millis(1));
        }
        Ok(room)
    }

    fn has_more(&mut self, _: bool) -> Result<bool, Over> {
        // What comes after this look is told.
        let there = self.socket.peek(&mut [0]);
        Ok(self.moved(there)? > 0)
    }

    fn hear_news(&mut self) -> Result<(), Over> {
        self.context.take_news();
        Ok(())
    }

    fn is_gone(&self) -> bool {
        self.gone
    }

    fn show(&mut self, _: &[BorrowedFd<'_>]) -> Result<bool, Over> {
        Err(io::Error::from(ErrorKind::Unsupported).into())
    }

    fn shown(&mut self, named: usize) -> Result<Vec<OwnedFd>, Over> {
        Err(ViolationKind::Descriptors { named }.into())
    }

    fn set_delivered(&mut self, _: u64) {}
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.context.unwatch(&self.socket);
    }
}
