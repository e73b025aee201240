//! An importer that follows no rule attacks exported memory: it writes its notification page as a
//! file, and asks the host for arbitrary copies. The domain and the socket are real.

use crate::stranger::{accepted, address, by, connect, descriptor, long, taken, until};
use arbitrary::{Result, Unstructured};
use portolan::vmmc::{
    Export, ExportMemory, ExportOptions, Import, Notification, NotificationError, Notifications,
    OrdinaryMemory, Reach, UpdateError,
};
use portolan::{Deadline, Domain, Permissions};
use portolan_abi::connect::{ConnectAnswer, OfferKind};
use portolan_abi::delegate::{Act, Capability, Outcome, PARTS, Ready, Reply, Request, STAGING};
use portolan_abi::limits::PAGE;
use portolan_abi::vmmc::{Answer, Ask, DESCRIPTORS, WAKE, Way, notification_page};
use portolan_sys::socket::{self, Address};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, OnceLock};
use std::time::Instant;

/// Memory that importers map, and memory that the kernel writes for them.
const EXPORTS: [&str; 2] = ["shared", "lent"];
/// Bytes of either, and the part of the first that importers are to keep to.
const LEN: usize = 2 * PAGE;
const RANGE: (usize, usize) = (64, 4096);
/// What the honest importer writes, and where.
const HELLO: [u8; 8] = *b"as usual";
const THERE: usize = 128;

/// A domain that exports, and one who imports and follows the rules.
struct Place {
    memory: ExportMemory,
    /// Always there, but for the moment between two.
    shared: Option<Export>,
    notifications: Notifications,
    import: Import,
    lent: Export,
    address: Address,
    exporting: Domain,
}

type Made<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn options() -> ExportOptions {
    let options = ExportOptions::new(Reach::ReadWrite).permit(Permissions::own_user());
    options.importers(4)
}

/// Exports the memory, and imports it again.
fn share(domain: &Domain, memory: &ExportMemory) -> Made<(Export, Notifications, Import)> {
    let options = options().within(RANGE.0..RANGE.0 + RANGE.1);
    let export = domain.export(memory, EXPORTS[0], &options, long())?;
    let notifications = export.notifications()?;
    let import = domain.import(EXPORTS[0], long())?;
    Ok((export, notifications, import))
}

impl Place {
    fn make() -> Made<Self> {
        let exports = format!("fuzz-exports-{}", std::process::id());
        let exporting = Domain::builder(&exports).size(64 << 20).join()?;
        let memory = ExportMemory::new(LEN)?;
        let (shared, notifications, import) = share(&exporting, &memory)?;
        let ordinary = OrdinaryMemory::from(vec![0; LEN]);
        let lent = exporting.export(&ordinary, EXPORTS[1], &options(), long())?;
        Ok(Self {
            memory,
            shared: Some(shared),
            notifications,
            import,
            lent,
            address: address(&exports),
            exporting,
        })
    }
}

pub(super) fn run(data: &[u8]) {
    static PLACE: OnceLock<Mutex<Place>> = OnceLock::new();
    let mut place = taken(&PLACE, Place::make);
    let mut u = Unstructured::new(data);
    // It ends where the bytes do.
    let _ = place.connect(&mut u);
}

impl Place {
    fn connect(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let which = usize::from(u.arbitrary::<bool>()?);
        let Some(socket) = accepted(&self.address, OfferKind::Export, EXPORTS[which]) else {
            return Ok(());
        };
        let stranger = match ask(u, socket, which == 1)? {
            Some(Let::In(importer)) => Some(importer),
            Some(Let::Ask(capability)) => {
                return beset(u, &self.address, &capability);
            }
            None => None,
        };
        let suffered = stranger.as_ref().map(|stranger| self.suffer(u, stranger));
        if which == 0 && u.ratio(1, 16)? {
            self.end_and_begin(stranger.as_ref());
        }
        drop(stranger);
        let (shared, lent) = (&self.shared, &self.lent);
        until("an importer that has gone is not forgotten", || {
            shared.as_ref().is_some_and(|e| e.importers() == 1) && lent.importers() == 0
        });
        self.serves_others();
        suffered.unwrap_or(Ok(()))
    }

