//! An import from an exporter that follows no rule, and that is the host too: it leads astray,
//! grants what it has or not, and rewrites its pages, as files, between any two calls.

use crate::stranger::{address, by, descriptor, process, taken, until};
use arbitrary::{Result, Unstructured};
use portolan::vmmc::{Import, ImportOptions};
use portolan::{Deadline, Domain};
use portolan_abi::connect::{ConnectAnswer, ConnectRequest, Maker, OfferKind};
use portolan_abi::delegate::{Capability, Outcome, PART, Ready, Reply, Request, STAGING};
use portolan_abi::handshake;
use portolan_abi::hello::{Reason, Refusal};
use portolan_abi::limits::PAGE;
use portolan_abi::vmmc::{Answer, Ask, Denied, Granted, Ranges, Reach, Way, status_page};
use portolan_sys::socket::{self, SocketError};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

/// Bytes that an import may have.
const MOST: u64 = 1 << 20;
/// How often an importer gets a copy slot.
const COPY_SLOTS: usize = 8;

fn soon() -> Option<Instant> {
    Some(Instant::now() + Duration::from_millis(10))
}

/// Where a stranger exports, and is the host too.
struct Place {
    host: OwnedFd,
    hosted: String,
    /// Imports so far, each of another name: so that no answer goes to one that was given up.
    round: u64,
}

impl Place {
    fn make() -> std::result::Result<Self, SocketError> {
        let hosted = format!("fuzz-hosts-memory-{}", std::process::id());
        Ok(Self {
            host: socket::listen(&address(&hosted), 16)?,
            hosted,
            round: 0,
        })
    }
}

pub(super) fn run(data: &[u8]) {
    static PLACE: OnceLock<Mutex<Place>> = OnceLock::new();
    let mut place = taken(&PLACE, Place::make);
    // It ends where the bytes do.
    let _ = place.host(&mut Unstructured::new(data));
}

impl Place {
    /// Exports, to an importing side that follows the rules.
    fn host(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let options = ImportOptions::default().at_most(MOST);
        self.round += 1;
        let name = self.round.to_string();
        let begun = Domain::builder(&self.hosted).begin_import(&name, &options);
        let Ok(mut pending) = begun else {
            panic!("it may be asked for");
        };
        let Ok(None) = pending.poll() else {
            panic!("nobody has answered yet");
        };
        let socket = self.connected(&name);
        for _ in 0..u.int_in_range(0..=2)? {
            self.mislead(u, &socket)?;
        }
        let _ = socket::send_by(&socket, &ConnectAnswer::Accepted.encode(), &[], by());
        let Ok(None) = pending.poll() else {
            // It was told that it may not.
            return Ok(());
        };
        let exporter = self.grant(u, socket)?;
        let import = match pending.poll() {
            Ok(Some(import)) => import,
            // It looks for another one; or says what is wrong.
            Ok(None) | Err(_) => return Ok(()),
        };
        assert!(import.len() as u64 <= MOST);
        let done = if exporter.brokered {
            self.copy(u, exporter, &import)
        } else {
            exporter.go_on(u, &import)
        };
        if let Ok(()) = import.check() {
            until("an exporter that has hung up is there", || {
                import.check().is_err()
            });
        }
        done
    }

    /// Accepts the importer that asks for this export; earlier importers may ask again.
    fn connected(&self, name: &str) -> OwnedFd {
        loop {
            let Ok(socket) = socket::accept_by(&self.host, by()) else {
                panic!("nobody comes");
            };
            let mut packet = [0; ConnectRequest::BYTES];
            let came = socket::receive_by(&socket, &mut packet, 0, by());
            let request = came
                .ok()
                .and_then(|r| ConnectRequest::decode(&packet[..r.len]).ok());
            if request.is_some_and(|v| v.kind == OfferKind::Export && v.name.as_str() == name) {
                return socket;
            }
        }
    }

    /// What a host says before it hands a client off, or no host.
    fn mislead(&self, u: &mut Unstructured<'_>, socket: &OwnedFd) -> Result<()> {
        let answers = [
            ConnectAnswer::Wait,
            ConnectAnswer::Queue,
            ConnectAnswer::Ambiguous(vec![Maker::ANY, Maker::ANY]),
            ConnectAnswer::Refused(Refusal::new(Reason::Permission)),
        ];
        let which = if u.ratio(1, 8)? {
            u.int_in_range(2..=3)?
        } else {
            u.int_in_range(0..=1)?
        };
        let mut answer = answers[which].encode();
        if u.ratio(1, 8)? {
            let at = u.choose_index(answer.len())?;
            answer[at] = u.arbitrary()?;
        }
        let _ = socket::send_by(socket, &answer, &[], by());
        Ok(())
    }

