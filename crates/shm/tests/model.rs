//! Random histories against an oracle, one operation at a time: stalled claims, deaths,
//! closing and opening again, receivers that go on for others.
#![cfg(not(loom))]

use portolan_abi::owner::{
    AllocWord, Born, ChunkUse, ChunkWord, Descriptor, Destination, Hold, OwnerWord, Size,
};
use portolan_abi::port::{PortStatus, RightCount, RightWord, SendCount, Travelling};
use portolan_abi::slot::{Meta, Phase, SlotState};
use portolan_abi::space::{HostWord, SpaceStatus};
use portolan_shm::atomic::{AtomicU64, Ordering};
use portolan_shm::chunk::{Chunks, GiveBack};
use portolan_shm::owner::{AllocWords, OwnerEntry, OwnerRow};
use portolan_shm::queue::{
    AtSpot, Claim, ClaimError, CloseStep, Closing, Cursor, Line, Next, PortEntry, Published, Queue,
    Slot, Spot,
};
use proptest::prelude::*;
use std::collections::VecDeque;

const SENDERS: usize = 5;
const CASES: u32 = if cfg!(miri) { 3 } else { 500 };
const STEPS: usize = if cfg!(miri) { 30 } else { 200 };

fn config() -> ProptestConfig {
    ProptestConfig {
        cases: CASES,
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

/// What a history does next; numbers choose among what there is.
#[derive(Clone, Copy, Debug)]
enum Step {
    Send(usize),
    Claim(usize),
    Publish(usize),
    Die(usize),
    Abandon(usize),
    Receive,
    Settle,
    SettleAll,
    Arm,
    Disarm,
    Resume,
    Reopen,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0..SENDERS).prop_map(Step::Send),
        6 => (0..SENDERS).prop_map(Step::Claim),
        6 => (0..SENDERS).prop_map(Step::Publish),
        2 => (0..SENDERS).prop_map(Step::Die),
        1 => (0..SENDERS).prop_map(Step::Abandon),
        12 => Just(Step::Receive),
        2 => Just(Step::Settle),
        2 => Just(Step::SettleAll),
        2 => Just(Step::Arm),
        2 => Just(Step::Disarm),
        1 => Just(Step::Resume),
        1 => Just(Step::Reopen),
    ];
    prop::collection::vec(step, 1..STEPS)
}

struct History<'r> {
    queue: &'r Queue<'r>,
    spots: &'r [Spot],
    cursor: Cursor,
    by_urgency: bool,
    claims: [Option<(Claim<'r, 'r>, u64)>; SENDERS],
    /// Published and not taken, of each sender in its order.
    sent: [VecDeque<u64>; SENDERS],
    next: u64,
    armed: bool,
}

