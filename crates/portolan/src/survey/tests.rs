//! Tests surveys of a region that contains anything.

use super::{Ground, take};
use crate::space::region::Picture;
use crate::{Domain, Observer, PortOptions, SegmentKind};
use portolan_abi::limits::PAGE;
use portolan_abi::owner::{ChunkUse, ChunkWord, Descriptor, Size};
use portolan_abi::port::{PortPhase, PortStatus, QueuePlace};
use portolan_abi::region::PORT_BYTES;
use portolan_abi::slot::{Kind, Meta, Plain, SlotState};
use portolan_shm::queue::{Control, PortEntry};
use portolan_sys::memory;
use portolan_testkit::unique;
use std::mem::offset_of;
use std::os::fd::OwnedFd;

/// Writes a word of the region's file, as a member may.
fn write(file: &OwnedFd, offset: u64, word: u64) {
    let written = rustix::io::pwrite(file, &word.to_le_bytes(), offset).unwrap();
    assert_eq!(written, 8);
}

/// A domain whose tables say what none says: chunks cut to extents without allocation words,
/// ports with queues that were never written, segments whose memory is not there.
fn hostile(domain: &Domain) {
    let member = domain.member();
    let (file, geometry) = (member.region.fd(), &member.tables().geometry);
    let cut = ChunkWord {
        r#use: ChunkUse::Small,
        populated: true,
        cache_owner: 1,
        size: Size::for_bytes(1).code(),
        ..ChunkWord::FRESH
    };
    for chunk in 16..geometry.all_chunks() {
        write(file, geometry.chunks + 8 * chunk, cut.pack());
    }
    let control = offset_of!(PortEntry, control) as u64;
    let status = control + offset_of!(Control, status) as u64;
    let queue = control + offset_of!(Control, queue) as u64;
    for nth in 0..40 {
        let entry = geometry.ports + PORT_BYTES * (1000 + nth);
        // Half are segments. Queues of 65,536 slots of 8 lines: 32 MiB each, holes.
        let is_segment = nth % 2 == 0;
        let open = PortStatus {
            phase: PortPhase::Open,
            owner: u8::from(!is_segment),
            shared: is_segment,
            ..PortStatus::FRESH
        };
        let unit = u32::try_from((2 + nth) * 1024).unwrap();
        let place = QueuePlace::new(1 << 16, 8, unit).unwrap();
        let offset = place.offset();
        write(file, entry + queue, place.pack());
        write(file, entry + status, open.pack());
        if is_segment {
            // It says that it holds an extent, of which there is no page.
            let slot = geometry.queues + offset;
            let page = u32::try_from(geometry.pages() / 2 + nth).unwrap();
            let extent = Descriptor {
                page,
                generation: 1,
                size: Size::for_bytes(PAGE),
                len: PAGE as u64,
            };
            let meta = Meta::plain(Plain {
                kind: Kind::Message,
                header: 0,
                extents: 1,
                reply: false,
                structure: false,
            });
            write(file, slot, SlotState::free(0).0);
            write(file, slot + 8, meta);
            let [first, second] = extent.pack();
            write(file, slot + 16, first);
            write(file, slot + 24, second);
        }
    }
}

fn observed(test: &str) -> (Domain, Observer) {
    let name = unique(test);
    let domain = Domain::join(&name).unwrap();
    let observer = Domain::builder(&name).observe().unwrap();
    (domain, observer)
}

#[test]
fn an_observer_gives_no_hole_memory_whatever_the_tables_say() {
    let (domain, observer) = observed("holes");
    hostile(&domain);
    let allocated = || memory::allocated_bytes(domain.member().region.fd()).unwrap();
    let before = allocated();
    for _ in 0..2 {
        let survey = observer.survey().unwrap();
        let plain = survey
            .segments
            .iter()
            .filter(|s| s.kind == SegmentKind::Plain);
        assert_eq!(plain.count(), 20, "what is said is told");
        assert_eq!(allocated(), before, "bytes of the region's file");
    }
    // No member repairs this table, least of all a leaving member.
    std::mem::forget((domain, observer));
}

#[test]
fn an_observer_copies_no_more_than_it_says() {
    let (domain, observer) = observed("large");
    let _port = domain.bind(PortOptions::named("here")).unwrap();
    let member = domain.member();
    let (file, geometry) = (member.region.fd(), member.tables().geometry);
    // What is asked for first is there: the header, the spaces.
    for (most, whole) in [(12 << 10, false), (64 << 20, true)] {
        let picture = Picture::new(geometry, most).unwrap();
        let ground = Ground::of_observer(&picture, file);
        let survey = take(&ground, "large", domain.protection());
        assert_eq!((survey.whole, survey.spaces.len()), (whole, 1), "{most}");
        assert_eq!(survey.ports.len(), usize::from(whole));
        // Cleared, it has room again.
        picture.clear();
        assert!(!picture.is_full());
        let again = take(&ground, "large", domain.protection());
        assert_eq!(again.whole, whole);
    }
    assert!(observer.survey().unwrap().whole);
}
