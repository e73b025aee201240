//! Sends a stream of units by update, which the receiver reads where they land.
//!
//! ```text
//! receiver exports: | unit | unit | ... |  number | number | ...    a number behind its unit
//! sender exports:   | how many have been read |
//! ```

use std::hint::black_box;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

use portolan::Domain;
use portolan::vmmc::{Alias, Export, ExportMemory, Import, OrdinaryMemory};
use portolan_sys::memory::PAGE;

use super::{EXPORTED, RETURNED, export, import, mapping, memory, updating};
use crate::case::update::Way;
use crate::case::{Case, System};
use crate::error::{MeasureError, Result};
use crate::payload;
use crate::systems::Endpoint;
use crate::systems::memory::{LINE_PAIR, Spin};
use crate::systems::portolan::{join, parent};

/// Units that may be under way: as many of 4 KiB as a pipe holds.
const UNDER_WAY: usize = 16;
/// The receiver says how many it has read whenever it has read so many more.
const SAID: u64 = UNDER_WAY as u64 / 4;

/// One end of the stream.
pub(crate) struct Units {
    end: End,
    bytes: usize,
    /// Units sent, or received.
    count: u64,
    spin: Spin,
    _export: Export,
    /// Last: it is left after all that belongs to it.
    domain: Domain,
}

enum End {
    Receiver {
        ring: Ring,
        /// Where the sender is told what has been read.
        read: Option<Import>,
        buffer: Vec<u8>,
    },
    Sender {
        to: Remote,
        source: Vec<u8>,
        read: ExportMemory,
        /// What it said when we looked last.
        seen: u64,
    },
}

/// What the receiver exports.
enum Ring {
    Shared(ExportMemory),
    Ordinary(OrdinaryMemory),
}

/// The same, as the sender writes it.
enum Remote {
    Deliberate(Import),
    Alias { local: ExportMemory, _alias: Alias },
    Ordinary(Import),
}

/// Bytes of a ring.
fn size(bytes: usize) -> usize {
    (UNDER_WAY * (bytes + LINE_PAIR)).next_multiple_of(PAGE)
}

/// Where a unit lies.
fn unit(nth: u64, bytes: usize) -> usize {
    place(nth) * bytes
}

/// Where its number does.
fn number(nth: u64, bytes: usize) -> usize {
    UNDER_WAY * bytes + place(nth) * LINE_PAIR
}

fn place(nth: u64) -> usize {
    // Below `UNDER_WAY`, which is a usize.
    usize::try_from(nth % UNDER_WAY as u64).unwrap_or(0)
}

/// What the words of a unit add up to, whose first is `seed`, the next one more, and so on.
fn sum(seed: u64, bytes: usize) -> u64 {
    let words = bytes as u64 / 8;
    words * seed + words * words.saturating_sub(1) / 2
}

impl Endpoint for Units {
    fn create(case: &Case) -> Result<(Self, Vec<OwnedFd>)> {
        let domain = join(case, std::process::id())?;
        let bytes = usize::try_from(case.bytes).expect("64-bit only");
        let (exported, ring) = if case.system == System::Units(Way::Kernel) {
            let memory = OrdinaryMemory::from(vec![0; size(bytes)]);
            (export(&domain, &memory, EXPORTED)?, Ring::Ordinary(memory))
        } else {
            let memory = memory(size(bytes))?;
            (export(&domain, &memory, EXPORTED)?, Ring::Shared(memory))
        };
        let end = Self {
            end: End::Receiver {
                ring,
                read: None,
                buffer: vec![0; bytes],
            },
            bytes,
            count: 0,
            spin: Spin::new(case),
            _export: exported,
            domain,
        };
        Ok((end, Vec::new()))
    }

