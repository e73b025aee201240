//! The channels that clients share who call seldom.
//!
//! A connection of its own costs a client and its server two channels and a thread, whether
//! anybody calls or not. So clients may share: one channel on which all of them call, one in
//! which all are answered, one thread that reads for all. Each packet says whose it is. Who
//! becomes busy makes channels of its own, presents them, and goes on there; if too many
//! have some, the server takes them from whoever has called least, who shares again.
//!
//! # Invariants
//!
//! - **C1** A connection is one state of the transport, whatever channels it has: numbers go
//!   on, so no call runs twice. What was under way as it changed is lost, as anything may be
//!   in these channels, and is asked for.
//! - **C2** A connection that shares stays a member for as long as its client lives, also
//!   while it has channels of its own; and it is answered where it was last heard.

use super::connection::{Connection, Desk};
use super::link::{self, SHARED_UNIT, SHARED_UNITS, UNITS, Ways};
use super::serve::Shared;
use crate::channel::{
    Channel, ChannelOptions, Interrupter, ReadError, Reader, ReaderOptions, Writer,
};
use crate::{Deadline, Domain};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::thread;

/// Both channels, and who shares them.
pub(super) struct Commons {
    pub(super) calls: Channel,
    pub(super) answers: Channel,
    writer: Arc<Mutex<Writer>>,
    interrupter: Interrupter,
    members: Mutex<HashMap<u64, Arc<Connection>>>,
}

impl Commons {
    /// Makes both, and a thread that reads.
    pub(super) fn open(domain: &Domain, shared: &Arc<Shared>) -> Option<Arc<Self>> {
        let calls = ChannelOptions::unnamed().many_writers();
        let calls = calls.unit(SHARED_UNIT).units(SHARED_UNITS).readers(1);
        let calls = domain.make_channel(&calls).ok()?;
        let answers = ChannelOptions::unnamed().units(UNITS);
        let answers = domain.make_channel(&answers).ok()?;
        let mut reader = calls.bind_reader(ReaderOptions::default()).ok()?;
        let commons = Arc::new(Self {
            writer: Arc::new(Mutex::new(answers.bind_writer().ok()?)),
            interrupter: reader.interrupter(),
            members: Mutex::default(),
            calls,
            answers,
        });
        let (own, shared) = (Arc::clone(&commons), Arc::clone(shared));
        thread::Builder::new()
            .name("portolan-rpc-commons".to_owned())
            .spawn(move || own.run(&shared, reader))
            .ok()?;
        Some(commons)
    }

    /// Where a new member is answered.
    pub(super) fn ways(&self, session: u64) -> Ways {
        Ways::shared(&self.writer, session)
    }

    /// Takes a member in; those whose client has died go.
    pub(super) fn join(&self, connection: Arc<Connection>) {
        let mut members = link::lock(&self.members);
        members.retain(|_, member| member.is_alive());
        members.insert(connection.session(), connection);
    }

    pub(super) fn member(&self, session: u64) -> Option<Arc<Connection>> {
        link::lock(&self.members).get(&session).cloned()
    }

    /// All of them whose clients live.
    pub(super) fn members(&self) -> Vec<Arc<Connection>> {
        let members = link::lock(&self.members);
        members.values().filter(|m| m.is_alive()).cloned().collect()
    }

    /// Its thread ends, and members are told.
    pub(super) fn close(&self) {
        self.interrupter.interrupt();
        for (_, member) in link::lock(&self.members).drain() {
            member.close();
        }
    }

    fn run(&self, shared: &Shared, mut reader: Reader) {
        let mut desk = Desk::default();
        while !shared.is_stopping() {
            let session = match reader.receive(Deadline::NEVER) {
                Ok(message) => match link::of_many(&message) {
                    Some((session, sent, packet)) => {
                        desk.given = Some((sent, packet.to_vec()));
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
                    tracing::warn!(%error, "clients that share channels are not heard any more");
                    return;
                }
            };
            let Some(member) = self.member(session) else {
                continue;
            };
            if !member.take_shared(shared, &mut desk) {
                // What runs for it is told.
                member.close();
                link::lock(&self.members).remove(&session);
            }
        }
    }
}
