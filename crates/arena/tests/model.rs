//! Random histories of an arena and of every collection, against oracles. Runs under Miri:
//! the arena lies on the heap, in pieces.

use portolan_arena::growth::Grow;
use portolan_arena::handover::{BUILD, layout_of};
use portolan_arena::header::Header;
use portolan_arena::{Arena, Full, List, Map, NoRoom, Root, Text, Tree, root};
use proptest::collection::vec;
use proptest::prelude::*;
use std::alloc::{Layout, alloc, dealloc};
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::ptr::NonNull;
use std::rc::Rc;

/// Memory for an arena, up to a limit.
struct Ground {
    limit: usize,
    pieces: RefCell<Vec<(NonNull<u8>, Layout)>>,
}

impl Ground {
    fn new(limit: usize) -> Rc<Self> {
        Rc::new(Self {
            limit,
            pieces: RefCell::default(),
        })
    }

    fn piece(&self, bytes: usize) -> Option<NonNull<u8>> {
        let mut pieces = self.pieces.borrow_mut();
        let used: usize = pieces.iter().map(|(_, l)| l.size()).sum();
        if used + bytes > self.limit {
            return None;
        }
        let layout = Layout::from_size_align(bytes, 4096).unwrap();
        // SAFETY:
        // - not of no size: callers ask for something.
        let piece = NonNull::new(unsafe { alloc(layout) }).unwrap();
        pieces.push((piece, layout));
        Some(piece)
    }

    fn is_inside<T>(&self, what: *const T) -> bool {
        let pieces = self.pieces.borrow();
        pieces
            .iter()
            .any(|(start, layout)| what.addr().wrapping_sub(start.addr().get()) < layout.size())
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        for (piece, layout) in self.pieces.take() {
            // SAFETY:
            // - allocated with this layout, and used by no code: the arena is gone.
            unsafe { dealloc(piece.as_ptr(), layout) };
        }
    }
}

// SAFETY:
// - fresh, aligned, writable, and kept until the ground is dropped, after the arena.
unsafe impl Grow for Ground {
    fn grow(&self, need: usize, wish: usize) -> Result<(NonNull<u8>, usize), NoRoom> {
        for bytes in [wish.next_multiple_of(4096), need.next_multiple_of(4096)] {
            if let Some(piece) = self.piece(bytes) {
                return Ok((piece, bytes));
            }
        }
        Err(NoRoom::OutOfPages {
            wanted: need as u64,
            free: 0,
            limit: self.limit as u64,
        })
    }
}

/// A structure on the heap.
struct Heap {
    ground: Rc<Ground>,
    header: &'static Header,
}

impl Heap {
    fn build<T: Root>(
        limit: usize,
        make: impl for<'a> FnOnce(Arena<'a>) -> Result<T::At<'a>, NoRoom>,
    ) -> Self {
        let ground = Ground::new(limit);
        let first = ground.piece(8192).unwrap();
        // SAFETY:
        // - aligned, writable, exclusive: just allocated, and kept by `ground`.
        let header = unsafe { Header::begin(first, 8192) }.unwrap();
        root::build::<T, NoRoom>(header, Rc::clone(&ground) as Rc<dyn Grow>, make).unwrap();
        Self { ground, header }
    }

    fn read<T: Root>(&self) -> &T::At<'_> {
        assert_eq!(self.header.hashes().0, layout_of::<T>());
        // SAFETY:
        // - of this type and build: checked above, and built here; not changed meanwhile:
        //   `edit` borrows exclusively.
        unsafe { root::read::<T>(self.header) }.unwrap()
    }

    fn edit<T: Root, R>(
        &mut self,
        change: impl for<'r, 'a> FnOnce(&'r mut T::At<'a>, Arena<'a>) -> R,
    ) -> R {
        assert_eq!(self.header.hashes().0, layout_of::<T>());
        let grow = Rc::clone(&self.ground) as Rc<dyn Grow>;
        // SAFETY:
        // - of this type and build: as in `read`; exclusive: `&mut self`.
        unsafe { root::edit::<T, R>(self.header, grow, change) }.unwrap()
    }
}

