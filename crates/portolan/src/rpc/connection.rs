//! The server's end of a connection.

use super::link::{self, Ends, LinkState};
use super::method::Dispatch;
use super::parcel::Parcels;
use super::serve::{Serves, Shared};
use super::task::{OwnedCall, Running};
use super::work::{Context, Full, GivenUp, Job, answer_of};
use crate::Deadline;
use crate::channel::{Interrupter, Reader, Writer};
use portolan_proto::{Incoming, Server as Protocol, ServerCounts, Status};
use portolan_shm::mark;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What the thread of a client works with, and keeps.
#[derive(Default)]
struct Desk {
    arguments: Vec<u8>,
    result: Vec<u8>,
}

/// One client.
pub(super) struct Connection {
    session: u64,
    /// Of its reader.
    interrupter: Interrupter,
    inner: Mutex<Inner>,
    parcels: Option<Arc<Parcels>>,
    period: Duration,
}

struct Inner {
    protocol: Protocol,
    writer: Writer,
    state: LinkState,
    /// What tells running calls that they were given up.
    running: HashMap<u64, Arc<GivenUp>>,
}

impl Inner {
    fn with<T>(&mut self, act: impl FnOnce(&mut Protocol, &mut Ends<'_>) -> T) -> T {
        let mut ends = Ends {
            writer: &mut self.writer,
            reader: None,
            state: &mut self.state,
        };
        act(&mut self.protocol, &mut ends)
    }
}

impl Connection {
    pub(super) fn new(
        protocol: Protocol,
        writer: Writer,
        interrupter: Interrupter,
        parcels: Option<Arc<Parcels>>,
        period: Duration,
    ) -> Self {
        Self {
            session: protocol.session(),
            interrupter,
            inner: Mutex::new(Inner {
                protocol,
                writer,
                state: LinkState::default(),
                running: HashMap::new(),
            }),
            parcels,
            period,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is left of it once its thread has ended and nothing runs.
    pub(super) fn into_parts(self) -> (Protocol, Writer, Option<Arc<Parcels>>, Duration) {
        let inner = self.inner.into_inner();
        let inner = inner.unwrap_or_else(PoisonError::into_inner);
        (inner.protocol, inner.writer, self.parcels, self.period)
    }

    /// Its client's session.
    pub(super) fn session(&self) -> u64 {
        self.session
    }

    /// What its transport has seen.
    pub(super) fn counts(&self) -> ServerCounts {
        self.lock().protocol.counts()
    }

    /// Ends the wait of the thread that reads for it.
    pub(super) fn interrupt(&self) {
        self.interrupter.interrupt();
    }

    /// Tells the client, and what runs for it.
    pub(super) fn close(&self) {
        let mut inner = self.lock();
        for given_up in inner.running.values() {
            given_up.set();
        }
        inner.with(|protocol, ends| protocol.close(ends));
    }

    /// Reads calls until the client has gone, or the server ends.
    pub(super) fn run(self: &Arc<Self>, shared: &Shared, mut reader: Reader) -> Reader {
        let mut state = LinkState::default();
        let mut desk = Desk::default();
        while !(shared.is_stopping() || state.gone || state.broken || state.over.is_some()) {
            if link::wait(&mut reader, Deadline::NEVER, &mut state)
                && !self.take(shared, &mut reader, &mut desk, &mut state)
            {
                break;
            }
        }
        if !shared.is_stopping() {
            self.close();
        }
        reader
    }

    /// Handles what has come, and runs it; `false` once the connection is closed.
    fn take(
        self: &Arc<Self>,
        shared: &Shared,
        reader: &mut Reader,
        desk: &mut Desk,
        state: &mut LinkState,
    ) -> bool {
        let mut inner = self.lock();
        loop {
            let now = link::lately();
            let Inner {
                protocol,
                writer,
                running,
                ..
            } = &mut *inner;
            let mut ends = Ends {
                writer,
                reader: Some(reader),
                state,
            };
            let more = protocol.poll(now, &mut ends);
            while let Some(number) = protocol.take_cancelled() {
                if let Some(given_up) = running.get(&number) {
                    given_up.set();
                }
            }
            // Of a server that moves, the next one runs what has come.
            while !shared.is_stopping()
                && let Some(incoming) = inner.protocol.take(now, &mut desk.arguments)
            {
                mark!("serve.taken");
                if shared.crew.is_caller() {
                    drop(inner);
                    let context = Context::new(incoming.deadline, None);
                    let (arguments, result) = (&desk.arguments, &mut desk.result);
                    inner = self.execute(&*shared.service, incoming, arguments, result, &context);
                } else {
                    let given_up = Arc::<GivenUp>::default();
                    inner.running.insert(incoming.number, Arc::clone(&given_up));
                    drop(inner);
                    let arguments = std::mem::take(&mut desk.arguments);
                    self.begin(shared, incoming, arguments, given_up);
                    inner = self.lock();
                }
            }
            match more {
                Ok(true) => {}
                Ok(false) => return true,
                Err(_) => return false,
            }
        }
    }

    /// Has a call run where calls run.
    fn begin(
        self: &Arc<Self>,
        shared: &Shared,
        incoming: Incoming,
        arguments: Vec<u8>,
        given_up: Arc<GivenUp>,
    ) {
        let (connection, service) = (Arc::clone(self), Arc::clone(&shared.service));
        let number = incoming.number;
        let context = Context::new(incoming.deadline, Some(given_up));
        let begun = if shared.crew.has_tasks() {
            let parcels = self.parcels.clone();
            shared.crew.spawn(move || Running {
                method: Some(service.begin(incoming.method, OwnedCall { arguments, parcels })),
                connection,
                number,
                context,
            })
        } else {
            let job: Job = Box::new(move || {
                let result = &mut Vec::new();
                drop(connection.execute(&*service, incoming, &arguments, result, &context));
            });
            shared.crew.run(job)
        };
        if let Err(Full) = begun {
            self.answer(number, Status::Busy, &mut Vec::new());
        }
    }

    /// Runs a call and answers it; whoever goes on has the lock.
    fn execute(
        &self,
        service: &dyn Serves,
        incoming: Incoming,
        arguments: &[u8],
        result: &mut Vec<u8>,
        context: &Context,
    ) -> MutexGuard<'_, Inner> {
        result.clear();
        let mut call = Dispatch {
            arguments,
            result,
            parcels: self.parcels.as_ref(),
        };
        let run = || context.during(|| service.run(incoming.method, &mut call));
        let ended = catch_unwind(AssertUnwindSafe(run));
        let status = answer_of(ended, result);
        self.answer_and_go_on(incoming.number, status, result)
    }

    /// Answers a call.
    pub(super) fn answer(&self, number: u64, status: Status, result: &mut Vec<u8>) {
        drop(self.answer_and_go_on(number, status, result));
    }

    fn answer_and_go_on(
        &self,
        number: u64,
        status: Status,
        result: &mut Vec<u8>,
    ) -> MutexGuard<'_, Inner> {
        mark!("serve.ended");
        let mut inner = self.lock();
        if !inner.running.is_empty() {
            inner.running.remove(&number);
        }
        // Whoever does not wait any more does not want it.
        let _ = inner.with(|protocol, ends| protocol.answer(ends, number, status, result));
        mark!("serve.answered");
        inner
    }
}