    /// The stranger does what it likes while the exporter takes what was posted.
    fn suffer(&mut self, u: &mut Unstructured<'_>, stranger: &Importer) -> Result<()> {
        while !u.is_empty() {
            match u.int_in_range(0..=9)? {
                0..=3 => stranger.post(u)?,
                4 => stranger.rewrite(u)?,
                5 => stranger.scribble(u)?,
                6 => stranger.say(u)?,
                7 => match u.int_in_range(0..=3)? {
                    0 => self.notifications.block(),
                    1 => self.notifications.discard(),
                    2 => self.notifications.accept(),
                    _ => self.notifications.unblock(),
                },
                _ => drop(self.take()),
            }
        }
        Ok(())
    }

    /// Takes notes; whether the honest importer's was among them.
    fn take(&mut self) -> bool {
        let mut hello = false;
        // A stranger may post for ever, and does not.
        for _ in 0..4 * notification_page::NOTES {
            match self.notifications.wait(Deadline::NOW) {
                Err(NotificationError::TimedOut) => break,
                Ok(Notification::Written { offset, len, .. }) => {
                    let end = offset.checked_add(len);
                    assert!(offset >= RANGE.0 && end.is_some_and(|end| end <= RANGE.0 + RANGE.1));
                    hello |= (offset, len) == (THERE, HELLO.len());
                }
                Ok(Notification::Several { .. }) => {}
                Err(error) => panic!("the exporter's own: {error}"),
            }
        }
        hello
    }

    /// An honest importer is still served.
    fn serves_others(&mut self) {
        self.notifications.unblock();
        self.notifications.accept();
        // What was posted by those who have gone.
        self.take();
        if let Err(error) = self.import.write_notifying(THERE, &HELLO) {
            panic!("the honest importer: {error}");
        }
        let mut there = [0; HELLO.len()];
        assert!(self.memory.read(THERE, &mut there).is_ok());
        assert_eq!(there, HELLO);
        until("the honest importer's note does not come", || self.take());
    }

    /// The export ends while the stranger has it, and begins anew.
    fn end_and_begin(&mut self, stranger: Option<&Importer>) {
        let (memory, domain) = (self.memory.clone(), self.exporting.clone());
        let (mut before, mut after) = (vec![0; LEN], vec![0; LEN]);
        let ended = self.shared.take().map(Export::unexport);
        assert!(
            matches!(ended, Some(Ok(()))),
            "an importer keeps an export from ending: {ended:?}"
        );
        assert!(memory.read(0, &mut before).is_ok());
        if let Some(Importer {
            file: Some(file), ..
        }) = stranger
        {
            // Whether or not it can: the memory is free by now.
            let _ = file.write_all_at(&[0x77; LEN], 0);
        }
        assert!(memory.read(0, &mut after).is_ok());
        assert!(before == after, "its memory changed after its end");
        let late = self.import.write(THERE, &HELLO);
        assert_eq!(late, Err(UpdateError::Revoked));
        match share(&domain, &memory) {
            Ok((shared, notifications, import)) => {
                self.notifications = notifications;
                self.import = import;
                self.shared = Some(shared);
            }
            Err(error) => panic!("the memory cannot be exported again: {error}"),
        }
    }
}

/// What came of asking.
enum Let {
    In(Importer),
    /// The host copies for an importer that shows this capability.
    Ask(Capability),
}

/// An importer that has what the protocol gives it.
struct Importer {
    socket: OwnedFd,
    file: Option<File>,
    notification_page: File,
}

