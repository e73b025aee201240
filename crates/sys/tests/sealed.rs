//! Sealed memory: what a hostile sender may try before and after.

mod support;

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};

use portolan_sys::memory::{
    self, AllocateError, Blank, Mapping, PAGE, SealError, ShareError, VerifyError,
};
use portolan_testkit::is_alone;
use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, ftruncate, memfd_create,
};
use rustix::io::{Errno, pread, pwrite};

const LEN: usize = 4 * PAGE;

/// Says what a file looks like that another process made.
fn made(flags: MemfdFlags, seals: SealFlags) -> OwnedFd {
    let fd = memfd_create("portolan-hostile", flags | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&fd, LEN as u64).unwrap();
    fcntl_add_seals(&fd, seals).unwrap();
    fd
}

fn filled() -> OwnedFd {
    let fd = memory::create_unsealed("portolan-filled", LEN as u64).unwrap();
    assert_eq!(pwrite(&fd, &[7; LEN], 0), Ok(LEN));
    fd
}

fn byte(mapping: &Mapping, offset: usize) -> u8 {
    assert!(offset < mapping.len());
    let from = mapping.base().wrapping_add(offset);
    // SAFETY:
    // - In bounds: checked above.
    unsafe { from.read_volatile() }
}

fn set(mapping: &Mapping, offset: usize, value: u8) {
    assert!(offset < mapping.len());
    let to = mapping.base().wrapping_add(offset);
    // SAFETY:
    // - In bounds: checked above.
    // - No reference points there.
    unsafe { to.write_volatile(value) };
}

#[test]
fn sealed_memory_is_refused_every_change() {
    let fd = filled();
    memory::verify(&fd, LEN as u64).expect_err("its seals are not final yet");
    memory::seal(&fd).unwrap();
    memory::verify_sealed(&fd, LEN as u64).unwrap();
    memory::verify(&fd, LEN as u64).unwrap();
    // The same file by a new descriptor that was opened to read and write.
    let reopened = support::open_role(&support::fd_role(fd.as_fd()));
    memory::verify_sealed(&reopened, LEN as u64).unwrap();
    for fd in [&fd, &reopened] {
        assert_eq!(pwrite(fd, b"x", 0), Err(Errno::PERM));
        assert_eq!(ftruncate(fd, 0), Err(Errno::PERM));
        assert_eq!(ftruncate(fd, 2 * LEN as u64), Err(Errno::PERM));
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        assert_eq!(fallocate(fd, punch, 0, LEN as u64), Err(Errno::PERM));
        Mapping::shared_anywhere(fd, LEN).expect_err("a mapping that could write");
        assert_eq!(fcntl_add_seals(fd, SealFlags::EXEC), Err(Errno::PERM));
    }
    let mut bytes = [0; LEN];
    assert_eq!(pread(&fd, &mut bytes, 0), Ok(LEN));
    assert_eq!(bytes, [7; LEN]);
}

#[test]
fn a_private_mapping_keeps_its_writes() {
    let fd = filled();
    memory::seal(&fd).unwrap();
    let (one, other) = (
        Mapping::private(&fd, LEN).unwrap(),
        Mapping::private(&fd, LEN).unwrap(),
    );
    set(&one, PAGE, 8);
    assert_eq!((byte(&one, PAGE), byte(&one, PAGE + 1)), (8, 7));
    assert_eq!(byte(&other, PAGE), 7);
    let mut byte = [0];
    assert_eq!(pread(&fd, &mut byte, PAGE as u64), Ok(1));
    assert_eq!(byte, [7]);
    for len in [0, PAGE - 1] {
        let mapped = Mapping::private(&fd, len);
        assert!(
            matches!(mapped, Err(memory::MapError::Misaligned { .. })),
            "{mapped:?}"
        );
    }
}

#[test]
fn what_could_still_write_prevents_the_seal() {
    let fd = filled();
    let writes = Mapping::shared_anywhere(&fd, LEN).unwrap();
    assert!(matches!(memory::seal(&fd), Err(SealError::Busy)));
    // Refusal changed nothing.
    set(&writes, 0, 1);
    assert_eq!(pwrite(&fd, b"x", 1), Ok(1));
    memory::verify_sealed(&fd, LEN as u64).expect_err("not sealed");
    drop(writes);
    // This one only reads, but could be made to write by mprotect.
    let reads = Mapping::read_only(&fd, LEN).unwrap();
    assert!(matches!(memory::seal(&fd), Err(SealError::Busy)));
    drop(reads);
    // These could not.
    let reader = memory::reopen_to_read(&fd).unwrap();
    let reads = Mapping::read_only(&reader, LEN).unwrap();
    let private = Mapping::private(&fd, LEN).unwrap();
    memory::seal(&fd).unwrap();
    assert_eq!((byte(&reads, 0), byte(&private, 1)), (1, b'x'));
}

