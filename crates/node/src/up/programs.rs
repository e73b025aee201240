//! The socket for programs: they ask this node to span a domain that they are members of.

use std::ffi::OsStr;
use std::io::ErrorKind;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use portolan_abi::FORMAT_VERSION;
use portolan_abi::node::{PROGRAMS_VERSION, SpanAnswer, SpanOutcome, SpanRequest};
use portolan_sys::socket::{self, Address, SocketError};

use super::replace::Asked;
use super::socket_file::{self, SocketFile};
use super::spans::{Place, Spans};
use crate::engine::Engine;
use crate::state::State;
use crate::{NodeError, Result};

/// Programs that ask at once, at most.
pub(super) const MOST: usize = 64;
/// How long a program has to ask, and its domain to be joined.
const WITHIN: Duration = Duration::from_secs(5);

/// The node's side.
#[derive(Debug)]
pub(super) struct Programs {
    listener: OwnedFd,
    asking: Vec<Asking>,
    file: SocketFile,
}

#[derive(Debug)]
struct Asking {
    socket: OwnedFd,
    until: Duration,
    wants: Option<(String, Place)>,
}

impl Programs {
    /// Listens where programs of this state directory's node ask; on the socket of the process of
    /// before, if that has handed it over.
    pub(super) fn new(state: &State, taken: Option<OwnedFd>) -> Result<Self> {
        let path = portolan::proxy::programs_socket(Some(state.path()));
        let path = path.unwrap_or_else(|| state.file("programs.sock"));
        let address = Address::Path(path.clone());
        let listener = match taken {
            Some(socket) => socket,
            None => {
                socket_file::clear(&path, || {
                    match socket::connect_by(&address, Some(Instant::now())) {
                        Err(SocketError::Refused { .. }) => {
                            Err(ErrorKind::ConnectionRefused.into())
                        }
                        Err(SocketError::NotFound { .. }) => Err(ErrorKind::NotFound.into()),
                        // Its backlog may be full: then somebody has it.
                        Ok(_) | Err(_) => Ok(()),
                    }
                })?;
                socket::listen(&address, 64).map_err(|error| NodeError::Wrong {
                    what: format!("cannot listen at {}: {error}", path.display()),
                })?
            }
        };
        Ok(Self {
            listener,
            asking: Vec::new(),
            file: SocketFile::at(path),
        })
    }

    /// The socket, for the process that takes over.
    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// Those that have no answer yet, with what each wants if it has said so, for the process that
    /// takes over.
    pub(super) fn unanswered(&mut self) -> Vec<(OwnedFd, Option<Asked>)> {
        let unanswered = self.asking.drain(..);
        let unanswered = unanswered.map(|asking| {
            let wants = asking.wants.as_ref();
            let wants = wants.map(|(domain, place)| Asked::new(domain, place));
            (asking.socket, wants)
        });
        unanswered.collect()
    }

    /// Goes on with programs that the process of before has accepted, and has not answered.
    pub(super) fn adopt(&mut self, unanswered: Vec<(OwnedFd, Option<Asked>)>, now: Duration) {
        let adopted = unanswered.into_iter().map(|(socket, wants)| Asking {
            socket,
            until: now + WITHIN,
            wants: wants.map(|asked| asked.place()),
        });
        self.asking.extend(adopted);
    }

    /// Another process listens now.
    pub(super) fn leave_file(&mut self) {
        self.file.leave();
    }

    pub(super) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        // With so many the next ones wait in the backlog.
        let listener = (self.asking.len() < MOST).then(|| self.listener.as_fd());
        let asking = self.asking.iter().filter(|asking| asking.wants.is_none());
        listener
            .into_iter()
            .chain(asking.map(|asking| asking.socket.as_fd()))
    }

    pub(super) fn wake_at(&self) -> Option<Duration> {
        self.asking.iter().map(|asking| asking.until).min()
    }

    /// Takes what came, and answers what is known.
    pub(super) fn step(&mut self, now: Duration, spans: &mut Spans, engine: &Engine) {
        while self.asking.len() < MOST
            && let Ok(Some(socket)) = socket::try_accept(&self.listener)
        {
            self.asking.push(Asking {
                socket,
                until: now + WITHIN,
                wants: None,
            });
        }
        self.asking.retain_mut(|asking| {
            let answer = match asking.step(now, spans, engine) {
                Ok(None) => return true,
                Ok(Some(answer)) => answer,
                Err(Gone) => return false,
            };
            // One that does not wait for it needs none: it is one packet.
            if answer.outcome == SpanOutcome::Failed
                && let Some((domain, _)) = &asking.wants
            {
                spans.drop_asked(domain);
            }
            let by = Some(Instant::now());
            let _ = socket::send_by(&asking.socket, &answer.encode(), &[], by);
            false
        });
    }
}

/// A program that is gone, or has asked nothing in time.
struct Gone;

impl Asking {
    fn step(
        &mut self,
        now: Duration,
        spans: &mut Spans,
        engine: &Engine,
    ) -> std::result::Result<Option<SpanAnswer>, Gone> {
        if self.wants.is_none() {
            let mut bytes = [0; SpanRequest::MOST];
            let received = match socket::try_receive(&self.socket, &mut bytes, 0) {
                Ok(Some(received)) => received,
                Ok(None) if now < self.until => return Ok(None),
                Ok(None) | Err(_) => return Err(Gone),
            };
            let whole = bytes.get(..received.len).filter(|_| !received.truncated);
            let request = SpanRequest::decode(whole.unwrap_or_default()).map_err(|_| Gone)?;
            let user = socket::peer(&self.socket).map_err(|_| Gone)?.uid;
            if let Some(refusal) = refusal(&request, user) {
                return Ok(Some(refusal));
            }
            let directory = request.directory.as_deref().map(OsStr::from_bytes);
            let place = Place {
                owner: request.owner,
                directory: directory.map(PathBuf::from),
            };
            self.wants = Some((request.domain, place));
        }
        let Some((domain, place)) = &self.wants else {
            return Ok(None);
        };
        let is_late = now >= self.until;
        Ok(match spans.asked(domain, place, now) {
            Ok(true) => Some(SpanAnswer::new(SpanOutcome::Spans, "")),
            Ok(false) if !is_late => None,
            Ok(false) => Some(SpanAnswer::new(
                SpanOutcome::Failed,
                "the domain could not be joined in time",
            )),
            // The next attempt may come to something.
            Err(_) if !is_late && !engine.spans(domain) => None,
            Err(why) => Some(SpanAnswer::new(SpanOutcome::Failed, &why)),
        })
    }
}

/// Why a program may not have a domain spanned.
fn refusal(request: &SpanRequest, user: u32) -> Option<SpanAnswer> {
    let own = portolan_sys::process::user();
    if request.version != PROGRAMS_VERSION {
        return Some(SpanAnswer::new(SpanOutcome::Version, ""));
    }
    if request.format != FORMAT_VERSION {
        return Some(SpanAnswer::new(SpanOutcome::Format, ""));
    }
    // Who owns a domain decides where its messages go.
    if user != own && user != 0 && (own != 0 || user != request.owner) {
        let why = "this node spans domains of its own user";
        return Some(SpanAnswer::new(SpanOutcome::NotPermitted, why));
    }
    None
}