/// Asks as no library does; what it is given.
fn ask(u: &mut Unstructured<'_>, socket: OwnedFd, ordinary: bool) -> Result<Option<Let>> {
    let mut ask = Ask {
        // So that the exporter does not wait for it, should the claim be believed.
        barriers: u.arbitrary()?,
        brokered: ordinary && u.arbitrary()?,
    }
    .encode();
    if u.ratio(1, 8)? {
        ask[u.choose_index(ask.len())?] = u.arbitrary()?;
    }
    let len = match u.ratio(1, 8)? {
        true => u.int_in_range(1..=ask.len())?,
        false => ask.len(),
    };
    let shown = match u.ratio(1, 8)? {
        true => descriptor(u, PAGE as u64)?,
        false => None,
    };
    let fds: Vec<_> = shown.iter().map(AsFd::as_fd).collect();
    if socket::send_by(&socket, &ask[..len], &fds, by()).is_err() {
        // It takes no descriptors, so it has not been asked.
        return Ok(None);
    }
    let mut answer = [0; Answer::BYTES];
    let Ok(received) = socket::receive_by(&socket, &mut answer, DESCRIPTORS, by()) else {
        return Ok(None);
    };
    let Ok(Answer::Granted(granted)) = Answer::decode(&answer[..received.len]) else {
        return Ok(None);
    };
    let mut fds = received.fds.into_iter().map(File::from);
    assert_eq!(fds.len(), granted.way.descriptors());
    let file = match granted.way {
        Way::Shared => fds.next(),
        Way::Kernel { .. } | Way::Brokered(_) => None,
    };
    let status_page = fds.next();
    let written = status_page.map(|status_page| status_page.write_all_at(&[7], 0).is_ok());
    assert_eq!(written, Some(false), "an importer writes the status page");
    let Some(notification_page) = fds.next() else {
        panic!("let in without a notification page");
    };
    if let Way::Brokered(capability) = granted.way {
        return Ok(Some(Let::Ask(capability)));
    }
    Ok(Some(Let::In(Importer {
        socket,
        file,
        notification_page,
    })))
}

impl Importer {
    fn get(&self, word: usize) -> u64 {
        let mut value = [0; 8];
        assert!(
            self.notification_page
                .read_exact_at(&mut value, word as u64 * 8)
                .is_ok()
        );
        u64::from_le_bytes(value)
    }

    fn set(&self, word: usize, value: u64) {
        let written = self
            .notification_page
            .write_all_at(&value.to_le_bytes(), word as u64 * 8);
        assert!(written.is_ok());
    }

    /// A note that is one, or almost, and a ring.
    fn post(&self, u: &mut Unstructured<'_>) -> Result<()> {
        for _ in 0..u.int_in_range(1..=200)? {
            let posted = self.get(notification_page::POSTED);
            let at = notification_page::FIRST
                + usize::try_from(posted % notification_page::NOTES as u64).unwrap_or(0) * 2;
            let (offset, len) = match u.int_in_range(0..=3)? {
                0 => (u.arbitrary()?, u.arbitrary()?),
                _ => (
                    u.int_in_range(0..=LEN as u64)?,
                    u.int_in_range(0..=LEN as u64)?,
                ),
            };
            self.set(at, offset);
            self.set(at + 1, len);
            self.set(notification_page::POSTED, posted.wrapping_add(1));
            if u.is_empty() {
                break;
            }
        }
        self.wake();
        Ok(())
    }

    /// Says about a count what may be true, almost true, or anything.
    fn rewrite(&self, u: &mut Unstructured<'_>) -> Result<()> {
        let words = [
            notification_page::POSTED,
            notification_page::LOST,
            notification_page::TAKEN,
            notification_page::UNDER_WAY,
        ];
        let word = *u.choose(&words)?;
        let says = match u.int_in_range(0..=2)? {
            0 => self.get(word).wrapping_add(u.int_in_range(0..=300)?),
            1 => self.get(word).wrapping_sub(u.int_in_range(0..=300)?),
            _ => u.arbitrary()?,
        };
        self.set(word, says);
        self.wake();
        Ok(())
    }

    /// Anything, anywhere in its page, and in the memory.
    fn scribble(&self, u: &mut Unstructured<'_>) -> Result<()> {
        let len = u.int_in_range(0..=64)?.min(u.len());
        let bytes = u.bytes(len)?;
        let at = u.int_in_range(0..=PAGE as u64 - 64)?;
        assert!(self.notification_page.write_all_at(bytes, at).is_ok());
        if let Some(file) = &self.file {
            assert!(file.write_all_at(bytes, at).is_ok());
            assert!(file.set_len(0).is_err(), "an importer shrinks an export");
        }
        Ok(())
    }

