//! One TLS session as a layer of a TCP connection.

use std::fmt;
use std::io::{self, BufRead, Read, Write};
use std::os::fd::BorrowedFd;

use portolan_sys::stream::{self, Destination, Source};
use rustls::server::Acceptor;
use rustls::{AlertDescription, ClientConnection, Connection, Error};

use super::certificate::Certificate;
use super::verifier::Verdict;
use super::{Chosen, is_directory, is_join};
use crate::tcp::layer::{Layer, Moved};
use crate::{Peer, TransportError};

/// Plain bytes of a TLS record.
const RECORD: usize = 16 * 1024;
/// Records that are encrypted before they are sent by one call.
const AT_ONCE: usize = 8;
/// Times that a call reads from the socket; a peer that sends nothing but empty records would
/// keep it there.
const READS: usize = 64;

/// How far a session is.
enum Stage {
    /// A server that has not read the client's first message.
    Accepting(Box<Acceptor>, Chosen),
    /// From there on.
    Session(Box<Connection>),
    /// It has failed, and says so in words.
    Over(TransportError),
}

/// A TLS session.
pub(super) struct Session {
    stage: Stage,
    verdict: Verdict,
    /// Bytes of one record, copied here because others may write their memory meanwhile.
    record: Vec<u8>,
    peer: Peer,
    /// There are bytes, or an end, to receive.
    received: bool,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("peer", &self.peer)
            .finish_non_exhaustive()
    }
}

/// A socket as rustls reads and writes it.
struct Socket<'a>(BorrowedFd<'a>);

fn blocked(moved: Option<usize>) -> io::Result<usize> {
    moved.ok_or_else(|| io::ErrorKind::WouldBlock.into())
}

impl Read for Socket<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        blocked(stream::receive(self.0, &[Destination::from(into)])?)
    }
}

