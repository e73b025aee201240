//! An exporter shows memory to importers, and takes it back.
//!
//! ```text
//!            open             closing                       closed
//!  share ----------> serve ----------> barrier, privatise ---------> the range is ours alone
//!                      |                      |
//!                      | importers write      | writes land, or not, and the importers learn which
//! ```
//!
//! An update has *landed* when it is in the exporter's memory, so it is still there after the
//! export's end.
//!
//! # Invariants
//!
//! - **X1** An update after which its importer saw *open* has landed. The importer stores, then
//!   loads the state; we store *closing*, then have its processor pass a barrier, then take the
//!   range back. Had it seen *open* with stores that were not in memory yet, they would be by
//!   the barrier, so before any page is ours.
//! - **X2** No importer can hold up any of this, because the exporter does not ask importers.
//! - **X3** When an export has ended, importers have a file that the exporter does not read.

use super::acceptor::Acceptor;
use super::kernel::{Lent, busy};
use super::memory::Memory;
use super::notify::Notes;
use super::place::Place;
use super::{ExportError, ExportOptions, Exportable, ImporterId};
use super::{Pending, Reach};
use crate::directory::{Client, Offer, OfferInbox, OfferKind, offer};
use crate::space::Descriptor;
use crate::space::Member;
use crate::space::public::{Public, Shown};
use crate::{Deadline, Permissions, Refused};
use portolan_abi::public::{PublicKind, flag};
use portolan_abi::vmmc::{
    Answer, Ask, Denied, Granted, Ranges, Way, notification_page, status_page,
};
use portolan_sys::barrier;
use portolan_sys::memory::{self, Mapping, PrivatiseError};
use portolan_sys::process::{PidFd, spawn_quiet, user};
use portolan_sys::socket::{Peer, SocketError};
use std::collections::HashMap;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// Memory that importers can read or write, until this is dropped or ended
/// ([`unexport`](Self::unexport)).
///
/// A drop does the same as [`unexport`](Self::unexport), and cannot say that it failed.
#[must_use = "a dropped export has ended"]
pub struct Export {
    // The first field: after its drop no client comes any more.
    offer: Option<Offer>,
    exported: Arc<Exported>,
    // Before the membership: its thread is ended before the domain is left.
    acceptor: Arc<Acceptor>,
    member: Arc<Member>,
    ended: bool,
}

/// What an export's owner and the acceptor share.
pub(crate) struct Exported {
    name: String,
    source: Source,
    status_page: Arc<Place>,
    status_file: Descriptor,
    pidfd: Descriptor<PidFd>,
    reach: Reach,
    ranges: Ranges,
    permissions: Permissions,
    member: Weak<Member>,
    /// Importers make barriers of their own, since we cannot have them made.
    fences: bool,
    most: usize,
    importers: Mutex<Importers>,
    /// What they say that they have written.
    notes: Arc<Notes>,
    /// What observers see; until the export has ended, and not longer.
    shown: Mutex<Option<Shown>>,
}

/// What is exported.
enum Source {
    /// Importers have the file.
    Shared {
        memory: Arc<Memory>,
        file: Descriptor,
    },
    Ordinary(Lent),
}

/// The importers of an export.
#[derive(Default)]
struct Importers {
    /// No more of them.
    over: bool,
    /// Those that are about to, and those that have.
    count: usize,
    granted: HashMap<u64, Importer>,
}

/// One importer.
struct Importer {
    /// What it says it has written, and has under way.
    notification_page: Arc<Place>,
    /// It writes and reads without a broker, and counts its calls under way.
    direct: bool,
    /// Its process, by its id when it connected.
    process: u32,
}

