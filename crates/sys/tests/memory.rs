//! Memory files, mappings, and what can be asked of address ranges.

mod support;

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};

use portolan_sys::memory::{self, Access, HUGE_PAGE, Lock, MapError, Mapping, PAGE, VerifyError};
use portolan_sys::shared::Window;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fstat, ftruncate, memfd_create};
use rustix::io::{Errno, FdFlags, fcntl_getfd};

const LEN: usize = 16 * PAGE;

fn file(name: &str) -> OwnedFd {
    memory::create(name, LEN as u64).unwrap()
}

#[test]
fn a_file_keeps_its_size_and_its_seals() {
    let fd = file("portolan-seals");
    assert_eq!(ftruncate(&fd, 0), Err(Errno::PERM));
    assert_eq!(ftruncate(&fd, 2 * LEN as u64), Err(Errno::PERM));
    assert_eq!(fcntl_add_seals(&fd, SealFlags::WRITE), Err(Errno::PERM));
    assert_eq!(fstat(&fd).unwrap().st_mode & 0o777, 0o600);
    assert!(fcntl_getfd(&fd).unwrap().contains(FdFlags::CLOEXEC));
    memory::verify(&fd, LEN as u64).unwrap();
}

#[test]
fn files_of_another_kind_are_refused() {
    let null: OwnedFd = File::open("/dev/null").unwrap().into();
    assert!(matches!(
        memory::verify(&null, 0),
        Err(VerifyError::NotMemfd)
    ));
    let unsealed = memfd_create("portolan-unsealed", MemfdFlags::ALLOW_SEALING).unwrap();
    assert!(matches!(
        memory::verify(&unsealed, 0),
        Err(VerifyError::Unsealed { .. })
    ));
    let size = memory::verify(file("portolan-size"), 1);
    assert!(matches!(size, Err(VerifyError::Size { expected: 1, found }) if found == LEN as i64));
}

#[test]
fn a_taken_range_names_its_occupant() {
    let fd = file("portolan-occupant");
    let occupant = Mapping::shared_anywhere(&fd, LEN).unwrap();
    // The range begins before the occupant and reaches into it.
    let base = occupant.base().addr() - PAGE;
    match Mapping::shared_at(&fd, base, LEN) {
        Err(MapError::Taken { base: at, len, by }) => {
            assert_eq!((at, len), (base, LEN));
            assert!(by.contains("portolan-occupant"), "{by}");
        }
        other => panic!("{other:?}"),
    }
    // Refusal left the occupant alone.
    memory::populate_read(occupant.base().addr(), LEN).unwrap();
}

#[test]
fn a_fixed_mapping_is_where_it_was_asked_for_and_shared() {
    let fd = file("portolan-fixed");
    let anywhere = Mapping::shared_anywhere(&fd, LEN).unwrap();
    let base = 0x3e00_0000_0000;
    let fixed = Mapping::shared_at(&fd, base, LEN).unwrap();
    assert_eq!((fixed.base().addr(), fixed.len()), (base, LEN));
    let (here, there) = (
        fixed.base().wrapping_add(PAGE),
        anywhere.base().wrapping_add(PAGE),
    );
    // SAFETY:
    // - In bounds, and no reference points there.
    unsafe { here.write_volatile(7) };
    // SAFETY:
    // - In bounds, and no reference points there.
    assert_eq!(unsafe { there.read_volatile() }, 7);
    drop(fixed);
    // Dropping gave the range back.
    drop(Mapping::shared_at(&fd, base, LEN).unwrap());
    assert!(memory::populate_read(base, PAGE).is_err());
}

#[test]
fn odd_ranges_are_refused() {
    let fd = file("portolan-odd");
    for (base, len) in [(0x3e10_0000_0001, LEN), (0x3e10_0000_0000, LEN + 1), (0, 0)] {
        let mapped = Mapping::shared_at(&fd, base, len);
        assert!(
            matches!(mapped, Err(MapError::Misaligned { .. })),
            "{mapped:?}"
        );
    }
    let huge = Mapping::shared_anywhere(&fd, usize::MAX);
    assert!(matches!(
        huge,
        Err(MapError::Misaligned { .. } | MapError::Refused { .. })
    ));
}

