//! Clients that call seldom share two channels and one thread of their server.
//!
//! A dedicated connection costs a client and its server two channels and a thread, also while
//! the client does not call. So clients may share: one channel carries the calls of all, one the
//! answers to all, and one thread reads for all. Each packet names its connection. A client that
//! becomes busy makes channels of its own, presents them, and goes on there. If too many clients
//! have channels of their own, the server takes them from the client that has called least, which
//! shares again.
//!
//! # Invariants
//!
//! - **C1** A connection is one state of the transport, whatever channels it has: numbers go
//!   on, so no call runs twice. What was under way as it changed is lost, as anything may be
//!   in these channels, and is asked for.
//! - **C2** A connection that shares stays a member for as long as its client lives, also
//!   while it has channels of its own; and it is answered where it was last heard.
//! - **C3** Of each space that has members one is watched: its port tells the door of its
//!   death. When it has gone, so have all others of a space that died; if the space lives,
//!   another of its members is watched from then on. So a space costs one watch, however many
//!   members it has, and a member that leaves the map is told, and released, once.

use super::connection::{Connection, Scratch};
use super::error::ServeError;
use super::link::{self, SHARED_UNIT, SHARED_UNITS, UNITS, Ways};
use super::serve::Shared;
use crate::channel::{
    Channel, ChannelOptions, Interrupter, Purpose, ReadError, Reader, ReaderOptions, Writer,
};
use crate::port::ReceiveRight;
use crate::space::drain::Drained;
use crate::{Deadline, Domain};
use portolan_shm::mark;
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// Both channels, and who shares them.
pub(super) struct SharedChannels {
    pub(super) calls: Channel,
    pub(super) answers: Channel,
    writer: Arc<Mutex<Writer>>,
    interrupter: Interrupter,
    members: Mutex<Members>,
    /// That reads.
    thread: Mutex<Option<JoinHandle<Drained<()>>>>,
}

#[derive(Default)]
struct Members {
    /// By session.
    all: HashMap<u64, Arc<Connection>>,
    /// Spaces of which one is watched (C3).
    watched: BTreeSet<u8>,
}

impl Members {
    /// Tells the door when this one has gone, unless it is told of another of its space.
    fn watch(&mut self, member: &Connection, door: &ReceiveRight) {
        let Some((space, alive)) = member.of_space() else {
            return;
        };
        // If all watches of the domain are in use, the next one that joins or leaves has us
        // look at all of them.
        if !self.watched.contains(&space) && alive.watch(door, u64::from(space)).is_ok() {
            self.watched.insert(space);
        }
    }

    /// Those who have gone; they are members no more.
    fn take_gone(&mut self) -> Vec<Arc<Connection>> {
        let gone = self.all.extract_if(|_, member| !member.is_alive());
        gone.map(|(_, member)| member).collect()
    }
}

impl SharedChannels {
    /// Makes both, and a thread that reads.
    pub(super) fn open(domain: &Domain, shared: &Arc<Shared>) -> Result<Arc<Self>, ServeError> {
        let calls = ChannelOptions::unnamed().many_writers();
        let calls = calls.unit(SHARED_UNIT).units(SHARED_UNITS).readers(1);
        let calls = calls.used_for(Purpose::Calls);
        let calls = domain.make_channel(&calls)?;
        let answers = ChannelOptions::unnamed().units(UNITS);
        let answers = answers.used_for(Purpose::Answers);
        let answers = domain.make_channel(&answers)?;
        Self::over(calls, answers, shared)
    }

    /// Begins to read on channels that are there.
    pub(super) fn over(
        calls: Channel,
        answers: Channel,
        shared: &Arc<Shared>,
    ) -> Result<Arc<Self>, ServeError> {
        let mut reader = calls.bind_reader(ReaderOptions::default())?;
        let shared_channels = Arc::new(Self {
            writer: Arc::new(Mutex::new(answers.bind_writer()?)),
            interrupter: reader.interrupter(),
            members: Mutex::default(),
            thread: Mutex::default(),
            calls,
            answers,
        });
        let (own, inside) = (Arc::clone(&shared_channels), Arc::clone(shared));
        let run = move || own.run(&inside, reader);
        let thread = shared.drain.spawn("portolan-rpc-shared", run)?;
        *link::lock(&shared_channels.thread) = Some(thread);
        Ok(shared_channels)
    }