    /// Grants something, which it may have or not.
    fn grant(&self, u: &mut Unstructured<'_>, socket: OwnedFd) -> Result<Exporter> {
        let mut ask = [0; Ask::BYTES];
        // It may have been led astray before.
        let _ = socket::try_receive(&socket, &mut ask, 0);
        let way = match u.int_in_range(0..=7)? {
            // Of this very process, whose memory has no such status page.
            0 => Way::Kernel {
                address: u.arbitrary()?,
                status_page: u.arbitrary()?,
            },
            1 => Way::Brokered(Capability {
                number: u.arbitrary()?,
                token: u.arbitrary()?,
            }),
            _ => Way::Shared,
        };
        let len = match way {
            Way::Brokered(_) => u.int_in_range(1..=3 * PART as u64)?,
            Way::Shared | Way::Kernel { .. } => PAGE as u64 * u.int_in_range(1..=3)?,
        };
        let ranges = match u.ratio(1, 4)? {
            true => vec![(u.int_in_range(0..=len)?, u.int_in_range(0..=len)?)],
            false => Vec::new(),
        };
        let granted = Granted {
            reach: *u.choose(&[Reach::ReadWrite, Reach::Read, Reach::Write])?,
            fences: u.arbitrary()?,
            way,
            len,
            ranges: Ranges::new(&ranges, len).unwrap_or_default(),
        };
        let mut answer = match u.ratio(1, 16)? {
            true => Answer::Refused(handshake::Refusal {
                version: u.arbitrary()?,
                why: Denied::Full,
                value: 0,
            }),
            false => Answer::Granted(granted),
        }
        .encode();
        if u.ratio(1, 8)? {
            let at = u.choose_index(answer.len())?;
            answer[at] = u.arbitrary()?;
        }
        let file = match way {
            Way::Shared => descriptor(u, len)?,
            Way::Kernel { .. } | Way::Brokered(_) => None,
        };
        let (status_page, notification_page) =
            (descriptor(u, PAGE as u64)?, descriptor(u, PAGE as u64)?);
        let process = process(u)?;
        let all = [&file, &status_page, &notification_page, &process];
        let fds: Vec<_> = all.into_iter().flatten().map(AsFd::as_fd).collect();
        let (status_page, notification_page) = (status_page.as_ref(), notification_page.as_ref());
        let copy = |fd: Option<&OwnedFd>| fd.and_then(|fd| fd.try_clone().ok()).map(File::from);
        let said = Answer::decode(&answer);
        let exporter = Exporter {
            // As the importer reads it.
            brokered: matches!(said, Ok(Answer::Granted(g)) if matches!(g.way, Way::Brokered(_))),
            status_page: copy(status_page),
            notification_page: copy(notification_page),
            socket,
        };
        exporter.set(
            exporter.status_page.as_ref(),
            status_page::STATE,
            status_page::OPEN,
        );
        let _ = socket::send_by(&exporter.socket, &answer, &fds, by());
        Ok(exporter)
    }
}

impl Place {
    /// Copies for the importer, or does not, until the exporter goes.
    fn copy(&self, u: &mut Unstructured<'_>, exporter: Exporter, import: &Import) -> Result<()> {
        thread::scope(|scope| {
            let updating = scope.spawn(|| {
                let mut bytes = vec![0; import.len()];
                // Whatever comes of it has a name.
                let _ = import.write(0, &bytes);
                let _ = import.read(0, &mut bytes);
            });
            let over = || updating.is_finished();
            let mut done = Ok(());
            for _ in 0..COPY_SLOTS {
                if done.is_ok() && !over() {
                    done = self.copy_slot(u, import.len() as u64, over);
                }
            }
            // No importer waits for a host once the exporter has gone.
            drop(exporter);
            assert!(updating.join().is_ok());
            done
        })
    }

