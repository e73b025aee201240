//! The door lets clients in, at the server's port, and over a well-known channel.
//!
//! A client makes two channels and *presents* them. At the port it attaches the rights to a
//! request. On the channel there are only bytes, so it gives what it presents names that
//! follow from its session, and calls again until it is answered, in the channel that it
//! presented; the server finds them by those names.

use super::connection::Connection;
use super::error::ServeError;
use super::hello::{Answer, Channels, Hello};
use super::link;
use super::parcel::Parcels;
use super::serve::Shared;
use crate::channel::{
    Channel, ChannelError, ChannelOptions, Purpose, ReadError, Reader, ReaderOptions,
};
use crate::port::{ReceiveError, ReceiveRight, Request, SendRight};
use crate::{BindError, Deadline, Domain, Message, Notice, PortOptions, Right};
use portolan_proto::Server as Protocol;
use portolan_shm::mark;
use std::sync::Arc;

/// What a client presents, under its session.
#[derive(Clone, Copy)]
pub(super) enum Part {
    Calls,
    Answers,
    /// Where it receives parcels.
    Parcels,
    /// Where the server does.
    ParcelsThere,
}

impl Part {
    pub(super) fn name(self, session: u64) -> String {
        let what = match self {
            Self::Calls => "calls",
            Self::Answers => "answers",
            Self::Parcels => "parcels",
            Self::ParcelsThere => "parcels there",
        };
        format!("rpc {session:016x} {what}")
    }
}

/// The channel on which a service of this name is called.
pub(super) fn well_known(name: &str) -> String {
    format!("{name} calls")
}

/// A client, as it presents itself.
struct Presented {
    hello: Hello,
    calls: Channel,
    answers: Channel,
    /// Where its parcels go.
    parcels: Option<SendRight>,
}

impl Shared {
    /// Lets in who comes to the port.
    pub(super) fn keep_door(
        self: &Arc<Self>,
        domain: &Domain,
        mut port: ReceiveRight,
    ) -> Option<ReceiveRight> {
        while !self.is_stopping() {
            match port.get_request_unless(&self.stopping) {
                Ok(request) => match request.message.notice() {
                    Some(Notice::DeadName { token }) => self.reclaim(token, &port),
                    // What is refused is dropped: the client hears of it.
                    _ => drop(self.let_in(domain, &port, request)),
                },
                // It is to stop.
                Err(ReceiveError::TimedOut) => {}
                Err(_) => return None,
            }
        }
        Some(port)
    }

    /// Lets go of dead clients that share, of the space that `token` names (C3).
    fn reclaim(&self, token: u64, door: &ReceiveRight) {
        if let (Ok(space), Some(shared_channels)) = (u8::try_from(token), self.there()) {
            shared_channels.reclaim(space, door);
        }
    }

    fn let_in(
        self: &Arc<Self>,
        domain: &Domain,
        door: &ReceiveRight,
        mut request: Request,
    ) -> Option<()> {
        let hello = Hello::from_bytes(request.message.header())?;
        if let Some(refusal) = self.refuses(&hello) {
            let _ = request.reply(Message::new(&refusal.to_bytes()).ok()?);
            return None;
        }
        let mut rights = request.message.take_rights().into_iter();
        match hello.channels {
            Channels::Own => {}
            Channels::Shared => {
                let welcome = self.let_share(domain, door, &hello, rights)?;
                return request.reply(welcome).ok();
            }
            Channels::Promoted => {
                let answer = match self.promote(&hello, rights) {
                    Some(()) => self.welcome(),
                    None => Answer::NotPromoted,
                };
                return request.reply(Message::new(&answer.to_bytes()).ok()?).ok();
            }
        }
        let (Some(Right::Segment(calls)), Some(Right::Segment(answers))) =
            (rights.next(), rights.next())
        else {
            return None;
        };
        let parcels = match rights.next() {
            Some(Right::Send(to)) => Some(to),
            _ => None,
        };
        let presented = Presented {
            hello,
            calls: calls.try_into().ok()?,
            answers: answers.try_into().ok()?,
            parcels,
        };
        let mut welcome = Message::new(&self.welcome().to_bytes()).ok()?;
        let port = self.accept(domain, presented, &PortOptions::unnamed(), None)?;
        if let Some(port) = port {
            welcome.attach(port).ok()?;
        }
        request.reply(welcome).ok()
    }

    /// Lets in a client that shares channels: what it is answered.
    fn let_share(
        self: &Arc<Self>,
        domain: &Domain,
        door: &ReceiveRight,
        hello: &Hello,
        mut rights: impl Iterator<Item = Right>,
    ) -> Option<Message> {
        let Some(Right::Send(alive)) = rights.next() else {
            return None;
        };
        let Some(shared_channels) = self.shared_channels(domain) else {
            return Message::new(&Answer::NoRoom.to_bytes()).ok();
        };
        let mut welcome = Message::new(&self.welcome().to_bytes()).ok()?;
        welcome.attach(shared_channels.calls.clone()).ok()?;
        welcome.attach(shared_channels.answers.clone()).ok()?;
        let mut parcels = None;
        if hello.moves {
            let port = domain.bind(PortOptions::unnamed()).ok()?;
            welcome.attach(port.make_send()).ok()?;
            parcels = Some(Arc::new(Parcels::new(alive.clone(), port)));
        }
        let settings = link::settings(hello.period, true);
        let protocol = Protocol::new(settings, hello.session, self.identity().1);
        let ways = shared_channels.ways(hello.session);
        let connection = Connection::new(protocol, ways, Some(alive), parcels, hello.period);
        shared_channels.join(Arc::new(connection), door);
        mark!("serve.let_in");
        Some(welcome)
    }

