//! Memory of other processes: by descriptors that they handed over, and by process id.

mod support;

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

use portolan_sys::memory::{self, Access, Mapping, PAGE};
use portolan_sys::process::{
    self, ForeignError, Maps, MapsError, Need, PidFd, ProcessMemory, Remote, Signal, TransferError,
};
use portolan_sys::shared::Window;
use portolan_sys::socket::{self, Address};
use portolan_testkit::is_alone;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use support::Reaped;

const LEN: usize = 4 * PAGE;

/// For what comes at once unless the machine is busy.
fn patience() -> Option<Instant> {
    Some(Instant::now() + Duration::from_secs(60))
}

/// A process that handed over its memory, and obeys.
struct Exporter {
    child: Reaped,
    socket: OwnedFd,
    memory: ProcessMemory,
    /// Where its window lies: `LEN` bytes.
    address: usize,
}

/// Starts `test` again as an exporter, which then runs [`obey`].
fn exporter(test: &str) -> Exporter {
    let name = format!("portolan-{test}-{}", std::process::id());
    let listener = socket::listen(&Address::Abstract(name.clone().into()), 1).unwrap();
    let child = Reaped(support::child(test, &name).spawn().unwrap());
    let socket = socket::accept_by(&listener, patience()).unwrap();
    let mut address = [0; 8];
    let received = socket::receive_by(&socket, &mut address, 2, patience()).unwrap();
    let [mem, maps] = <[OwnedFd; 2]>::try_from(received.fds).unwrap();
    Exporter {
        child,
        socket,
        memory: ProcessMemory::from_descriptors(mem, maps).unwrap(),
        address: usize::from_ne_bytes(address),
    }
}

impl Exporter {
    fn ask(&self, order: &[u8]) -> u64 {
        socket::send(&self.socket, order, &[]).unwrap();
        let mut answer = [0; 8];
        let received = socket::receive_by(&self.socket, &mut answer, 0, patience()).unwrap();
        assert_eq!(received.len, 8);
        u64::from_ne_bytes(answer)
    }
}

/// What an exporter does until its maker is gone.
fn obey(name: String) {
    let socket = socket::connect(&Address::Abstract(name.into())).unwrap();
    let window = Window::create(LEN).unwrap();
    let memory = ProcessMemory::own().unwrap();
    let address = window.base().addr().to_ne_bytes();
    socket::send(&socket, &address, &memory.descriptors()).unwrap();
    let mut order = [0; 16];
    while let Ok(received) = socket::receive(&socket, &mut order, 0) {
        let answer = match &order[..received.len] {
            b"sum" => window.sum(0, LEN),
            b"protect" => {
                // SAFETY:
                // - Our window, and no reference points into it.
                unsafe { memory::protect(window.base().addr() + PAGE, PAGE, Access::Read) }
                    .unwrap();
                0
            }
            // Closes the socket, which tells our maker that it has happened.
            b"exec" => panic!("{}", Command::new("sleep").arg("1000").exec()),
            other => panic!("{other:?}"),
        };
        socket::send(&socket, &answer.to_ne_bytes(), &[]).unwrap();
    }
}

/// Waits until the exporter's end of the socket is closed.
fn closed(exporter: &Exporter) {
    let end = socket::receive_by(&exporter.socket, &mut [0], 0, patience());
    assert!(matches!(end, Err(socket::SocketError::Closed)), "{end:?}");
}

#[test]
fn bytes_reach_a_process_that_handed_over_its_memory() {
    if let Some(name) = support::role() {
        return obey(name);
    }
    let exporter = exporter("bytes_reach_a_process_that_handed_over_its_memory");
    let (memory, to) = (&exporter.memory, exporter.address + PAGE - 1);
    memory.check(to, 3, Need::Write).unwrap();
    memory.write_at(to, &[1, 1, 1]).unwrap();
    let parts = [IoSlice::new(&[1; 2]), IoSlice::new(&[]), IoSlice::new(&[1])];
    memory.write_vectored_at(to + 3, &parts).unwrap();
    let byte = [1];
    let pid = exporter.child.0.id();
    let remote = |address, len| Remote { address, len };
    let one = [remote(to + 6, 0), remote(to + 6, 1)];
    process::write_memory(pid, &[IoSlice::new(&byte)], &one).unwrap();
    // Seven ones in three words; a copy that garbles them has another sum.
    assert_eq!(
        exporter.ask(b"sum"),
        0x0100_0000_0000_0000 + 0x0000_0101_0101_0101
    );
    let mut bytes = [9; 9];
    memory.read_at(to - 1, &mut bytes).unwrap();
    assert_eq!(bytes, [0, 1, 1, 1, 1, 1, 1, 1, 0]);
    let (mut one, mut other) = ([9; 2], [9; 3]);
    let mut parts = [IoSliceMut::new(&mut one), IoSliceMut::new(&mut other)];
    memory.read_vectored_at(to - 1, &mut parts).unwrap();
    assert_eq!((one, other), ([0, 1], [1; 3]));
    let from = [remote(to - 1, 1), remote(to, 2)];
    process::read_memory(pid, &from, &mut [IoSliceMut::new(&mut other)]).unwrap();
    assert_eq!(other, [0, 1, 1]);
}