impl Export {
    pub(super) fn new(
        member: &Arc<Member>,
        memory: Exportable<'_>,
        name: &str,
        options: &ExportOptions,
        deadline: Deadline,
    ) -> Result<Self, ExportError> {
        super::present()?;
        let ranges = options.ranges(memory.len())?;
        let system = |doing| move |error: io::Error| ExportError::system(doing, &error);
        let (status_page, status_file) = make_status_page()?;
        let pidfd = PidFd::open(std::process::id()).map_err(system("refer to this process"))?;
        let acceptor = Acceptor::of(member).map_err(system("start a thread"))?;
        // Last, because it cannot be undone.
        let source = Source::of(memory, options.reach)?;
        let status_page = Arc::new(status_page);
        let notes = Notes::new(&status_page, source.len(), ranges);
        let exported = Exported {
            name: name.to_owned(),
            source,
            status_page,
            status_file: Descriptor::new(status_file),
            pidfd: Descriptor::new(pidfd),
            reach: options.reach,
            ranges,
            permissions: options.permissions.clone(),
            member: Arc::downgrade(member),
            fences: !barrier::everywhere(),
            most: options.importers,
            importers: Mutex::default(),
            notes: Arc::new(notes),
            shown: Mutex::default(),
        };
        portolan_shm::mark!("export.shared");
        // From here on its drop takes the memory back.
        let mut export = Self {
            offer: None,
            exported: Arc::new(exported),
            acceptor,
            member: Arc::clone(member),
            ended: false,
        };
        let inbox = AtExport {
            acceptor: Arc::downgrade(&export.acceptor),
            export: Arc::downgrade(&export.exported),
        };
        let (kind, permitted) = (OfferKind::Export, &options.permissions);
        let offered = offer(member, kind, name, permitted, Arc::new(inbox), deadline)?;
        export.offer = Some(offered);
        portolan_shm::mark!("export.offered");
        export.exported.show(member);
        Ok(export)
    }

    /// The name under which it is imported.
    pub fn name(&self) -> &str {
        self.exported.name()
    }

    /// Bytes: whole pages, unless it is [`OrdinaryMemory`](super::OrdinaryMemory).
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> usize {
        self.exported.source.len()
    }

    /// What importers may do.
    pub fn reach(&self) -> Reach {
        self.exported.reach
    }

    /// What importers post for it.
    pub(super) fn notes(&self) -> &Arc<Notes> {
        &self.exported.notes
    }

    /// What its notifications are counted for.
    pub(super) fn exported(&self) -> &Arc<Exported> {
        &self.exported
    }

    pub(super) fn member(&self) -> &Arc<Member> {
        &self.member
    }

    /// How many have imported it, and not let go of it as far as is known.
    pub fn importers(&self) -> usize {
        self.exported.importers().granted.len()
    }

    /// Ends the export. When this returns, every update whose importer was told that it had
    /// landed is in the memory, no later one can reach it, whatever its importer kept and does,
    /// and the memory is at the same address with the same content, private to this process.
    /// Own threads may go on storing to it all the time: none of their stores is lost.
    ///
    /// No importer is waited for. The time goes into a copy of the memory: the importers keep
    /// the old pages.
    ///
    /// Of [`OrdinaryMemory`](super::OrdinaryMemory) nothing is copied. Calls of importers that
    /// are under way are waited for, for some seconds; a process of the same user that does not
    /// keep to the library can write it whenever it likes, exported or not.
    ///
    /// # Errors
    ///
    /// [`Refused`], with the export, to try again: above all when there is no memory for
    /// the copy.
    pub fn unexport(mut self) -> Result<(), Refused<Self, ExportError>> {
        match self.end() {
            Ok(()) => Ok(()),
            Err(error) => Err(Refused::new(self, error)),
        }
    }

    /// As [`unexport`](Self::unexport), by a thread of its own.
    pub fn begin_unexport(self) -> Pending<Result<(), Refused<Self, ExportError>>> {
        let (promise, pending) = super::pending::pending();
        // If there is no thread to be had, it is done at once.
        let work = Arc::new(Mutex::new(Some((self, promise))));
        let its_own = Arc::clone(&work);
        let run = move |work: &Mutex<Option<(Self, super::pending::Promise<_>)>>| {
            let taken = work.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some((export, mut promise)) = taken {
                promise.keep(export.unexport());
            }
        };
        if spawn_quiet("portolan-unexport", STACK, move || run(&its_own)).is_err() {
            run(&work);
        }
        pending
    }

    fn end(&mut self) -> Result<(), ExportError> {
        if self.ended {
            return Ok(());
        }
        // What a forked child has is a copy, and the memory is not there.
        super::present()?;
        self.offer = None;
        portolan_shm::mark!("unexport.withdrawn");
        self.exported.close();
        // While importers that die are still seen to go.
        self.exported.settle()?;
        self.acceptor.close(&self.exported);
        self.exported.take_back()?;
        self.exported.hide();
        self.ended = true;
        Ok(())
    }
}

/// How long stores of other processors are waited for where no barrier can be had.
const SETTLE: Duration = Duration::from_millis(20);

/// Enough for the end of an export.
const STACK: usize = 256 << 10;

impl Drop for Export {
    fn drop(&mut self) {
        let ended = self.end();
        let Err(error) = ended else { return };
        if matches!(error, ExportError::Disowned(_)) {
            return;
        }
        self.exported.hide();
        let export = self.name();
        tracing::error!(export, %error, "an export that was dropped has not ended");
        if !matches!(error, ExportError::Private(_)) {
            // The memory must not become anything else.
            self.exported.give_up();
            std::mem::forget(Arc::clone(&self.exported));
        }
    }
}