    fn wake(&self) {
        let _ = socket::send_by(&self.socket, &[WAKE], &[], Some(Instant::now()));
    }

    /// Any packet, with descriptors or not.
    fn say(&self, u: &mut Unstructured<'_>) -> Result<()> {
        let packets: [&[u8]; 4] = [&[WAKE], b"RR", b"X", &[0; 100]];
        let shown = match u.ratio(1, 4)? {
            true => descriptor(u, PAGE as u64)?,
            false => None,
        };
        let fds: Vec<_> = shown.iter().map(AsFd::as_fd).collect();
        let packet = *u.choose(&packets)?;
        let _ = socket::send_by(&self.socket, packet, &fds, Some(Instant::now()));
        Ok(())
    }
}

/// Has the host copy, or asks it what none asks. It gets an answer to everything that is a
/// request, and the memory is written nowhere else.
fn beset(u: &mut Unstructured<'_>, address: &Address, capability: &Capability) -> Result<()> {
    let Some(name) = capability.name() else {
        panic!("a capability that has no name");
    };
    let token = Some(capability.token);
    let Some((socket, ConnectAnswer::Accepted)) = connect(address, OfferKind::Memory, name, token)
    else {
        // There are as many as there may be.
        return Ok(());
    };
    let mut ready = [0; Ready::BYTES + 1];
    let Ok(received) = socket::receive_by(&socket, &mut ready, 1, by()) else {
        return Ok(());
    };
    assert!(Ready::decode(&ready[..received.len]).is_ok());
    let [staging] = match <[OwnedFd; 1]>::try_from(received.fds) {
        Ok(fds) => fds.map(File::from),
        Err(_) => panic!("nothing to copy through"),
    };
    let [whole, parts] = [LEN, PARTS].map(|n| u32::try_from(n).unwrap_or(1));
    while !u.is_empty() {
        let bytes = [u.arbitrary()?; 64];
        let at = u.int_in_range(0..=STAGING as u64 - 64)?;
        assert!(staging.write_all_at(&bytes, at).is_ok());
        assert!(staging.set_len(0).is_err(), "an importer shrinks it");
        let wild = u.ratio(1, 8)?;
        let request = Request {
            number: u.arbitrary()?,
            act: *u.choose(&[Act::Write, Act::Read])?,
            offset: match wild {
                true => u.arbitrary()?,
                false => u.int_in_range(0..=LEN as u64)?,
            },
            len: match wild {
                true => u.arbitrary()?,
                false => u.int_in_range(0..=whole)?,
            },
            part: u.arbitrary::<u32>()? % parts,
        };
        let mut packet = request.encode();
        if u.ratio(1, 8)? {
            packet[u.choose_index(packet.len())?] = u.arbitrary()?;
        }
        let Ok(request) = Request::decode(&packet) else {
            let _ = socket::send_by(&socket, &packet, &[], by());
            let mut answer = [0; Reply::BYTES];
            let heard = socket::receive_by(&socket, &mut answer, 0, by());
            assert!(heard.is_err(), "what is no request is answered");
            return Ok(());
        };
        if socket::send_by(&socket, &packet, &[], by()).is_err() {
            panic!("the host hangs up on one that asks");
        }
        let mut answer = [0; Reply::BYTES];
        let heard = socket::receive_by(&socket, &mut answer, 0, by());
        let reply = heard
            .ok()
            .and_then(|r| Reply::decode(&answer[..r.len]).ok());
        let end = request.offset.checked_add(request.len.into());
        let outcome = match end.is_some_and(|end| end <= LEN as u64) {
            true => Outcome::Done,
            false => Outcome::Refused,
        };
        let number = request.number;
        assert_eq!(reply, Some(Reply { number, outcome }), "{request:?}");
    }
    Ok(())
}