#[test]
fn protection_is_the_holders_to_check() {
    if let Some(name) = support::role() {
        return obey(name);
    }
    let exporter = exporter("protection_is_the_holders_to_check");
    let memory = &exporter.memory;
    memory.check(exporter.address, LEN, Need::Write).unwrap();
    exporter.ask(b"protect");
    memory.check(exporter.address, LEN, Need::Read).unwrap();
    memory.check(exporter.address, PAGE, Need::Write).unwrap();
    for (start, len) in [(0, LEN), (PAGE - 1, 2), (2 * PAGE - 1, 1)] {
        let checked = memory.check(exporter.address + start, len, Need::Write);
        assert!(
            matches!(
                checked,
                Err(TransferError::Protected {
                    wanted: "write",
                    ..
                })
            ),
            "{checked:?}"
        );
    }
    // The other way is the kernel's to check.
    let to = [Remote {
        address: exporter.address + PAGE,
        len: 1,
    }];
    let written = process::write_memory(exporter.child.0.id(), &[IoSlice::new(b"x")], &to);
    assert!(
        matches!(written, Err(TransferError::Unmapped { address, done: 0, len: 1 })
            if address == exporter.address + PAGE),
        "{written:?}"
    );
}

#[test]
fn the_kernel_ignores_protection_except_of_files_opened_to_read() {
    let memory = ProcessMemory::own().unwrap();
    let fd = memory::create("portolan-readable", LEN as u64).unwrap();
    let reader = memory::reopen_to_read(&fd).unwrap();
    let shared = Mapping::read_only(&reader, LEN).unwrap();
    let refused = memory.write_at(shared.base().addr(), b"x");
    assert!(
        matches!(refused, Err(TransferError::Unmapped { done: 0, .. })),
        "{refused:?}"
    );
    let mut byte = [9];
    rustix::io::pread(&fd, &mut byte, 0).unwrap();
    assert_eq!(byte, [0]);
    let private = Mapping::private(&fd, LEN).unwrap();
    let start = private.base().addr();
    for access in [Access::Read, Access::None] {
        // SAFETY:
        // - Our mapping, and no reference points into it.
        unsafe { memory::protect(start, LEN, access) }.unwrap();
        let checked = memory.check(start, 1, Need::Write);
        assert!(matches!(checked, Err(TransferError::Protected { .. })));
        match memory.write_at(start, b"x") {
            Ok(()) => eprintln!("{access:?}: written all the same"),
            // Kernels can be built or started to refuse.
            Err(error) => eprintln!("{access:?}: {error}"),
        }
    }
    let checked = memory.check(start, 1, Need::Read);
    assert!(matches!(
        checked,
        Err(TransferError::Protected { wanted: "read", .. })
    ));
}

/// Writes and reads the range in all three ways; each has to stop after `done` bytes.
fn stops_after(address: usize, len: usize, done: usize) {
    let memory = ProcessMemory::own().unwrap();
    let mut bytes = vec![7; len];
    let remote = [Remote { address, len }];
    let own = std::process::id();
    let results = [
        memory.write_at(address, &bytes),
        memory.write_vectored_at(address, &[IoSlice::new(&bytes)]),
        memory.read_at(address, &mut bytes),
        memory.read_vectored_at(address, &mut [IoSliceMut::new(&mut bytes)]),
        process::write_memory(own, &[IoSlice::new(&bytes)], &remote),
        process::read_memory(own, &remote, &mut [IoSliceMut::new(&mut bytes)]),
    ];
    for (way, result) in results.into_iter().enumerate() {
        let error = result.unwrap_err();
        assert_eq!(error.done(), done, "way {way}: {error}");
        assert!(
            matches!(error, TransferError::Unmapped { address: at, .. } if at == address + done),
            "way {way}: {error:?}"
        );
    }
    assert_eq!(bytes[..done], vec![7; done]);
}

