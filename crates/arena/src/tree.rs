//! Ordered maps keep values by key in an arena, as B-trees.
//!
//! No well-kept crate has a B-tree over an allocator on stable Rust that says so when there
//! is no memory: the standard library's ports need a nightly compiler, and insert
//! infallibly. This one is the textbook's (Cormen and others, *B-Trees*), over two
//! [`List`]s a node, without a line of unsafe code.
//!
//! # Invariants
//!
//! - **B1** A node has at most `MOST` entries, and `LEAST` at the least but for the root.
//! - **B2** An inner node has one child more than entries; all leaves are equally deep.
//! - **B3** A node's lists have room for all that it may hold, from the start: whatever may
//!   fail has been done before anything moves.

use crate::growth::{Full, NoRoom};
use crate::handle::{Arena, Handle};
use crate::list::List;
use std::borrow::Borrow;
use std::cmp::Ordering;
use std::mem::replace;
use std::ops::{Bound, RangeBounds};

/// Fewest entries of a node that is not the root.
const LEAST: usize = 7;
/// Most entries of a node.
const MOST: usize = 2 * LEAST + 1;

/// An ordered map in an arena.
///
/// ```
/// use portolan::structure::{NoRoom, Structure, Tree};
/// let domain = portolan::Domain::private()?;
/// let mut squares = Structure::<Tree<u32, u32>>::build(&domain, |arena| Ok(arena.tree()))?;
/// squares.edit(|tree, _| {
///     for n in 0..100 {
///         tree.insert(n, n * n)?;
///     }
///     Ok::<_, NoRoom>(())
/// })??;
/// let some: Vec<u32> = squares.root()?.range(3..6).map(|(_, square)| *square).collect();
/// assert_eq!(some, [9, 16, 25]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Tree<'a, K, V> {
    root: Node<'a, K, V>,
    len: usize,
}

struct Node<'a, K, V> {
    entries: List<'a, (K, V)>,
    /// None, if it is a leaf.
    children: List<'a, Node<'a, K, V>>,
}

impl<'a, K, V> Tree<'a, K, V> {
    /// An empty tree; it takes memory when something is put into it.
    pub fn new_in(arena: Arena<'a>) -> Self {
        Self::in_handle(arena.handle())
    }

    fn in_handle(handle: Handle<'a>) -> Self {
        Self {
            root: Node::empty(handle),
            len: 0,
        }
    }

    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Drops all entries and gives their room back to the arena.
    pub fn clear(&mut self) {
        drop(self.take());
    }

    /// Takes all entries and their room out; an empty tree of the same arena stays.
    pub fn take(&mut self) -> Self {
        let empty = Self::in_handle(self.root.entries.handle());
        replace(self, empty)
    }

    /// Every entry, in the order of the keys.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        let mut iter = Iter { stack: Vec::new() };
        iter.descend(&self.root);
        iter
    }

    /// Every key, in order.
    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.iter().map(|(k, _)| k)
    }

    /// Every value, in the order of the keys.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.iter().map(|(_, v)| v)
    }

    /// The entry with the least key.
    pub fn first(&self) -> Option<(&K, &V)> {
        let mut node = &self.root;
        while let Some(child) = node.children.first() {
            node = child;
        }
        node.entries.first().map(|(k, v)| (k, v))
    }

    /// The entry with the greatest key.
    pub fn last(&self) -> Option<(&K, &V)> {
        let mut node = &self.root;
        while let Some(child) = node.children.last() {
            node = child;
        }
        node.entries.last().map(|(k, v)| (k, v))
    }

    /// Changes every value, in the order of the keys.
    pub fn for_each_mut(&mut self, mut change: impl FnMut(&K, &mut V)) {
        self.root.for_each_mut(&mut change);
    }
}

