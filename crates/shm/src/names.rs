//! Gives a port's name to one of all that bind it at the same time; no binder waits.
//!
//! A word for each port's entry says what it has to do with a name:
//!
//! ```text
//!        announce               win                   show
//! none ----------> candidate -----------> won -----------------> shown
//!  ^                  |                    |                       |
//!  +------------------+--------------------+-----------------------+
//!    another candidate takes it away;  the port is not opened;  it closes, its space is dead
//! ```
//!
//! # Invariants
//!
//! - **N1** No two entries have won one name. Of two candidates the one that announced itself later
//!   sees the earlier. The later one gives up if the earlier has won or has the lower index; else
//!   it takes the earlier one's candidacy away first, by compare-exchange, or finds that it has won.
//! - **N2** A stopped or dead candidate delays only candidates for the same name: to them the name
//!   is taken.
//! - **N3** The name's text is in the entry before the word says anything of it.

use crate::atomic::{AtomicU64, Ordering, store_load_barrier};
use crate::mark;

/// A name's hash, as the words have it. Every build must agree on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameHash(u64);

/// The bits that say what an entry has to do with its name; none of them is [`NONE`].
const STATE: u64 = 3;
const CANDIDATE: u64 = 1;
const WON: u64 = 2;
const SHOWN: u64 = 3;
/// The entry has no name.
const NONE: u64 = 0;

impl NameHash {
    /// FNV-1a.
    pub fn of(name: &str) -> Self {
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325, |h: u64, b| {
            (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3)
        });
        Self(hash & !STATE)
    }

    /// Whether a word says that its entry can be found by this name.
    pub fn is_shown(self, word: &AtomicU64) -> bool {
        // Acquire: the port is open, and its text is there.
        word.load(Ordering::Acquire) == self.0 | SHOWN
    }

    /// Whether a word says that no other entry may take this name: shown, or about to be.
    pub fn is_taken(self, word: &AtomicU64) -> bool {
        let word = word.load(Ordering::Acquire);
        word == self.0 | SHOWN || word == self.0 | WON
    }
}

/// Why an entry did not get a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// To this entry.
    To(usize),
    /// Another candidate has taken our candidacy away, and perhaps has not won either.
    Again,
}

/// One attempt of entry `ours`, which has the name's text, to win the name. `used` are the entries
/// that others may have, those that came before us at the least; `same` says whether an entry has
/// the same text.
///
/// # Errors
///
/// [`Lost`]; the word is as before.
pub fn win(
    words: &[AtomicU64],
    ours: usize,
    name: NameHash,
    used: impl IntoIterator<Item = usize>,
    same: impl Fn(usize) -> bool,
) -> Result<(), Lost> {
    let our_word = &words[ours];
    // Announce, then look: of two candidates one sees the other (N1). A read-modify-write, for the
    // barrier, which pairs with itself.
    our_word.swap(name.0 | CANDIDATE, Ordering::AcqRel);
    store_load_barrier();
    mark!("bind.name_announced");
    for other in used.into_iter().filter(|other| *other != ours) {
        while let Some(taken) = meet(&words[other], name, other > ours, || same(other)) {
            if taken {
                // Fails if our candidacy was taken away, which comes to the same.
                let _ = our_word.compare_exchange(
                    name.0 | CANDIDATE,
                    NONE,
                    Ordering::AcqRel,
                    Ordering::Acquire,
                );
                return Err(Lost::To(other));
            }
        }
    }
    // The commit point: no other entry wins this name until this word says something else.
    let won = our_word.compare_exchange(
        name.0 | CANDIDATE,
        name.0 | WON,
        Ordering::AcqRel,
        Ordering::Acquire,
    );
    mark!("bind.name_won");
    won.map(drop).map_err(|_| Lost::Again)
}

/// Looks at another entry's word: `None` if it is not in our way, or not any more; otherwise
/// whether it has the name, or has to be looked at again.
fn meet(word: &AtomicU64, name: NameHash, weaker: bool, same: impl Fn() -> bool) -> Option<bool> {
    // Acquire: its text is there (N3).
    let found = word.load(Ordering::Acquire);
    if found & !STATE != name.0 || found & STATE == 0 || !same() {
        return None;
    }
    if found != name.0 | CANDIDATE || !weaker {
        return Some(true);
    }
    let taken_away = word.compare_exchange(found, NONE, Ordering::AcqRel, Ordering::Acquire);
    mark!("bind.name_contested");
    if taken_away.is_ok() {
        None
    } else {
        Some(false)
    }
}

/// Lets others find an entry that has won its name, and is open.
pub fn show(word: &AtomicU64, name: NameHash) {
    // Release: the port is open before its name leads to it.
    word.store(name.0 | SHOWN, Ordering::Release);
}

/// Gives up a name that was won and not shown.
pub fn give_up(word: &AtomicU64, name: NameHash) {
    // Release: what follows is for the entry's next port.
    let _ = word.compare_exchange(name.0 | WON, NONE, Ordering::Release, Ordering::Relaxed);
}
