//! Each thread counts its operations, and publishes what it waits for, in a line of its own.
//!
//! A thread takes a line at its first count, the same one in every domain of its process, and
//! keeps it until it ends. So a count is a load and a store to a line that no other core writes,
//! and no count is lost. Threads beyond the last line share that one: they add atomically, and
//! do not publish what they wait for.

use crate::space::Member;
use portolan_abi::limits::THREAD_LINES;
use portolan_abi::thread::Wait;
use portolan_shm::region::ThreadLine;
use portolan_sys::process::{HAS_THREAD_POINTER, thread_pointer};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The line that is shared.
const SHARED: usize = THREAD_LINES - 1;
/// No line yet.
const NONE: usize = usize::MAX;

/// Which lines threads of this process have.
static TAKEN: AtomicU64 = AtomicU64::new(1 << SHARED);
/// Whose each of them is ([`thread_pointer`]); 0 while it is no thread's, and of threads without one.
static OWNERS: [AtomicUsize; SHARED] = [const { AtomicUsize::new(0) }; SHARED];

thread_local! {
    /// This thread's line. Without a destructor, so that it costs a load.
    static LINE: Cell<usize> = const { Cell::new(NONE) };
    /// What gives it back.
    static LEASE: Lease = const { Lease };
}

/// Gives the thread's line back when the thread ends.
struct Lease;

impl Drop for Lease {
    fn drop(&mut self) {
        let line = LINE.replace(SHARED);
        if line < SHARED {
            // Relaxed: before the line is given back, and looked for by this thread alone.
            OWNERS[line].store(0, Ordering::Relaxed);
            // Release: the thread that takes it next adds to what we counted.
            TAKEN.fetch_and(!(1 << line), Ordering::Release);
        }
    }
}

/// Takes a line for this thread.
#[cold]
fn take() -> usize {
    // A thread that is ending gives nothing back any more.
    let lasts = LEASE.try_with(|_| ()).is_ok();
    // Acquire: pairs with the release of the thread that had the line before.
    let taken = TAKEN.fetch_update(Ordering::Acquire, Ordering::Relaxed, |taken| {
        lowest_free(taken)
            .filter(|_| lasts)
            .map(|line| taken | 1 << line)
    });
    let line = taken.ok().and_then(lowest_free);
    let line = line.map_or(SHARED, |line| line as usize);
    if let Some(owner) = OWNERS.get(line) {
        // Relaxed: as where it is given back.
        owner.store(thread_pointer(), Ordering::Relaxed);
    }
    LINE.set(line);
    line
}

fn lowest_free(taken: u64) -> Option<u32> {
    let line = taken.trailing_ones();
    (line < u64::BITS).then_some(line)
}

/// This thread's line in a space, and whether others write it too.
#[inline]
fn line(member: &Member) -> (&ThreadLine, bool) {
    let mut line = LINE.get();
    if line == NONE {
        line = take();
    }
    let lines = member.tables().thread_lines(member.space);
    (&lines[line & (THREAD_LINES - 1)], line == SHARED)
}

#[inline]
fn add(word: &AtomicU64, value: u64, shared: bool) {
    // Relaxed: counters for people.
    if shared {
        word.fetch_add(value, Ordering::Relaxed);
    } else {
        word.store(
            word.load(Ordering::Relaxed).wrapping_add(value),
            Ordering::Relaxed,
        );
    }
}

/// A message was sent, with so many bytes in extents; `lines` are those of our space.
#[inline(always)]
pub(crate) fn sent(lines: &[ThreadLine; THREAD_LINES], bytes: u64) {
    let at = LINE.get();
    if at >= SHARED {
        return sent_first_or_shared(lines, bytes);
    }
    add(&lines[at].sent, 1, false);
    if bytes != 0 {
        add(&lines[at].sent_bytes, bytes, false);
    }
}

/// Which line the thread has that counted last with this. A hint: the line says whose it is.
#[derive(Default)]
pub(crate) struct Hint(AtomicUsize);

impl Hint {
    /// The hint is this thread's line from now on, if it has one of its own.
    pub(crate) fn renew(&self) {
        let line = LINE.get();
        if line < SHARED {
            // Relaxed: any value is safe.
            self.0.store(line, Ordering::Relaxed);
        }
    }
}

/// As [`sent`], if the hint is right; otherwise nothing is counted. In a shared
/// library [`sent`] has to call for where the thread's variables are.
#[inline(always)]
pub(crate) fn sent_by_hint(lines: &[ThreadLine; THREAD_LINES], hint: &Hint, bytes: u64) -> bool {
    let (line, own) = (hint.0.load(Ordering::Relaxed), thread_pointer());
    let (Some(owner), Some(line)) = (OWNERS.get(line), lines.get(line)) else {
        return false;
    };
    // Relaxed: a thread finds its own number only where it has put it, and not taken it away.
    if !HAS_THREAD_POINTER || owner.load(Ordering::Relaxed) != own {
        return false;
    }
    add(&line.sent, 1, false);
    if bytes != 0 {
        add(&line.sent_bytes, bytes, false);
    }
    true
}

/// The same as [`sent`], of a thread that has no line, or none of its own.
#[cold]
#[inline(never)]
fn sent_first_or_shared(lines: &[ThreadLine; THREAD_LINES], bytes: u64) {
    let at = match LINE.get() {
        NONE => take(),
        line => line,
    };
    let (line, shared) = (&lines[at & (THREAD_LINES - 1)], at == SHARED);
    add(&line.sent, 1, shared);
    add(&line.sent_bytes, bytes, shared);
}