impl<K: Ord, V> Tree<'_, K, V> {
    /// The value at `key`.
    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        let mut node = &self.root;
        loop {
            match node.search(key) {
                Ok(at) => return node.entries.get(at).map(|(_, v)| v),
                Err(at) => node = node.children.get(at)?,
            }
        }
    }

    /// The value at `key`, to be changed.
    pub fn get_mut<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        let mut node = &mut self.root;
        loop {
            match node.search(key) {
                Ok(at) => return node.entries.get_mut(at).map(|(_, v)| v),
                Err(at) => node = node.children.get_mut(at)?,
            }
        }
    }

    /// Whether there is an entry at `key`.
    pub fn contains_key<Q: Ord + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.get(key).is_some()
    }

    /// The entries whose keys lie in `range`, in order.
    pub fn range<Q: Ord + ?Sized, R: RangeBounds<Q>>(
        &self,
        range: R,
    ) -> impl Iterator<Item = (&K, &V)>
    where
        K: Borrow<Q>,
    {
        let mut iter = Iter { stack: Vec::new() };
        iter.seek(&self.root, |key: &K| match range.start_bound() {
            Bound::Included(low) => key.borrow() < low,
            Bound::Excluded(low) => key.borrow() <= low,
            Bound::Unbounded => false,
        });
        iter.take_while(move |(key, _)| match range.end_bound() {
            Bound::Included(high) => (*key).borrow() <= high,
            Bound::Excluded(high) => (*key).borrow() < high,
            Bound::Unbounded => true,
        })
    }

    /// Puts a value at `key`; the one that was there.
    ///
    /// # Errors
    ///
    /// Key and value come back if there is no room; the tree holds what it held.
    pub fn insert(&mut self, key: K, value: V) -> Result<Option<V>, Full<(K, V)>> {
        if let Err(reason) = self.prepare_root() {
            return Err(Full {
                reason,
                item: (key, value),
            });
        }
        let mut node = &mut self.root;
        loop {
            // B1: `node` has room for an entry.
            let mut at = match node.search(&key) {
                Ok(at) => return Ok(Some(replace(&mut node.entries[at].1, value))),
                Err(at) => at,
            };
            if node.is_leaf() {
                put(&mut node.entries, at, (key, value));
                self.len += 1;
                return Ok(None);
            }
            if node.children[at].entries.len() == MOST {
                if let Err(reason) = node.split(at) {
                    return Err(Full {
                        reason,
                        item: (key, value),
                    });
                }
                match key.cmp(&node.entries[at].0) {
                    Ordering::Less => {}
                    Ordering::Equal => {
                        return Ok(Some(replace(&mut node.entries[at].1, value)));
                    }
                    Ordering::Greater => at += 1,
                }
            }
            node = &mut node.children[at];
        }
    }

    /// Sees to it that the root has room for an entry; a full one is split.
    fn prepare_root(&mut self) -> Result<(), NoRoom> {
        if self.root.entries.capacity() == 0 {
            return self.root.entries.reserve_exact(MOST);
        }
        if self.root.entries.len() < MOST {
            return Ok(());
        }
        let above = Node::with_room(self.root.entries.handle(), false)?;
        let old = replace(&mut self.root, above);
        put(&mut self.root.children, 0, old);
        self.root.split(0).inspect_err(|_| {
            // As it was: the old root is the root.
            if let Some(old) = self.root.children.pop() {
                self.root = old;
            }
        })
    }

    /// Takes the entry at `key` out.
    pub fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let taken = self.root.remove(key);
        self.removed(taken).map(|(_, v)| v)
    }

    /// Takes the entry with the least key out.
    pub fn pop_first(&mut self) -> Option<(K, V)> {
        let taken = self.root.remove_end(End::First);
        self.removed(taken)
    }

    /// Takes the entry with the greatest key out.
    pub fn pop_last(&mut self) -> Option<(K, V)> {
        let taken = self.root.remove_end(End::Last);
        self.removed(taken)
    }

    fn removed(&mut self, taken: Option<(K, V)>) -> Option<(K, V)> {
        if self.root.entries.is_empty()
            && let Some(only) = self.root.children.pop()
        {
            self.root = only;
        }
        self.len -= usize::from(taken.is_some());
        taken
    }
}

#[derive(Clone, Copy)]
enum End {
    First,
    Last,
}

impl<'a, K, V> Node<'a, K, V> {
    fn empty(handle: Handle<'a>) -> Self {
        Self {
            entries: List::in_handle(handle),
            children: List::in_handle(handle),
        }
    }

    /// B3.
    fn with_room(handle: Handle<'a>, leaf: bool) -> Result<Self, NoRoom> {
        let mut node = Self::empty(handle);
        node.entries.reserve_exact(MOST)?;
        if !leaf {
            node.children.reserve_exact(MOST + 1)?;
        }
        Ok(node)
    }

    fn is_leaf(&self) -> bool {
        self.children.is_empty()
    }

    fn for_each_mut(&mut self, change: &mut impl FnMut(&K, &mut V)) {
        let mut children = self.children.iter_mut();
        for (key, value) in &mut self.entries {
            if let Some(child) = children.next() {
                child.for_each_mut(change);
            }
            change(key, value);
        }
        if let Some(child) = children.next() {
            child.for_each_mut(change);
        }
    }

    /// Splits the full child at `at` in two; its middle entry comes up.
    fn split(&mut self, at: usize) -> Result<(), NoRoom> {
        let left = &mut self.children[at];
        let mut right = Self::with_room(left.entries.handle(), left.is_leaf())?;
        // Nothing fails from here on (B3).
        left.entries.move_tail(LEAST + 1, &mut right.entries);
        left.children.move_tail(LEAST + 1, &mut right.children);
        if let Some(middle) = left.entries.pop() {
            put(&mut self.entries, at, middle);
            put(&mut self.children, at + 1, right);
        }
        Ok(())
    }

