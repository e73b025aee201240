//! Pages found by what was stored to them.
#![allow(
    clippy::single_range_in_vec_init,
    reason = "what is compared is a list of runs, of which there may be one"
)]

mod support;

use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use portolan_sys::memory::{self, Mapping, PAGE};
use portolan_sys::shared::Window;
use portolan_sys::track::{TrackError, Tracker};

const PAGES: usize = 1024;
const LEN: usize = PAGES * PAGE;

/// The numbers of the pages that were written, by run.
fn taken(tracker: &mut Tracker) -> Vec<Range<usize>> {
    let start = tracker.range().start;
    let mut written = Vec::new();
    tracker.take_written(&mut written).unwrap();
    let page = |address: usize| (address - start) / PAGE;
    written
        .into_iter()
        .map(|range| page(range.start)..page(range.end))
        .collect()
}

fn touch(mapping: &Mapping, page: usize) {
    let to = mapping.base().wrapping_add(page * PAGE + 100);
    assert!(page * PAGE < mapping.len());
    // SAFETY:
    // - In bounds, and no reference points there.
    unsafe { to.write_volatile(1) };
}

/// Memory of all kinds that can be watched, half of it without pages yet.
fn kinds() -> Vec<(&'static str, Mapping)> {
    let fd = memory::create("portolan-tracked", LEN as u64).unwrap();
    let other = memory::create("portolan-tracked", LEN as u64).unwrap();
    let kinds = vec![
        ("shared", Mapping::shared_anywhere(&fd, LEN).unwrap()),
        ("private", Mapping::private(&other, LEN).unwrap()),
    ];
    for (_, mapping) in &kinds {
        memory::populate_write(mapping.base().addr(), LEN / 2).unwrap();
    }
    kinds
}

#[test]
fn every_written_page_is_found_once() {
    for (kind, mapping) in kinds() {
        let mut tracker = Tracker::new(mapping.base().addr(), LEN).unwrap();
        assert_eq!(taken(&mut tracker), [], "{kind}");
        for page in [0, 3, 4, 5, PAGES / 2, PAGES - 1] {
            touch(&mapping, page);
            touch(&mapping, page);
        }
        let (half, last) = (PAGES / 2, PAGES - 1);
        let found = taken(&mut tracker);
        assert_eq!(found, [0..1, 3..6, half..half + 1, last..PAGES], "{kind}");
        assert_eq!(taken(&mut tracker), [], "{kind}");
        touch(&mapping, 4);
        assert_eq!(taken(&mut tracker), [4..5], "{kind}");
        // More runs than one request reports, and one run that many would.
        (0..PAGES).step_by(2).for_each(|page| touch(&mapping, page));
        assert_eq!(taken(&mut tracker).len(), PAGES / 2, "{kind}");
        (0..PAGES).for_each(|page| touch(&mapping, page));
        assert_eq!(taken(&mut tracker), [0..PAGES], "{kind}");
    }
}

#[test]
fn reading_is_not_writing_and_system_calls_are() {
    for (kind, mapping) in kinds() {
        let mut tracker = Tracker::new(mapping.base().addr(), LEN).unwrap();
        for page in 0..PAGES {
            let from = mapping.base().wrapping_add(page * PAGE);
            // SAFETY:
            // - In bounds.
            assert_eq!(unsafe { from.read_volatile() }, 0);
        }
        assert_eq!(taken(&mut tracker), [], "{kind}");
        let (read, write) = rustix::pipe::pipe().unwrap();
        for page in [7, PAGES - 2] {
            rustix::io::write(&write, b"x").unwrap();
            let to = mapping.base().wrapping_add(page * PAGE);
            // SAFETY:
            // - In bounds, and the kernel checks the address itself.
            assert_eq!(unsafe { libc::read(read.as_raw_fd(), to.cast(), 1) }, 1);
        }
        assert_eq!(taken(&mut tracker), [7..8, PAGES - 2..PAGES - 1], "{kind}");
    }
}

