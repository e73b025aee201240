//! Two chunks of a pool with the rows of four spaces and two ports, and their audit.

use super::Port;
use portolan_abi::owner::{Alloc, Born, ChunkWord, Destination, Hold, Size};
use portolan_abi::slot::Phase;
use portolan_shm::atomic::{AtomicU64, Ordering};
use portolan_shm::chunk::Chunks;
use portolan_shm::owner::{AllocWords, OwnerEntry, OwnerRow};
use portolan_shm::queue::{CloseStep, Cursor, Next, Published, Queue, Woken};

/// A chunk that is one extent, whose page is the first.
pub const RUN: Size = Size::run(1);

/// See above. Only the first page has words: extents are runs that begin there.
pub struct Pool {
    alloc: Vec<AtomicU64>,
    rows: Vec<Vec<OwnerEntry>>,
    chunks: Vec<AtomicU64>,
    pub ports: [Port; 2],
}

impl Pool {
    pub fn new() -> Self {
        Self {
            alloc: vec![AtomicU64::new(0)],
            rows: (0..4).map(|_| vec![OwnerEntry::default()]).collect(),
            chunks: (0..2)
                .map(|_| AtomicU64::new(ChunkWord::FRESH.pack()))
                .collect(),
            ports: [Port::new(2), Port::new(2)],
        }
    }