#[test]
fn a_transfer_says_how_far_it_came() {
    if !is_alone("a_transfer_says_how_far_it_came") {
        return;
    }
    let fd = memfd_create("portolan-shrinks", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&fd, LEN as u64).unwrap();
    let mapping = Mapping::shared_anywhere(&fd, LEN).unwrap();
    let start = mapping.base().addr();
    // Its owner truncates it: the mapping stays, the memory is gone.
    ftruncate(&fd, 2 * PAGE as u64).unwrap();
    stops_after(start + 100, LEN - 100, 2 * PAGE - 100);
    stops_after(start + 3 * PAGE, 1, 0);
    ftruncate(&fd, LEN as u64).unwrap();
    // And unmaps part of it.
    let hole = std::ptr::without_provenance_mut(start + PAGE);
    // SAFETY:
    // - A page of our mapping, which no code uses any more.
    unsafe { rustix::mm::munmap(hole, PAGE) }.unwrap();
    stops_after(start, LEN, PAGE);
    let memory = ProcessMemory::own().unwrap();
    let checked = memory.check(start, LEN, Need::Read);
    assert!(
        matches!(checked, Err(TransferError::Unmapped { address, .. }) if address == start + PAGE),
        "{checked:?}"
    );
}

#[test]
fn impossible_transfers_are_refused() {
    let memory = ProcessMemory::own().unwrap();
    let own = std::process::id();
    for address in [usize::MAX, usize::MAX / 2] {
        let results = [
            memory.write_at(address, b"xx"),
            memory.read_at(address, &mut [0; 2]),
            memory.check(address, 2, Need::Read),
            process::write_memory(own, &[IoSlice::new(b"xx")], &[Remote { address, len: 2 }]),
        ];
        for result in results {
            assert!(
                matches!(result, Err(TransferError::OutOfRange { len: 2, .. })),
                "{result:?}"
            );
        }
    }
    let here = 7_u8;
    let uneven = [Remote {
        address: (&raw const here).addr(),
        len: 1,
    }];
    let result = process::read_memory(own, &uneven, &mut [IoSliceMut::new(&mut [0; 2])]);
    assert!(matches!(result, Err(TransferError::OutOfRange { .. })));
    let endless = [
        Remote {
            address: 0,
            len: usize::MAX,
        },
        uneven[0],
    ];
    let result = process::read_memory(own, &endless, &mut []);
    assert!(matches!(result, Err(TransferError::OutOfRange { .. })));
    // Nothing is always there.
    memory.write_at(0, b"").unwrap();
    process::write_memory(own, &[], &[]).unwrap();
}

#[test]
fn any_number_of_parts_is_carried() {
    let window = Window::create(LEN).unwrap();
    let start = window.base().addr();
    let memory = ProcessMemory::own().unwrap();
    let bytes: Vec<u8> = (0..3000_u32).map(|n| n.to_le_bytes()[0] ^ 0x55).collect();
    let one_by_one: Vec<_> = bytes.chunks(1).map(IoSlice::new).collect();
    let check = |at: usize| {
        let mut back = vec![0; bytes.len()];
        window.copy_out(at, &mut back);
        assert_eq!(back, bytes);
    };
    memory.write_vectored_at(start + 1, &one_by_one).unwrap();
    check(1);
    let there: Vec<_> = (0..1000)
        .map(|part| Remote {
            address: start + 5000 + 3 * part,
            len: 3,
        })
        .collect();
    process::write_memory(std::process::id(), &one_by_one, &there).unwrap();
    check(5000);
    let mut back = vec![0; bytes.len()];
    let mut parts: Vec<_> = back.chunks_mut(2).map(IoSliceMut::new).collect();
    memory.read_vectored_at(start + 1, &mut parts).unwrap();
    assert_eq!(back, bytes);
    let mut back = vec![0; bytes.len()];
    let mut parts: Vec<_> = back.chunks_mut(1).map(IoSliceMut::new).collect();
    process::read_memory(std::process::id(), &there, &mut parts).unwrap();
    assert_eq!(back, bytes);
}

/// Every way to the memory of what was `exporter` is closed.
fn reaches_nothing(exporter: &Exporter) {
    let memory = &exporter.memory;
    let results = [
        memory.write_at(exporter.address, b"x"),
        memory.write_vectored_at(exporter.address, &[IoSlice::new(b"x")]),
        memory.read_at(exporter.address, &mut [0]),
        memory.check(exporter.address, 1, Need::Read),
    ];
    for result in results {
        assert!(
            matches!(result, Err(TransferError::Gone { done: 0 })),
            "{result:?}"
        );
    }
    let areas = memory.maps().areas(0..usize::MAX);
    assert!(matches!(areas, Err(MapsError::Gone)), "{areas:?}");
}

#[test]
fn the_descriptors_do_not_follow_into_another_program() {
    if let Some(name) = support::role() {
        return obey(name);
    }
    let exporter = exporter("the_descriptors_do_not_follow_into_another_program");
    exporter.memory.write_at(exporter.address, b"x").unwrap();
    socket::send(&exporter.socket, b"exec", &[]).unwrap();
    closed(&exporter);
    assert!(!PidFd::open(exporter.child.0.id()).unwrap().is_dead());
    reaches_nothing(&exporter);
}