    /// Joins the children at `at` and after it, and the entry between them.
    fn join(&mut self, at: usize) {
        let (between, right) = (self.entries.remove(at), self.children.remove(at + 1));
        if let (Some(between), Some(mut right)) = (between, right) {
            let left = &mut self.children[at];
            let end = left.entries.len();
            put(&mut left.entries, end, between);
            right.entries.move_tail(0, &mut left.entries);
            right.children.move_tail(0, &mut left.children);
        }
    }

    /// Sees to it that the child at `at` has an entry to spare; where that child is now.
    fn fill(&mut self, at: usize) -> usize {
        let spare = |node: Option<&Self>| node.is_some_and(|n| n.entries.len() > LEAST);
        if spare(self.children.get(at)) {
            return at;
        }
        if at > 0 && spare(self.children.get(at - 1)) {
            let left = &mut self.children[at - 1];
            let (entry, child) = (left.entries.pop(), left.children.pop());
            if let Some(entry) = entry {
                let between = replace(&mut self.entries[at - 1], entry);
                put(&mut self.children[at].entries, 0, between);
            }
            if let Some(child) = child {
                put(&mut self.children[at].children, 0, child);
            }
            return at;
        }
        if spare(self.children.get(at + 1)) {
            let right = &mut self.children[at + 1];
            let (entry, child) = (right.entries.remove(0), right.children.remove(0));
            let node = &mut self.children[at];
            if let Some(entry) = entry {
                let between = replace(&mut self.entries[at], entry);
                let end = node.entries.len();
                put(&mut node.entries, end, between);
            }
            if let Some(child) = child {
                let end = node.children.len();
                put(&mut node.children, end, child);
            }
            return at;
        }
        let first = at.min(self.children.len().saturating_sub(2));
        self.join(first);
        first
    }

    /// Takes the first or last entry of a node out that has one to spare, or is the root.
    fn remove_end(&mut self, end: End) -> Option<(K, V)> {
        if self.is_leaf() {
            return match end {
                End::First => self.entries.remove(0),
                End::Last => self.entries.pop(),
            };
        }
        let at = match end {
            End::First => 0,
            End::Last => self.children.len() - 1,
        };
        let at = self.fill(at);
        self.children[at].remove_end(end)
    }

    /// Where `key` is, or the child in which it would be.
    fn search<Q: Ord + ?Sized>(&self, key: &Q) -> Result<usize, usize>
    where
        K: Borrow<Q>,
    {
        self.entries.binary_search_by(|(k, _)| k.borrow().cmp(key))
    }

    /// Takes the entry at `key` out of a node that has one to spare, or is the root.
    fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<(K, V)>
    where
        K: Borrow<Q>,
    {
        match self.search(key) {
            Ok(at) if self.is_leaf() => self.entries.remove(at),
            Ok(at) => {
                let spare = |node: &Self| node.entries.len() > LEAST;
                let neighbour = if spare(&self.children[at]) {
                    self.children[at].remove_end(End::Last)
                } else if spare(&self.children[at + 1]) {
                    self.children[at + 1].remove_end(End::First)
                } else {
                    self.join(at);
                    return self.children[at].remove(key);
                };
                neighbour.map(|entry| replace(&mut self.entries[at], entry))
            }
            Err(_) if self.is_leaf() => None,
            Err(at) => {
                let at = self.fill(at);
                self.children[at].remove(key)
            }
        }
    }
}

/// Inserts where there is room (B3).
fn put<T>(list: &mut List<'_, T>, at: usize, value: T) {
    debug_assert!(list.len() < list.capacity(), "B3");
    // With room there is no error.
    drop(list.insert(at, value));
}

/// The way to the next entry: nodes, and in each the entry whose turn it is.
struct Iter<'t, 'a, K, V> {
    stack: Vec<(&'t Node<'a, K, V>, usize)>,
}

impl<'t, 'a, K, V> Iter<'t, 'a, K, V> {
    /// Goes to the first entry below `node`.
    fn descend(&mut self, node: &'t Node<'a, K, V>) {
        self.seek(node, |_| false);
    }

    /// Goes to the first entry below `node` whose key is not `before`.
    fn seek(&mut self, mut node: &'t Node<'a, K, V>, before: impl Fn(&K) -> bool) {
        loop {
            let at = node.entries.partition_point(|(k, _)| before(k));
            self.stack.push((node, at));
            match node.children.get(at) {
                Some(child) => node = child,
                None => return,
            }
        }
    }
}

impl<'t, K, V> Iterator for Iter<'t, '_, K, V> {
    type Item = (&'t K, &'t V);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let (node, at) = self.stack.last_mut()?;
            let (node, entry) = (*node, *at);
            *at += 1;
            match node.entries.get(entry) {
                Some((key, value)) => {
                    if let Some(child) = node.children.get(entry + 1) {
                        self.descend(child);
                    }
                    return Some((key, value));
                }
                None => {
                    self.stack.pop();
                }
            }
        }
    }
}

impl<K: std::fmt::Debug, V: std::fmt::Debug> std::fmt::Debug for Tree<'_, K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}
