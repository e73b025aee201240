//! Switches a trace on and off, from outside the traced spaces.
//!
//! ```text
//! header's tracer word:  0 --tracer--> tracer --tracer, or host after its death--> 0
//! a space's switch:      0 --tracer (live), host (joining)--> tracer --the same--> 0
//! ```
//!
//! # Invariants
//!
//! - **T1** The process that sets a switch has given the ring its memory before, so that no thread
//!   of the space touches a page that is not there.
//! - **T2** A ring keeps its memory while its space lives: a thread that saw the switch on
//!   may write long after it was switched off.
//! - **T3** A switch names its tracer. When the tracer is dead, the host switches off every switch
//!   that names it; so a tracer that is killed leaves nothing on.

use crate::space::Member;
use portolan_abi::region::{Geometry, TRACE_BYTES};
use portolan_abi::space::{SpacePhase, SpaceStatus};
use portolan_abi::trace::TraceSwitch;
use portolan_shm::atomic::Ordering;
use portolan_shm::region::SpaceEntry;
use portolan_sys::memory::{self, AllocateError};

fn entry(member: &Member, space: u8) -> Option<&SpaceEntry> {
    member.tables().spaces.get(usize::from(space))
}

/// Who traces the domain.
pub(super) fn tracer(member: &Member) -> Option<TraceSwitch> {
    // Acquire: what the tracer is was written before it began.
    TraceSwitch::unpack(member.tables().header.tracer.value.load(Ordering::Acquire))
}

/// Makes us the tracer; else who is.
pub(super) fn begin(member: &Member, switch: TraceSwitch) -> Result<(), TraceSwitch> {
    let word = &member.tables().header.tracer.value;
    loop {
        // SeqCst: before we look at the spaces; pairs with `newcomer`.
        let begun = word.compare_exchange(0, switch.pack(), Ordering::SeqCst, Ordering::SeqCst);
        match begun.map_err(TraceSwitch::unpack) {
            Ok(_) => return Ok(()),
            Err(Some(other)) => return Err(other),
            // It has ended between our two looks: there is none with word 0.
            Err(None) => {}
        }
    }
}

/// Ends the trace that `switch` names, everywhere. May be repeated, and may race with its
/// tracer's own end of it.
pub(super) fn end(member: &Member, switch: TraceSwitch) {
    // SeqCst: before we look at the spaces; pairs with `newcomer`.
    let _ = member.tables().header.tracer.value.compare_exchange(
        switch.pack(),
        0,
        Ordering::SeqCst,
        Ordering::Relaxed,
    );
    all_off(member, switch);
}

/// Ends the recording of the spaces that are there, and not the trace: the rings are still its
/// own, also those of the dead.
pub(super) fn all_off(member: &Member, switch: TraceSwitch) {
    for entry in member.tables().spaces {
        off(entry, switch.pack());
    }
}

fn off(entry: &SpaceEntry, word: u64) {
    // Fails if it is off, or another trace's.
    let _ = entry
        .trace
        .switch
        .compare_exchange(word, 0, Ordering::SeqCst, Ordering::Relaxed);
}

/// Switches a space's recording on (T1). Only the tracer, about a live space, or the host,
/// about one that is joining.
pub(super) fn on(member: &Member, space: u8, switch: TraceSwitch) -> Result<(), AllocateError> {
    let Some(entry) = entry(member, space) else {
        return Ok(());
    };
    let tables = member.tables();
    let trace = &entry.trace;
    if trace.switch.load(Ordering::Acquire) == switch.pack() {
        return Ok(());
    }
    let bytes = Geometry::trace_bytes(switch.ring);
    memory::allocate(member.region.fd(), tables.geometry.trace(space), bytes)?;
    let next = tables.trace_ring(space, switch.ring).next();
    // Relaxed: read by threads that find the switch on, which is stored after it.
    trace.since.store(next, Ordering::Relaxed);
    // SeqCst: stronger than the Release that its readers need, for `newcomer`.
    trace.switch.store(switch.pack(), Ordering::SeqCst);
    Ok(())
}

/// For who admits a newcomer: its space is claimed. If there is a trace, it takes part from the start.
pub(crate) fn newcomer(member: &Member, space: u8) {
    let Some(entry) = entry(member, space) else {
        return;
    };
    // SeqCst: after its status; pairs with `begin`, whose tracer looks at spaces later.
    let tracer = &member.tables().header.tracer.value;
    let word = tracer.load(Ordering::SeqCst);
    let Some(switch) = TraceSwitch::unpack(word) else {
        entry.trace.switch.store(0, Ordering::Relaxed);
        return;
    };
    // Without memory for its ring it is left out; the tracer tries again.
    let _ = on(member, space, switch);
    // SeqCst: pairs with `end`, which takes the word back before it looks at the spaces.
    if tracer.load(Ordering::SeqCst) != word {
        off(entry, word);
    }
}

/// For the host: a space is dead, and so is its trace (T3).
pub(crate) fn reclaim(member: &Member, space: u8, incarnation: u32) {
    let tables = member.tables();
    let its = |word: u64| {
        TraceSwitch::unpack(word).filter(|s| s.tracer == space && s.incarnation == incarnation)
    };
    let header = tables.header.tracer.value.load(Ordering::SeqCst);
    // Its header word may be gone already, if it died while it was ending its trace.
    let words = tables.spaces.iter().map(|e| &e.trace.switch);
    let switches = words.map(|w| w.load(Ordering::SeqCst));
    if let Some(switch) = std::iter::once(header).chain(switches).find_map(its) {
        end(member, switch);
    }
}

/// For the host: gives a dead space's ring back, unless its last events are still to be read.
pub(crate) fn give_back(member: &Member, space: u8) {
    let tables = member.tables();
    // SeqCst: a tracer that begins later finds the space dead, and leaves its ring alone.
    if tables.header.tracer.value.load(Ordering::SeqCst) == 0 {
        let fd = member.region.fd();
        // It only saves memory, so it may fail.
        let _ = memory::punch(fd, tables.geometry.trace(space), TRACE_BYTES);
    }
}

/// Every place for a space, with what is there. One may be free and yet have a ring to be
/// read: its space came and went.
pub(super) fn spaces(member: &Member) -> impl Iterator<Item = (u8, SpaceStatus, &SpaceEntry)> {
    let all = (1..=u8::MAX).filter_map(|id| Some((id, entry(member, id)?)));
    all.map(|(id, entry)| {
        let status = SpaceStatus::unpack(entry.status.load(Ordering::SeqCst));
        (id, status, entry)
    })
}

/// Whether another space is there.
pub(super) fn company(member: &Member) -> bool {
    spaces(member).any(|(id, status, _)| id != member.space && status.phase != SpacePhase::Free)
}
