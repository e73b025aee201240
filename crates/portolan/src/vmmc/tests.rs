//! Tests an export and its import within one process, and answers that no honest exporter gives.

use super::ask::answer_to;
use super::import::Import;
use super::*;
use crate::{Deadline, Domain};
use portolan_abi::FORMAT_VERSION;
use portolan_abi::handshake::Refusal;
use portolan_abi::vmmc::{Answer, Denied, Granted, Ranges, Way};
use portolan_sys::memory::{self, MapError, Mapping, VerifyError};
use portolan_sys::process::{EventFd, PidFd};
use portolan_sys::socket;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::time::Duration;

#[test]
fn what_is_written_lands_until_the_export_ends() {
    let domain = Domain::private().unwrap();
    let memory = ExportMemory::new(10_000).unwrap();
    let options = ExportOptions::new(Reach::ReadWrite);
    let export = domain
        .export(&memory, "x", &options, Deadline::NEVER)
        .unwrap();
    let import = domain.import("x", LONG).unwrap();
    assert_eq!(import.len(), 12288);
    import.write(5, b"hello").unwrap();
    let mut bytes = [0; 5];
    memory.read(5, &mut bytes).unwrap();
    assert_eq!(&bytes, b"hello");
    let address = memory.address();
    export.unexport().unwrap();
    assert_eq!(import.write(5, b"later"), Err(UpdateError::Revoked));
    memory.read(5, &mut bytes).unwrap();
    assert_eq!(&bytes, b"hello");
    assert_eq!(memory.address(), address);
}

const LONG: Duration = Duration::from_secs(60);

/// A buffer whose bytes are asked for twice: when the write is begun, and when it is done.
struct Second<F: Fn()> {
    asked: AtomicU32,
    then: F,
}

impl<F: Fn()> Second<F> {
    fn new(then: F) -> Self {
        let asked = AtomicU32::new(0);
        Self { asked, then }
    }
}

impl<F: Fn()> AsRef<[u8]> for Second<F> {
    fn as_ref(&self) -> &[u8] {
        if self.asked.fetch_add(1, Ordering::Relaxed) > 0 {
            (self.then)();
        }
        b"buffered"
    }
}

/// A buffer that writes once more when it is let go of.
struct WritesWhenDropped(Arc<Import>);

impl AsRef<[u8]> for WritesWhenDropped {
    fn as_ref(&self) -> &[u8] {
        b"first"
    }
}

impl Drop for WritesWhenDropped {
    fn drop(&mut self) {
        self.0.write(0, b"after").unwrap();
    }
}

#[test]
fn whatever_a_buffers_own_code_does_later_writes_are_done() {
    let domain = Domain::private().unwrap();
    let memory = ExportMemory::new(4096).unwrap();
    let options = ExportOptions::new(Reach::ReadWrite);
    let export = domain.export(&memory, "x", &options, LONG).unwrap();
    let import = Arc::new(domain.import("x", LONG).unwrap());
    // It panics on the thread that writes for all.
    let panics = Second::new(|| panic!("as a buffer may"));
    let broken = import.begin_write(0, panics).unwrap();
    assert!(broken.wait(LONG) && broken.is_done());
    let finished = catch_unwind(AssertUnwindSafe(|| broken.finish().is_ok()));
    assert!(finished.is_err());
    import.flush(LONG).unwrap();
    // It is let go of on that thread, since no thread waits for it, and writes there.
    let (go, gone) = mpsc::channel();
    let waits = Second::new(move || gone.recv_timeout(LONG).unwrap());
    let first = import.begin_write(100, waits).unwrap();
    drop(import.begin_write(0, WritesWhenDropped(Arc::clone(&import))));
    let last = import.begin_write(200, b"last").unwrap();
    go.send(()).unwrap();
    assert!(first.wait(LONG) && last.wait(LONG));
    first.finish().expect("it has landed");
    last.finish().unwrap();
    import.flush(LONG).unwrap();
    let mut bytes = [0; 5];
    memory.read(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"after");
    drop(export);
}

/// An answer as an honest exporter gives it, of two pages.
struct Honest {
    granted: Granted,
    fds: [OwnedFd; 4],
}

fn honest() -> Honest {
    let page = || memory::create("honest", 4096).unwrap();
    let status_page = page();
    rustix::io::pwrite(&status_page, &1_u64.to_ne_bytes(), 0).unwrap();
    let fds = [
        memory::create("honest", 8192).unwrap(),
        status_page,
        page(),
        PidFd::open(std::process::id()).unwrap().into(),
    ];
    let granted = Granted {
        reach: Reach::ReadWrite,
        fences: false,
        way: Way::Shared,
        len: 8192,
        ranges: Ranges::default(),
    };
    Honest { granted, fds }
}

/// What an importer of at most 1 MiB makes of such a message.
fn heard(bytes: &[u8], fds: &[OwnedFd]) -> Result<(Import, OwnedFd), ImportError> {
    let (ours, theirs) = socket::pair().unwrap();
    let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
    socket::send(&theirs, bytes, &fds).unwrap();
    let import = answer_to(ours, &ImportOptions::default().at_most(1 << 20));
    // The exporter's end, which keeps the import connected.
    import.map(|import| (import.expect("an answer was there"), theirs))
}

