//! Shared memory taken back, and private memory shared, while it is in use.

mod support;

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use portolan_sys::memory::{self, Access, Mapping, PAGE, PrivatiseError, ShareError};
use portolan_sys::shared::Window;
use portolan_sys::track::Tracker;
use portolan_testkit::is_alone;
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use support::Reaped;

/// Enough that most of it can be carried over, and some cannot.
const PAGES: usize = 1024;
const LEN: usize = PAGES * PAGE;

/// Threads of ours that store all the time.
const THREADS: usize = 3;

/// Where in every page the importer writes; what lies before is our threads'.
const THEIRS: usize = PAGE / 2;

/// The word of `thread` in `page`.
fn word(start: usize, page: usize, thread: usize) -> *mut u64 {
    ptr::with_exposed_provenance_mut(start + page * PAGE + thread * 64)
}

fn load(from: *mut u64) -> u64 {
    // SAFETY:
    // - Mapped by the test, aligned, and no other code's word.
    unsafe { from.read_volatile() }
}

fn store(to: *mut u64, value: u64) {
    // SAFETY:
    // - Mapped by the test, aligned, and no other code's word.
    unsafe { to.write_volatile(value) };
}

/// Counts up every page's word of each thread for ever, by plain loads and stores, while
/// `change` runs. Each store must be there when its thread looks again, and at the end.
fn while_stored_to<T>(start: usize, change: impl FnOnce() -> T) -> T {
    let stop = AtomicBool::new(false);
    let rounds: Vec<_> = (0..THREADS).map(|_| AtomicU64::new(0)).collect();
    let finished = |at_least: u64| {
        let deadline = Instant::now() + Duration::from_secs(60);
        while rounds
            .iter()
            .any(|rounds| rounds.load(Ordering::Relaxed) < at_least)
        {
            assert!(Instant::now() < deadline, "the threads stand still");
            std::thread::yield_now();
        }
    };
    let result = std::thread::scope(|scope| {
        for (thread, rounds) in rounds.iter().enumerate() {
            let stop = &stop;
            scope.spawn(move || {
                let mut round = 0;
                while !stop.load(Ordering::Relaxed) {
                    for page in 0..PAGES {
                        let word = word(start, page, thread);
                        assert_eq!(load(word), round, "page {page}: a store was lost");
                        store(word, round + 1);
                    }
                    round += 1;
                    rounds.store(round, Ordering::Relaxed);
                }
            });
        }
        let stop = portolan_testkit::SetOnDrop(&stop);
        finished(1);
        let result = change();
        let now = rounds
            .iter()
            .map(|rounds| rounds.load(Ordering::Relaxed))
            .max();
        finished(now.unwrap_or(0) + 2);
        drop(stop);
        result
    });
    for (thread, rounds) in rounds.iter().enumerate() {
        for page in 0..PAGES {
            assert_eq!(
                load(word(start, page, thread)),
                rounds.load(Ordering::Relaxed)
            );
        }
    }
    result
}

/// What the importer can write of every page.
fn theirs(start: usize) -> Vec<u8> {
    let half = |page| {
        let from: *const u8 = ptr::with_exposed_provenance(start + page * PAGE + THEIRS);
        (0..PAGE - THEIRS).map(move |byte| {
            // SAFETY:
            // - In bounds of the test's mapping.
            unsafe { from.wrapping_add(byte).read_volatile() }
        })
    };
    (0..PAGES).flat_map(half).collect()
}

/// Writes for ever to its half of every page, in every way it has; counts rounds.
fn write_for_ever(role: &str) {
    let (data, rounds) = role.split_once(' ').unwrap();
    let (data, rounds) = (support::open_role(data), support::open_role(rounds));
    let (early, rounds) = (
        Window::from_fd(data.try_clone().unwrap()).unwrap(),
        Window::from_fd(rounds).unwrap(),
    );
    let rounds = rounds.word(0);
    for round in 1_u64.. {
        let byte = round.to_le_bytes()[0];
        let late = Mapping::shared_anywhere(&data, LEN).unwrap();
        assert!(ftruncate(&data, 0).is_err(), "the file shrank");
        for page in 0..PAGES {
            let at = page * PAGE + THEIRS;
            early.fill(at, 64, byte);
            let to = late.base().wrapping_add(at + 64);
            // SAFETY:
            // - In bounds: `at + 64` is within the page.
            unsafe { to.write_volatile(byte) };
            rustix::io::pwrite(&data, &[byte; 64], at as u64 + 128).unwrap();
        }
        rounds.store(round, Ordering::Relaxed);
    }
}