    /// Where a new member is answered.
    pub(super) fn ways(&self, session: u64) -> Ways {
        Ways::shared(&self.writer, session)
    }

    /// Takes a member in, and lets go of those that have gone; the door is told of its death.
    pub(super) fn join(&self, connection: Arc<Connection>, door: &ReceiveRight) {
        let gone = {
            let mut members = link::lock(&self.members);
            let gone = members.take_gone();
            members.watch(&connection, door);
            members.all.insert(connection.session(), connection);
            gone
        };
        gone.iter().for_each(|member| member.close());
    }

    /// Lets go of all clients that have gone, after the watched one of this space has.
    pub(super) fn reclaim(&self, space: u8, door: &ReceiveRight) {
        let gone = {
            let mut members = link::lock(&self.members);
            members.watched.remove(&space);
            let gone = members.take_gone();
            let left = members.all.values().cloned().collect::<Vec<_>>();
            left.iter().for_each(|member| members.watch(member, door));
            gone
        };
        mark!("serve.reclaimed");
        // What runs for them is told, and what is theirs goes with them.
        gone.iter().for_each(|member| member.close());
    }

    pub(super) fn member(&self, session: u64) -> Option<Arc<Connection>> {
        link::lock(&self.members).all.get(&session).cloned()
    }

    /// All of them whose clients live.
    pub(super) fn members(&self) -> Vec<Arc<Connection>> {
        let members = link::lock(&self.members);
        let members = members.all.values();
        members.filter(|m| m.is_alive()).cloned().collect()
    }

    /// Its thread ends, as that of a server which is stopping.
    pub(super) fn interrupt(&self) {
        self.interrupter.interrupt();
    }

    /// Members are told that there will be no more answers here.
    fn close(&self) {
        self.interrupt();
        self.take_all().iter().for_each(|member| member.close());
    }

    /// The server ends: so do its members, and what runs for them.
    pub(super) fn end(&self) {
        self.interrupt();
        self.take_all().iter().for_each(|member| member.end());
    }

    /// Whether its thread has ended.
    pub(super) fn has_ended(&self) -> bool {
        let thread = link::lock(&self.thread);
        thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Takes the members out, for the next server, once its thread has ended.
    pub(super) fn dismantle(&self) -> Vec<Arc<Connection>> {
        if let Some(thread) = link::lock(&self.thread).take() {
            // It lets go of what it had.
            let _ = thread.join();
        }
        self.take_all()
    }

    /// All of them; there are none any more.
    fn take_all(&self) -> Vec<Arc<Connection>> {
        let mut members = link::lock(&self.members);
        members.all.drain().map(|(_, member)| member).collect()
    }

    fn run(&self, shared: &Shared, mut reader: Reader) {
        let mut scratch = Scratch::default();
        while !shared.is_stopping() {
            let session = match reader.receive(Deadline::NEVER) {
                Ok(message) => match link::of_many(&message) {
                    Some((session, sent, packet)) => {
                        scratch.given = Some((sent, packet.to_vec()));
                        session
                    }
                    None => continue,
                },
                Err(
                    ReadError::Missed(_)
                    | ReadError::TooLong { .. }
                    | ReadError::Interrupted
                    | ReadError::TimedOut
                    | ReadError::WriterGone,
                ) => continue,
                Err(error) => {
                    tracing::warn!(%error, "clients that share channels are told to connect again");
                    shared.abandon(self);
                    return self.close();
                }
            };
            let Some(member) = self.member(session) else {
                continue;
            };
            if !member.take_shared(shared, &mut scratch) {
                // Its running calls are told.
                member.close();
                link::lock(&self.members).all.remove(&session);
            }
        }
    }
}