fn answered(honest: &Honest) -> Result<(Import, OwnedFd), ImportError> {
    heard(&Answer::Granted(honest.granted).encode(), &honest.fds)
}

/// What comes of an answer whose `nth` descriptor is another one.
fn with(nth: usize, fd: OwnedFd) -> ImportError {
    let mut honest = honest();
    honest.fds[nth] = fd;
    answered(&honest).unwrap_err()
}

#[test]
fn an_honest_answer_is_taken() {
    let honest = honest();
    let (import, _exporter) = answered(&honest).unwrap();
    import.write(8000, b"taken").unwrap();
    let mut bytes = [0; 5];
    rustix::io::pread(&honest.fds[0], &mut bytes, 8000).unwrap();
    assert_eq!(&bytes, b"taken");
}

#[test]
fn memory_that_is_not_what_it_is_said_to_be_is_not_mapped() {
    // The export's memory, the status page and the notification page; each of its own size.
    for (nth, len) in [(0, 8192), (1, 4096), (2, 4096)] {
        let unsealed = memfd_create("unsealed", MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&unsealed, len).unwrap();
        let grows = memory::create_unsealed("can be sealed further", len).unwrap();
        for fd in [unsealed, grows] {
            let error = with(nth, fd);
            let wanted = matches!(error, ImportError::NotShared(VerifyError::Unsealed { .. }));
            assert!(wanted, "{nth}: {error:?}");
        }
        for size in [len - 4096, len - 1, len + 1, len * 2] {
            let error = with(nth, memory::create("other size", size).unwrap());
            let wanted = matches!(error, ImportError::NotShared(VerifyError::Size { .. }));
            assert!(wanted, "{nth}: {error:?}");
        }
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        let (pipe, _) = rustix::pipe::pipe().unwrap();
        for fd in [file.into(), pipe, EventFd::new().unwrap().into()] {
            let error = with(nth, fd);
            let wanted = matches!(error, ImportError::NotShared(VerifyError::NotMemfd));
            assert!(wanted, "{nth}: {error:?}");
        }
    }
}

#[test]
fn memory_that_cannot_be_written_is_not_granted_for_writing() {
    let fd = memory::create_unsealed("read only", 8192).unwrap();
    memory::seal_to_readers(&fd).unwrap();
    let error = with(0, fd);
    assert!(
        matches!(error, ImportError::Map(MapError::Refused { .. })),
        "{error:?}"
    );
}

#[test]
fn what_is_no_pidfd_is_not_waited_for() {
    let (pipe, _write) = rustix::pipe::pipe().unwrap();
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    let memfd = memory::create("anon_inode:[pidfd]", 4096).unwrap();
    for fd in [pipe, file.into(), memfd, EventFd::new().unwrap().into()] {
        let error = with(3, fd);
        assert!(matches!(error, ImportError::WrongKind(_)), "{error:?}");
    }
}

#[test]
fn other_numbers_of_descriptors_are_no_answer() {
    let good = honest();
    let bytes = Answer::Granted(good.granted).encode();
    let none = heard(&bytes, &[]);
    let fewer = heard(&bytes, &good.fds[..3]);
    let mut more = Vec::from(honest().fds);
    more.push(memory::create("one more", 4096).unwrap());
    let more_than_room = heard(&bytes, &more);
    for result in [none, fewer, more_than_room] {
        let error = result.unwrap_err();
        assert!(matches!(error, ImportError::Garbled { .. }), "{error:?}");
    }
}

/// What comes of the answer of an exporter of ordinary memory, if anything does.
fn ordinary(
    way: Way,
    fds: impl IntoIterator<Item = OwnedFd>,
) -> Result<Option<Import>, ImportError> {
    let (ours, theirs) = socket::pair().unwrap();
    let granted = Granted {
        way,
        len: 5,
        ..honest().granted
    };
    let fds: Vec<_> = fds.into_iter().collect();
    let lent: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
    socket::send(&theirs, &Answer::Granted(granted).encode(), &lent).unwrap();
    answer_to(ours, &ImportOptions::default())
}