#[test]
fn the_descriptors_do_not_come_to_mean_who_gets_the_process_id_next() {
    if let Some(name) = support::role() {
        return obey(name);
    }
    let test = "the_descriptors_do_not_come_to_mean_who_gets_the_process_id_next";
    let mut exporter = exporter(test);
    let pid = exporter.child.0.id();
    let pidfd = PidFd::open(pid).unwrap();
    process::signal(&pidfd, Signal::KILL).unwrap();
    process::poll(&[pidfd.as_fd()], None).unwrap();
    // A zombie first, then no process.
    reaches_nothing(&exporter);
    exporter.child.0.wait().unwrap();
    reaches_nothing(&exporter);
    let written = process::write_memory(
        pid,
        &[IoSlice::new(b"x")],
        &[Remote {
            address: exporter.address,
            len: 1,
        }],
    );
    assert!(
        matches!(written, Err(TransferError::Gone { done: 0 })),
        "{written:?}"
    );
    let Some(_successor) = successor(pid) else {
        eprintln!("skipped in part: no way here to get process id {pid} again");
        return;
    };
    assert!(!PidFd::open(pid).unwrap().is_dead());
    reaches_nothing(&exporter);
}

/// A process that has the id `pid`, if one can be had.
fn successor(pid: u32) -> Option<Reaped> {
    for _ in 0..100 {
        // Only the superuser may; others may take the number before us.
        std::fs::write("/proc/sys/kernel/ns_last_pid", (pid - 1).to_string()).ok()?;
        let child = Reaped(Command::new("sleep").arg("1000").spawn().unwrap());
        if child.0.id() == pid {
            return Some(child);
        }
    }
    None
}

#[test]
fn descriptors_of_anything_else_are_refused() {
    let own = || ProcessMemory::own().unwrap().into_descriptors();
    let open = |path: &str| OwnedFd::from(std::fs::File::open(path).unwrap());
    let sleeper = Reaped(Command::new("sleep").arg("1000").spawn().unwrap());
    let theirs = open(&format!("/proc/{}/maps", sleeper.0.id()));
    let [mem, maps] = own();
    let [more, _] = own();
    // A file of the right name, on another file system.
    let directory = std::env::temp_dir().join(format!("portolan-mem-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let path = |name| directory.join(name).to_string_lossy().into_owned();
    let false_mem: OwnedFd = std::fs::File::create_new(path("mem")).unwrap().into();
    let false_maps: OwnedFd = std::fs::File::create_new(path("maps")).unwrap().into();
    let pairs = [
        (maps, mem),
        (more, theirs),
        (false_mem, false_maps),
        (open("/dev/null"), open("/proc/self/maps")),
        (open("/proc/self/environ"), open("/proc/self/maps")),
    ];
    for (mem, maps) in pairs {
        let taken = ProcessMemory::from_descriptors(mem, maps);
        assert!(
            matches!(taken, Err(ForeignError::NotProcess { .. })),
            "{taken:?}"
        );
    }
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn a_stranger_is_denied() {
    let test = "a_stranger_is_denied";
    if let Some(role) = support::role() {
        let (pid, address) = role.split_once(' ').unwrap();
        let (pid, address) = (pid.parse().unwrap(), address.parse().unwrap());
        let there = [Remote { address, len: 1 }];
        let written = process::write_memory(pid, &[IoSlice::new(b"x")], &there);
        assert!(matches!(written, Err(TransferError::Denied)), "{written:?}");
        let read = process::read_memory(pid, &there, &mut [IoSliceMut::new(&mut [0])]);
        assert!(matches!(read, Err(TransferError::Denied)), "{read:?}");
        return;
    }
    if process::user() != 0 {
        eprintln!("skipped: only the superuser can start another user's process");
        return;
    }
    let window = Window::create(PAGE).unwrap();
    let role = format!("{} {}", std::process::id(), window.base().addr());
    /// No process.
    const STRANGER: u32 = 65534;
    match support::child(test, &role)
        .uid(STRANGER)
        .gid(STRANGER)
        .output()
    {
        Ok(output) => assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        ),
        Err(error) => eprintln!("skipped: the stranger may not run this program: {error}"),
    }
    assert_eq!(window.sum(0, PAGE), 0);
}

#[test]
fn the_mappings_of_a_process_are_found() {
    let maps = Maps::own().unwrap();
    let all = maps.areas(0..usize::MAX / 2).unwrap();
    assert!(all.len() > 5 && all.is_sorted_by(|one, next| one.range.end <= next.range.start));
    let here = (&raw const all).addr();
    let found = maps.areas(here..here + 1).unwrap();
    assert!(found.len() == 1 && found[0].read && found[0].write && !found[0].shared);
}