    /// A client that shares presents channels of its own.
    fn promote(
        self: &Arc<Self>,
        hello: &Hello,
        mut rights: impl Iterator<Item = Right>,
    ) -> Option<()> {
        let (Some(Right::Segment(calls)), Some(Right::Segment(answers))) =
            (rights.next(), rights.next())
        else {
            return None;
        };
        let (calls, answers) = (
            Channel::try_from(calls).ok()?,
            Channel::try_from(answers).ok()?,
        );
        let sharing = self.clients().into_iter().filter(|c| c.shares());
        let sharing = sharing.collect::<Vec<_>>();
        let client = sharing.iter().find(|c| c.session() == hello.session)?;
        let reader = calls.bind_reader(ReaderOptions::default()).ok()?;
        let writer = answers.bind_writer().ok()?;
        let promoted = sharing.iter().filter(|c| c.is_promoted());
        let mut promoted = promoted.map(|c| (c.weigh(), c)).collect::<Vec<_>>();
        promoted.sort_unstable_by_key(|(calls, _)| *calls);
        let most = self.own_channels.max(1);
        let too_many = (promoted.len() + 1).saturating_sub(most);
        for (_, least) in promoted.into_iter().take(too_many) {
            least.demote();
        }
        self.read_for(Arc::clone(client), reader, Some(writer))
    }

    /// Lets in who calls on the channel, until it is interrupted.
    pub(super) fn keep_listening(self: &Arc<Self>, domain: &Domain, mut reader: Reader) {
        while !self.is_stopping() {
            match reader.receive(Deadline::NEVER) {
                Ok(call) => {
                    if let Some(hello) = Hello::from_bytes(&call) {
                        let _ = self.let_in_named(domain, hello);
                    }
                }
                Err(
                    ReadError::Missed(_)
                    | ReadError::TooLong { .. }
                    | ReadError::TimedOut
                    | ReadError::Interrupted
                    | ReadError::WriterGone,
                ) => {}
                Err(error) => {
                    tracing::warn!(%error, "nobody is let in over the channel any more");
                    return;
                }
            }
        }
    }

    fn let_in_named(self: &Arc<Self>, domain: &Domain, hello: Hello) -> Option<()> {
        let session = hello.session;
        if self.knows(session) {
            // It has called again before it saw the answer.
            return None;
        }
        let find = |part: Part| domain.find_channel(&part.name(session), Deadline::NOW);
        let (calls, answers) = (find(Part::Calls).ok()?, find(Part::Answers).ok()?);
        if let Some(refusal) = self.refuses(&hello) {
            let mut writer = answers.bind_writer().ok()?;
            writer.write(&refusal.to_bytes(), Deadline::NOW).ok()?;
            return None;
        }
        let parcels = if hello.moves {
            let name = Part::Parcels.name(session);
            Some(domain.connect(&name, Deadline::NOW).ok()?)
        } else {
            None
        };
        let presented = Presented {
            hello,
            calls,
            answers,
            parcels,
        };
        let welcome = self.welcome().to_bytes();
        let port = PortOptions::named(&Part::ParcelsThere.name(session));
        self.accept(domain, presented, &port, Some(&welcome))?;
        Some(())
    }

    fn welcome(&self) -> Answer {
        let (_, incarnation) = self.identity();
        Answer::Welcome { incarnation }
    }

    fn refuses(&self, hello: &Hello) -> Option<Answer> {
        let (service, _) = self.identity();
        (hello.service != service).then(|| Answer::OtherService {
            service: service.to_owned(),
        })
    }

    /// Begins to serve a client, and says so in its channel, if it is to; a right on the port
    /// for its parcels, which is bound as `port` says.
    fn accept(
        self: &Arc<Self>,
        domain: &Domain,
        presented: Presented,
        port: &PortOptions,
        welcome: Option<&[u8]>,
    ) -> Option<Option<SendRight>> {
        let Presented {
            hello,
            calls,
            answers,
            parcels,
        } = presented;
        let reader = calls.bind_reader(ReaderOptions::default()).ok()?;
        let mut writer = answers.bind_writer().ok()?;
        let (mut parcels, mut there) = (parcels, None);
        let parcels = if hello.moves {
            let port = domain.bind(port.clone()).ok()?;
            there = Some(port.make_send());
            Some(Arc::new(Parcels::new(parcels.take()?, port)))
        } else {
            None
        };
        if let Some(welcome) = welcome {
            writer.write(welcome, Deadline::NOW).ok()?;
        }
        let settings = link::settings(hello.period, false);
        let protocol = Protocol::new(settings, hello.session, self.identity().1);
        self.connect(protocol, reader, writer, parcels, hello.period)?;
        mark!("serve.let_in");
        Some(there)
    }
}

/// How often a channel may come and go between two looks.
const TRIES: u32 = 100;

/// The channel on which a service of this name is called: one that is there, or a new one.
pub(super) fn find_or_make(domain: &Domain, name: &str) -> Result<Channel, ServeError> {
    let name = well_known(name);
    let options = ChannelOptions::named(&name)
        .many_writers()
        .unit(512)
        .units(64)
        .used_for(Purpose::Calls);
    let mut tries = 0;
    loop {
        let taken = match domain.make_channel(&options) {
            Ok(channel) => return Ok(channel),
            Err(error) => error,
        };
        let is_taken = matches!(taken, ChannelError::Bind(BindError::NameTaken { .. }));
        match domain.find_channel(&name, Deadline::NOW) {
            Ok(channel) if is_taken && channel.has_many_writers() => return Ok(channel),
            Err(_) if is_taken && tries < TRIES => tries += 1,
            _ => return Err(taken.into()),
        }
    }
}