impl History<'_> {
    fn space(sender: usize) -> u8 {
        u8::try_from(sender + 1).unwrap()
    }

    fn waiting(&self) -> usize {
        self.sent.iter().map(VecDeque::len).sum()
    }

    fn run(&mut self, step: Step) {
        match step {
            Step::Send(s) => {
                self.run(Step::Claim(s));
                self.run(Step::Publish(s));
            }
            Step::Claim(s) if self.claims[s].is_none() => {
                // Every second one by the straight line first, which claims a slot or does nothing.
                let (queue, spot, space) = (self.queue, &self.spots[s], Self::space(s));
                let straight = self.next.is_multiple_of(2);
                let claimed = match straight.then(|| queue.claim_at_spot(spot, space)) {
                    Some(AtSpot::Claimed(claim)) => Ok(claim),
                    _ => queue.claim(spot, space, || true),
                };
                match claimed {
                    Ok(claim) => {
                        self.next += 1;
                        claim.write(0, &[self.next * 10 + s as u64]);
                        self.claims[s] = Some((claim, self.next * 10 + s as u64));
                    }
                    Err(ClaimError::Full { .. }) => self.is_full(),
                    Err(ClaimError::Closed) => panic!("closed"),
                }
            }
            Step::Publish(s) => {
                if let Some((claim, word)) = self.claims[s].take() {
                    let published = claim.publish();
                    assert!(published != Published::Closed);
                    assert!(!self.armed || published == Published::Wake, "Q6");
                    self.sent[s].push_back(word);
                }
            }
            Step::Die(s) => {
                if let Some((claim, _)) = self.claims[s].take() {
                    let woken = self.queue.void(claim.position(), Self::space(s));
                    assert!(woken.is_some() && (!self.armed || woken == Some(true)));
                }
            }
            Step::Abandon(s) => {
                if let Some((claim, word)) = self.claims[s].take() {
                    let woken = match word % 2 {
                        0 => claim.abandon(),
                        _ => {
                            let position = claim.position();
                            claim.leave();
                            self.queue.abandon(position)
                        }
                    };
                    assert!(!self.armed || woken);
                }
            }
            Step::Receive => self.receive(),
            Step::Settle => drop(self.queue.settle(&mut self.cursor)),
            Step::SettleAll => drop(self.queue.settle_all(&mut self.cursor)),
            Step::Arm => {
                self.armed = self.queue.arm(&mut self.cursor);
                assert!(!self.armed || self.waiting() == 0, "Q6");
                if !self.armed {
                    self.queue.disarm(&mut self.cursor);
                }
            }
            Step::Disarm => self.disarm(),
            Step::Resume => {
                self.disarm();
                self.cursor = Cursor::resume(self.queue);
            }
            Step::Reopen => self.reopen(),
            Step::Claim(_) => {}
        }
        assert_eq!(self.queue.depth(), self.waiting());
    }

    fn disarm(&mut self) {
        self.queue.disarm(&mut self.cursor);
        self.armed = false;
    }

    /// Something keeps a slot busy.
    fn is_full(&self) {
        let busy = (0..self.queue.slots() as u64)
            .filter(|i| self.queue.slot(*i).state(Ordering::Relaxed).phase() != Phase::Free);
        assert!(busy.count() > 0, "full, and every slot is free");
    }

    fn look(&mut self) -> Next {
        if !self.by_urgency {
            return self.queue.next(&mut self.cursor);
        }
        // The most urgent is anywhere among them.
        let urgency = |slot: &Slot<'_>| {
            let mut word = [0];
            slot.read(0, &mut word);
            word[0] * 7 % 5
        };
        self.queue.pass_published(&mut self.cursor, urgency);
        match self.queue.most_urgent(&self.cursor) {
            Some(found) => Next::Found(found),
            None => self.queue.next(&mut self.cursor),
        }
    }

    fn receive(&mut self) {
        self.disarm();
        match self.look() {
            Next::Found(found) => {
                let mut word = [0];
                self.queue.slot(found.position()).read(0, &mut word);
                let sent = &mut self.sent[usize::try_from(word[0] % 10).unwrap()];
                if self.by_urgency {
                    let at = sent
                        .iter()
                        .position(|w| *w == word[0])
                        .expect("sent, and not taken before");
                    sent.remove(at);
                } else {
                    assert_eq!(sent.pop_front(), Some(word[0]), "Q4");
                }
                // Every second one by the straight line first, which takes it or does nothing.
                let (queue, cursor) = (self.queue, &mut self.cursor);
                if word[0] % 2 == 1 || !queue.take_at_head(cursor, found) {
                    let _ = queue.take(cursor, found);
                }
            }
            Next::Empty => assert_eq!(self.waiting(), 0, "Q3: a message is there and not found"),
            Next::Closed => panic!("closed"),
        }
    }

    fn reopen(&mut self) {
        self.disarm();
        let mut drained = 0;
        for index in 0..self.queue.slots() as u64 {
            while let CloseStep::Message { position } = self.queue.close_slot(index) {
                let mut word = [0];
                self.queue.slot(position).read(0, &mut word);
                assert!(self.sent[usize::try_from(word[0] % 10).unwrap()].contains(&word[0]));
                drained += 1;
                self.queue.close_drained(position);
            }
        }
        assert_eq!(drained, self.waiting());
        self.sent = Default::default();
        for (s, claim) in self.claims.iter_mut().enumerate() {
            let Some((claim, _)) = claim.take() else {
                continue;
            };
            assert!(matches!(self.queue.closing(), Closing::Lingering(_)));
            let position = claim.position();
            if s % 2 == 0 {
                assert_eq!(claim.publish(), Published::Closed);
                self.queue.withdraw(position);
            } else {
                assert!(self.queue.void(position, Self::space(s)).is_some());
            }
        }
        let retired = self.queue.retired().unwrap();
        assert!(matches!(
            self.queue.claim(&self.spots[0], 1, || true),
            Err(ClaimError::Closed)
        ));
        self.queue.open(retired);
        self.cursor = Cursor::resume(self.queue);
    }

    /// All is taken, and every slot can be used again.
    fn finish(&mut self) {
        for s in 0..SENDERS {
            self.run(Step::Publish(s));
        }
        while self.waiting() > 0 {
            self.run(Step::Receive);
        }
        // A receiver by urgency passes messages on, so slots come back at different laps.
        for _ in 0..2 {
            self.run(Step::Receive);
            self.run(Step::SettleAll);
            let mut sent = 0;
            while self.claims[0].is_none() && sent < self.queue.slots() {
                self.run(Step::Send(0));
                sent += 1;
            }
            assert_eq!(self.waiting(), self.queue.slots(), "slots are lost");
            while self.waiting() > 0 {
                self.run(Step::Receive);
            }
        }
    }
}

