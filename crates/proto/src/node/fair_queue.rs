//! Serves those that wait in turn.

use std::collections::{BTreeSet, VecDeque};

/// Those that wait, each once, in the order in which they came: round robin, if the one that was
/// served comes again behind all others.
///
/// ```
/// use portolan_proto::node::FairQueue;
/// let mut queue = FairQueue::default();
/// assert!(queue.push('a') && queue.push('b') && !queue.push('a'));
/// assert_eq!(queue.pop(), Some('a'));
/// queue.push('a');
/// assert_eq!(queue.iter().collect::<String>(), "ba");
/// ```
#[derive(Clone, Debug)]
pub struct FairQueue<T> {
    order: VecDeque<T>,
    there: BTreeSet<T>,
}

impl<T> Default for FairQueue<T> {
    fn default() -> Self {
        Self {
            order: VecDeque::new(),
            there: BTreeSet::new(),
        }
    }
}

impl<T: Copy + Ord> FairQueue<T> {
    /// Puts it behind all others; `false` if it waits already.
    pub fn push(&mut self, it: T) -> bool {
        let is_new = self.there.insert(it);
        if is_new {
            self.order.push_back(it);
        }
        is_new
    }

    /// The one whose turn it is.
    pub fn pop(&mut self) -> Option<T> {
        let it = self.order.pop_front()?;
        self.there.remove(&it);
        Some(it)
    }

    /// The one that came last: what a queue that is not fair would serve.
    pub(super) fn pop_last(&mut self) -> Option<T> {
        let it = self.order.pop_back()?;
        self.there.remove(&it);
        Some(it)
    }

    /// Gives a turn that was not used back.
    pub fn push_front(&mut self, it: T) {
        if self.there.insert(it) {
            self.order.push_front(it);
        }
    }

    /// Waits no more.
    pub fn remove(&mut self, it: T) {
        if self.there.remove(&it) {
            self.order.retain(|other| *other != it);
        }
    }

    /// Whether it waits.
    pub fn contains(&self, it: T) -> bool {
        self.there.contains(&it)
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// All that wait, in the order of their turns.
    pub fn iter(&self) -> impl Iterator<Item = T> + '_ {
        self.order.iter().copied()
    }
}