/// What a history does.
#[derive(Clone, Debug)]
enum Act {
    Put(u16, u8),
    Remove(u16),
    First,
    Last,
    Take,
    Clear,
    Shrink,
    Change,
    Keep(u8),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let key = || 0..300_u16;
    let act = prop_oneof![
        60 => (key(), any::<u8>()).prop_map(|(k, v)| Act::Put(k, v)),
        30 => key().prop_map(Act::Remove),
        2 => Just(Act::First),
        2 => Just(Act::Last),
        1 => Just(Act::Take),
        1 => Just(Act::Clear),
        1 => Just(Act::Shrink),
        1 => Just(Act::Change),
        1 => any::<u8>().prop_map(Act::Keep),
    ];
    vec(act, 0..if cfg!(miri) { 150 } else { 600 })
}

/// A value whose size goes with its key.
fn value<'a>(arena: Arena<'a>, key: u16, v: u8) -> Result<Text<'a>, NoRoom> {
    arena.text(&text(key, v))
}

fn text(key: u16, v: u8) -> String {
    format!("{v} ").repeat(usize::from(key) % 23)
}

const PLENTY: usize = 64 << 20;

proptest! {
    #[test]
    fn a_tree_is_as_the_oracle(acts in acts()) {
        let mut heap = Heap::build::<Tree<u16, Text>>(PLENTY, |arena| Ok(arena.tree()));
        let mut oracle = BTreeMap::new();
        for act in acts {
            heap.edit::<Tree<u16, Text>, _>(|tree, arena| {
                match act {
                    Act::Put(k, v) => {
                        let old = tree.insert(k, value(arena, k, v).unwrap()).unwrap();
                        assert_eq!(old.map(|t| t.to_string()), oracle.insert(k, text(k, v)));
                    }
                    Act::Remove(k) => {
                        assert_eq!(tree.remove(&k).map(|t| t.to_string()), oracle.remove(&k));
                    }
                    Act::First => {
                        let first = tree.pop_first().map(|(k, v)| (k, v.to_string()));
                        assert_eq!(first, oracle.pop_first());
                    }
                    Act::Last => {
                        let last = tree.pop_last().map(|(k, v)| (k, v.to_string()));
                        assert_eq!(last, oracle.pop_last());
                    }
                    Act::Take => {
                        let taken = tree.take();
                        assert!(tree.is_empty());
                        *tree = taken;
                    }
                    Act::Clear => {
                        tree.clear();
                        oracle.clear();
                    }
                    Act::Change => {
                        tree.for_each_mut(|k, v| v.truncate(usize::from(*k) % 5));
                        oracle.iter_mut().for_each(|(k, v)| v.truncate(usize::from(*k) % 5));
                    }
                    Act::Shrink | Act::Keep(_) => {}
                }
            });
        }
        let tree = heap.read::<Tree<u16, Text>>();
        prop_assert_eq!(tree.len(), oracle.len());
        prop_assert!(tree.iter().map(|(k, v)| (k, v.as_str())).eq(oracle.iter().map(|(k, v)| (k, v.as_str()))));
        prop_assert_eq!(tree.first().map(|(k, _)| k), oracle.keys().next());
        prop_assert_eq!(tree.last().map(|(k, _)| k), oracle.keys().next_back());
        for (low, high) in [(0, 10), (50, 51), (100, 299), (290, 300), (7, 7)] {
            prop_assert!(tree.range(low..high).map(|(k, _)| k).eq(oracle.range(low..high).map(|(k, _)| k)));
            prop_assert!(tree.range(low..=high).map(|(k, _)| k).eq(oracle.range(low..=high).map(|(k, _)| k)));
            prop_assert!(tree.range(..low).map(|(k, _)| k).eq(oracle.range(..low).map(|(k, _)| k)));
            prop_assert!(tree.range(high..).map(|(k, _)| k).eq(oracle.range(high..).map(|(k, _)| k)));
        }
    }

    #[test]
    fn a_map_is_as_the_oracle(acts in acts()) {
        let mut heap = Heap::build::<Map<Text, u8>>(PLENTY, |arena| Ok(arena.map()));
        let mut oracle = HashMap::new();
        for act in acts {
            heap.edit::<Map<Text, u8>, _>(|map, arena| {
                match act {
                    Act::Put(k, v) => {
                        let key = arena.text(&k.to_string()).unwrap();
                        assert_eq!(map.insert(key, v).unwrap(), oracle.insert(k.to_string(), v));
                    }
                    Act::Remove(k) => {
                        assert_eq!(map.remove(&*k.to_string()), oracle.remove(&k.to_string()));
                    }
                    Act::Take => {
                        let taken = map.take();
                        assert!(map.is_empty() && map.get("1").is_none());
                        for (k, v) in taken.into_entries() {
                            map.insert(k, v).unwrap();
                        }
                    }
                    Act::Clear => {
                        map.clear();
                        oracle.clear();
                    }
                    Act::Shrink => {
                        map.shrink_to_fit().unwrap();
                        assert!(map.len() <= map.capacity());
                    }
                    Act::Change => {
                        map.iter_mut().for_each(|(_, v)| *v = v.wrapping_add(1));
                        oracle.values_mut().for_each(|v| *v = v.wrapping_add(1));
                    }
                    Act::Keep(least) => {
                        map.retain(|_, v| *v >= least);
                        oracle.retain(|_, v| *v >= least);
                    }
                    Act::First | Act::Last => {
                        let key = arena.text("first").unwrap();
                        *map.get_or_insert_with::<NoRoom>(key, || Ok(0)).unwrap() ^= 1;
                        *oracle.entry("first".to_owned()).or_insert(0) ^= 1;
                    }
                }
            });
        }
        let map = heap.read::<Map<Text, u8>>();
        prop_assert_eq!(map.len(), oracle.len());
        prop_assert!(oracle.iter().all(|(k, v)| map.get(k.as_str()) == Some(v)));
        prop_assert!(map.iter().all(|(k, v)| oracle.get(k.as_str()) == Some(v)));
    }

    #[test]
    fn a_list_is_as_the_oracle(acts in acts()) {
        let mut heap = Heap::build::<List<Text>>(PLENTY, |arena| Ok(arena.list()));
        let mut oracle = Vec::new();
        for act in acts {
            heap.edit::<List<Text>, _>(|list, arena| {
                match act {
                    Act::Put(k, v) if k % 2 == 0 => {
                        list.push(value(arena, k, v).unwrap()).unwrap();
                        oracle.push(text(k, v));
                    }
                    Act::Put(k, v) => {
                        list.insert(usize::from(k), value(arena, k, v).unwrap()).unwrap();
                        oracle.insert(usize::from(k).min(oracle.len()), text(k, v));
                    }
                    Act::Remove(k) => {
                        let k = usize::from(k);
                        let there = k < oracle.len();
                        let ours = there.then(|| oracle.remove(k));
                        assert_eq!(list.remove(k).map(|t| t.to_string()), ours);
                    }
                    Act::First => {
                        let ours = (!oracle.is_empty()).then(|| oracle.swap_remove(0));
                        assert_eq!(list.swap_remove(0).map(|t| t.to_string()), ours);
                    }
                    Act::Last => {
                        assert_eq!(list.pop().map(|t| t.to_string()), oracle.pop());
                    }
                    Act::Take => {
                        let taken = list.take();
                        assert!(list.is_empty());
                        *list = taken;
                    }
                    Act::Clear => {
                        list.clear();
                        oracle.clear();
                    }
                    Act::Shrink => {
                        list.shrink_to_fit();
                        assert_eq!(list.capacity(), list.len());
                    }
                    Act::Change => {
                        for text in &mut *list {
                            text.pop();
                            text.push('ü').unwrap();
                            text.shrink_to_fit();
                        }
                        for text in &mut oracle {
                            text.pop();
                            text.push('ü');
                        }
                    }
                    Act::Keep(least) => {
                        list.retain(|t| t.len() >= usize::from(least));
                        oracle.retain(|t| t.len() >= usize::from(least));
                    }
                }
            });
        }
        let list = heap.read::<List<Text>>();
        prop_assert!(list.iter().map(Text::as_str).eq(oracle.iter().map(String::as_str)));
    }

    /// With little memory every insertion either succeeds or gives back what it was given.
    #[test]
    fn running_out_loses_nothing(acts in acts(), limit in 12_usize..60) {
        type Both<'a> = (Tree<'a, u16, [u64; 5]>, Map<'a, u16, [u64; 5]>);
        let limit = limit * 1024;
        let mut heap = Heap::build::<Both>(limit, |arena| Ok((arena.tree(), arena.map())));
        let mut oracle = (BTreeMap::new(), BTreeMap::new());
        for act in acts {
            heap.edit::<Both, _>(|(tree, map), _| {
                let value = |v: u8| [u64::from(v); 5];
                match act {
                    Act::Put(k, v) => {
                        match tree.insert(k, value(v)) {
                            Ok(old) => assert_eq!(old, oracle.0.insert(k, value(v))),
                            Err(Full { reason, item }) => {
                                assert!(matches!(reason, NoRoom::OutOfPages { .. }));
                                assert_eq!(item, (k, value(v)));
                            }
                        }
                        match map.insert(k, value(v)) {
                            Ok(old) => assert_eq!(old, oracle.1.insert(k, value(v))),
                            Err(Full { item, .. }) => assert_eq!(item, (k, value(v))),
                        }
                    }
                    Act::Remove(k) => {
                        assert_eq!(tree.remove(&k), oracle.0.remove(&k));
                        assert_eq!(map.remove(&k), oracle.1.remove(&k));
                    }
                    // May find no room, and then leaves all as it was.
                    Act::Shrink => drop(map.shrink_to_fit()),
                    _ => {}
                }
            });
        }
        let (tree, map) = heap.read::<Both>();
        prop_assert!(tree.iter().eq(oracle.0.iter()));
        prop_assert_eq!(map.len(), oracle.1.len());
        prop_assert!(oracle.1.iter().all(|(k, v)| map.get(k) == Some(v)));
    }
}