    /// Gives the next importer staging memory, and answers its requests.
    fn copy_slot(&self, u: &mut Unstructured<'_>, len: u64, over: impl Fn() -> bool) -> Result<()> {
        let Ok(socket) = socket::accept_by(&self.host, soon()) else {
            return Ok(());
        };
        let mut packet = [0; ConnectRequest::BYTES];
        let _ = socket::receive_by(&socket, &mut packet, 0, soon());
        if u.ratio(1, 4)? {
            self.mislead(u, &socket)?;
        }
        let _ = socket::send_by(&socket, &ConnectAnswer::Accepted.encode(), &[], soon());
        let mut ready = Ready {}.encode();
        if u.ratio(1, 16)? {
            ready[u.choose_index(ready.len())?] = u.arbitrary()?;
        }
        let staging = descriptor(u, STAGING as u64)?;
        let fds: Vec<_> = staging.iter().map(AsFd::as_fd).collect();
        let _ = socket::send_by(&socket, &ready, &fds, soon());
        let staging = staging.map(File::from);
        while !u.is_empty() && !over() {
            let mut packet = [0; Request::BYTES];
            let heard = match socket::receive_by(&socket, &mut packet, 0, soon()) {
                Ok(received) => &packet[..received.len],
                Err(SocketError::TimedOut) => continue,
                Err(_) => break,
            };
            let Ok(request) = Request::decode(heard) else {
                panic!("it asks what none asks: {heard:?}");
            };
            assert!(request.offset + u64::from(request.len) <= len);
            if let (Some(staging), true) = (&staging, u.arbitrary()?) {
                let at = u.int_in_range(0..=STAGING as u64 - 8)?;
                // As with pages.
                let _ = staging.write_all_at(&[u.arbitrary()?; 8], at);
            }
            self.reply(u, &socket, request.number)?;
        }
        Ok(())
    }

    /// Says what became of a request, which no thread has looked at.
    fn reply(&self, u: &mut Unstructured<'_>, socket: &OwnedFd, number: u32) -> Result<()> {
        let outcomes = [
            Outcome::Done,
            Outcome::Away,
            Outcome::Refused,
            Outcome::Protected,
            Outcome::Unmapped {
                offset: u.arbitrary()?,
            },
            Outcome::Gone,
            Outcome::Failed {
                errno: u.arbitrary()?,
            },
        ];
        let outcome = match u.ratio(1, 2)? {
            true => Outcome::Done,
            false => *u.choose(&outcomes)?,
        };
        let mut reply = Reply { number, outcome }.encode();
        if u.ratio(1, 16)? {
            reply[u.choose_index(reply.len())?] = u.arbitrary()?;
        }
        let _ = socket::send_by(socket, &reply, &[], soon());
        Ok(())
    }
}

/// What an exporter gives, which may be wrong, and keeps.
struct Exporter {
    brokered: bool,
    socket: OwnedFd,
    status_page: Option<File>,
    notification_page: Option<File>,
}

impl Exporter {
    fn set(&self, page: Option<&File>, word: usize, value: u64) {
        // What should be a page and is not takes nothing.
        let _ = page.map(|page| page.write_all_at(&value.to_le_bytes(), word as u64 * 8));
    }

    /// Says what it likes on its pages, between any two calls of the importer's.
    fn go_on(self, u: &mut Unstructured<'_>, import: &Import) -> Result<()> {
        let (len, mut there) = (import.len(), vec![0; 300]);
        while !u.is_empty() {
            let (offset, bytes) = (u.int_in_range(0..=len + 8)?, u.int_in_range(0..=300)?);
            let words = [
                status_page::STATE,
                status_page::SLEEPS,
                status_page::LISTENS,
            ];
            // Whatever comes of it has a name.
            match u.int_in_range(0..=9)? {
                0 => drop(import.write(offset, &there[..bytes])),
                1 => drop(import.read(offset, &mut there[..bytes])),
                2 => drop(import.write_notifying(offset, &there[..bytes])),
                3 => drop(import.notify(offset, bytes)),
                4 => drop(import.fetch_add(offset, 1)),
                5 => drop(import.store_release(offset, 1)),
                6 => drop(import.flush(Deadline::NOW)),
                7 => {
                    let state = u.int_in_range(0..=4)?;
                    let value = if u.arbitrary()? {
                        state
                    } else {
                        u.arbitrary()?
                    };
                    self.set(self.status_page.as_ref(), *u.choose(&words)?, value);
                }
                8 => self.set(
                    self.notification_page.as_ref(),
                    u.int_in_range(0..=PAGE / 8 - 1)?,
                    u.arbitrary()?,
                ),
                _ => {
                    let _ = socket::send_by(&self.socket, b"X", &[], Some(Instant::now()));
                }
            }
        }
        Ok(())
    }
}