#[test]
fn no_store_is_missed_while_it_is_asked() {
    /// Pages that the thread counts up.
    const COUNTED: usize = 8;
    let window = Window::create(COUNTED * PAGE).unwrap();
    let mut tracker = Tracker::new(window.base().addr(), window.len()).unwrap();
    let (stop, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    // What a copy holds that takes only what is reported.
    let mut copy = [0; COUNTED];
    let mut update = |copy: &mut [u64; COUNTED]| {
        for range in taken(&mut tracker) {
            for page in range {
                copy[page] = window.word(page * PAGE / 8).load(Ordering::Relaxed);
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                for page in 0..COUNTED {
                    window.word(page * PAGE / 8).fetch_add(1, Ordering::Relaxed);
                }
                // Release: a thread that sees the round's number sees its stores.
                rounds.fetch_add(1, Ordering::Release);
            }
        });
        let _stop = portolan_testkit::SetOnDrop(&stop);
        while rounds.load(Ordering::Relaxed) < 1000 {
            // Acquire pairs with the Release above: what was stored before must be found (T1).
            let at_least = rounds.load(Ordering::Acquire);
            update(&mut copy);
            assert!(copy.iter().all(|&count| count >= at_least), "{copy:?}");
        }
    });
    update(&mut copy);
    let last = rounds.load(Ordering::Relaxed);
    assert_eq!(copy, [last; COUNTED]);
}

#[test]
fn what_cannot_be_watched_is_said() {
    let window = Window::create(4 * PAGE).unwrap();
    let start = window.base().addr();
    for (start, len) in [
        (start + 1, PAGE),
        (start, 1),
        (start, 0),
        (PAGE, PAGE),
        (usize::MAX & !(PAGE - 1), PAGE),
    ] {
        let refused = Tracker::new(start, len);
        assert!(
            matches!(refused, Err(TrackError::BadRange { .. })),
            "{refused:?}"
        );
    }
    let mut tracker = Tracker::new(start, 2 * PAGE).unwrap();
    let second = Tracker::new(start + PAGE, PAGE);
    assert!(matches!(second, Err(TrackError::Watched)), "{second:?}");
    // Its mapping goes, and another comes.
    let fd = window.fd().try_clone_to_owned().unwrap();
    // SAFETY:
    // - Our window, which no code uses any more.
    unsafe { memory::privatise(&fd, 0, start, 2 * PAGE) }.unwrap();
    let lost = tracker.take_written(&mut Vec::new());
    assert!(matches!(lost, Err(TrackError::Remapped)), "{lost:?}");
    drop(tracker);
    Tracker::new(start, 4 * PAGE).unwrap();
}

#[test]
fn an_ordinary_user_may_track_and_share_in_place() {
    use std::os::unix::process::CommandExt;
    /// No process.
    const USER: u32 = 65534;
    if support::role().is_some() {
        assert_eq!(portolan_sys::process::user(), USER);
        let window = Window::create(4 * PAGE).unwrap();
        let mut tracker = Tracker::new(window.base().addr(), window.len()).unwrap();
        window.fill(PAGE, 1, 1);
        assert_eq!(taken(&mut tracker), [1..2]);
        let file = memory::create("portolan-user", PAGE as u64).unwrap();
        let private = Mapping::private(&file, PAGE).unwrap();
        touch(&private, 0);
        // SAFETY:
        // - No references point into the mapping.
        let shared =
            unsafe { memory::share_in_place("portolan-user", private.base().addr(), PAGE) };
        let mut byte = [0];
        rustix::io::pread(shared.unwrap(), &mut byte, 100).unwrap();
        assert_eq!(byte, [1]);
        return;
    }
    if portolan_sys::process::user() != 0 {
        eprintln!("skipped: only the superuser can become another user");
        return;
    }
    let mut child = support::child("an_ordinary_user_may_track_and_share_in_place", "user");
    match child.uid(USER).gid(USER).output() {
        Ok(output) => assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        ),
        Err(error) => eprintln!("skipped: the user may not run this program: {error}"),
    }
}
