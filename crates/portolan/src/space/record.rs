//! Records events of this space while it is traced.
//!
//! While no tracer records, each place that could record looks at one word of its space's
//! entry, in a line that no process writes meanwhile, and goes on. All else is out of line.
//! Everything here is async-signal-safe, for a guard's fault handler records too.

use crate::space::Member;
use portolan_abi::trace::{EventKind, EventWords, TraceSwitch};
use portolan_shm::region::Tables;
use rustix::time::{ClockId, clock_gettime};
use std::cell::Cell;
use std::sync::atomic::Ordering;

/// The port of an event that is about none.
pub(crate) const NO_PORT: u16 = u16::MAX;

/// Whether `space` records events of this kind.
#[inline(always)]
pub(crate) fn traces(tables: &Tables<'_>, space: u8, kind: EventKind) -> bool {
    // Relaxed: a thread that sees it on looks again before it writes (`put`).
    let entry = tables.spaces.get(usize::from(space));
    entry.is_some_and(|e| e.trace.switch.load(Ordering::Relaxed) & u64::from(kind.bit()) != 0)
}

/// Nanoseconds of the monotonic clock: the same in every member, since all share one time
/// namespace.
pub(crate) fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    // Neither is ever negative.
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

/// This thread, as the kernel counts; asked once.
fn thread() -> u32 {
    thread_local! {
        static ID: Cell<u32> = const { Cell::new(0) };
    }
    let known = ID.get();
    if known != 0 {
        return known;
    }
    let id = thread_now();
    ID.set(id);
    id
}

/// This thread, asked now.
fn thread_now() -> u32 {
    rustix::thread::gettid()
        .as_raw_nonzero()
        .get()
        .unsigned_abs()
}

/// An event of this thread that has begun.
pub(crate) struct Begun {
    kind: EventKind,
    at: u64,
}

/// What an event tells of, besides time and thread.
#[derive(Clone, Copy)]
pub(crate) struct About {
    pub(crate) port: u16,
    pub(crate) position: u64,
    pub(crate) bytes: u64,
    pub(crate) space: u8,
    pub(crate) process: u32,
}

impl About {
    /// Nothing in particular.
    pub(crate) const NOTHING: Self = Self {
        port: NO_PORT,
        position: 0,
        bytes: 0,
        space: 0,
        process: 0,
    };

    /// A port.
    pub(crate) const fn port(port: u16) -> Self {
        Self {
            port,
            ..Self::NOTHING
        }
    }

    /// A message.
    pub(crate) const fn message(port: u16, position: u64, bytes: u64) -> Self {
        Self {
            port,
            position,
            bytes,
            ..Self::NOTHING
        }
    }

    /// Bytes from this one on: of the region, or of an export.
    pub(crate) const fn byte(offset: u64, bytes: u64) -> Self {
        Self {
            position: offset,
            bytes,
            ..Self::NOTHING
        }
    }

    /// Pages of the pool.
    pub(crate) const fn pages(first: u32, bytes: u64) -> Self {
        Self {
            position: first as u64,
            bytes,
            ..Self::NOTHING
        }
    }
}

impl Begun {
    /// An event of this kind begins now.
    #[cold]
    pub(crate) fn now(kind: EventKind) -> Self {
        Self { kind, at: now() }
    }

    /// It has ended: records it in the ring of `space`.
    pub(crate) fn ended(self, tables: &Tables<'_>, space: u8, incarnation: u32, about: About) {
        let took = now().saturating_sub(self.at);
        self.put(tables, space, incarnation, took, about);
    }

    fn thread(&self) -> u32 {
        // In a signal handler nothing of the thread's own is touched for the first time:
        // in a library that was loaded late, that allocates.
        match self.kind {
            EventKind::Fault | EventKind::Signal | EventKind::Deliver | EventKind::Update => {
                thread_now()
            }
            _ => thread(),
        }
    }

    fn put(self, tables: &Tables<'_>, space: u8, incarnation: u32, took: u64, about: About) {
        // Acquire: the tracer has given the ring memory before it switched it on. The ring keeps
        // that memory for as long as this space lives, even if it is switched off just now.
        let word = tables
            .spaces
            .get(usize::from(space))
            .map_or(0, |e| e.trace.switch.load(Ordering::Acquire));
        let Some(switch) = TraceSwitch::unpack(word) else {
            return;
        };
        let event = EventWords {
            began: self.at,
            took,
            kind: self.kind,
            space: about.space,
            port: about.port,
            thread: self.thread(),
            position: about.position,
            bytes: about.bytes,
            process: about.process,
        };
        let [low, high, ..] = incarnation.to_le_bytes();
        let lower = u16::from_le_bytes([low, high]);
        // A dropped one is missed by the reader, and counted there.
        let _ = tables
            .trace_ring(space, switch.ring)
            .record(lower, &event.pack());
    }
}

impl Member {
    /// Whether we record events of this kind.
    #[inline(always)]
    pub(crate) fn traces(&self, kind: EventKind) -> bool {
        traces(self.tables(), self.space, kind)
    }

    /// Records an event of ours that has ended.
    #[cold]
    pub(crate) fn record(&self, begun: Begun, about: About) {
        begun.ended(self.tables(), self.space, self.incarnation, about);
    }

    /// The beginning of an event of this kind, if we record them. Not in a forked child, which
    /// has no region.
    #[inline(always)]
    pub(crate) fn begins(&self, kind: EventKind) -> Option<Begun> {
        self.traces(kind).then(|| Begun::now(kind))
    }

    /// Records what has just happened.
    #[cold]
    pub(crate) fn happened(&self, kind: EventKind, about: About) {
        self.record(Begun::now(kind), about);
    }

    /// Does what takes its time anyway, and records it.
    pub(crate) fn during<R>(&self, kind: EventKind, about: About, act: impl FnOnce() -> R) -> R {
        if !self.traces(kind) {
            return act();
        }
        let begun = Begun::now(kind);
        let result = act();
        self.record(begun, about);
        result
    }
}
