//! Starts and runs the further processes of one run: this program again, under the control of the
//! process that the user started.
//!
//! ```text
//! coordinator ── control socket (the child's standard input) ── child
//!      Brief + descriptors  ->
//!      an order             ->                parked in a read between orders:
//!                               <-  an answer no CPU time, no busy loop
//!      end of file          ->                the child leaves
//! ```
//!
//! # Invariants
//!
//! - **C1** A child never outlives its coordinator: the kernel kills it
//!   (`PR_SET_PDEATHSIG`), even in a busy loop. It is asked to before the child's program begins,
//!   and a child whose coordinator was dead by then does not begin.
//! - **C2** A coordinator never waits for a dead child: it either waits on the
//!   control sockets, or has [`Child::watch`] end the command.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use portolan_sys::process::dies_with_us;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use rustix::process::{Pid, PidfdFlags, Signal};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::{End, FOLLOWED, MeasureError, Result};
#[cfg(feature = "bench")]
use crate::instructions::{self, SceneBrief};
#[cfg(feature = "bench")]
use crate::run::{self, PeerBrief};
#[cfg(feature = "bench")]
use crate::systems::update::counted::{self, CountedBrief};

/// The longest packet on a control socket: a brief with room to spare.
const PACKET_MAX: usize = 8 << 10;
/// The most descriptors in one packet: a stage of the demo takes four.
const DESCRIPTORS_MAX: usize = 8;
/// How long a child that was told to leave may take before it is killed.
const LEAVING: Duration = Duration::from_secs(5);

/// The argument with which a further process is started. Not for users.
pub const ARGUMENT: &str = "__peer";

/// What a child is for: the first packet it gets.
#[derive(Debug, Serialize, Deserialize)]
enum Brief<O> {
    /// Be the other side of a row; see [`run`].
    #[cfg(feature = "bench")]
    Row(PeerBrief),
    /// Do a row's operation, and be stepped through.
    #[cfg(feature = "bench")]
    Counted(CountedBrief),
    /// Go through the parts of a scene, and be stepped through.
    #[cfg(feature = "bench")]
    Scene(SceneBrief),
    /// What only the program itself knows how to do.
    Own(O),
}

/// What a program does when it is started with [`ARGUMENT`]: takes the brief and does
/// what it says. `own` is for the program's own briefs ([`Child::start`]).
pub fn main<O, E>(
    own: impl FnOnce(O, &Control, Vec<OwnedFd>) -> std::result::Result<(), E>,
) -> std::result::Result<(), E>
where
    O: DeserializeOwned,
    E: From<MeasureError>,
{
    let (brief, control, descriptors) = brief()?;
    match brief {
        #[cfg(feature = "bench")]
        Brief::Row(brief) => Ok(run::peer_main(&brief, &control, descriptors)?),
        #[cfg(feature = "bench")]
        Brief::Counted(brief) => Ok(counted::serve(&brief, &control)?),
        #[cfg(feature = "bench")]
        Brief::Scene(brief) => Ok(instructions::serve(&brief, &control)?),
        Brief::Own(brief) => own(brief, &control, descriptors),
    }
}

/// The brief of this process, and its connection to the coordinator.
fn brief<O: DeserializeOwned>() -> Result<(Brief<O>, Control, Vec<OwnedFd>)> {
    // Under another number, so that nothing mistakes the socket for input.
    let stdin = std::io::stdin();
    let socket = stdin
        .as_fd()
        .try_clone_to_owned()
        .map_err(|_| MeasureError::NoCoordinator)?;
    let control = Control(socket);
    match control.receive_with() {
        Ok(Some((brief, descriptors))) => Ok((brief, control, descriptors)),
        _ => Err(MeasureError::NoCoordinator),
    }
}

/// One end of a control socket: whole packets, in order.
#[derive(Debug)]
pub struct Control(OwnedFd);