    fn attach(case: &Case, _seat: u32, _descriptors: Vec<OwnedFd>) -> Result<Self> {
        let System::Units(way) = case.system else {
            return Err(MeasureError::Gone);
        };
        let domain = join(case, parent()?)?;
        let bytes = usize::try_from(case.bytes).expect("64-bit only");
        let ring = import(&domain, EXPORTED)?;
        let to = match way {
            Way::Kernel => Remote::Ordinary(ring),
            Way::Alias => {
                let local = memory(size(bytes))?;
                let alias = ring.map_alias(&local, 0..size(bytes), 0);
                Remote::Alias {
                    local,
                    _alias: alias.map_err(mapping)?,
                }
            }
            _ => Remote::Deliberate(ring),
        };
        let read = memory(PAGE)?;
        Ok(Self {
            _export: export(&domain, &read, RETURNED)?,
            end: End::Sender {
                to,
                source: vec![0; bytes],
                read,
                seen: 0,
            },
            bytes,
            count: 0,
            spin: Spin::new(case),
            domain,
        })
    }

    fn meet(&mut self, _case: &Case) -> Result<()> {
        if let End::Receiver { read, .. } = &mut self.end {
            *read = Some(import(&self.domain, RETURNED)?);
        }
        Ok(())
    }

    #[inline(always)]
    fn send(&mut self) -> Result<()> {
        let End::Sender {
            to,
            source,
            read,
            seen,
        } = &mut self.end
        else {
            return Err(MeasureError::Gone);
        };
        let sent = self.count;
        if sent - *seen >= UNDER_WAY as u64 {
            self.spin.until(|| {
                *seen = read.load_acquire(0).unwrap_or(sent);
                sent - *seen < UNDER_WAY as u64
            });
        }
        self.count += 1;
        let (at, behind) = (unit(sent, self.bytes), number(sent, self.bytes));
        match to {
            Remote::Deliberate(import) => {
                payload::write(source, self.count);
                import.write(at, source).map_err(updating)?;
                import.store_release(behind, self.count)
            }
            Remote::Alias { local, .. } => {
                let words = local.words().map_err(updating)?;
                let words = &words[at / 8..(at + self.bytes) / 8];
                for (value, word) in (self.count..).zip(words) {
                    // Relaxed: the number is stored behind it, with order.
                    word.store(value, Ordering::Relaxed);
                }
                local.store_release(behind, self.count)
            }
            Remote::Ordinary(import) => {
                payload::write(source, self.count);
                import.write(at, source).map_err(updating)?;
                import.write(behind, &self.count.to_ne_bytes())
            }
        }
        .map_err(updating)
    }

    #[inline(always)]
    fn receive(&mut self) -> Result<()> {
        let End::Receiver { ring, read, buffer } = &mut self.end else {
            return Err(MeasureError::Gone);
        };
        let (at, behind) = (unit(self.count, self.bytes), number(self.count, self.bytes));
        self.count += 1;
        let expected = self.count;
        let found = match ring {
            Ring::Shared(memory) => {
                let there = || memory.load_acquire(behind) == Ok(expected);
                self.spin.until(there);
                let words = memory.words().map_err(updating)?;
                let words = &words[at / 8..(at + self.bytes) / 8];
                // Relaxed: the number was loaded before, with order.
                let add = |sum: u64, word: &std::sync::atomic::AtomicU64| {
                    sum.wrapping_add(word.load(Ordering::Relaxed))
                };
                words.iter().fold(0, add)
            }
            Ring::Ordinary(memory) => {
                self.spin.until(|| {
                    let mut word = [0; 8];
                    let read = memory.read(behind, &mut word);
                    read.is_ok() && u64::from_ne_bytes(word) == expected
                });
                memory.read(at, buffer).map_err(updating)?;
                portolan_sys::shared::sum_words(buffer)
            }
        };
        if black_box(found) != sum(expected, self.bytes) {
            return Err(MeasureError::library("reading what a benchmark wrote")(
                "a unit is not what was sent",
            ));
        }
        if expected.is_multiple_of(SAID) {
            let read = read.as_ref().ok_or(MeasureError::Gone)?;
            read.store_release(0, expected).map_err(updating)?;
        }
        Ok(())
    }
}