/// A send found the queue full.
#[cold]
pub(crate) fn full(member: &Member) {
    let (line, shared) = line(member);
    add(&line.full, 1, shared);
}

/// A message was dropped because the queue was full.
#[cold]
pub(crate) fn dropped(member: &Member) {
    let (line, shared) = line(member);
    add(&line.dropped, 1, shared);
}

/// A call was made; `lines` are those of our space.
#[inline(always)]
pub(crate) fn called(lines: &[ThreadLine; THREAD_LINES]) {
    count(lines, |line| &line.calls);
}

/// A call was run for a client.
#[inline(always)]
pub(crate) fn answered(member: &Member) {
    count(member.tables().thread_lines(member.space), |line| {
        &line.answers
    });
}

/// Counts one more, in a word of this thread's line.
#[inline(always)]
fn count(lines: &[ThreadLine; THREAD_LINES], word: fn(&ThreadLine) -> &AtomicU64) {
    let at = LINE.get();
    if at >= SHARED {
        return count_first_or_shared(lines, word);
    }
    add(word(&lines[at]), 1, false);
}

/// The same, of a thread that has no line, or none of its own.
#[cold]
#[inline(never)]
fn count_first_or_shared(lines: &[ThreadLine; THREAD_LINES], word: fn(&ThreadLine) -> &AtomicU64) {
    let at = match LINE.get() {
        NONE => take(),
        line => line,
    };
    add(word(&lines[at & (THREAD_LINES - 1)]), 1, at == SHARED);
}

/// An address was signalled. In an upcall, too, of a thread that is [`prepare`]d.
#[inline]
pub(crate) fn signalled(member: &Member) {
    let (line, shared) = line(member);
    add(&line.signals, 1, shared);
}

/// A signal came to its handlers.
#[inline]
pub(crate) fn delivered(member: &Member) {
    let (line, shared) = line(member);
    add(&line.delivered, 1, shared);
}

/// As [`delivered`], in an upcall, which may interrupt its thread while that counts.
#[inline]
pub(crate) fn delivered_by_upcall(member: &Member) {
    let lines = member.tables().thread_lines(member.space);
    add(&lines[SHARED].delivered, 1, true);
}

/// Takes a line for this thread, should it have none: from here on nothing that counts takes
/// memory, so upcalls may.
pub(crate) fn prepare() {
    if LINE.get() == NONE {
        take();
    }
}

/// Says what this thread waits for, from now on.
#[inline]
pub(crate) fn waits(member: &Member, wait: Wait) {
    let (line, shared) = line(member);
    if !shared {
        line.waits.store(wait.pack(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Domain, Message, PortOptions, WhenFull};
    use std::sync::Barrier;

    #[test]
    fn a_hint_counts_for_the_thread_whose_line_it_is_and_for_no_other() {
        let domain = Domain::private().unwrap();
        let lines = domain.member().tables().thread_lines(domain.member().space);
        let count = |line: &ThreadLine| line.sent.load(Ordering::Relaxed);
        let sent = || lines.iter().map(count).sum::<u64>();
        let bytes = |line: &ThreadLine| line.sent_bytes.load(Ordering::Relaxed);
        let sent_bytes = || lines.iter().map(bytes).sum::<u64>();
        let (before, bytes_before) = (sent(), sent_bytes());
        let ours = Hint::default();
        prepare();
        ours.renew();
        let is_own = LINE.get() < SHARED && HAS_THREAD_POINTER;
        assert_eq!(sent_by_hint(lines, &ours, 7), is_own);
        for wrong in [SHARED, SHARED + 1, usize::MAX] {
            assert!(!sent_by_hint(lines, &Hint(AtomicUsize::new(wrong)), 7));
        }
        // Other threads, one after another, which may have the same control block and the same line.
        for _ in 0..4 {
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    assert!(!sent_by_hint(lines, &ours, 7));
                    prepare();
                    assert!(!sent_by_hint(lines, &ours, 7));
                });
            });
        }
        assert_eq!(sent() - before, u64::from(is_own));
        assert_eq!(sent_bytes() - bytes_before, 7 * u64::from(is_own));
    }

    #[test]
    fn more_threads_than_lines_lose_no_count() {
        const THREADS: usize = THREAD_LINES + 20;
        const EACH: u64 = 500;
        let domain = Domain::private().unwrap();
        let port = domain.bind(PortOptions::unnamed().queue(2)).unwrap();
        // Twice: the lines that ended threads had are taken again.
        for round in 1..=2 {
            let all = Barrier::new(THREADS);
            std::thread::scope(|scope| {
                for _ in 0..THREADS {
                    scope.spawn(|| {
                        let right = port.make_send();
                        all.wait();
                        for _ in 0..EACH {
                            let message = Message::new(b"").unwrap();
                            right.send(message, WhenFull::Drop).unwrap();
                            called(port.at().own().threads);
                            answered(domain.member());
                        }
                        all.wait();
                    });
                }
            });
            let survey = domain.survey().unwrap();
            let space = &survey.spaces[0];
            assert_eq!(
                space.sent + space.dropped,
                round * EACH * THREADS as u64,
                "{space:?}"
            );
            assert_eq!(space.dropped, space.full);
            let all = round * EACH * THREADS as u64;
            assert_eq!((space.calls, space.answers), (all, all), "{space:?}");
            assert_eq!(space.dropped, survey.ports[0].dropped);
        }
        let survey = domain.survey().unwrap();
        assert_eq!(survey.spaces[0].sent, survey.ports[0].depth as u64);
    }
}
