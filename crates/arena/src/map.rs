//! Hash maps keep values by key in an arena.
//!
//! An empty hashbrown map points to a group of empty slots in its program's own data, which
//! another program does not have. So a map without memory is no hashbrown map here, but
//! `Table::None` (S1). The hasher's whole state is a number that lies in the map.

use crate::growth::{Full, NoRoom, why};
use crate::handle::{Arena, Handle};
use foldhash::fast::FixedState;
use hashbrown::{Equivalent, HashMap, hash_map};
use std::hash::{BuildHasher, Hash, RandomState};

/// A hash map in an arena.
///
/// ```
/// use portolan::structure::{Map, Structure, Text};
/// let domain = portolan::Domain::private()?;
/// let mut ages = Structure::<Map<Text, u32>>::build(&domain, |arena| Ok(arena.map()))?;
/// ages.edit(|map, arena| {
///     map.insert(arena.text("Ptolemy")?, 68)?;
///     Ok::<_, portolan::structure::NoRoom>(())
/// })??;
/// assert_eq!(ages.root()?.get("Ptolemy"), Some(&68));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Map<'a, K, V> {
    table: Table<'a, K, V>,
}

enum Table<'a, K, V> {
    /// No memory yet.
    None(Handle<'a>, FixedState),
    /// With at least one slot in the arena.
    Some(HashMap<K, V, FixedState, Handle<'a>>),
}

impl<'a, K, V> Map<'a, K, V> {
    /// An empty map; it takes memory when something is put into it. Its hash function
    /// starts from a random number, so that no other process can choose keys that collide.
    pub fn new_in(arena: Arena<'a>) -> Self {
        thread_local! {
            static RANDOM: RandomState = RandomState::new();
        }
        let seed = RANDOM.with(|r| r.hash_one(std::ptr::from_ref(r).addr()));
        Self {
            table: Table::None(arena.handle(), FixedState::with_seed(seed)),
        }
    }

    /// How many entries there are.
    #[inline]
    pub fn len(&self) -> usize {
        match &self.table {
            Table::None(..) => 0,
            Table::Some(map) => map.len(),
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Entries it can hold without growing.
    pub fn capacity(&self) -> usize {
        match &self.table {
            Table::None(..) => 0,
            Table::Some(map) => map.capacity(),
        }
    }

    /// Every entry, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        let table = match &self.table {
            Table::None(..) => None,
            Table::Some(map) => Some(map.iter()),
        };
        table.into_iter().flatten()
    }

    /// Every entry, its value to be changed.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&K, &mut V)> {
        let table = match &mut self.table {
            Table::None(..) => None,
            Table::Some(map) => Some(map.iter_mut()),
        };
        table.into_iter().flatten()
    }

    /// Every key.
    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.iter().map(|(k, _)| k)
    }

    /// Every value.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.iter().map(|(_, v)| v)
    }

    /// Drops all entries; their room stays.
    pub fn clear(&mut self) {
        if let Table::Some(map) = &mut self.table {
            map.clear();
        }
    }

    /// Keeps the entries for which `keep` is true.
    pub fn retain(&mut self, keep: impl FnMut(&K, &mut V) -> bool) {
        if let Table::Some(map) = &mut self.table {
            map.retain(keep);
        }
    }

    /// Takes all entries and their room out; an empty map of the same arena stays.
    pub fn take(&mut self) -> Self {
        let empty = match &self.table {
            Table::None(handle, state) => Table::None(*handle, state.clone()),
            Table::Some(map) => Table::None(*map.allocator(), map.hasher().clone()),
        };
        Self {
            table: std::mem::replace(&mut self.table, empty),
        }
    }

    /// The entries, by value; the map's room goes back to the arena with the last.
    pub fn into_entries(self) -> impl Iterator<Item = (K, V)> {
        let table = match self.table {
            Table::None(..) => None,
            Table::Some(map) => Some(map.into_iter()),
        };
        table.into_iter().flatten()
    }
}

impl<'a, K: Hash + Eq, V> Map<'a, K, V> {
    /// The value at `key`.
    #[inline]
    pub fn get<Q: Hash + Equivalent<K> + ?Sized>(&self, key: &Q) -> Option<&V> {
        match &self.table {
            Table::None(..) => None,
            Table::Some(map) => map.get(key),
        }
    }