#[test]
fn a_hostile_importer_changes_nothing_after_and_own_stores_are_not_lost() {
    let test = "a_hostile_importer_changes_nothing_after_and_own_stores_are_not_lost";
    if let Some(role) = support::role() {
        return write_for_ever(&role);
    }
    let ours = Window::create(LEN).unwrap();
    let rounds = Window::create(PAGE).unwrap();
    let start = ours.base().addr();
    let role = [ours.fd(), rounds.fd()].map(support::fd_role).join(" ");
    let _hostile = Reaped(support::child(test, &role).spawn().unwrap());
    let hostile_rounds = |more: u64| {
        let from = rounds.word(0).load(Ordering::Relaxed);
        let deadline = Instant::now() + Duration::from_secs(60);
        while rounds.word(0).load(Ordering::Relaxed) < from + more {
            assert!(Instant::now() < deadline, "the importer stands still");
            std::thread::yield_now();
        }
    };
    hostile_rounds(1);
    let after = while_stored_to(start, || {
        let fd = ours.fd().try_clone_to_owned().unwrap();
        // What is too short to be carried over, and the rest.
        for part in [0..LEN / 4, LEN / 4..LEN] {
            let (from, len) = (part.start, part.len());
            // SAFETY:
            // - Our window. This test only loads and stores there from now on.
            unsafe { memory::privatise(&fd, from as u64, start + from, len) }.unwrap();
        }
        theirs(start)
    });
    assert!(
        after.iter().any(|&byte| byte != 0),
        "the importer never wrote"
    );
    hostile_rounds(2);
    assert_eq!(theirs(start), after);
    // What else a holder of the file may do.
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(ours.fd(), punch, 0, LEN as u64).unwrap();
    hostile_rounds(2);
    assert_eq!(theirs(start), after);
}

#[test]
fn a_part_of_a_mapping_is_taken_back_and_the_rest_stays_shared() {
    let window = Window::create(8 * PAGE).unwrap();
    let other = Window::from_fd(window.fd().try_clone_to_owned().unwrap()).unwrap();
    let fd = window.fd().try_clone_to_owned().unwrap();
    other.fill(0, 8 * PAGE, 1);
    let start = window.base().addr() + 2 * PAGE;
    // SAFETY:
    // - Our window, of which this test knows what is shared.
    unsafe { memory::privatise(&fd, 2 * PAGE as u64, start, 3 * PAGE) }.unwrap();
    other.fill(0, 8 * PAGE, 2);
    // A byte of each page, each way round.
    let seen = |window: &Window| {
        let mut bytes = [0; 8];
        for (page, byte) in bytes.iter_mut().enumerate() {
            window.copy_out(page * PAGE + 100, std::slice::from_mut(byte));
        }
        bytes
    };
    assert_eq!(seen(&window), [2, 2, 1, 1, 1, 2, 2, 2]);
    window.fill(0, 8 * PAGE, 3);
    assert_eq!(seen(&other), [3, 3, 2, 2, 2, 3, 3, 3]);
}

#[test]
fn only_a_shared_mapping_of_just_that_memory_is_taken_back() {
    if !is_alone("only_a_shared_mapping_of_just_that_memory_is_taken_back") {
        return;
    }
    let fd = memory::create("portolan-back", 8 * PAGE as u64).unwrap();
    let stranger = memory::create("portolan-stranger", 8 * PAGE as u64).unwrap();
    let mapping = Mapping::shared_anywhere(&fd, 8 * PAGE).unwrap();
    let start = mapping.base().addr();
    let refused = |fd: &OwnedFd, offset: usize, start: usize, len: usize| {
        // SAFETY:
        // - Refused, so nothing happens.
        unsafe { memory::privatise(fd, offset as u64, start, len) }.unwrap_err()
    };
    for (start, len) in [(start + 1, PAGE), (start, PAGE - 1), (start, 0)] {
        let error = refused(&fd, 0, start, len);
        assert!(
            matches!(error, PrivatiseError::Misaligned { .. }),
            "{error:?}"
        );
    }
    let not_shared = |error: PrivatiseError, at: usize| {
        assert!(
            matches!(error, PrivatiseError::NotShared { address } if address == at),
            "{error:?}"
        );
    };
    not_shared(refused(&stranger, 0, start, PAGE), start);
    not_shared(refused(&fd, PAGE, start, PAGE), start);
    not_shared(refused(&fd, 0, start + PAGE, PAGE), start + PAGE);
    let private = Mapping::private(&fd, PAGE).unwrap();
    let address = private.base().addr();
    not_shared(refused(&fd, 0, address, PAGE), address);
    // SAFETY:
    // - Our mapping, and no reference points into it.
    unsafe { memory::protect(start + 2 * PAGE, PAGE, Access::Read) }.unwrap();
    not_shared(refused(&fd, 0, start, 4 * PAGE), start + 2 * PAGE);
    // SAFETY:
    // - A page of our mapping that no code uses.
    unsafe { munmap(mapping.base().wrapping_add(PAGE).cast(), PAGE) }.unwrap();
    not_shared(refused(&fd, 0, start, 2 * PAGE), start + PAGE);
    let shrinks = memfd_create("portolan-shrinks", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&shrinks, PAGE as u64).unwrap();
    let mapping = Mapping::shared_anywhere(&shrinks, PAGE).unwrap();
    let error = refused(&shrinks, 0, mapping.base().addr(), PAGE);
    assert!(matches!(error, PrivatiseError::Shrinks { .. }), "{error:?}");
}