#[test]
fn ordinary_memory_is_written_only_where_the_exporters_status_page_is() {
    let target = Mapping::shared_anywhere(&memory::create("target", 4096).unwrap(), 4096).unwrap();
    let address = target.base().addr() as u64;
    let [_, status_page, notification_page, pidfd] = honest().fds;
    let shown = Mapping::shared_anywhere(&status_page, 4096).unwrap();
    let copy = |fd: &OwnedFd| fd.try_clone().unwrap();
    let fds = || [copy(&status_page), copy(&notification_page), copy(&pidfd)];
    let at = |status_page: usize| Way::Kernel {
        address,
        status_page: status_page as u64,
    };
    let good = shown.base().addr();
    let import = ordinary(at(good), fds())
        .unwrap()
        .expect("the status page is there");
    // The other end of its connection is gone.
    assert!(import.is_kernel_mediated() && import.len() == 5);
    // Another page of this process, nothing, and the status page as importers have it, to be read:
    // without that, another importer could be taken for the exporter.
    let reader = Mapping::read_only(&status_page, 4096).unwrap();
    for status_page in [target.base().addr(), 4096, 0, reader.base().addr()] {
        assert!(
            ordinary(at(status_page), fds()).unwrap().is_none(),
            "{status_page:#x}"
        );
    }
    // Another process's memory, which has no status page there.
    let mut other = std::process::Command::new("sleep")
        .arg("1000")
        .spawn()
        .unwrap();
    let theirs = PidFd::open(other.id()).unwrap();
    let wrong = [copy(&status_page), copy(&notification_page), theirs.into()];
    assert!(ordinary(at(good), wrong).unwrap().is_none());
    // A dead one, whose id another process may have.
    let theirs = PidFd::open(other.id()).unwrap();
    other.kill().unwrap();
    other.wait().unwrap();
    let dead = [copy(&status_page), copy(&notification_page), theirs.into()];
    assert!(ordinary(at(good), dead).unwrap().is_none());
    // With a file, as if it were mapped; and without, as if it were not.
    let four = [
        copy(&status_page),
        copy(&status_page),
        copy(&notification_page),
        copy(&pidfd),
    ];
    for garbled in [ordinary(at(good), four), ordinary(Way::Shared, fds())] {
        let error = garbled.unwrap_err();
        assert!(matches!(error, ImportError::Garbled { .. }), "{error:?}");
    }
}

#[test]
fn other_bytes_are_no_answer() {
    let good = honest();
    let bytes = Answer::Granted(good.granted).encode();
    let mut longer = bytes.to_vec();
    longer.push(0);
    let mut of_no_size = bytes.clone();
    of_no_size[24..32].fill(0);
    let mut of_odd_size = bytes.clone();
    of_odd_size[24] = 1;
    for bad in [
        &b"x"[..],
        &[0xff; Answer::BYTES],
        &bytes[1..],
        &longer,
        &of_no_size,
        &of_odd_size,
    ] {
        let error = heard(bad, &good.fds).unwrap_err();
        assert!(matches!(error, ImportError::Garbled { .. }), "{error:?}");
    }
}

#[test]
fn more_than_the_importer_wants_is_not_mapped() {
    let mut honest = honest();
    for len in [(1 << 20) + 4096, 1 << 50, u64::MAX - 4095] {
        honest.granted.len = len;
        let error = answered(&honest).unwrap_err();
        assert!(matches!(error, ImportError::TooLarge { .. }), "{error:?}");
    }
    honest.granted.len = 8192;
    let mut newer = Answer::Granted(honest.granted).encode();
    newer[4..8].copy_from_slice(&(FORMAT_VERSION + 1).to_le_bytes());
    let error = heard(&newer, &honest.fds).unwrap_err();
    assert!(
        matches!(error, ImportError::OtherVersion { .. }),
        "{error:?}"
    );
}

#[test]
fn refusals_say_what_they_mean() {
    let refused = |why| {
        let (version, value) = (9, 0);
        let refusal = Refusal {
            version,
            why,
            value,
        };
        heard(&Answer::Refused(refusal).encode(), &[]).unwrap_err()
    };
    assert!(matches!(refused(Denied::Full), ImportError::Full { .. }));
    assert!(matches!(
        refused(Denied::NoCopyBroker),
        ImportError::NoCopyBroker { .. }
    ));
    assert!(matches!(
        refused(Denied::Garbled),
        ImportError::Garbled { .. }
    ));
    assert!(matches!(
        refused(Denied::Resources),
        ImportError::ExporterResources { .. }
    ));
    let other = refused(Denied::Version);
    assert!(
        matches!(other, ImportError::OtherVersion { theirs: 9, .. }),
        "{other:?}"
    );
}

#[test]
fn an_unknown_state_on_the_status_page_ends_the_import() {
    let honest = honest();
    let (import, _exporter) = answered(&honest).unwrap();
    assert_eq!(import.check(), Ok(()));
    for state in [0, 2, 3, u64::MAX] {
        rustix::io::pwrite(&honest.fds[1], &u64::to_ne_bytes(state), 0).unwrap();
        assert_eq!(import.write(0, b"x"), Err(UpdateError::Revoked), "{state}");
    }
}

#[test]
fn an_exporter_that_talks_is_let_go_of() {
    let (ours, theirs) = socket::pair().unwrap();
    let honest = honest();
    let fds: Vec<_> = honest.fds.iter().map(AsFd::as_fd).collect();
    socket::send(&theirs, &Answer::Granted(honest.granted).encode(), &fds).unwrap();
    let import = answer_to(ours, &ImportOptions::default()).unwrap().unwrap();
    let page = memory::create("unwanted", 4096).unwrap();
    // Refused by the socket, or not taken.
    let _ = socket::send(&theirs, b"more", &[page.as_fd()]);
    let _ = socket::send(&theirs, b"more", &[]);
    let end = Deadline::after(std::time::Duration::from_secs(60));
    while import.check().is_ok() {
        assert!(!end.has_passed());
        std::thread::yield_now();
    }
    assert_eq!(import.check(), Err(UpdateError::Disconnected));
}
