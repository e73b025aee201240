//! The server's end of a connection reads one client's calls, and answers them.

use super::handoff_lock::HandoffLock;
use super::link::{self, Ends, Inlet, LinkState, Source, Ways};
use super::method::Dispatch;
use super::parcel::Parcels;
use super::room::Full;
use super::serve::{Serves, Shared};
use super::task::{OwnedCall, Running};
use super::work::{Context, GivenUp, Job, answer_of, said};
use crate::channel::{Interrupter, Writer};
use crate::port::SendRight;
use crate::space::counters;
use crate::space::record::About;
use crate::{Deadline, EventKind};
use portolan_proto::{Flags, Incoming, Looked, Server as Protocol, ServerCounts, Status, Time};
use portolan_shm::mark;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// The buffers that the thread of a client keeps between calls.
#[derive(Default)]
pub(super) struct Scratch {
    /// What was read for a client that shares its channels.
    pub(super) given: Option<(u64, Vec<u8>)>,
    arguments: Vec<u8>,
    result: Vec<u8>,
}

/// The parts of a connection that its next server takes over.
pub(super) struct Parts {
    pub(super) protocol: Protocol,
    /// Where answers went, if it has a channel of its own.
    pub(super) own: Option<Writer>,
    /// If it shares channels: how many packets went there, and what tells of its client's
    /// death.
    pub(super) shared: Option<(u64, SendRight)>,
    pub(super) parcels: Option<Arc<Parcels>>,
    pub(super) period: Duration,
}

/// One client.
pub(super) struct Connection {
    session: u64,
    reading: Mutex<Reading>,
    /// Held by the one thread that handles what comes, and runs it there perhaps: around a
    /// promotion there are two that might.
    turn: Mutex<()>,
    /// If it shares channels: a right on a port of its client's, that tells of its death.
    alive: Option<SendRight>,
    /// The threads of its own channels up to this one are to end.
    demoted: AtomicU64,
    /// How many calls had come when promotions were last weighed.
    weighed: AtomicU64,
    /// The reading thread keeps the lock while the next call may come soon.
    inner: HandoffLock<Inner>,
    parcels: Option<Arc<Parcels>>,
    period: Duration,
}

/// The channel of its own that is read for it; locked before [`Inner`] is, if both are.
#[derive(Default)]
struct Reading {
    /// Which one it is of all it has had: from 1.
    which: u64,
    /// Of its reader, while there is one.
    interrupter: Option<Interrupter>,
}

struct Inner {
    protocol: Protocol,
    ways: Ways,
    state: LinkState,
    /// What tells running calls that they were given up; not those that run in the thread that
    /// would hear of it.
    running: HashMap<u64, Runs>,
}

/// A call that runs elsewhere.
struct Runs {
    given_up: Arc<GivenUp>,
    /// Its client never waited for it, and does not give it up by leaving.
    one_way: bool,
}

impl Reading {
    fn interrupt(&self) {
        if let Some(interrupter) = &self.interrupter {
            interrupter.interrupt();
        }
    }
}

impl Inner {
    fn with<T>(&mut self, act: impl FnOnce(&mut Protocol, &mut Ends<'_>) -> T) -> T {
        let (protocol, mut ends) = self.parts();
        act(protocol, &mut ends)
    }

    /// The calls that run and were given up since this was asked last.
    fn take_given_up(&mut self) -> Vec<Arc<GivenUp>> {
        let mut given_up = Vec::new();
        while let Some(number) = self.protocol.take_cancelled() {
            // Of a one-way call this says only that its number is used again, or its
            // client has left.
            if let Some(runs) = self.running.get(&number).filter(|runs| !runs.one_way) {
                given_up.push(Arc::clone(&runs.given_up));
            }
        }
        given_up
    }

    /// With nothing to be read.
    #[inline(always)]
    fn parts(&mut self) -> (&mut Protocol, Ends<'_>) {
        let ends = Ends {
            ways: &mut self.ways,
            source: Source::None,
            state: &mut self.state,
        };
        (&mut self.protocol, ends)
    }
}

impl Connection {
    pub(super) fn new(
        protocol: Protocol,
        ways: Ways,
        alive: Option<SendRight>,
        parcels: Option<Arc<Parcels>>,
        period: Duration,
    ) -> Self {
        Self {
            session: protocol.session(),
            reading: Mutex::default(),
            turn: Mutex::default(),
            alive,
            demoted: AtomicU64::new(0),
            weighed: AtomicU64::new(0),
            inner: HandoffLock::new(Inner {
                protocol,
                ways,
                state: LinkState::default(),
                running: HashMap::new(),
            }),
            parcels,
            period,
        }
    }

    #[inline]
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }

    /// What is left of it once its thread has ended and nothing runs.
    pub(super) fn into_parts(self) -> Parts {
        let inner = self.inner.into_inner();
        let (own, shared) = inner.ways.into_parts();
        Parts {
            protocol: inner.protocol,
            own,
            shared: shared.zip(self.alive),
            parcels: self.parcels,
            period: self.period,
        }
    }

    /// Whether it has channels that it shares, and perhaps also of its own.
    pub(super) fn shares(&self) -> bool {
        self.alive.is_some()
    }

    /// Whether its client may still call.
    pub(super) fn is_alive(&self) -> bool {
        let alive = self.alive.as_ref().is_none_or(SendRight::is_live);
        alive && self.lock().protocol.closed().is_none()
    }

    /// Of one that shares: its client's space, and the right on the port there that tells of
    /// its death.
    pub(super) fn of_space(&self) -> Option<(u8, &SendRight)> {
        let alive = self.alive.as_ref()?;
        Some((alive.owner(), alive))
    }

    /// Whether no call runs for it.
    pub(super) fn is_idle(&self) -> bool {
        self.lock().protocol.running() == 0
    }

    /// Whether it has channels of its own now.
    pub(super) fn is_promoted(&self) -> bool {
        self.shares() && self.lock().ways.has_own()
    }

    /// How many calls have come since this was asked last.
    pub(super) fn weigh(&self) -> u64 {
        let now = self.lock().protocol.expected();
        // Relaxed: only the door weighs.
        now - self.weighed.swap(now, Ordering::Relaxed).min(now)
    }

    /// It shares again: the thread of its own channel ends.
    pub(super) fn demote(&self) {
        self.demote_reader(&link::lock(&self.reading));
    }

    fn demote_reader(&self, reading: &Reading) {
        // Release: pairs with the threads that look.
        self.demoted.store(reading.which, Ordering::Release);
        reading.interrupt();
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
        link::lock(&self.reading).interrupt();
    }

    /// The client has gone, or must go: its running calls learn that no client waits for them.
    pub(super) fn close(&self) {
        self.close_and_tell(|runs| !runs.one_way);
    }

    /// The server ends: the client is told, and all that runs for it.
    pub(super) fn end(&self) {
        self.close_and_tell(|_| true);
    }

    fn close_and_tell(&self, whom: impl Fn(&Runs) -> bool) {
        let mut inner = self.lock();
        let running = inner.running.values().filter(|runs| whom(runs));
        let given_up: Vec<_> = running.map(|runs| Arc::clone(&runs.given_up)).collect();
        inner.with(|protocol, ends| protocol.close(ends));
        drop(inner);
        given_up.iter().for_each(|call| call.set());
    }

    /// Makes `reader` the connection's own, whose waits an interrupt of the connection ends, and
    /// returns its number. A connection that shares answers over `writer` from now on, and its
    /// earlier own channels end.
    pub(super) fn reads_with(&self, reader: &mut Inlet, writer: Option<Writer>) -> u64 {
        let mut reading = link::lock(&self.reading);
        if let Some(writer) = writer {
            self.demote_reader(&reading);
            self.lock().ways.promote(writer);
        }
        *reading = Reading {
            which: reading.which + 1,
            interrupter: Some(reader.interrupter()),
        };
        reading.which
    }

    /// One that shares has its own channel no more, and nothing keeps it, unless it has
    /// another one by now.
    pub(super) fn reads_no_more(&self, which: u64) {
        let mut reading = link::lock(&self.reading);
        if reading.which == which {
            reading.interrupter = None;
            // Its client finds out, and shares again; if it lives.
            self.lock().ways.demote();
        }
    }

    /// Reads calls until the client has gone, or the server ends.
    pub(super) fn run(self: &Arc<Self>, shared: &Shared, mut reader: Inlet, which: u64) -> Inlet {
        let mut state = LinkState::default();
        let mut scratch = Scratch::default();
        // What a server left that moved here.
        if self.has_ready() {
            let _turn = self.shares().then(|| link::lock(&self.turn));
            self.take(shared, Some(&mut reader), &mut scratch, &mut state);
        }
        while !(shared.is_stopping() || state.gone || state.broken || state.over.is_some()) {
            let came = link::wait(&mut reader, Deadline::NEVER, &mut state);
            let _turn = self.shares().then(|| link::lock(&self.turn));
            if came && !self.take(shared, Some(&mut reader), &mut scratch, &mut state) {
                break;
            }
            if which <= self.demoted.load(Ordering::Acquire) {
                break;
            }
        }
        if self.shares() {
            self.reads_no_more(which);
            mark!("serve.demoted");
        } else if !shared.is_stopping() {
            self.close();
        }
        shared.forget_this_thread();
        reader
    }

