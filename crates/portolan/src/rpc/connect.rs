//! A client makes both channels of a connection, and presents them to the server.

use super::client::Stub;
use super::client_end::{Connection, Last};
use super::door::{self, Part};
use super::error::ClientError;
use super::hello::{Answer, Channels, Hello};
use super::link::{self, Inlet, Ways};
use super::method::Method;
use super::parcel::Parcels;
use super::sharing::Sharing;
use crate::channel::{ChannelOptions, Purpose, ReadError, Reader, ReaderOptions};
use crate::{Access, Deadline, Domain, Message, MessageError, PortOptions, Refused, Right};
use portolan_proto::Client;
use portolan_shm::mark;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

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
    sharing: bool,
}

/// What a client's own channels are like.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    units: u64,
    reliable: bool,
    /// What is presented has names.
    named: bool,
    pub(super) waiting: crate::Waiting,
}

impl Shape {
    pub(super) fn of(self, part: Part, session: u64) -> ChannelOptions {
        let shape = if self.named {
            ChannelOptions::named(&part.name(session))
        } else {
            ChannelOptions::unnamed()
        };
        let purpose = match part {
            Part::Answers => Purpose::Answers,
            _ => Purpose::Calls,
        };
        let shape = shape.unit(link::OWN_UNIT).units(self.units).readers(1);
        let shape = shape.used_for(purpose);
        if self.reliable {
            shape.reliable()
        } else {
            shape
        }
    }
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            limit: Duration::from_secs(30),
            period: Duration::from_millis(10),
            units: link::OWN_UNITS,
            reliable: false,
            waiting: crate::Waiting::default(),
            over_channel: false,
            sharing: false,
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

    /// Connects over a well-known channel instead of the server's port, if it is
    /// served [so](super::ServerOptions::on_channel). What is presented has names then, and
    /// the client calls every [period](Self::period) until it is answered.
    #[must_use]
    pub fn over_channel(self) -> Self {
        Self {
            over_channel: true,
            ..self
        }
    }

    /// For a client that calls seldom: it shares channels, and the server's thread that reads
    /// them, with others of its kind, so it costs next to nothing while it is idle. When it is
    /// busy it is given channels of its own, and they are taken from it when others need them
    /// more ([`super::ServerOptions::own_channels`]); no call is lost by that, and none runs
    /// twice.
    ///
    /// With [`super::Concurrency::Client`] calls of all that share run one after another.
    #[must_use]
    pub fn sharing(self) -> Self {
        Self {
            sharing: true,
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
    /// [`ClientError`].
    pub fn connect(
        domain: &Domain,
        name: &str,
        service: &'static str,
        methods: &[Method],
        options: &ClientOptions,
        deadline: Deadline,
    ) -> Result<Self, ClientError> {
        let server = domain.connect(name, deadline)?;
        let session = session(domain);
        let sharing = options.sharing;
        let shape = Shape {
            units: options.units,
            reliable: options.reliable,
            named: options.over_channel && !sharing,
            waiting: options.waiting,
        };
        let moves = methods.iter().any(Method::moves);
        let inbox = if moves || sharing {
            Some(domain.bind(if shape.named {
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
            channels: if sharing {
                Channels::Shared
            } else {
                Channels::Own
            },
        };
        let refused = |refused: Refused<Right, MessageError>| refused.why;
        let mut presented = Message::new(&hello.to_bytes())?;
        let own = if sharing {
            None
        } else {
            let calls = domain.make_channel(&shape.of(Part::Calls, session))?;
            let answers = domain.make_channel(&shape.of(Part::Answers, session))?;
            let writer = calls.bind_writer()?;
            let mut reader = answers.bind_reader(ReaderOptions::default())?;
            reader.set_waiting(options.waiting);
            presented.attach(calls).map_err(refused)?;
            presented.attach(answers).map_err(refused)?;
            Some((writer, reader))
        };
        if let Some(inbox) = &inbox {
            presented.attach(inbox.make_send()).map_err(refused)?;
        }
        let mut own = own;
        let (answer, mut rights) = match &mut own {
            Some((_, reader)) if shape.named => call_out(domain, name, &hello, reader, deadline)?,
            _ => {
                let mut answer = server.request_reply(presented, Access::Later, deadline)?;
                let rights = answer.take_rights();
                (Answer::from_bytes(answer.header()), rights)
            }
        };
        mark!("call.connected");
        let name = name.to_owned();
        let incarnation = match answer {
            Some(Answer::Welcome { incarnation }) => incarnation,
            Some(Answer::OtherService { service: theirs }) => {
                return Err(ClientError::OtherService {
                    name,
                    ours: service,
                    theirs,
                });
            }
            Some(Answer::NoRoom) => return Err(ClientError::NoRoom { name }),
            _ => return Err(ClientError::NotServed { name }),
        };
        let mut alive = None;
        let parcels = match inbox {
            Some(port) if moves => match rights.pop() {
                Some(Right::Send(to)) => Some(Arc::new(Parcels::new(to, port))),
                _ => return Err(ClientError::NotServed { name }),
            },
            other => {
                alive = other;
                None
            }
        };
        let mut client = Client::new(link::settings(options.period, sharing), session);
        client.met(incarnation);
        let (shares, ways, inlet) = match own {
            Some((writer, reader)) => (None, Ways::own(writer), Inlet::own(reader)),
            None => {
                let begun = match (rights.pop(), rights.pop()) {
                    (Some(Right::Segment(answers)), Some(Right::Segment(calls))) => {
                        match (calls.try_into(), answers.try_into()) {
                            (Ok(calls), Ok(answers)) => {
                                Sharing::begin(domain, calls, answers, hello, shape)
                            }
                            _ => None,
                        }
                    }
                    _ => None,
                };
                let Some((shares, ways, inlet)) = begun else {
                    return Err(ClientError::NotServed { name });
                };
                (Some(shares), ways, inlet)
            }
        };
        let connection = Connection::new(client, ways, inlet, parcels, server);
        let connection = Arc::new(connection);
        if let Some(shares) = shares {
            connection.lock().sharing = Some(shares.of(&connection, alive));
        }
        Ok(Self {
            _last: Arc::new(Last(Arc::clone(&connection))),
            connection,
            limit: options.limit,
        })
    }
}

/// Calls a server over the well-known channel, until it answers in the channel that
/// it was presented; the answer, and where parcels go.
fn call_out(
    domain: &Domain,
    name: &str,
    hello: &Hello,
    reader: &mut Reader,
    deadline: Deadline,
) -> Result<(Option<Answer>, Vec<Right>), ClientError> {
    let channel = domain.find_channel(&door::well_known(name), deadline)?;
    let mut writer = channel.bind_writer()?;
    let call = hello.to_bytes();
    let answer = loop {
        writer.write(&call, deadline)?;
        let sooner = match (Deadline::after(hello.period).instant(), deadline.instant()) {
            (Some(again), Some(end)) => Deadline::at(again.min(end)),
            (Some(only), None) | (None, Some(only)) => Deadline::at(only),
            (None, None) => Deadline::NEVER,
        };
        match reader.receive(sooner) {
            Ok(answer) => break Answer::from_bytes(&answer),
            Err(ReadError::TimedOut) if !deadline.has_passed() => {}
            Err(_) => {
                let name = name.to_owned();
                return Err(ClientError::Unheard { name });
            }
        }
    };
    let is_welcome = matches!(answer, Some(Answer::Welcome { .. }));
    let there: Vec<Right> = if is_welcome && hello.moves {
        let name = Part::ParcelsThere.name(hello.session);
        vec![domain.connect(&name, deadline)?.into()]
    } else {
        Vec::new()
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