/// Private memory, unmapped when dropped.
struct Private {
    start: usize,
    len: usize,
}

impl Private {
    fn new(len: usize) -> Self {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY:
        // - No address is asked for, so the kernel takes a free range.
        let base = unsafe { mmap_anonymous(ptr::null_mut(), len, access, MapFlags::PRIVATE) };
        let start = base.unwrap().expose_provenance();
        Self { start, len }
    }
}

impl Drop for Private {
    fn drop(&mut self) {
        let start = ptr::with_exposed_provenance_mut(self.start);
        // SAFETY:
        // - Ours, and no code uses it any more.
        unsafe { munmap(start, self.len) }.unwrap();
    }
}

/// `share_in_place` on memory of the test's own.
fn share(start: usize, len: usize) -> Result<OwnedFd, ShareError> {
    // SAFETY:
    // - The tests make the memory, touch it by volatile accesses only, and hold no
    //   references into it.
    unsafe { memory::share_in_place("portolan-shared", start, len) }
}

#[test]
fn private_memory_is_shared_in_place_and_own_stores_are_not_lost() {
    let ours = Private::new(LEN);
    let (before, after) = (7 << 32, 9 << 32);
    // The last word of every second page; the others are holes until a thread stores.
    let mark = |start: usize, page: usize| word(start, page, 63);
    for page in (0..PAGES).step_by(2) {
        store(mark(ours.start, page), before);
    }
    let fd = while_stored_to(ours.start, || share(ours.start, LEN).unwrap());
    memory::verify(&fd, LEN as u64).unwrap();
    let theirs = Mapping::shared_anywhere(&fd, LEN).unwrap();
    let their_start = theirs.base().expose_provenance();
    for page in 0..PAGES {
        for thread in 0..THREADS {
            // Also what was stored after the change of mappings.
            assert_eq!(
                load(word(their_start, page, thread)),
                load(word(ours.start, page, thread))
            );
        }
        let expected = if page % 2 == 0 { before } else { 0 };
        assert_eq!(load(mark(their_start, page)), expected);
        store(mark(their_start, page), after);
        assert_eq!(load(mark(ours.start, page)), after);
    }
}

#[test]
fn there_and_back_again() {
    let ours = Private::new(4 * PAGE);
    for round in 0..10 {
        store(word(ours.start, 1, 0), round);
        let fd = share(ours.start, ours.len).unwrap();
        let theirs = Mapping::shared_anywhere(&fd, ours.len).unwrap();
        let there = word(theirs.base().expose_provenance(), 1, 0);
        assert_eq!(load(there), round);
        store(there, round + 100);
        // SAFETY:
        // - The test's own memory; it knows when it is shared.
        unsafe { memory::privatise(&fd, 0, ours.start, ours.len) }.unwrap();
        store(there, 0);
        assert_eq!(load(word(ours.start, 1, 0)), round + 100);
    }
}