    /// Handles a packet that came over a channel that many share; `false` once the connection
    /// is closed.
    pub(super) fn take_shared(self: &Arc<Self>, shared: &Shared, scratch: &mut Scratch) -> bool {
        // The thread of its own channel may be running a call: then this packet is lost, and
        // asked for. Other clients wait for this thread.
        let Ok(_turn) = self.turn.try_lock() else {
            return true;
        };
        self.take(shared, None, scratch, &mut LinkState::default())
    }

    /// Whether calls have come that no thread has taken.
    pub(super) fn has_ready(&self) -> bool {
        self.lock().protocol.has_ready()
    }

    /// Handles what has come, by its own reader or given, and runs it; `false` once the
    /// connection is closed.
    #[inline]
    fn take(
        self: &Arc<Self>,
        shared: &Shared,
        mut reader: Option<&mut Inlet>,
        scratch: &mut Scratch,
        state: &mut LinkState,
    ) -> bool {
        let mut inner = self.lock();
        if let Some(parcels) = &self.parcels {
            // The place of a one-way call may be another's before it has run.
            let waits =
                |number| inner.protocol.awaits(number) || inner.running.contains_key(&number);
            parcels.tidy(waits);
        }
        inner.ways.heard(reader.is_some());
        let mut left = inner.protocol.has_ready();
        let mut now = link::lately();
        let runs_here = reader.is_some() && shared.crew.is_caller() && !self.shares();
        // A call was just answered here, so the next one is looked for in a straight line first.
        let mut in_line = false;
        loop {
            if in_line && shared.is_stopping() {
                return true;
            }
            let Inner { protocol, ways, .. } = &mut *inner;
            let mut ends = Ends {
                ways,
                source: match reader.as_deref_mut() {
                    Some(inlet) => Source::Inlet(inlet),
                    None => Source::Given(&mut scratch.given),
                },
                state,
            };
            // First what was left to us: a client that says that it has left ends what is ready.
            let first = std::mem::take(&mut left);
            let looked = if first {
                Ok(Looked::Packet)
            } else if shared.is_stopping() {
                // Of a server that moves, the next one runs what comes.
                Ok(Looked::Nothing)
            } else {
                protocol.poll_call(now, &mut ends, &mut scratch.arguments)
            };
            match looked {
                Ok(Looked::Call(incoming)) => {
                    inner = self.run_one(inner, shared, incoming, scratch);
                    // Read while there is nothing else to do: it is a little earlier then.
                    now = link::lately();
                    in_line = runs_here;
                    if in_line {
                        continue;
                    }
                }
                Ok(Looked::Nothing) if in_line => in_line = false,
                Ok(Looked::Nothing) => {
                    let came = protocol.poll(now, &mut ends);
                    inner = self.run_ready(inner, shared, now, scratch);
                    if came != Ok(true) {
                        return came.is_ok();
                    }
                    now = link::lately();
                }
                Ok(Looked::Packet) => {
                    inner = self.run_ready(inner, shared, now, scratch);
                    now = link::lately();
                }
                Err(_) => {
                    drop(self.run_ready(inner, shared, now, scratch));
                    return false;
                }
            }
            if !(first || self.goes_on(shared, reader.as_deref())) {
                return true;
            }
        }
    }