impl Control {
    /// Both ends: the coordinator's, and a child's.
    pub fn pair() -> Result<(Self, Self)> {
        let pair = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        );
        let (ours, theirs) = pair.map_err(MeasureError::system("making a control socket"))?;
        Ok((Self(ours), Self(theirs)))
    }

    /// Sends one packet; [`MeasureError::Gone`] if the other side has left.
    pub fn send<T: Serialize>(&self, packet: &T) -> Result<()> {
        self.send_with(packet, &[])
    }

    fn send_with<T: Serialize>(&self, packet: &T, descriptors: &[BorrowedFd<'_>]) -> Result<()> {
        let bytes = serde_json::to_vec(packet).expect("plain data serialises");
        assert!(bytes.len() <= PACKET_MAX && descriptors.len() <= DESCRIPTORS_MAX);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            assert!(ancillary.push(SendAncillaryMessage::ScmRights(descriptors)));
        }
        rustix::net::sendmsg(
            &self.0,
            &[IoSlice::new(&bytes)],
            &mut ancillary,
            SendFlags::NOSIGNAL,
        )
        .map(|_whole_packet| ())
        .map_err(|error| match error {
            Errno::PIPE | Errno::CONNRESET => MeasureError::Gone,
            _ => MeasureError::system("sending to another process of this run")(error),
        })
    }

    /// The next packet; `None` once the other side has left.
    pub fn receive<T: DeserializeOwned>(&self) -> Result<Option<T>> {
        Ok(self.receive_with()?.map(|(packet, _)| packet))
    }

    fn receive_with<T: DeserializeOwned>(&self) -> Result<Option<(T, Vec<OwnedFd>)>> {
        let mut bytes = vec![0; PACKET_MAX];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let received = rustix::io::retry_on_intr(|| {
            rustix::net::recvmsg(
                &self.0,
                &mut [IoSliceMut::new(&mut bytes)],
                &mut ancillary,
                RecvFlags::CMSG_CLOEXEC,
            )
        });
        let received = match received {
            Ok(received) if received.bytes > 0 => received,
            // A reset: it left without reading all that we sent.
            Ok(_) | Err(Errno::CONNRESET) => return Ok(None),
            Err(error) => {
                return Err(MeasureError::system(
                    "hearing from another process of this run",
                )(error));
            }
        };
        let descriptors = ancillary
            .drain()
            .filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(rights) => Some(rights),
                _ => None,
            })
            .flatten()
            .collect();
        let packet =
            serde_json::from_slice(&bytes[..received.bytes]).map_err(MeasureError::Garbled)?;
        Ok(Some((packet, descriptors)))
    }
}

