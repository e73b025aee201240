//! One kind with three handles: what a program may make up is none of them.

use super::*;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;

/// A handle of nothing but a text.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Note(u64);

impl Handle for Note {
    type Value = String;

    const KIND: u8 = 62;
    const NAME: &'static str = "note";
    const BITS: u32 = 2;

    fn table() -> &'static Table<String> {
        static NONE: [AtomicU64; Slot::<String>::WORDS] = no_slots(Note::ONE);
        static TABLE: Table<String> = Table::new(&NONE);
        &TABLE
    }

    fn id(self) -> u64 {
        self.0
    }

    fn of(id: u64) -> Self {
        Self(id)
    }
}

/// One test at a time: they share the table.
static TURN: Mutex<()> = Mutex::new(());

fn word_of(note: Note) -> &'static AtomicU64 {
    word(Note::table().place(note.0))
}

/// Numbers near a word: each bit of it changed, each step of an index and a generation from it.
fn near(id: u64) -> Vec<u64> {
    let mut near: Vec<u64> = (0..64).map(|bit| id ^ 1 << bit).collect();
    for n in 1..=8 {
        for step in [1, Note::ONE, Note::NEXT, 1 << KIND_SHIFT] {
            near.push(id.wrapping_add(n * step));
            near.push(id.wrapping_sub(n * step));
        }
    }
    near
}

/// That no number near `ids`, or near the word of a slot, is found, but for `ids`.
fn none_is_found_near(ids: &[u64]) {
    let slots = (0..4).map(|index| word(Note::table().place(index * Note::ONE)));
    let words: Vec<u64> = slots.map(|word| word.load(Ordering::Relaxed)).collect();
    for id in ids.iter().chain(&words).chain(&[0, u64::MAX]) {
        for wrong in near(*id).into_iter().chain([*id]) {
            if !ids.contains(&wrong) {
                let note = Note(wrong);
                assert!(note.try_hold().is_none(), "{wrong:#x} near {id:#x}");
                assert!(note.share().is_err(), "{wrong:#x} near {id:#x}");
                assert_eq!(note.refuse(), portolan_status::PORTOLAN_BAD_HANDLE);
            }
        }
    }
}

#[test]
fn no_number_but_a_handle_is_found_whatever_the_slots_say() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    none_is_found_near(&[]);
    let notes = ["one", "two", "three"].map(|text| Note::insert(text.to_owned()).unwrap());
    assert_eq!(
        Note::insert(String::new()),
        Err(portolan_status::PORTOLAN_NO_ROOM)
    );
    let ids = notes.map(|note| note.0);
    none_is_found_near(&ids);
    for note in notes {
        // Alone, and then by as many as there can be.
        let sole = note.try_hold().unwrap();
        assert!(note.try_hold().is_none() && note.share().is_err());
        assert_eq!(note.refuse(), portolan_status::PORTOLAN_BUSY);
        none_is_found_near(&ids);
        drop(sole);
        let shared = [note.share().unwrap(), note.share().unwrap()];
        assert!(note.try_hold().is_none() && note.share().is_err());
        assert_eq!(note.refuse(), portolan_status::PORTOLAN_BUSY);
        none_is_found_near(&ids);
        drop(shared);
        assert_eq!(word_of(note).load(Ordering::Relaxed), note.0);
    }
    // Freed in turn, with the list of free ones of each length.
    for (freed, note) in notes.into_iter().enumerate() {
        note.drop_value().unwrap();
        assert_eq!(note.take(), Err(portolan_status::PORTOLAN_BAD_HANDLE));
        none_is_found_near(&ids[freed + 1..]);
    }
    // The last one that was freed is the first to be used again, by another handle.
    let again = Note::insert("again".to_owned()).unwrap();
    assert_eq!(again.0, notes[2].0 + Note::NEXT);
    none_is_found_near(&[again.0]);
    assert_eq!(again.take().unwrap(), "again");
}

#[test]
fn a_slot_that_has_used_its_last_generation_is_used_no_more() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let note = Note::insert("last but one".to_owned()).unwrap();
    note.drop_value().unwrap();
    // As if it had been used so often.
    let at = note.0 & Note::MASK;
    let free = word_of(note);
    let next = free.load(Ordering::Relaxed) & Note::MASK;
    free.store((Note::GENERATION - Note::NEXT) | next, Ordering::Relaxed);
    let last = Note::insert("last".to_owned()).unwrap();
    assert_eq!(last.0 & Note::MASK, at);
    assert_eq!(last.0 & Note::GENERATION, Note::GENERATION);
    // Shared in its last generation it overflows into the kind, and comes back.
    let shared = [last.share().unwrap(), last.share().unwrap()];
    drop(shared);
    assert_eq!(last.take().unwrap(), "last");
    none_is_found_near(&[]);
    let others = [0; 2].map(|_| Note::insert(String::new()).unwrap());
    assert!(others.iter().all(|other| other.0 & Note::MASK != at));
    assert_eq!(
        Note::insert(String::new()),
        Err(portolan_status::PORTOLAN_NO_ROOM)
    );
    others.iter().for_each(|other| other.drop_value().unwrap());
    // For the other test, which may come later.
    free.store(0, Ordering::Relaxed);
    drop(Reserved::<Note>::of(at));
}

#[test]
fn a_value_that_cannot_be_finished_leaves_its_slot_free() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let mut seen = std::collections::HashSet::new();
    for _ in 0..8 {
        let reserved = Note::reserve().unwrap();
        seen.insert(reserved.at);
        let refused = Note::fill_with(reserved, "half".to_owned(), |note| {
            assert_eq!(note, "half");
            Err(portolan_status::PORTOLAN_OTHER)
        });
        assert_eq!(refused, Err(portolan_status::PORTOLAN_OTHER));
        drop(Note::reserve().unwrap());
    }
    assert_eq!(seen.len(), 1);
    none_is_found_near(&[]);
}

#[test]
fn threads_take_and_free_slots_without_losing_any() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    std::thread::scope(|scope| {
        for thread in 0..4_u32 {
            scope.spawn(move || {
                for round in 0..20_000 {
                    let text = format!("{thread} {round}");
                    match Note::insert(text.clone()) {
                        Ok(note) => assert_eq!(note.take().unwrap(), text),
                        Err(full) => assert_eq!(full, portolan_status::PORTOLAN_NO_ROOM),
                    }
                }
            });
        }
    });
    let notes = [0; 3].map(|_| Note::insert(String::new()).unwrap());
    notes.iter().for_each(|note| note.drop_value().unwrap());
}