    /// Tells the calls that run what was given up, and runs the calls that are ready.
    #[inline(never)]
    fn run_ready<'a>(
        self: &'a Arc<Self>,
        mut inner: MutexGuard<'a, Inner>,
        shared: &Shared,
        now: Time,
        scratch: &mut Scratch,
    ) -> MutexGuard<'a, Inner> {
        let given_up = inner.take_given_up();
        if !given_up.is_empty() {
            // What is woken may run, and answer, in this thread.
            drop(inner);
            given_up.iter().for_each(|call| call.set());
            inner = self.lock();
        }
        // Of a server that moves, the next one runs what has come.
        while !shared.is_stopping()
            && let Some(incoming) = inner.protocol.take(now, &mut scratch.arguments)
        {
            inner = self.run_taken(inner, shared, incoming, scratch);
        }
        inner
    }

    /// As [`Self::run_one`].
    #[inline(never)]
    fn run_taken<'a>(
        self: &'a Arc<Self>,
        inner: MutexGuard<'a, Inner>,
        shared: &Shared,
        incoming: Incoming,
        scratch: &mut Scratch,
    ) -> MutexGuard<'a, Inner> {
        self.run_one(inner, shared, incoming, scratch)
    }

    /// Runs a call that was taken, or has it run.
    #[inline(always)]
    fn run_one<'a>(
        self: &'a Arc<Self>,
        mut inner: MutexGuard<'a, Inner>,
        shared: &Shared,
        incoming: Incoming,
        scratch: &mut Scratch,
    ) -> MutexGuard<'a, Inner> {
        mark!("serve.taken");
        if shared.crew.is_caller() {
            drop(inner);
            let context = Context::new(&incoming, None);
            let (arguments, result) = (&scratch.arguments, &mut scratch.result);
            return self.execute_here(&*shared.service, incoming, arguments, result, &context);
        }
        let runs = Runs {
            given_up: Arc::default(),
            one_way: incoming.flags.has(Flags::ONE_WAY),
        };
        let given_up = Arc::clone(&runs.given_up);
        inner.running.insert(incoming.number, runs);
        drop(inner);
        let arguments = std::mem::take(&mut scratch.arguments);
        self.begin(shared, incoming, arguments, given_up);
        self.lock()
    }

    /// Whether to look for more, after something has come. A thread that runs calls itself keeps
    /// the lock for as long as a client takes that calls again at once, unless another thread wants
    /// it.
    #[inline]
    fn goes_on(&self, shared: &Shared, reader: Option<&Inlet>) -> bool {
        match reader {
            Some(reader) if shared.crew.is_caller() && !self.shares() => {
                !shared.is_stopping() && reader.comes_soon(|| self.inner.is_wanted())
            }
            // A server that moves leaves what is there to the next one.
            _ => !shared.is_stopping(),
        }
    }

    /// Has a call run where calls run. A one-way call that must not be lost waits for a place
    /// there, and holds up those behind it: no thread would hear that it was refused.
    fn begin(
        self: &Arc<Self>,
        shared: &Shared,
        incoming: Incoming,
        arguments: Vec<u8>,
        given_up: Arc<GivenUp>,
    ) {
        let (connection, service) = (Arc::clone(self), Arc::clone(&shared.service));
        let (number, drain) = (incoming.number, Arc::clone(&shared.drain));
        let waits = incoming.flags.has(Flags::ONE_WAY) && !incoming.flags.has(Flags::BEST_EFFORT);
        let until = match incoming.deadline {
            _ if !waits => Deadline::NOW,
            Some(deadline) => Deadline::at(link::instant(deadline)),
            None => Deadline::NEVER,
        };
        let context = Context::new(&incoming, Some(given_up));
        // The runtime's part of it is others' code.
        let begun = catch_unwind(AssertUnwindSafe(|| {
            if shared.crew.has_tasks() {
                let parcels = self.parcels.clone();
                shared.crew.spawn(until, move || Running {
                    begun: service.at().0.begins(EventKind::Answer),
                    service: Arc::clone(&service),
                    method: Some(service.begin(incoming.method, OwnedCall { arguments, parcels })),
                    connection,
                    number,
                    context,
                    _drain: drain,
                })
            } else {
                let job: Job = Box::new(move || {
                    let result = &mut Vec::new();
                    drop(connection.execute(&*service, incoming, &arguments, result, &context));
                    drop((connection, service));
                    drop(drain);
                });
                shared.crew.run(until, job)
            }
        }));
        match begun {
            Ok(Ok(())) => {}
            Ok(Err(Full)) => self.answer(number, Status::Busy, &mut Vec::new()),
            Err(panic) => {
                let said = said(&*panic);
                tracing::error!(said, "a call was not begun: the spawner of tasks panicked");
                // Its task is perhaps gone already, and has said so.
                self.answer(number, Status::Dropped, &mut Vec::new());
            }
        }
    }

    /// Runs a call and answers it; the caller gets the connection's lock.
    #[inline(never)]
    fn execute(
        &self,
        service: &dyn Serves,
        incoming: Incoming,
        arguments: &[u8],
        result: &mut Vec<u8>,
        context: &Context,
    ) -> MutexGuard<'_, Inner> {
        self.execute_here(service, incoming, arguments, result, context)
    }

    /// The same.
    #[inline(always)]
    fn execute_here(
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
        let (member, port) = service.at();
        let begun = member.begins(EventKind::Answer);
        let run = || context.during(|| service.run(incoming.method, &mut call));
        let ended = catch_unwind(AssertUnwindSafe(run));
        let status = answer_of(ended, result);
        counters::answered(member);
        if let Some(begun) = begun {
            let bytes = result.len() as u64;
            member.record(begun, self.about(port, incoming.number, bytes));
        }
        self.answer_and_go_on(incoming.number, status, result)
    }

    /// A call, for a trace.
    #[cold]
    pub(super) fn about(&self, port: u16, number: u64, bytes: u64) -> About {
        About::message(port, link::trace_number(self.session, number), bytes)
    }

    /// Answers a call.
    pub(super) fn answer(&self, number: u64, status: Status, result: &mut Vec<u8>) {
        drop(self.answer_and_go_on(number, status, result));
    }

    #[inline(always)]
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
        // An error means that the client has gone, and needs no answer.
        let (protocol, mut ends) = inner.parts();
        let _ = protocol.answer(&mut ends, number, status, result);
        mark!("serve.answered");
        inner
    }
}