impl AsFd for Control {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A process that we started. Dropped, it is killed; see [`Child::dismiss`] for the polite end.
#[derive(Debug)]
pub struct Child {
    role: String,
    process: std::process::Child,
    control: Option<Control>,
    /// Set before we end the child ourselves, so that its end is no accident.
    expected: Arc<AtomicBool>,
}

impl Child {
    /// Starts this program again and hands it its brief and copies of `descriptors`.
    pub fn start<O: Serialize>(
        role: &str,
        brief: &O,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<Self> {
        Self::start_with(role, &Brief::Own(brief), descriptors)
    }

    /// The same for the other side of a row.
    #[cfg(feature = "bench")]
    pub(crate) fn start_row(
        role: &str,
        brief: PeerBrief,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<Self> {
        Self::start_with(role, &Brief::<()>::Row(brief), descriptors)
    }

    /// The same for one that is stepped through.
    #[cfg(feature = "bench")]
    pub(crate) fn start_counted(role: &str, brief: CountedBrief) -> Result<Self> {
        Self::start_with(role, &Brief::<()>::Counted(brief), &[])
    }

    /// The same for one that goes through a scene, with this environment and no more of it.
    #[cfg(feature = "bench")]
    pub(crate) fn start_scene(brief: SceneBrief, environment: (&str, &str)) -> Result<Self> {
        let mut command = Command::new("/proc/self/exe");
        command.env_clear().env(environment.0, environment.1);
        Self::start_as(command, "counted process", &Brief::<()>::Scene(brief), &[])
    }

    fn start_with<O: Serialize>(
        role: &str,
        brief: &Brief<O>,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<Self> {
        Self::start_as(Command::new("/proc/self/exe"), role, brief, descriptors)
    }

    fn start_as<O: Serialize>(
        mut command: Command,
        role: &str,
        brief: &Brief<O>,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<Self> {
        let (ours, theirs) = Control::pair()?;
        // C1.
        let process = dies_with_us(&mut command)
            .arg(ARGUMENT)
            .stdin(Stdio::from(theirs.0))
            // Only the coordinator prints results.
            .stdout(Stdio::null())
            .spawn()
            .map_err(MeasureError::system("starting a further process"))?;
        let mut child = Self {
            role: role.to_owned(),
            process,
            control: Some(ours),
            expected: Arc::new(AtomicBool::new(false)),
        };
        let sent = child.control().send_with(brief, descriptors);
        child.delivered(sent)?;
        Ok(child)
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Sends a packet; a child that is gone is an error that says how it ended.
    pub fn send<T: Serialize>(&mut self, packet: &T) -> Result<()> {
        let sent = self.control().send(packet);
        self.delivered(sent)
    }

    fn delivered(&mut self, sent: Result<()>) -> Result<()> {
        match sent {
            Err(MeasureError::Gone) => Err(self.died()),
            sent => sent,
        }
    }

    /// The control socket, to wait on.
    pub fn control(&self) -> &Control {
        self.control
            .as_ref()
            .expect("present until the child is dismissed")
    }

    /// The next packet, which must come: a child that left instead is an error.
    pub fn expect<T: DeserializeOwned>(&mut self) -> Result<T> {
        match self.control().receive()? {
            Some(packet) => Ok(packet),
            None => Err(self.died()),
        }
    }

    /// From now on the child's death ends the command, whatever the coordinator
    /// is doing (C2): it may be in a busy loop or asleep in any system call.
    pub fn watch(&self) -> Result<()> {
        let doing = "watching another process of this run";
        let pid = Pid::from_child(&self.process);
        let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty())
            .map_err(MeasureError::system(doing))?;
        let (role, expected) = (self.role.clone(), Arc::clone(&self.expected));
        let watcher = move || {
            // An unanswerable poll must not end the command, because no peer died.
            if !readable(pidfd.as_fd(), None).unwrap_or(false) {
                return;
            }
            // Relaxed: set by the thread that then ends the child; the child's
            // death, which we have just observed, lies between.
            if !expected.load(Ordering::Relaxed) {
                let pid = pid.as_raw_nonzero().get().unsigned_abs();
                let error = MeasureError::PeerDied {
                    role,
                    pid,
                    status: "see its own message, if any".into(),
                    end: End::Failed,
                };
                error.report();
                std::process::exit(error.exit_code().into());
            }
        };
        std::thread::Builder::new()
            .name("watch".into())
            // It only polls: keep it small, fan-in has one for each of 64 children.
            .stack_size(64 << 10)
            .spawn(watcher)
            .map_err(MeasureError::system(doing))?;
        Ok(())
    }

    /// Stops it, wherever it is, until it may [go on](Self::go_on).
    pub fn stop(&self) -> Result<()> {
        self.signal(Signal::STOP)
    }

    /// Lets it go on, if it was stopped.
    pub fn go_on(&self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        rustix::process::kill_process(Pid::from_child(&self.process), signal)
            .map_err(MeasureError::system("stopping a process of this run"))
    }

    /// Tells the child to leave and waits until it has.
    pub fn dismiss(mut self) -> Result<()> {
        self.expected.store(true, Ordering::Relaxed);
        drop(self.control.take());
        let pid = Pid::from_child(&self.process);
        let doing = "waiting for another process of this run to leave";
        let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty())
            .map_err(MeasureError::system(doing))?;
        // One that does not leave in time is killed by the drop.
        readable(pidfd.as_fd(), Some(LEAVING)).map_err(MeasureError::system(doing))?;
        Ok(())
    }

    /// The error for a child whose control socket ended: waits for its status.
    pub fn died(&mut self) -> MeasureError {
        self.expected.store(true, Ordering::Relaxed);
        let (status, end) = match self.process.wait() {
            Ok(status) => describe(status),
            // The process that steps through it has waited for it already.
            Err(_) => ("see its own message, if any".into(), End::Failed),
        };
        MeasureError::PeerDied {
            role: self.role.clone(),
            pid: self.process.id(),
            status,
            end,
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.expected.store(true, Ordering::Relaxed);
        // Both fail only if it is gone already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn describe(status: ExitStatus) -> (String, End) {
    match status.code() {
        Some(0) => ("it left without a result".into(), End::Failed),
        Some(code) if code == i32::from(FOLLOWED) => {
            ("its neighbour was gone".into(), End::Followed)
        }
        Some(code) => (format!("exit code {code}"), End::Failed),
        None => (status.to_string(), End::Killed),
    }
}

/// Waits until `descriptor` is readable or at its end; false when time ran out first.
pub fn readable(descriptor: BorrowedFd<'_>, timeout: Option<Duration>) -> std::io::Result<bool> {
    let timeout = timeout.map(|t| Timespec {
        tv_sec: t.as_secs().cast_signed(),
        tv_nsec: t.subsec_nanos().into(),
    });
    let mut fds = [PollFd::from_borrowed_fd(descriptor, PollFlags::IN)];
    let ready = rustix::io::retry_on_intr(|| poll(&mut fds, timeout.as_ref()))?;
    Ok(ready > 0)
}
