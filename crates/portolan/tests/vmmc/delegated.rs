//! A member delegates memory to its host that is not its own.

use crate::child::Child;
use crate::raw;
use crate::raw_brokered::CopySlot;
use portolan_abi::connect::{Grants, OfferKind};
use portolan_abi::control::{Announcement, Decline, FromHost, FromMember};
use portolan_abi::delegate::{Act, Capability, Delegation, Outcome};
use portolan_abi::hello::{Answer, Hello, Welcome};
use portolan_abi::vmmc::{Ranges, Reach};
use portolan_sys::memory::Mapping;
use portolan_sys::process::{PidFd, ProcessMemory, user};
use portolan_sys::socket;
use portolan_testkit::{PATIENCE, unique, until};
use rustix::fs::{Mode, OFlags, mkfifoat, open};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

/// A process that the host has let in, and that does not keep to the library.
struct Member {
    connection: OwnedFd,
    welcome: Welcome,
    region: OwnedFd,
    offered: u32,
}

impl Member {
    fn new(domain: &str) -> Self {
        let connection = raw::connect(domain);
        let hello = Hello { name: [0; 64] };
        socket::send(&connection, &hello.encode(), &[]).unwrap();
        let mut bytes = [0; Answer::BYTES];
        let end = Some(Instant::now() + PATIENCE);
        let received = socket::receive_by(&connection, &mut bytes, 2, end).unwrap();
        let Ok(Answer::Granted(welcome)) = Answer::decode(&bytes[..received.len]) else {
            panic!("not let in");
        };
        Self {
            connection,
            welcome,
            region: received.fds.into_iter().next().unwrap(),
            offered: 0,
        }
    }