    pub fn alloc(&self) -> AllocWords<'_> {
        AllocWords::new(&self.alloc)
    }

    pub fn row(&self, space: u8) -> OwnerRow<'_> {
        OwnerRow::new(&self.rows[usize::from(space)], space)
    }

    pub fn chunks(&self) -> Chunks<'_> {
        Chunks::new(&self.chunks)
    }

    /// Makes chunk `index` the cache owner of one extent.
    pub fn cut(&self, space: u8, index: usize, size: Size) {
        let chunks = self.chunks();
        assert_eq!(
            chunks.claim_run(index..index + size.chunks(), size.chunks(), space),
            Some(index)
        );
        (index..index + size.chunks()).for_each(|i| chunks.note_populated(i, false));
        chunks.cut(&self.alloc(), index, size, space);
    }

    /// Allocates as an allocator does: claim the word, then look at the chunk (C1).
    pub fn allocate(&self, space: u8, page: u32, size: Size) -> Option<u32> {
        let generation = self.alloc().allocate(&self.row(space), page, Born::at(0))?;
        if self.chunks().is_cut(page, size) {
            return Some(generation);
        }
        self.alloc()
            .free(&self.row(space), page, generation)
            .unwrap();
        None
    }

    /// Allocates page 0 and sends it to a port.
    pub fn allocate_and_send(&self, space: u8, port: u16) -> bool {
        match self.alloc().allocate(&self.row(space), 0, Born::at(0)) {
            Some(generation) => self.send(space, port, 0, generation),
            None => false,
        }
    }

    /// Sends an extent; a port that is full or closed leaves it ours.
    pub fn send(&self, space: u8, port: u16, page: u32, generation: u32) -> bool {
        let row = self.row(space);
        let at = &self.ports[usize::from(port)];
        let Ok(claim) = at
            .queue()
            .claim(&at.spots[usize::from(space)], space, || true)
        else {
            return false;
        };
        let position = claim.position();
        let to = Destination::new(port, position);
        row.sending(page, generation, to);
        claim.set_meta(1);
        claim.write(0, &[u64::from(page), u64::from(generation)]);
        let published = claim.publish();
        if published == Published::Closed {
            row.hold(page, generation).unwrap();
            at.queue().withdraw(position);
            return false;
        }
        row.sent(page, generation, to);
        if published == Published::Wake {
            at.wake_receiver();
        }
        true
    }

    /// Takes an extent if there is one.
    pub fn receive(&self, space: u8, port: u16, cursor: &mut Cursor) -> Option<(u32, u32)> {
        self.receive_any(space, port, cursor)?
    }

    /// Takes a message if there is one, and its extent if it has one.
    pub fn receive_any(
        &self,
        space: u8,
        port: u16,
        cursor: &mut Cursor,
    ) -> Option<Option<(u32, u32)>> {
        let at = &self.ports[usize::from(port)];
        let queue = at.queue();
        let Next::Found(found) = queue.next(cursor) else {
            return None;
        };
        let extent =
            (queue.slot(found.position()).meta() == 1).then(|| read(&queue, found.position()));
        if let Some((page, generation)) = extent {
            self.row(space).hold(page, generation).unwrap();
        }
        if queue.take(cursor, found) == Woken::Senders {
            at.wake_senders();
        }
        Some(extent)
    }

    /// Closes a port, for its owner or after its death; may be repeated.
    pub fn close(&self, port: u16) {
        let at = &self.ports[usize::from(port)];
        let queue = at.queue();
        for index in 0..queue.slots() as u64 {
            while let CloseStep::Message { position } = queue.close_slot(index) {
                let (page, generation) = read(&queue, position);
                self.alloc().reclaim(page, generation);
                queue.close_drained(position);
            }
        }
        at.wake_senders();
    }

    /// Host: returns what a dead space held. First its row, for which the slots decide; then its
    /// claims; then its chunks. Then it wakes every process that the dead one may have owed a wake.
    pub fn reclaim(&self, space: u8) {
        let row = self.row(space);
        let (word, to) = row.read(0);
        if word.hold() == Hold::Sending {
            let queue = self.ports[usize::from(to.port())].queue();
            if Queue::is_unsent(
                queue.slot(to.position()).state(Ordering::Acquire),
                space,
                to.position(),
            ) {
                self.alloc().reclaim(0, word.generation());
            }
            row.clear(0);
        } else {
            self.alloc().reclaim_row(&row, 0);
        }
        for port in &self.ports {
            let queue = port.queue();
            for index in 0..queue.slots() as u64 {
                let _ = queue.void(queue.slot(index).state(Ordering::Acquire).position(), space);
            }
        }
        for index in 0..self.chunks().len() {
            if self.chunks().reclaim(&self.alloc(), index, space) {
                self.chunks().abandon(index, 1);
            }
        }
        for port in &self.ports {
            port.wake_receiver();
            port.wake_senders();
        }
    }

    /// Every extent has one owner, or is free and has none (O1).
    pub fn audit(&self) {
        let word = self.alloc().read(0);
        let mut owners = Vec::new();
        for space in 0..4 {
            let (own, to) = self.row(space).read(0);
            match own.hold() {
                Hold::None => assert_eq!(own.0, 0, "a half-written row"),
                Hold::Held | Hold::Parked => {
                    owners.push((own.generation(), format!("space {space}")))
                }
                Hold::Sending => {
                    let state = self.ports[usize::from(to.port())]
                        .queue()
                        .slot(to.position())
                        .state(Ordering::Acquire);
                    assert!(
                        Queue::is_unsent(state, space, to.position()),
                        "{state:?} is sent and not noted"
                    );
                    owners.push((own.generation(), format!("space {space}, sending")));
                }
            }
        }
        for port in &self.ports {
            let queue = port.queue();
            for index in 0..queue.slots() as u64 {
                let state = queue.slot(index).state(Ordering::Acquire);
                if state.phase() == Phase::Published
                    && queue.is_untaken(state)
                    && queue.slot(index).meta() == 1
                {
                    owners.push((read(&queue, state.position()).1, format!("{state:?}")));
                }
            }
        }
        match word.state() {
            Alloc::Used => assert!(
                owners.len() == 1 && owners[0].0 == word.generation(),
                "{word:?} has owners {owners:?}; {self:?}"
            ),
            _ => assert!(
                owners.is_empty(),
                "{word:?} has owners {owners:?}; {self:?}"
            ),
        }
    }

    /// After a recovery: each port still passes as many messages as it has slots.
    pub fn is_usable(&self, port: u16, cursor: &mut Cursor) {
        let at = &self.ports[usize::from(port)];
        if let Some(retired) = at.queue().retired() {
            at.queue().open(retired);
            *cursor = Cursor::resume(&at.queue());
        }
        at.is_usable(cursor, 3);
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let rows: Vec<_> = (0..4).map(|s| self.row(s).read(0)).collect();
        let slots: Vec<_> = self
            .ports
            .iter()
            .flat_map(|p| [0, 1].map(|i| p.queue().slot(i).state(Ordering::Acquire)))
            .collect();
        write!(f, "rows {rows:x?}, slots {slots:?}")
    }
}

fn read(queue: &Queue<'_>, position: u64) -> (u32, u32) {
    let mut words = [0; 2];
    queue.slot(position).read(0, &mut words);
    (
        u32::try_from(words[0]).unwrap(),
        u32::try_from(words[1]).unwrap(),
    )
}