fn history(slots: usize, by_urgency: bool, steps: &[Step]) {
    let port = PortEntry::default();
    let lines: Vec<Line> = (0..slots).map(|_| Line::new()).collect();
    let queue = Queue::new(&port, &lines, 1).unwrap();
    queue.open(0);
    let spots: [Spot; SENDERS] = Default::default();
    let mut history = History {
        queue: &queue,
        spots: &spots,
        cursor: Cursor::resume(&queue),
        by_urgency,
        claims: Default::default(),
        sent: Default::default(),
        next: 0,
        armed: false,
    };
    steps.iter().for_each(|step| history.run(*step));
    history.disarm();
    history.finish();
}

/// Miri takes the longer for each access to a table the larger that is.
const CHUNKS: usize = if cfg!(miri) { 4 } else { 8 };

/// Extents of several sizes over some chunks, three spaces.
struct Extents<'r> {
    alloc: AllocWords<'r>,
    chunks: Chunks<'r>,
    rows: Vec<OwnerRow<'r>>,
    /// Page, generation, size, and the space that holds it.
    held: Vec<(u32, u32, Size, usize)>,
}

#[derive(Clone, Copy, Debug)]
enum Act {
    Allocate(usize, usize),
    Free(usize),
    Give(usize, usize),
    GiveBack(usize),
    Die(usize),
    Adopt(usize, usize),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        10 => (0..3usize, 0..5usize).prop_map(|(s, z)| Act::Allocate(s, z)),
        6 => any::<usize>().prop_map(Act::Free),
        4 => (any::<usize>(), 0..3usize).prop_map(|(i, s)| Act::Give(i, s)),
        3 => (0..CHUNKS).prop_map(Act::GiveBack),
        1 => (0..3usize).prop_map(Act::Die),
        2 => (0..CHUNKS, 0..3usize).prop_map(|(c, s)| Act::Adopt(c, s)),
    ];
    prop::collection::vec(act, 1..STEPS / 2)
}

fn space(row: usize) -> u8 {
    u8::try_from(row + 1).unwrap()
}