    /// The value at `key`, to be changed.
    pub fn get_mut<Q: Hash + Equivalent<K> + ?Sized>(&mut self, key: &Q) -> Option<&mut V> {
        match &mut self.table {
            Table::None(..) => None,
            Table::Some(map) => map.get_mut(key),
        }
    }

    /// Whether there is an entry at `key`.
    pub fn contains_key<Q: Hash + Equivalent<K> + ?Sized>(&self, key: &Q) -> bool {
        self.get(key).is_some()
    }

    /// Puts a value at `key`; the one that was there.
    ///
    /// # Errors
    ///
    /// Key and value come back if there is no room; the map is as it was.
    pub fn insert(&mut self, key: K, value: V) -> Result<Option<V>, Full<(K, V)>> {
        if self.len() == self.capacity() {
            if let Some(there) = self.get_mut(&key) {
                return Ok(Some(std::mem::replace(there, value)));
            }
            if let Err(reason) = self.reserve(1) {
                return Err(Full {
                    reason,
                    item: (key, value),
                });
            }
        }
        Ok(match &mut self.table {
            // There is room for one: nothing is allocated.
            Table::Some(map) => map.insert(key, value),
            Table::None(..) => None,
        })
    }

    /// Takes the entry at `key` out.
    pub fn remove<Q: Hash + Equivalent<K> + ?Sized>(&mut self, key: &Q) -> Option<V> {
        match &mut self.table {
            Table::None(..) => None,
            Table::Some(map) => map.remove(key),
        }
    }

    /// The value at `key`, which is made by `make` if there is none.
    ///
    /// # Errors
    ///
    /// What `make` says, and [`NoRoom`].
    pub fn get_or_insert_with<E: From<NoRoom>>(
        &mut self,
        key: K,
        make: impl FnOnce() -> Result<V, E>,
    ) -> Result<&mut V, E> {
        if self.len() == self.capacity() && !self.contains_key(&key) {
            self.reserve(1)?;
        }
        match &mut self.table {
            Table::Some(map) => match map.entry(key) {
                hash_map::Entry::Occupied(entry) => Ok(entry.into_mut()),
                hash_map::Entry::Vacant(entry) => Ok(entry.insert(make()?)),
            },
            Table::None(..) => Err(NoRoom::TooLarge.into()),
        }
    }

    /// Makes room for `more` further entries.
    ///
    /// # Errors
    ///
    /// [`NoRoom`]; the map stays as it was.
    pub fn reserve(&mut self, more: usize) -> Result<(), NoRoom> {
        match &mut self.table {
            Table::Some(map) => map.try_reserve(more).map_err(|_| why()),
            Table::None(handle, state) => {
                if more > 0 {
                    let map = Self::with_room(*handle, state.clone(), more)?;
                    self.table = Table::Some(map);
                }
                Ok(())
            }
        }
    }

    /// Gives room that is not used back to the arena.
    ///
    /// # Errors
    ///
    /// [`NoRoom`]: the entries are put into a smaller place, and there is none for that; the
    /// map stays as it was.
    pub fn shrink_to_fit(&mut self) -> Result<(), NoRoom> {
        let Table::Some(map) = &mut self.table else {
            return Ok(());
        };
        let (handle, state) = (*map.allocator(), map.hasher().clone());
        if map.is_empty() {
            self.table = Table::None(handle, state);
            return Ok(());
        }
        // Not hashbrown's own, which ends the program when there is no memory.
        let mut small = Self::with_room(handle, state, map.len())?;
        if small.capacity() < map.capacity() {
            map.drain().for_each(|(k, v)| drop(small.insert(k, v)));
            self.table = Table::Some(small);
        }
        Ok(())
    }

    fn with_room(
        handle: Handle<'a>,
        state: FixedState,
        entries: usize,
    ) -> Result<HashMap<K, V, FixedState, Handle<'a>>, NoRoom> {
        let mut map = HashMap::with_hasher_in(state, handle);
        map.try_reserve(entries).map_err(|_| why())?;
        Ok(map)
    }
}

impl<K: std::fmt::Debug, V: std::fmt::Debug> std::fmt::Debug for Map<'_, K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}