#[test]
fn only_an_open_memfd_can_be_sealed() {
    let fd = filled();
    let reader = memory::reopen_to_read(&fd).unwrap();
    assert!(matches!(
        memory::seal(&reader),
        Err(SealError::Refused { .. })
    ));
    let closed = memory::create("portolan-closed", LEN as u64).unwrap();
    let found = (SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL).bits();
    let refused = memory::seal(&closed);
    assert!(
        matches!(refused, Err(SealError::Refused { found: seals }) if seals & found == found),
        "{refused:?}"
    );
    let null: OwnedFd = File::open("/dev/null").unwrap().into();
    assert!(matches!(memory::seal(&null), Err(SealError::NotMemfd)));
}

#[test]
fn what_a_hostile_sender_sends_is_refused() {
    let size = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    let none = MemfdFlags::empty();
    let unsealed = [
        ("nothing", made(none, SealFlags::empty())),
        ("size only", made(none, size)),
        // A mapping made before such a seal still writes.
        ("future", made(none, size | SealFlags::FUTURE_WRITE)),
        (
            "may grow",
            made(none, SealFlags::SHRINK | SealFlags::SEAL | SealFlags::WRITE),
        ),
        (
            "may shrink",
            made(none, SealFlags::GROW | SealFlags::SEAL | SealFlags::WRITE),
        ),
    ];
    for (what, fd) in unsealed {
        let verified = memory::verify_sealed(&fd, LEN as u64);
        assert!(
            matches!(verified, Err(VerifyError::Unsealed { .. })),
            "{what}: {verified:?}"
        );
    }
    let fd = filled();
    memory::seal(&fd).unwrap();
    for len in [0, LEN as u64 - 1, LEN as u64 + 1, u64::MAX] {
        let verified = memory::verify_sealed(&fd, len);
        assert!(
            matches!(verified, Err(VerifyError::Size { expected, .. }) if expected == len),
            "{len}: {verified:?}"
        );
    }
    let (read, write) = rustix::pipe::pipe().unwrap();
    let null: OwnedFd = File::open("/dev/null").unwrap().into();
    for fd in [&read, &write, &null] {
        assert!(matches!(
            memory::verify_sealed(fd, 0),
            Err(VerifyError::NotMemfd)
        ));
    }
}

#[test]
fn a_file_of_huge_pages_is_refused() {
    let len = memory::HUGE_PAGE as u64;
    let flags = MemfdFlags::HUGETLB | MemfdFlags::ALLOW_SEALING;
    let Ok(fd) = memfd_create("portolan-huge", flags) else {
        eprintln!("skipped: this kernel has no huge page files");
        return;
    };
    ftruncate(&fd, len).unwrap();
    fcntl_add_seals(
        &fd,
        SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL,
    )
    .unwrap();
    let verified = memory::verify_sealed(&fd, len);
    assert!(
        matches!(verified, Err(VerifyError::NotMemfd)),
        "{verified:?}"
    );
}

#[test]
fn a_mapping_made_before_a_future_seal_writes_on() {
    // Why `verify_sealed` does not take that seal: the kernel's behaviour, shown.
    let fd = made(MemfdFlags::empty(), SealFlags::empty());
    let early = Mapping::shared_anywhere(&fd, LEN).unwrap();
    fcntl_add_seals(&fd, SealFlags::FUTURE_WRITE).unwrap();
    Mapping::shared_anywhere(&fd, LEN).expect_err("a new mapping");
    let theirs = Mapping::private(&fd, LEN).unwrap();
    assert_eq!(byte(&theirs, 0), 0);
    set(&early, 0, 9);
    assert_eq!(byte(&theirs, 0), 9);
}

/// More than any machine has.
const TOO_MUCH: usize = 1 << 45;

/// Ends this process before it takes more memory for a file than that.
fn take_little_from_now_on() {
    let limit = libc::rlimit {
        rlim_cur: 1 << 20,
        rlim_max: 1 << 20,
    };
    // SAFETY:
    // - A valid limit, of this process alone, which runs this test alone.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &limit) }, 0);
}

#[test]
fn more_than_the_machine_has_is_refused_before_any_is_taken() {
    if !is_alone("more_than_the_machine_has_is_refused_before_any_is_taken") {
        return;
    }
    let private = memory::create("portolan-much", TOO_MUCH as u64).unwrap();
    let private = Mapping::private(&private, TOO_MUCH).unwrap();
    let into = memory::create("portolan-much", TOO_MUCH as u64).unwrap();
    take_little_from_now_on();
    let refused = Blank::new(TOO_MUCH).unwrap_err();
    let none = AllocateError::OutOfMemory {
        offset: 0,
        len: TOO_MUCH as u64,
        done: 0,
    };
    assert_eq!(refused.to_string(), none.to_string());
    // SAFETY:
    // - No code refers to the mapping, or changes it meanwhile; no stack is there.
    let refused = unsafe { memory::share_into(&into, private.base().addr(), TOO_MUCH) };
    assert!(
        matches!(refused, Err(ShareError::OutOfMemory { done: 0, .. })),
        "{refused:?}"
    );
}