#[test]
fn a_forked_child_does_not_inherit_a_fixed_mapping_nor_unmap_its_successor() {
    let fd = file("portolan-fork");
    let base = 0x3e20_0000_0000;
    let mapping = Mapping::shared_at(&fd, base, LEN).unwrap();
    memory::populate_write(base, LEN).unwrap();
    let answer = support::in_fork(|| {
        if memory::populate_read(base, PAGE).is_ok() {
            return 1;
        }
        let (access, flags) = (libc::PROT_READ, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let wanted = std::ptr::without_provenance_mut(base);
        // SAFETY:
        // - Nothing is mapped there in the child, as was just found out.
        let own = unsafe { libc::mmap(wanted, PAGE, access, flags | libc::MAP_FIXED, -1, 0) };
        if own != wanted {
            return 2;
        }
        // SAFETY:
        // - The child's copy, dropped once; the child exits without dropping it again.
        drop(unsafe { std::ptr::read(&mapping) });
        if memory::populate_read(base, PAGE).is_ok() {
            0
        } else {
            3
        }
    });
    assert_eq!(answer, 0);
    // The parent's is still there.
    memory::populate_read(mapping.base().addr(), LEN).unwrap();
}

#[test]
fn memory_is_taken_and_given_back() {
    let fd = file("portolan-allocate");
    let data = || -> Vec<_> {
        memory::data_ranges(&fd, 0..LEN as u64)
            .collect::<Result<_, _>>()
            .unwrap()
    };
    let page = PAGE as u64;
    assert!(data().is_empty());
    memory::allocate(&fd, page, 2 * page).unwrap();
    assert_eq!(memory::allocated_bytes(&fd).unwrap(), 2 * page);
    // Where the kernel can be asked that.
    if let Ok(resident) = memory::resident_bytes(&fd, 2 * page..8 * page) {
        assert_eq!(resident, page);
        assert_eq!(memory::resident_bytes(&fd, 0..page).unwrap(), 0);
    }
    let mapping = Mapping::shared_anywhere(&fd, LEN).unwrap();
    memory::populate_write(mapping.base().addr() + PAGE, 2 * PAGE).unwrap();
    memory::populate_write(mapping.base().addr() + 8 * PAGE, PAGE).unwrap();
    assert_eq!(data(), [page..3 * page, 8 * page..9 * page]);
    // The bounds of the question cut off what lies outside.
    let mut part = memory::data_ranges(&fd, 2 * page..8 * page);
    assert_eq!(part.next().unwrap().unwrap(), 2 * page..3 * page);
    assert!(part.next().is_none());
    memory::punch(&fd, 0, LEN as u64).unwrap();
    assert!(data().is_empty());
    assert_eq!(memory::allocated_bytes(&fd).unwrap(), 0);
}

#[test]
fn memory_past_the_end_is_not_given() {
    let fd = file("portolan-end");
    assert!(matches!(
        memory::allocate(&fd, LEN as u64, PAGE as u64),
        Err(memory::AllocateError::Io(_))
    ));
}

#[test]
fn collapsing_keeps_the_content() {
    let window = Window::create(2 * HUGE_PAGE).unwrap();
    let start = window.base().addr();
    assert_eq!(start % HUGE_PAGE, 0);
    memory::advise_huge(start, window.len()).unwrap();
    window.touch_write(0, window.len(), 3);
    let sum = window.sum(0, window.len());
    let collapsed = memory::collapse(start, window.len()).unwrap();
    assert_eq!(window.sum(0, window.len()), sum);
    if collapsed {
        assert_eq!(huge_bytes(start), window.len());
    } else {
        eprintln!("no huge pages to be had");
    }
    assert!(memory::collapse(start + 1, PAGE).is_err());
    // Nothing is mapped at the lowest addresses.
    assert!(!memory::collapse(PAGE, PAGE).unwrap_or(false));
}

/// Bytes of the mapping at `start` that are mapped by huge pages.
fn huge_bytes(start: usize) -> usize {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mapping = smaps
        .lines()
        .skip_while(|line| !line.starts_with(&format!("{start:x}-")));
    let line = mapping
        .skip(1)
        .find(|line| line.starts_with("ShmemPmdMapped:"))
        .unwrap();
    line.split_whitespace()
        .nth(1)
        .unwrap()
        .parse::<usize>()
        .unwrap()
        * 1024
}

#[test]
fn zapping_keeps_the_content() {
    let window = Window::create(LEN).unwrap();
    window.fill(0, LEN, 9);
    // SAFETY:
    // - Shared memory.
    unsafe { memory::zap(window.base().addr(), LEN) }.unwrap();
    let mut bytes = [0; 3];
    window.copy_out(LEN - 3, &mut bytes);
    assert_eq!(bytes, [9; 3]);
}

#[test]
fn locked_and_protected_ranges_answer_the_kernel_accordingly() {
    let window = Window::create(LEN).unwrap();
    let start = window.base().addr();
    memory::lock(start, PAGE, Lock::OnFault).unwrap();
    memory::lock(start + PAGE, PAGE, Lock::Now).unwrap();
    // SAFETY:
    // - Shared memory.
    assert!(unsafe { memory::zap(start, PAGE) }.is_err());
    let (read, write) = rustix::pipe::pipe().unwrap();
    rustix::io::write(&write, b"x").unwrap();
    let guarded = start + 2 * PAGE;
    // SAFETY:
    // - Our window, and no reference points into it.
    unsafe { memory::protect(guarded, PAGE, Access::Read) }.unwrap();
    let to = std::ptr::with_exposed_provenance_mut(guarded);
    // SAFETY:
    // - The kernel checks the address itself.
    assert_eq!(unsafe { libc::read(read.as_raw_fd(), to, 1) }, -1);
    // SAFETY:
    // - Our window, and no reference points into it.
    unsafe { memory::protect(guarded, PAGE, Access::ReadWrite) }.unwrap();
    // SAFETY:
    // - A writable byte of our window.
    assert_eq!(unsafe { libc::read(read.as_raw_fd(), to, 1) }, 1);
}

#[test]
fn a_window_checks_its_bounds() {
    let window = Window::create(1).unwrap();
    assert_eq!(window.len(), PAGE);
    window.populate().unwrap();
    window.touch_write(0, PAGE, 1);
    let words = (PAGE / 8) as u64;
    assert_eq!(window.sum(0, PAGE), words * (words + 1) / 2);
    window.fill(PAGE - 3, 3, 2);
    assert_eq!(window.sum(PAGE - 3, 3), 6);
    window
        .word(511)
        .store(1 << 32, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(
        window
            .word32(1023)
            .load(std::sync::atomic::Ordering::Relaxed),
        1
    );
    let outside: [(usize, usize); 3] = [(PAGE, 1), (usize::MAX, 2), (0, usize::MAX)];
    for (offset, len) in outside {
        let summed = std::panic::catch_unwind(|| window.sum(offset, len));
        assert!(summed.is_err(), "{len} bytes at {offset}");
    }
    assert!(std::panic::catch_unwind(|| window.word(usize::MAX / 4)).is_err());
    assert!(std::panic::catch_unwind(|| window.word32(1024)).is_err());
}

#[test]
fn an_unsealed_file_is_no_window() {
    let fd = memfd_create("portolan-unsealed", MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&fd, 4096).unwrap();
    assert!(Window::from_fd(fd).is_err());
    assert!(Window::from_fd(File::open("/dev/null").unwrap().into()).is_err());
}

/// A type that were `Clone` would have two candidates here and not compile.
trait NotClone<Marker> {
    fn holds() {}
}
impl<T> NotClone<()> for T {}
impl<T: Clone> NotClone<u8> for T {}

#[test]
fn what_owns_something_is_not_clone() {
    <Mapping as NotClone<_>>::holds();
    <Window as NotClone<_>>::holds();
    <portolan_sys::process::PidFd as NotClone<_>>::holds();
    <portolan_sys::process::ProcessMemory as NotClone<_>>::holds();
    <portolan_sys::track::Tracker as NotClone<_>>::holds();
    <portolan_sys::fault::Watch as NotClone<_>>::holds();
    <portolan_sys::fork::CloseOnFork as NotClone<_>>::holds();
    <portolan_sys::bell::FutexFd as NotClone<_>>::holds();
}

#[test]
fn a_file_reopened_to_read_cannot_be_written() {
    let fd = memory::create("to read", 2 * PAGE as u64).unwrap();
    assert_eq!(rustix::io::pwrite(&fd, b"seen", 0).unwrap(), 4);
    let reader = memory::reopen_to_read(&fd).unwrap();
    memory::verify(&reader, 2 * PAGE as u64).unwrap();
    let denied = rustix::io::pwrite(&reader, b"x", 0).unwrap_err();
    assert_eq!(denied, rustix::io::Errno::BADF);
    Mapping::shared_anywhere(&reader, PAGE).expect_err("it cannot be mapped for writing");
    let mapping = Mapping::read_only(&reader, PAGE).unwrap();
    assert_eq!(mapping.len(), PAGE);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let start = format!("{:x}-", mapping.base().addr());
    let line = maps.lines().find(|line| line.starts_with(&start)).unwrap();
    assert!(line.contains(" r--s "), "{line}");
    assert!(Mapping::read_only(&reader, PAGE + 1).is_err());
}
