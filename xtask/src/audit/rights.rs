//! Audits rights and waiters: A4 to A6.

use super::image::Port;
use super::{Audit, is_open};
use portolan_abi::port::{PortName, PortPhase, RightCount, RightKind, SendCount, event};
use std::collections::BTreeMap;
use std::io;

impl Audit<'_> {
    /// A4, A5, A6: send rights and answers.
    pub(super) fn rights(&mut self) -> io::Result<()> {
        let mut senders: BTreeMap<PortName, u64> = BTreeMap::new();
        for right in self.travelling.iter().filter(|r| r.kind == RightKind::Send) {
            *senders.entry(right.port).or_default() += 1;
        }
        for port in self.ports.iter().filter(|p| is_open(p)) {
            let (index, generation) = (port.index, port.status.generation);
            let count = Some(port.travelling)
                .filter(|t| t.generation == generation)
                .map_or(0, |t| u64::from(t.count));
            let found = senders.get(&PortName { index, generation });
            let found = found.copied().unwrap_or(0);
            // What a dead space has left in it is subtracted when somebody counts.
            if count < found || count > found && !port.travelling.doubtful {
                self.found.unreleased.push(format!(
                    "port {index} counts {count} rights that travel ({:?}), and {found} do",
                    port.travelling
                ));
            }
        }
        let mut owed = self.owed.clone();
        for space in self.spaces.clone() {
            let live = self.is_live(space.id);
            let mut sends = 0;
            for (index, counts) in self.image.rights(space.id)? {
                let (send, once) = (
                    SendCount::unpack(counts.send),
                    RightCount::unpack(counts.once),
                );
                // The upper bits of a send-once count are a tag.
                let onces = once.count & 0xfff;
                if !live {
                    if send.count + onces > 0 {
                        self.found.unreleased.push(format!(
                            "space {} is {:?} and has {} rights on port {index}",
                            space.id,
                            space.status.phase,
                            send.count + onces
                        ));
                    }
                    continue;
                }
                let name = PortName {
                    index,
                    generation: send.generation,
                };
                if send.count > 0 && self.port(name).is_some() {
                    sends += u64::from(send.count);
                    *senders.entry(name).or_default() += u64::from(send.count);
                }
                if onces > 0 {
                    owed.insert(PortName {
                        index,
                        generation: once.generation,
                    });
                }
            }
            if let Some(journal) = self.journals.get(&space.id)
                && journal.sends != sends
            {
                self.found.unreleased.push(format!(
                    "space {} has {sends} live send rights by its row, and worker {} has {}",
                    space.id, journal.worker, journal.sends
                ));
            }
        }
        let waits = |p: &&Port| is_open(p) && p.wanted & !p.events & event::NO_MORE_SENDERS != 0;
        for port in self.ports.iter().filter(waits) {
            let name = PortName {
                index: port.index,
                generation: port.status.generation,
            };
            if senders.get(&name).copied().unwrap_or(0) == 0 {
                let of = port.status;
                self.found.hung.push(format!(
                    "port {} of space {} ({:?}, use {}) has no senders left, and was not told",
                    port.index, of.owner, of.phase, of.generation
                ));
            }
        }
        let shared = |p: &&Port| p.status.phase == PortPhase::Open && p.status.shared;
        for port in self.ports.iter().filter(shared) {
            let name = PortName {
                index: port.index,
                generation: port.status.generation,
            };
            if senders.get(&name).copied().unwrap_or(0) == 0 {
                let index = port.index;
                let unused = format!("nobody has a right on the segment of port {index}");
                self.found.unreleased.push(unused);
            }
        }
        self.owed = owed;
        self.answers();
        Ok(())
    }

    /// A6: who waits for an answer.
    fn answers(&mut self) {
        for (space, journal) in &self.journals {
            let replies = self.ports.iter().filter(|p| {
                p.status.phase == PortPhase::Open && p.status.replies && p.status.owner == *space
            });
            let is_owed = |p: &&Port| {
                self.owed.contains(&PortName {
                    index: p.index,
                    generation: p.status.generation,
                })
            };
            let (owed, idle): (Vec<_>, Vec<_>) = replies.partition(is_owed);
            if (owed.len() as u64) < journal.pending {
                let (worker, pending, owed) = (journal.worker, journal.pending, owed.len());
                let states = |p: &&Port| {
                    (
                        p.index,
                        p.status.generation,
                        p.head,
                        p.slots.iter().map(|s| s.state).collect::<Vec<_>>(),
                    )
                };
                let idle: Vec<_> = idle.iter().map(states).collect();
                self.found.hung.push(format!("worker {worker} waits for {pending} answers, and only {owed} can come; its other ports: {idle:?}"));
            }
        }
    }

    /// A3, A4: who listens, and the lock on ranges.
    pub(super) fn signals(&mut self) -> io::Result<()> {
        let fifos = self.image.fifo_owners()?;
        let handlers = self.image.handler_owners()?;
        self.compare_listeners(&fifos, "signal FIFOs");
        self.compare_listeners(&handlers, "signal handlers");
        let mut listed: Vec<(u8, &str)> = fifos.iter().map(|s| (*s, "a signal FIFO")).collect();
        listed.extend(handlers.iter().map(|s| (*s, "a signal handler")));
        listed.extend(
            self.image
                .signal_lock()?
                .map(|s| (s, "the lock on signal ranges")),
        );
        for (space, what) in listed {
            if !self.is_live(space) {
                let has = format!("space {space}, which does not live, has {what}");
                self.found.unreleased.push(has);
            }
        }
        Ok(())
    }

    /// A3: what the dead have left would be their successors', by the number of the space alone.
    fn compare_listeners(&mut self, owners: &[u8], what: &str) {
        for (space, journal) in &self.journals {
            let has = owners.iter().filter(|owner| *owner == space).count();
            if has as u64 != journal.listeners {
                let (worker, listeners) = (journal.worker, journal.listeners);
                self.found.unreleased.push(format!(
                    "space {space} has {has} {what}, and worker {worker} has {listeners} listeners"
                ));
            }
        }
    }

    /// A4, A6: the watches.
    pub(super) fn watches(&mut self) -> io::Result<()> {
        for watch in self.image.watches()? {
            let live = self.is_live(watch.space);
            let told = watch.notify.is_some_and(|r| self.port(r.port).is_some());
            let dead = watch.target.is_some_and(|r| self.port(r.port).is_none());
            let of = format!(
                "a watch of space {} on {:?}",
                watch.space,
                watch.target.map(|r| r.port)
            );
            match watch.state {
                _ if !live => self
                    .found
                    .unreleased
                    .push(format!("{of}: the space does not live")),
                1 => self.found.unreleased.push(format!("{of} is half written")),
                _ if !told => self
                    .found
                    .unreleased
                    .push(format!("{of}: its port is closed")),
                2 if dead => self
                    .found
                    .hung
                    .push(format!("{of}: the port is dead, and nobody says so")),
                _ => {}
            }
        }
        Ok(())
    }
}