    fn say(&self, record: &FromMember, fds: &[BorrowedFd<'_>]) {
        socket::send(&self.connection, &record.encode(), fds).unwrap();
    }

    /// What the host says next; nothing if it has hung up.
    fn hear(&self) -> Option<FromHost> {
        let mut bytes = [0; FromHost::BYTES];
        let end = Some(Instant::now() + PATIENCE);
        let received = socket::receive_by(&self.connection, &mut bytes, 1, end).ok()?;
        FromHost::decode(&bytes[..received.len]).ok()
    }

    /// Offers ten bytes at `address`, of what was handed over before.
    fn offer(&mut self, address: usize, fds: &[BorrowedFd<'_>]) -> Option<FromHost> {
        self.offered += 1;
        let number = self.offered;
        let delegation = Delegation {
            address: address as u64,
            len: 10,
            reach: Reach::ReadWrite,
            ranges: Ranges::default(),
        };
        if !fds.is_empty() {
            self.say(&FromMember::Delegate(number, delegation), fds);
        }
        let announcement = Announcement {
            number,
            kind: OfferKind::Memory,
            name: capability().name().unwrap(),
            grants: Grants {
                anyone: true,
                users: Vec::new(),
                groups: Vec::new(),
                processes: Vec::new(),
                token: Some(capability().token),
            },
            reannounced: false,
        };
        self.say(&FromMember::Offer(announcement), &[]);
        self.hear()
    }
}

fn capability() -> Capability {
    Capability {
        number: [5; 16],
        token: [6; 16],
    }
}

fn hosted(test: &str) -> (Child, String) {
    let name = unique(test);
    let mut host = Child::new();
    assert_eq!(host.ask(&format!("join {name}")), "done");
    (host, name)
}

fn unfit(answer: Option<FromHost>) -> bool {
    matches!(
        answer,
        Some(FromHost::Declined {
            why: Decline::Unfit,
            ..
        })
    )
}

#[test]
fn what_is_not_the_members_own_memory_is_not_taken() {
    let (mut host, name) = hosted("foreign");
    let mut member = Member::new(&name);
    let bytes: &'static mut [u8] = vec![1_u8; 10].leak();
    let address = bytes.as_ptr().addr();
    // Nothing; what is no file of a process; files that are named like some, one of which
    // never answers; another process's; one's own, without the domain's region.
    assert!(unfit(member.offer(address, &[])));
    let null = File::open("/dev/null").unwrap();
    assert!(unfit(member.offer(address, &[null.as_fd(), null.as_fd()])));
    let place = std::env::temp_dir().join(format!("{name}/{}", std::process::id()));
    std::fs::create_dir_all(&place).unwrap();
    let named = ["mem", "maps"].map(|file| {
        mkfifoat(rustix::fs::CWD, place.join(file), Mode::RWXU).unwrap();
        open(place.join(file), OFlags::RDWR, Mode::empty()).unwrap()
    });
    assert!(unfit(
        member.offer(address, &named.each_ref().map(AsFd::as_fd))
    ));
    std::fs::remove_dir_all(place.parent().unwrap()).unwrap();
    let other = PidFd::open(host.pid()).unwrap();
    let other = ProcessMemory::of(&other, user()).unwrap();
    assert!(unfit(member.offer(address, &other.descriptors())));
    let own = ProcessMemory::own().unwrap();
    assert!(unfit(member.offer(address, &own.descriptors())));
    let [memory, maps] = own.descriptors();
    assert!(unfit(member.offer(address, &[maps, memory])));
    assert!(unfit(
        member.offer(address, &[other.descriptors()[0], maps])
    ));

    // With the region it is what it is said to be.
    let (base, len) = (member.welcome.base, member.welcome.len);
    let base = usize::try_from(base).unwrap();
    let region = Mapping::shared_at(&member.region, base, usize::try_from(len).unwrap());
    let region = region.unwrap();
    let answer = member.offer(address, &own.descriptors());
    assert!(matches!(answer, Some(FromHost::Done { .. })), "{answer:?}");
    let copy_slot = CopySlot::take(user(), &name, &capability()).unwrap();
    assert_eq!(copy_slot.ask(Act::Write, 0, 10).unwrap(), Outcome::Done);
    assert_eq!(copy_slot.ask(Act::Write, 1, 10).unwrap(), Outcome::Refused);
    // SAFETY:
    // - In bounds of what was leaked.
    let first = unsafe { std::ptr::with_exposed_provenance::<u8>(address).read_volatile() };
    assert_eq!(first, 0);
    // Withdrawn, it is reached no more; what never was is as good as withdrawn.
    member.say(&FromMember::Withdraw(member.offered), &[]);
    assert_eq!(
        member.hear(),
        Some(FromHost::Done {
            number: member.offered
        })
    );
    assert!(copy_slot.ask(Act::Write, 0, 10).is_err());
    member.say(&FromMember::Withdraw(4_000), &[]);
    assert_eq!(member.hear(), Some(FromHost::Done { number: 4_000 }));
    drop(region);
    assert_eq!(host.ask("host"), "true");
}

#[test]
fn descriptors_that_come_with_anything_else_end_the_connection() {
    let (mut host, name) = hosted("beside");
    let own = ProcessMemory::own().unwrap();
    let [memory, maps] = own.descriptors();
    let delegation = Delegation {
        address: 1,
        len: 1,
        reach: Reach::Read,
        ranges: Ranges::default(),
    };
    let delegate = FromMember::Delegate(1, delegation);
    let cases: [(&FromMember, &[BorrowedFd<'_>]); 6] = [
        (&FromMember::Withdraw(1), &[memory]),
        (&FromMember::Withdraw(1), &[memory, maps]),
        (&FromMember::Received, &[memory]),
        (&delegate, &[]),
        (&delegate, &[memory]),
        (&delegate, &[memory, maps, maps]),
    ];
    let open = |host: &Child| {
        let all = std::fs::read_dir(format!("/proc/{}/fd", host.pid())).unwrap();
        all.count()
    };
    let before = open(&host);
    for (record, fds) in cases {
        let member = Member::new(&name);
        member.say(record, fds);
        assert_eq!(member.hear(), None, "{record:?} with {}", fds.len());
    }
    assert_eq!(host.ask("host"), "true");
    until("all is put away", || open(&host) <= before);
}