impl Write for Socket<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        blocked(stream::send(self.0, &[Source::from(bytes)])?)
    }

    fn write_vectored(&mut self, parts: &[io::IoSlice<'_>]) -> io::Result<usize> {
        let parts: Vec<_> = parts.iter().map(|part| Source::from(&**part)).collect();
        blocked(stream::send(self.0, &parts)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Session {
    pub(super) fn client(mut connection: ClientConnection, verdict: Verdict) -> Self {
        // How much waits is bounded by `send` (AT_ONCE).
        connection.set_buffer_limit(None);
        Self::new(Stage::Session(Box::new(connection.into())), verdict)
    }

    pub(super) fn server(chosen: Chosen, verdict: Verdict) -> Self {
        Self::new(Stage::Accepting(Box::default(), chosen), verdict)
    }

    fn new(stage: Stage, verdict: Verdict) -> Self {
        Self {
            stage,
            verdict,
            record: vec![0; RECORD],
            peer: Peer::Unknown,
            received: false,
        }
    }

    /// The session, if it is one.
    fn session(&mut self) -> Result<&mut Connection, TransportError> {
        match &mut self.stage {
            Stage::Session(session) => Ok(session),
            Stage::Accepting(..) => Err(TransportError::NotTls {
                what: "the handshake has not begun".to_owned(),
            }),
            Stage::Over(why) => Err(why.clone()),
        }
    }

    /// Says to the peer that it is over, as far as there is room, and keeps the reason.
    fn fail(&mut self, socket: BorrowedFd<'_>, why: TransportError) -> TransportError {
        if let Stage::Session(session) = &mut self.stage {
            while session.wants_write() && session.write_tls(&mut Socket(socket)).is_ok() {}
        }
        self.stage = Stage::Over(why.clone());
        why
    }

    fn failed(&mut self, socket: BorrowedFd<'_>, error: &Error) -> TransportError {
        let why = self.verdict.take().unwrap_or_else(|| in_words(error));
        self.fail(socket, why)
    }

    /// Reads what the socket has, once; `false` if it has nothing.
    fn read(&mut self, socket: BorrowedFd<'_>) -> Result<bool, TransportError> {
        match self.session()?.read_tls(&mut Socket(socket)) {
            Ok(0) => return Err(self.fail(socket, TransportError::Truncated)),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(self.fail(socket, TransportError::broken(&error))),
        }
        let state = self.session()?.process_new_packets();
        match state {
            Ok(_) => Ok(true),
            Err(error) => Err(self.failed(socket, &error)),
        }
    }

    /// Reads the client's first message, and chooses by it.
    fn accept(&mut self, socket: BorrowedFd<'_>) -> Result<bool, TransportError> {
        while let Stage::Accepting(acceptor, chosen) = &mut self.stage {
            match acceptor.read_tls(&mut Socket(socket)) {
                Ok(0) => return Err(self.fail(socket, TransportError::Truncated)),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(self.fail(socket, TransportError::broken(&error))),
            }
            let accepted = match acceptor.accept() {
                Ok(Some(accepted)) => accepted,
                Ok(None) => continue,
                Err((error, mut alert)) => {
                    let _ = alert.write_all(&mut Socket(socket));
                    return Err(self.failed(socket, &error));
                }
            };
            let protocol = accepted
                .client_hello()
                .alpn()
                .and_then(|mut names| names.next())
                .map(<[u8]>::to_vec);
            let config = match chosen(&protocol.unwrap_or_default()) {
                Ok(config) => config,
                Err(why) => return Err(self.fail(socket, why)),
            };
            match accepted.into_connection(config) {
                Ok(mut session) => {
                    session.set_buffer_limit(None);
                    self.stage = Stage::Session(Box::new(session.into()));
                }
                Err((error, mut alert)) => {
                    let _ = alert.write_all(&mut Socket(socket));
                    return Err(self.failed(socket, &error));
                }
            }
        }
        Ok(true)
    }

    /// Who the peer is, once the handshake is done.
    fn identify(&mut self) -> Result<Peer, TransportError> {
        let session = self.session()?;
        if let Connection::Server(session) = session
            && is_join(session)
        {
            return Ok(Peer::Newcomer);
        }
        let is_directory = is_directory(session);
        let chain = session.peer_certificates();
        let first = chain.and_then(<[_]>::first);
        let certificate = first.ok_or(TransportError::NoCertificate)?;
        let node = Certificate::read(certificate)?.node();
        Ok(match is_directory {
            true => Peer::Directory(node),
            false => Peer::Node(node),
        })
    }

    /// Whether there is something to receive that has been decrypted.
    fn look(&mut self) {
        // Ok of nothing is the authentic end.
        self.received = match &mut self.stage {
            Stage::Session(session) => session.reader().fill_buf().is_ok(),
            _ => false,
        };
    }

    /// Copies decrypted bytes; `Some(0)` at the authentic end, `None` if there are none.
    fn take(&mut self, into: &[Destination<'_>]) -> Moved {
        let mut reader = self.session()?.reader();
        let mut moved = 0;
        for range in into {
            let mut filled = 0;
            while filled < range.len() {
                let bytes = match reader.fill_buf() {
                    Ok([]) if moved == 0 => return Ok(Some(0)),
                    Ok([]) | Err(_) => break,
                    Ok(bytes) => range.part(filled, usize::MAX).copy_from(bytes),
                };
                reader.consume(bytes);
                filled += bytes;
                moved += bytes;
            }
        }
        Ok((moved > 0).then_some(moved))
    }
}

impl Layer for Session {
    fn advance(&mut self, socket: BorrowedFd<'_>) -> Result<bool, TransportError> {
        if !self.accept(socket)? {
            return Ok(false);
        }
        for _ in 0..READS {
            self.flush(socket)?;
            if !self.session()?.is_handshaking() {
                self.peer = self.identify()?;
                self.look();
                return Ok(true);
            }
            if !self.read(socket)? {
                return Ok(false);
            }
        }
        Ok(false)
    }

    fn send(&mut self, socket: BorrowedFd<'_>, parts: &[Source<'_>]) -> Moved {
        self.flush(socket)?;
        let mut parts = parts.iter().copied().filter(|part| !part.is_empty());
        let mut part = parts.next();
        let mut moved = 0;
        for _ in 0..AT_ONCE {
            if self.has_to_send() && moved == 0 {
                return Ok(None);
            }
            let mut record = std::mem::take(&mut self.record);
            let mut len = 0;
            while let Some(source) = part
                && len < record.len()
            {
                let copied = source.copy_to(&mut record[len..]);
                len += copied;
                let rest = source.skip(copied);
                part = if rest.is_empty() {
                    parts.next()
                } else {
                    Some(rest)
                };
            }
            let written = self.session().map(|s| s.writer().write_all(&record[..len]));
            self.record = record;
            written?.map_err(|error| TransportError::broken(&error))?;
            moved += len;
            if part.is_none() {
                break;
            }
        }
        // What is encrypted is sent now or by the next flush; if that fails, the next call says so.
        let _ = self.flush(socket);
        Ok(Some(moved))
    }

    fn receive(&mut self, socket: BorrowedFd<'_>, into: &[Destination<'_>]) -> Moved {
        for _ in 0..READS {
            let moved = self.take(into)?;
            if moved.is_some() {
                self.look();
                return Ok(moved);
            }
            if !self.read(socket)? {
                break;
            }
        }
        self.look();
        // A peer that changes its key wants an answer.
        self.flush(socket)?;
        Ok(None)
    }

    fn flush(&mut self, socket: BorrowedFd<'_>) -> Result<(), TransportError> {
        while let Stage::Session(session) = &mut self.stage
            && session.wants_write()
        {
            match session.write_tls(&mut Socket(socket)) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(self.unsent(socket, &error)),
            }
        }
        Ok(())
    }

    fn has_to_send(&self) -> bool {
        match &self.stage {
            Stage::Session(session) => session.wants_write(),
            _ => false,
        }
    }

    fn has_received(&self) -> bool {
        self.received
    }

    fn finish(&mut self) {
        if let Stage::Session(session) = &mut self.stage {
            session.send_close_notify();
        }
    }

    fn peer(&self) -> Peer {
        self.peer
    }

    fn binding(&self, label: &str) -> Option<[u8; 32]> {
        let Stage::Session(session) = &self.stage else {
            return None;
        };
        let exported = session.export_keying_material([0; 32], label.as_bytes(), None);
        exported.ok()
    }
}

impl Session {
    /// A peer that refuses us says why before it closes: that is a better reason than that the
    /// socket is closed.
    fn unsent(&mut self, socket: BorrowedFd<'_>, error: &io::Error) -> TransportError {
        for _ in 0..READS {
            match self.read(socket) {
                Ok(true) => {}
                Err(why @ TransportError::RefusedUs { .. }) => return why,
                Ok(false) | Err(_) => break,
            }
        }
        self.fail(socket, TransportError::broken(error))
    }
}

/// What rustls says, as whose fault it is.
fn in_words(error: &Error) -> TransportError {
    match error {
        Error::AlertReceived(alert) => match alert_in_words(*alert) {
            Some(alert) => TransportError::RefusedUs { alert },
            None => TransportError::NotTls {
                what: error.to_string(),
            },
        },
        Error::NoCertificatesPresented => TransportError::NoCertificate,
        Error::InvalidCertificate(why) => TransportError::BadCertificate {
            what: format!("{why:?}"),
        },
        other => TransportError::NotTls {
            what: other.to_string(),
        },
    }
}

/// Alerts of a peer that does not accept us.
fn alert_in_words(alert: AlertDescription) -> Option<&'static str> {
    Some(match alert {
        AlertDescription::CertificateExpired => {
            "that it is expired, or not valid yet, by its clock"
        }
        AlertDescription::UnknownCA => "that it is of another authority",
        AlertDescription::CertificateRevoked => "that this node was forgotten there",
        AlertDescription::BadCertificate => "that it cannot be read",
        AlertDescription::CertificateUnknown | AlertDescription::UnsupportedCertificate => {
            "that it is not usable"
        }
        AlertDescription::AccessDenied => "that this node is not the one that was expected",
        AlertDescription::CertificateRequired => "that there is none",
        AlertDescription::NoApplicationProtocol => "that it does not take such connections",
        _ => return None,
    })
}