#[test]
fn only_private_memory_is_shared_in_place() {
    let ours = Private::new(4 * PAGE);
    for (start, len) in [(ours.start + 1, PAGE), (ours.start, 1), (ours.start, 0)] {
        assert!(matches!(
            share(start, len),
            Err(ShareError::Misaligned { .. })
        ));
    }
    let not_private = |result: Result<OwnedFd, ShareError>, at: usize| {
        assert!(
            matches!(result, Err(ShareError::NotPrivate { address }) if address == at),
            "{result:?}"
        );
    };
    let window = Window::create(PAGE).unwrap();
    let shared = window.base().addr();
    not_private(share(shared, PAGE), shared);
    // SAFETY:
    // - The test's own memory, and no reference points into it.
    unsafe { memory::protect(ours.start + 2 * PAGE, PAGE, Access::Read) }.unwrap();
    not_private(share(ours.start, 4 * PAGE), ours.start + 2 * PAGE);
    let tracker = Tracker::new(ours.start, PAGE).unwrap();
    let result = share(ours.start, 2 * PAGE);
    assert!(matches!(result, Err(ShareError::Watched)), "{result:?}");
    drop(tracker);
    // Refusals left the memory as it was.
    store(word(ours.start, 0, 0), 5);
    drop(share(ours.start, 2 * PAGE).unwrap());
    assert_eq!(load(word(ours.start, 0, 0)), 5);
    let program = std::env::current_exe().unwrap();
    let file: OwnedFd = std::fs::File::open(program).unwrap().into();
    let mapping = Mapping::private(&file, PAGE).unwrap();
    not_private(share(mapping.base().addr(), PAGE), mapping.base().addr());
}

#[test]
fn system_calls_reach_the_memory_after_either_change() {
    let ours = Private::new(PAGE);
    let (read, write) = rustix::pipe::pipe().unwrap();
    let fill = |byte: u8| {
        rustix::io::write(&write, &[byte]).unwrap();
        let to = ptr::with_exposed_provenance_mut(ours.start);
        // SAFETY:
        // - The kernel checks the address itself.
        assert_eq!(unsafe { libc::read(read.as_fd().as_raw_fd(), to, 1) }, 1);
    };
    let fd = share(ours.start, PAGE).unwrap();
    fill(1);
    let mut byte = [0];
    rustix::io::pread(&fd, &mut byte, 0).unwrap();
    assert_eq!(byte, [1]);
    // SAFETY:
    // - The test's own memory; it knows when it is shared.
    unsafe { memory::privatise(&fd, 0, ours.start, PAGE) }.unwrap();
    fill(2);
    rustix::io::pread(&fd, &mut byte, 0).unwrap();
    assert_eq!(byte, [1]);
    assert_eq!(load(word(ours.start, 0, 0)), 2);
}

/// Forks, and has the child look at every page of the range once `ready` can be read; whether it
/// found nothing there, or each page with `wanted`.
fn child_finds(start: usize, len: usize, wanted: u8, ready: &OwnedFd) -> bool {
    // SAFETY:
    // - The child calls nothing that is not async-signal-safe, and exits.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        let _ = rustix::io::read(ready, &mut [0; 1]);
        let pages = (start..start + len).step_by(PAGE);
        let right = pages.map(ptr::with_exposed_provenance::<u8>).all(|page| {
            // SAFETY:
            // - Mapped, or this ends in a signal, which is an answer.
            unsafe { page.read_volatile() == wanted }
        });
        // SAFETY:
        // - Ends the child without running anything of the parent's.
        unsafe { libc::_exit(i32::from(!right)) };
    }
    let mut status = 0;
    // SAFETY:
    // - `status` has room for the answer.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    status == 0 || (libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV)
}

#[test]
fn a_child_that_is_made_meanwhile_has_what_was_there_or_nothing() {
    // Too little to be carried over, which children never see by half.
    const SOME: usize = memory::HUGE_PAGE - PAGE;
    let flags = MapFlags::PRIVATE;
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY:
    // - No address is asked for.
    let range = unsafe { mmap_anonymous(ptr::null_mut(), SOME, access, flags) }.unwrap();
    let start = range.expose_provenance();
    // SAFETY:
    // - In bounds, and no other code's.
    unsafe { range.cast::<u8>().write_bytes(0x55, SOME) };
    for round in 0..40 {
        let (ready, tell) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
        let begun = AtomicBool::new(false);
        let right = std::thread::scope(|scope| {
            let (begun, ready) = (&begun, &ready);
            let child = scope.spawn(move || {
                while !begun.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
                // Later and later in what goes on.
                (0..round * 500).for_each(|_| std::hint::spin_loop());
                child_finds(start, SOME, 0x55, ready)
            });
            begun.store(true, Ordering::Relaxed);
            let file = share(start, SOME).unwrap();
            // SAFETY:
            // - No code relies on its being shared, and no other thread maps there.
            unsafe { memory::privatise(&file, 0, start, SOME) }.unwrap();
            // What importers write is theirs.
            assert_eq!(rustix::io::pwrite(&file, &[0xee; SOME], 0), Ok(SOME));
            assert_eq!(rustix::io::write(&tell, &[1]), Ok(1));
            child.join().unwrap()
        });
        assert!(right, "round {round}");
    }
    // SAFETY:
    // - Ours, and no code uses it any more.
    unsafe { munmap(range, SOME) }.unwrap();
}