impl Exported {
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Makes room for one more; `false` if there is none.
    pub(super) fn admit(&self) -> bool {
        let mut importers = self.importers();
        let room = importers.count < self.most;
        importers.count += usize::from(room);
        room
    }

    /// Shows the memory to an importer (R1).
    pub(super) fn grant(
        &self,
        number: u64,
        peer: &Peer,
        ask: Ask,
        send: impl FnOnce(Answer, &[BorrowedFd<'_>]) -> Result<(), SocketError>,
    ) -> Result<(), Denied> {
        let (notification_page, notification_file) =
            make_page("portolan-notes", notification_page::BYTES, |fd| {
                memory::seal_size(fd)
            })
            .map_err(|_| Denied::Resources)?;
        let mut importers = self.importers();
        if importers.over {
            return Err(Denied::Over);
        }
        let way = self.way(peer, ask)?;
        let direct = matches!(way, Way::Kernel { .. });
        let granted = Answer::Granted(Granted {
            reach: self.reach,
            // Who makes no barriers when asked makes one with each update.
            fences: self.fences || !ask.barriers,
            way,
            len: self.source.len() as u64,
            ranges: self.ranges,
        });
        let mut fds: Vec<BorrowedFd<'_>> = Vec::with_capacity(way.descriptors());
        if let Source::Shared { file, .. } = &self.source {
            fds.push(file.as_fd());
        }
        fds.extend([
            self.status_file.as_fd(),
            notification_file.as_fd(),
            self.pidfd.as_fd(),
        ]);
        let process = peer.pid;
        let notification_page = Arc::new(notification_page);
        // Before it can post: an importer sends no second wake for a note that we have not seen.
        let who = ImporterId::new(number, peer.uid, process);
        self.notes.enter(number, who, &notification_page);
        portolan_shm::mark!("export.granting");
        if send(granted, &fds).is_err() {
            self.notes.leave(number);
            return Err(Denied::Resources);
        }
        portolan_shm::mark!("export.granted");
        let importer = Importer {
            notification_page,
            direct,
            process,
        };
        importers.granted.insert(number, importer);
        self.count_importers(&importers);
        Ok(())
    }

    /// Which way an importer takes: the host copies where the kernel refuses the importer.
    fn way(&self, peer: &Peer, ask: Ask) -> Result<Way, Denied> {
        let lent = match &self.source {
            Source::Shared { .. } => return Ok(Way::Shared),
            Source::Ordinary(lent) => lent,
        };
        if peer.uid == user() && !ask.brokered {
            return Ok(lent.way(self.status_page.start()));
        }
        let member = self.member.upgrade().ok_or(Denied::Over)?;
        let capability = lent.delegate(&member, &self.permissions, self.reach, self.ranges);
        capability.map(Way::Brokered).map_err(|error| {
            let (export, uid) = (self.name(), peer.uid);
            tracing::warn!(export, uid, %error, "an importer cannot be copied for");
            Denied::NoCopyBroker
        })
    }

    /// An importer has sent a wake.
    pub(super) fn importer_woke(&self, number: u64) {
        self.notes.importer_woke(number);
    }

    /// Forgets an importer.
    pub(super) fn leave(&self, number: u64) {
        self.notes.leave(number);
        let mut importers = self.importers();
        importers.granted.remove(&number);
        importers.count = importers.count.saturating_sub(1);
        self.count_importers(&importers);
    }

    /// Says what it is, for observers.
    fn show(&self, member: &Arc<Member>) {
        let reads = if self.reach.reads() { flag::READS } else { 0 };
        let writes = if self.reach.writes() { flag::WRITES } else { 0 };
        let kernel = match &self.source {
            Source::Shared { .. } => 0,
            Source::Ordinary(_) => flag::KERNEL,
        };
        let public = Public {
            flags: reads | writes | kernel,
            bytes: self.source.len() as u64,
            ..Public::new(PublicKind::Export, &self.name)
        };
        let importers = self.importers();
        *self.shown() = Some(Shown::new(member, &public));
        self.count_importers(&importers);
    }

    /// Is not to be seen any more. By its owner, whose membership ends afterwards.
    fn hide(&self) {
        let _importers = self.importers();
        *self.shown() = None;
    }

    fn count_importers(&self, importers: &Importers) {
        if let Some(shown) = &*self.shown() {
            shown.imported_by(importers.granted.len());
        }
    }

    /// A notification was taken.
    pub(super) fn count_notification(&self) {
        if let Some(shown) = &*self.shown() {
            shown.notified();
        }
    }

    fn shown(&self) -> MutexGuard<'_, Option<Shown>> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Grants the export to no further importer, and stores that it ends.
    fn close(&self) {
        self.importers().over = true;
        let state = self.state();
        if state.load(Ordering::Relaxed) != status_page::OPEN {
            return;
        }
        // SeqCst: the barrier in the importers pairs with it (X1).
        state.store(status_page::CLOSING, Ordering::SeqCst);
        portolan_shm::mark!("unexport.closing");
        if !barrier::everywhere() && !self.fences {
            // It was allowed when importers were told to do without barriers of their own, and
            // is not any more. What they stored before does not stay in a processor for long.
            std::thread::sleep(SETTLE);
        }
        portolan_shm::mark!("unexport.ordered");
        self.notes.end();
    }

    /// Waits for what importers have under way, where that goes to the memory itself.
    fn settle(&self) -> Result<(), ExportError> {
        let Source::Ordinary(lent) = &self.source else {
            return Ok(());
        };
        lent.settle(|| {
            let importers = self.importers();
            let mut direct = importers.granted.values().filter(|i| i.direct);
            let busy = direct.find(|i| busy(&i.notification_page));
            busy.map(|importer| importer.process)
        })?;
        lent.retire()
    }

    /// Does not wait for calls that are still under way.
    fn give_up(&self) {
        if let Source::Ordinary(lent) = &self.source {
            lent.give_up();
        }
    }

    /// Makes the memory ours alone (X3).
    fn take_back(&self) -> Result<(), PrivatiseError> {
        match &self.source {
            Source::Shared { memory, file } => {
                if !memory.goes_with() {
                    memory.take_back(file, self.reach.writes())?;
                    portolan_shm::mark!("unexport.private");
                }
                if self.reach.writes() {
                    // No process reads these pages any more. The kernel does not let us punch a
                    // file that importers may only read; its pages go with the last mapping.
                    let _ = memory::punch(&**file, 0, memory.len() as u64);
                }
            }
            Source::Ordinary(lent) => lent.give_back(),
        }
        // Release: a thread that sees *closed* sees every update that landed.
        self.state().store(status_page::CLOSED, Ordering::Release);
        portolan_shm::mark!("unexport.closed");
        Ok(())
    }

    fn state(&self) -> &std::sync::atomic::AtomicU64 {
        let state = self.status_page.words().get(status_page::STATE);
        state.expect("a status page has as many words as its layout says")
    }

    fn importers(&self) -> MutexGuard<'_, Importers> {
        self.importers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Source {
    fn of(memory: Exportable<'_>, reach: Reach) -> Result<Self, ExportError> {
        match memory {
            Exportable::Shared(memory) => Ok(Self::Shared {
                file: Descriptor::new(memory.inner.share(reach)?),
                memory: Arc::clone(&memory.inner),
            }),
            Exportable::Ordinary(memory) => Lent::new(memory).map(Self::Ordinary),
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Shared { memory, .. } => memory.len(),
            Self::Ordinary(lent) => lent.len(),
        }
    }
}

fn make_status_page() -> Result<(Place, OwnedFd), ExportError> {
    let made = make_page("portolan-status", status_page::BYTES, |fd| {
        memory::seal_to_readers(fd)
    });
    let (status_page, file) = made?;
    if let Some(state) = status_page.words().get(status_page::STATE) {
        state.store(status_page::OPEN, Ordering::Release);
    }
    Ok((status_page, file))
}

/// A page of shared memory, mapped here and then sealed.
fn make_page(
    name: &str,
    bytes: usize,
    seal: impl FnOnce(&OwnedFd) -> Result<(), memory::SealError>,
) -> Result<(Place, OwnedFd), ExportError> {
    let file = memory::create_unsealed(name, bytes as u64)
        .map_err(|e| ExportError::system("make memory", &e))?;
    let mapping = Mapping::shared_anywhere(&file, bytes).and_then(Mapping::not_in_children)?;
    seal(&file).map_err(ExportError::Seal)?;
    Ok((Place::new(mapping), file))
}

/// Passes clients of the offer to the acceptor.
struct AtExport {
    acceptor: Weak<Acceptor>,
    export: Weak<Exported>,
}

impl OfferInbox for AtExport {
    fn meet(&self, client: Client) {
        if let Some(acceptor) = self.acceptor.upgrade() {
            acceptor.meet(client, Weak::clone(&self.export));
        }
    }
}

impl fmt::Debug for Export {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Export({:?}, {} bytes)", self.name(), self.len())
    }
}