#[test]
fn all_that_a_collection_holds_lies_in_its_arena() {
    let mut heap = Heap::build::<(List<Text>, Map<u32, Text>)>(PLENTY, |arena| {
        Ok((arena.list(), arena.map()))
    });
    heap.edit::<(List<Text>, Map<u32, Text>), _>(|(list, map), arena| {
        for n in 0..200 {
            list.push(arena.text("in the list")?)?;
            map.insert(n, arena.text("in the map")?)?;
        }
        Ok::<_, NoRoom>(())
    })
    .unwrap();
    let (list, map) = heap.read::<(List<Text>, Map<u32, Text>)>();
    for text in list.iter().chain(map.values()) {
        assert!(heap.ground.is_inside(text) && heap.ground.is_inside(text.as_ptr()));
    }
    assert!(map.keys().all(|k| heap.ground.is_inside(k)));
}

#[test]
fn the_build_names_the_versions_that_are_built() {
    let lock = include_str!("../../../Cargo.lock");
    let names = ["hashbrown", "allocator-api2", "foldhash", "portolan-arena"];
    for name in names {
        let entry = format!("name = \"{name}\"\nversion = \"");
        let found = lock.match_indices(&entry);
        let versions = found.filter_map(|(at, found)| lock[at + found.len()..].split('"').next());
        let named = versions.map(|version| format!("{name} {version}"));
        assert!(
            named.clone().any(|v| BUILD.contains(&v)),
            "{BUILD} does not name {name}"
        );
    }
    assert!(
        BUILD.contains("rustc ") && BUILD.contains("linux"),
        "{BUILD}"
    );
}