impl Extents<'_> {
    fn act(&mut self, act: Act) {
        match act {
            Act::Allocate(row, size) => {
                let size = [
                    Size::for_bytes(1),
                    Size::for_bytes(9 << 12),
                    Size::for_bytes(1 << 20),
                    Size::run(1),
                    Size::run(2),
                ][size];
                if let Some((page, generation)) = self.find(row, size) {
                    self.held.push((page, generation, size, row));
                }
            }
            Act::Free(i) if !self.held.is_empty() => {
                let (page, generation, _, row) = self.held.swap_remove(i % self.held.len());
                self.alloc.free(&self.rows[row], page, generation).unwrap();
                assert!(
                    self.alloc.free(&self.rows[row], page, generation).is_err(),
                    "freed twice"
                );
            }
            Act::Give(i, to) if !self.held.is_empty() => {
                let i = i % self.held.len();
                let (page, generation, _, from) = self.held[i];
                let destination = Destination::new(1, i as u64);
                self.rows[from].sending(page, generation, destination);
                self.rows[to].hold(page, generation).unwrap();
                self.rows[from].sent(page, generation, destination);
                self.held[i].3 = to;
            }
            Act::GiveBack(index) => {
                let in_use = self.held.iter().any(|(page, _, size, _)| {
                    let first = Chunks::of_page(*page);
                    (first..first + size.chunks().max(1)).contains(&index)
                });
                if let GiveBack::Done(_) = self.chunks.give_back(&self.alloc, index, 1) {
                    assert!(!in_use, "an extent of the chunk is held");
                }
            }
            Act::Die(row) => {
                for page in self.pages() {
                    self.alloc.reclaim_row(&self.rows[row], page);
                }
                self.held.retain(|h| h.3 != row);
                for index in 0..self.chunks.len() {
                    assert!(
                        !self.chunks.reclaim(&self.alloc, index, space(row)),
                        "nothing was half populated"
                    );
                }
            }
            Act::Adopt(index, row) => {
                self.chunks.adopt(index, space(row));
            }
            Act::Free(_) | Act::Give(..) => {}
        }
    }

    fn find(&self, row: usize, size: Size) -> Option<(u32, u32)> {
        let claim = |page| {
            let generation = self.alloc.allocate(&self.rows[row], page, Born::at(0))?;
            assert!(self.chunks.is_cut(page, size));
            Some((page, generation))
        };
        let part = self.chunks.part(size);
        let cut = |index: &usize| {
            let word = self.chunks.read(*index);
            matches!(word.r#use, ChunkUse::Small | ChunkUse::Head) && word.size == size.code()
        };
        let found = part
            .clone()
            .filter(cut)
            .find_map(|index| Chunks::extents(index, size).find_map(claim));
        found.or_else(|| {
            let count = size.chunks().max(1);
            let first = self.chunks.claim_run(part, count, space(row))?;
            (first..first + count).for_each(|i| self.chunks.note_populated(i, false));
            self.chunks.cut(&self.alloc, first, size, space(row));
            claim(Chunks::first_page(first))
        })
    }

    /// Those that are looked at in turn: all; under Miri those at which something begins.
    fn pages(&self) -> Vec<u32> {
        if cfg!(miri) {
            self.held.iter().map(|held| held.0).collect()
        } else {
            (0..u32::try_from(self.alloc.pages()).unwrap()).collect()
        }
    }

    /// C1, O1, by a bitmap.
    fn audit(&self) {
        let mut pages = vec![false; self.alloc.pages()];
        for (page, generation, size, row) in &self.held {
            self.rows[*row].check(*page, *generation).unwrap();
            for page in &mut pages[*page as usize..*page as usize + size.pages()] {
                assert!(!*page, "two extents overlap");
                *page = true;
            }
        }
        let held: usize = self
            .rows
            .iter()
            .map(|r| {
                let held = |page: &u32| r.read(*page).0.hold() == Hold::Held;
                self.pages().into_iter().filter(held).count()
            })
            .sum();
        assert_eq!(held, self.held.len(), "a row says what nobody holds");
    }

    /// Nothing is lost: with all freed, all chunks come back.
    fn finish(mut self) {
        while !self.held.is_empty() {
            self.act(Act::Free(0));
        }
        for index in 0..self.chunks.len() {
            self.act(Act::GiveBack(index));
        }
        assert!(
            (0..self.chunks.len()).all(|i| self.chunks.read(i).r#use == ChunkUse::Free),
            "a chunk is lost"
        );
        for part in [Size::run(1), Size::for_bytes(1)].map(|s| self.chunks.part(s)) {
            assert_eq!(
                self.chunks.claim_run(part.clone(), part.len(), 1),
                Some(part.start)
            );
        }
    }
}

fn extents(acts: &[Act]) {
    let pages = CHUNKS * portolan_abi::limits::CHUNK_PAGES;
    let words: Vec<AtomicU64> = (0..pages).map(|_| AtomicU64::new(0)).collect();
    let chunks: Vec<AtomicU64> = (0..CHUNKS).map(|_| AtomicU64::new(0)).collect();
    let rows: Vec<Vec<OwnerEntry>> = (0..3)
        .map(|_| (0..pages).map(|_| OwnerEntry::default()).collect())
        .collect();
    let mut extents = Extents {
        alloc: AllocWords::new(&words),
        chunks: Chunks::new(&chunks),
        rows: rows
            .iter()
            .enumerate()
            .map(|(i, r)| OwnerRow::new(r, space(i)))
            .collect(),
        held: Vec::new(),
    };
    for act in acts {
        extents.act(*act);
        if cfg!(not(miri)) {
            extents.audit();
        }
    }
    extents.audit();
    extents.finish();
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_queue_keeps_every_message_in_order(slots in 1u32..4, steps in steps()) {
        history(1 << slots, false, &steps);
    }

    #[test]
    fn a_queue_by_urgency_keeps_every_message(slots in 1u32..4, steps in steps()) {
        history(1 << slots, true, &steps);
    }

    #[test]
    fn any_word_can_be_read(a: u64, b: u64) {
        if let Some(d) = Descriptor::unpack([a, b]) {
            prop_assert_eq!(d.pack(), [a, b]);
        }
        let meta = Meta::unpack(a);
        prop_assert_eq!(Meta::unpack(meta.pack()), meta);
        prop_assert!(meta.inline_bytes() < 1 << 21);
        if let Some(right) = RightWord::unpack(a) {
            prop_assert_eq!(RightWord::unpack(right.pack()), Some(right));
        }
        let status = PortStatus::unpack(a);
        prop_assert_eq!(PortStatus::unpack(status.pack()).phase, status.phase);
        let count = RightCount::unpack(a);
        prop_assert_eq!(count.pack(), a);
        prop_assert_eq!(SendCount::unpack(a).pack(), a);
        prop_assert_eq!(Travelling::unpack(a).pack(), a);
        let space = SpaceStatus::unpack(a);
        prop_assert_eq!(SpaceStatus::unpack(space.pack()), space);
        let host = HostWord::unpack(a);
        prop_assert_eq!(HostWord::unpack(host.pack()), host);
        let chunk = ChunkWord::unpack(a);
        prop_assert_eq!(ChunkWord::unpack(chunk.pack()), chunk);
        let to = Destination(a);
        prop_assert_eq!(Destination::new(to.port(), to.position()), to);
        let _ = (AllocWord(a).state(), AllocWord(a).generation(), OwnerWord(a).hold(), OwnerWord(a).generation());
        let _ = format!("{:?}", SlotState(a));
    }

    #[test]
    fn a_slot_state_keeps_its_parts(position in 0u64..1 << 48, space: u8) {
        let claimed = SlotState::free(position).with(SlotState::ASLEEP).claimed(position, space);
        prop_assert_eq!((claimed.phase(), claimed.position(), claimed.space()), (Phase::Claimed, position, space));
        let published = SlotState(claimed.0 + SlotState::PUBLISH);
        prop_assert_eq!(published.phase(), Phase::Published);
        prop_assert_eq!((published.position(), published.flags()), (position, SlotState::ASLEEP));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 1 } else { 100 }, ..config() })]

    #[test]
    fn extents_do_not_overlap_and_none_is_lost(acts in acts()) {
        extents(&acts);
    }
}
