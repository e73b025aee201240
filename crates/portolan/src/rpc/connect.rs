//! Connecting: both channels are made, and presented to the server.

use super::client::{Connection, Stub};
use super::door::{self, Part};
use super::error::ConnectError;
use super::hello::{Answer, Hello};
use super::link;
use super::method::Method;
use super::parcel::Parcels;
use crate::channel::{ChannelOptions, ReadError, Reader, ReaderOptions};
use crate::{Access, Deadline, Domain, Message, PortOptions, Right};
use portolan_proto::Client;
use portolan_shm::mark;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How a client is to be.
///
/// ```
/// use portolan::rpc::ClientOptions;
/// use std::time::Duration;
/// let patient = ClientOptions::default().limit(Duration::from_secs(60));
/// # let _ = patient;
/// ```
#[derive(Clone, Debug)]
pub struct ClientOptions {
    limit: Duration,
    period: Duration,
    units: u64,
    reliable: bool,
    waiting: crate::Waiting,
    over_channel: bool,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            limit: Duration::from_secs(30),
            period: Duration::from_millis(10),
            units: link::UNITS,
            reliable: false,
            waiting: crate::Waiting::default(),
            over_channel: false,
        }
    }
}

impl ClientOptions {
    /// How long a call may take: its deadline, which travels with it. 30 s.
    #[must_use]
    pub fn limit(self, limit: Duration) -> Self {
        Self { limit, ..self }
    }

    /// How long an answer may take before the server is asked: 10 ms.
    #[must_use]
    pub fn period(self, period: Duration) -> Self {
        Self { period, ..self }
    }

    /// The channels are reliable ones, to compare: the transport is the same.
    #[must_use]
    pub fn reliable(self) -> Self {
        Self {
            reliable: true,
            ..self
        }
    }

    /// Connects over a channel that everybody knows instead of the server's port, if it is
    /// served [so](super::ServerOptions::on_channel). What is presented has names then, and
    /// the client calls every [period](Self::period) until it is answered.
    #[must_use]
    pub fn over_channel(self) -> Self {
        Self {
            over_channel: true,
            ..self
        }
    }

    /// How callers wait for answers.
    #[must_use]
    pub fn waiting(self, waiting: crate::Waiting) -> Self {
        Self { waiting, ..self }
    }
}

impl Stub {
    /// Connects: makes both channels, and presents them to the server at its port.
    ///
    /// # Errors
    ///
    /// [`ConnectError`].
    pub fn connect(
        domain: &Domain,
        name: &str,
        service: &'static str,
        methods: &[Method],
        options: &ClientOptions,
        deadline: Deadline,
    ) -> Result<Self, ConnectError> {
        let server = domain.connect(name, deadline)?;
        let session = session(domain);
        let shape = |part: Part| {
            let shape = if options.over_channel {
                ChannelOptions::named(&part.name(session))
            } else {
                ChannelOptions::unnamed()
            };
            let shape = shape.units(options.units).readers(1);
            if options.reliable {
                shape.reliable()
            } else {
                shape
            }
        };
        let calls = domain.make_channel(&shape(Part::Calls))?;
        let answers = domain.make_channel(&shape(Part::Answers))?;
        let writer = calls.bind_writer()?;
        let mut reader = answers.bind_reader(ReaderOptions::default())?;
        reader.set_waiting(options.waiting);
        let moves = methods.iter().any(Method::moves);
        let inbox = if moves {
            Some(domain.bind(if options.over_channel {
                PortOptions::named(&Part::Parcels.name(session))
            } else {
                PortOptions::unnamed()
            })?)
        } else {
            None
        };
        let hello = Hello {
            service: service.to_owned(),
            session,
            period: options.period,
            moves,
        };
        let (answer, there) = if options.over_channel {
            call_out(domain, name, &hello, &mut reader, deadline)?
        } else {
            let refused = |refused: crate::Refused<Right>| refused.error;
            let mut message = Message::new(&hello.to_bytes())?;
            message.attach(calls).map_err(refused)?;
            message.attach(answers).map_err(refused)?;
            if let Some(inbox) = &inbox {
                message.attach(inbox.make_send()).map_err(refused)?;
            }
            let mut answer = server.request_reply(message, Access::Later, deadline)?;
            let there = answer.take_rights().pop();
            (Answer::from_bytes(answer.header()), there)
        };
        mark!("call.connected");
        let name = name.to_owned();
        let incarnation = match answer {
            Some(Answer::Welcome { incarnation }) => incarnation,
            Some(Answer::OtherService { service: theirs }) => {
                return Err(ConnectError::OtherService {
                    name,
                    ours: service,
                    theirs,
                });
            }
            None => return Err(ConnectError::NotServed { name }),
        };
        let parcels = match (inbox, there) {
            (Some(port), Some(Right::Send(to))) => Some(Arc::new(Parcels::new(to, port))),
            _ => None,
        };
        let mut client = Client::new(link::settings(options.period), hello.session);
        client.met(incarnation);
        let connection = Connection::new(client, writer, reader, parcels, server);
        Ok(Self {
            connection: Arc::new(connection),
            limit: options.limit,
        })
    }
}

/// Calls a server over the channel that everybody knows, until it answers in the channel that
/// it was presented; the answer, and where parcels go.
fn call_out(
    domain: &Domain,
    name: &str,
    hello: &Hello,
    reader: &mut Reader,
    deadline: Deadline,
) -> Result<(Option<Answer>, Option<Right>), ConnectError> {
    let channel = domain.find_channel(&door::well_known(name), deadline)?;
    let mut writer = channel.bind_writer()?;
    let call = hello.to_bytes();
    let answer = loop {
        writer.write(&call, deadline)?;
        let again = Instant::now() + hello.period;
        let sooner = deadline.instant().map_or(again, |at| at.min(again));
        match reader.receive(Deadline::at(sooner)) {
            Ok(answer) => break Answer::from_bytes(&answer),
            Err(ReadError::TimedOut) if !deadline.has_passed() => {}
            Err(_) => {
                let name = name.to_owned();
                return Err(ConnectError::Unheard { name });
            }
        }
    };
    let is_welcome = matches!(answer, Some(Answer::Welcome { .. }));
    let there = if is_welcome && hello.moves {
        let name = Part::ParcelsThere.name(hello.session);
        Some(domain.connect(&name, deadline)?.into())
    } else {
        None
    };
    Ok((answer, there))
}

/// A number that no other connection of the domain has.
fn session(domain: &Domain) -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    // Relaxed: only that they differ matters.
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    (u64::from(domain.space()) << 56) ^ (link::now().0 << 8) ^ next
}
