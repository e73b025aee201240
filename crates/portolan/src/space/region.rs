//! Maps the region of a domain. This is the one file where its mapping becomes structures and slices.
//!
//! Six other files of this crate have unsafe code, each for a promise of its own
//! (`xtask/src/unsafe_code.rs` lists them). Two promises are made here:
//! that a mapped region's tables follow the protocols of `portolan-shm`
//! ([`Tables::new`]), and that the holder of an extent, and no other code, has
//! references into its pages. A guarded domain closes pages behind those references
//! ([`Ground::close_small`], [`Ground::protect`]) and answers faults ([`Watched`]).
#![allow(unsafe_code)]

use crate::space::Descriptor;
use crate::space::Member;
use portolan_abi::channel::{HEAD_BYTES, MAGIC as CHANNEL_MAGIC, MAX_READERS, READER_BYTES};
use portolan_abi::limits::{PAGE, THREAD_LINES};
use portolan_abi::port::{ANY_BYTES, PortName, PortStatus};
use portolan_abi::region::Geometry;
use portolan_abi::trace::EventKind;
use portolan_shm::channel::{Channel, Head, NotAChannel, ReaderEntry};
use portolan_shm::owner::OwnerRow;
use portolan_shm::queue::Queue;
use portolan_shm::region::{Tables, ThreadLine};
use portolan_shm::trace::TraceLine;
use portolan_sys::fault::{self, Fault, Verdict, Watch, WatchError};
use portolan_sys::memory::{self, Access, MapError, Mapping};
use std::io;
use std::ops::{Deref, Range};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A mapped region and its file.
pub(crate) struct Region {
    ground: Ground,
    fd: Descriptor,
}

/// A mapping, and what reserves its addresses: in this order, so that no domain is given addresses that
/// are still mapped here.
struct Place {
    _mapping: Mapping,
    reservation: Descriptor,
}

/// A mapped region, kept mapped for as long as any clone of this lives.
#[derive(Clone)]
pub(crate) struct Ground {
    // Declared before the mapping that it points into; both go together.
    tables: Tables<'static>,
    base: usize,
    place: Arc<Place>,
}

/// A copy of a region's tables, in a file of the observer's own: a part is there once it was
/// copied, and zeros until then. The pool is not copied.
pub(crate) struct Picture {
    // Declared before the mapping that it points into; both go together.
    tables: Tables<'static>,
    _mapping: Mapping,
    file: OwnedFd,
    len: u64,
    /// Bytes that are copied at the most.
    most: u64,
    /// Bytes that were copied, or were to be.
    copied: AtomicU64,
    buffer: Mutex<Vec<u8>>,
}

impl Picture {
    /// One of a region of this geometry, of `most` bytes at the most, with nothing in it.
    pub(crate) fn new(geometry: Geometry, most: u64) -> Result<Self, MapError> {
        let len = geometry.pool;
        let refused = |source| MapError::Refused {
            base: 0,
            len: usize::try_from(len).unwrap_or(usize::MAX),
            source,
        };
        let file = memory::create("portolan-picture", len).map_err(refused)?;
        let mapping = Mapping::shared_anywhere(&file, usize::try_from(len).unwrap_or(usize::MAX))?;
        // SAFETY:
        // - mapped and aligned: up to the pool, and page-aligned;
        // - live: the mapping is kept by the same struct, and `tables()` hands the
        //   reference out for no longer than a borrow of it;
        // - protocol: the file is ours alone, and is given to the survey, which loads. What is
        //   copied there another process has written; the survey takes it as words, of which any
        //   are valid, and checks what it makes of them.
        let tables = unsafe { Tables::new(mapping.base(), geometry) };
        Ok(Self {
            tables,
            _mapping: mapping,
            file,
            len,
            most,
            copied: AtomicU64::new(0),
            buffer: Mutex::new(vec![0; 64 << 10]),
        })
    }

    /// The tables, as far as they were copied.
    pub(crate) fn tables(&self) -> &Tables<'_> {
        &self.tables
    }

    /// Whether something was not copied, because it was too much or there was no memory.
    pub(crate) fn is_full(&self) -> bool {
        self.copied.load(Ordering::Relaxed) > self.most
    }

    /// Forgets what was copied.
    pub(crate) fn clear(&self) {
        if self.copied.swap(0, Ordering::Relaxed) > 0 {
            // Should it fail, something older is read where now nothing is.
            let _ = memory::punch(&self.file, 0, self.len);
        }
    }

    /// Copies a part of the region in `from`; `false` if that is too much, or fails. No hole
    /// of `from` gets memory by it, whatever becomes of it meanwhile.
    pub(crate) fn copy(&self, from: &OwnedFd, part: Range<u64>) -> bool {
        let end = part.end.min(self.len);
        let len = end.saturating_sub(part.start);
        if self.copied.fetch_add(len, Ordering::Relaxed) + len > self.most {
            self.copied.store(u64::MAX / 2, Ordering::Relaxed);
            return false;
        }
        let mut buffer = self.buffer.lock().unwrap_or_else(PoisonError::into_inner);
        let mut at = part.start;
        while at < end {
            let now = usize::try_from(end - at)
                .unwrap_or(usize::MAX)
                .min(buffer.len());
            let read = read_at(from, at, &mut buffer[..now]);
            if read == 0 || write_at(&self.file, at, &buffer[..read]).is_err() {
                self.copied.store(u64::MAX / 2, Ordering::Relaxed);
                return false;
            }
            at += read as u64;
        }
        true
    }
}

/// Reads bytes of a file; how many came.
pub(crate) fn read_at(file: &OwnedFd, offset: u64, out: &mut [u8]) -> usize {
    let mut done = 0;
    while let Some(rest) = out.get_mut(done..).filter(|rest| !rest.is_empty()) {
        match rustix::io::pread(file, rest, offset + done as u64) {
            Ok(0) => break,
            Ok(read) => done += read,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => break,
        }
    }
    done
}

fn write_at(file: &OwnedFd, offset: u64, bytes: &[u8]) -> io::Result<()> {
    let mut done = 0;
    while let Some(rest) = bytes.get(done..).filter(|rest| !rest.is_empty()) {
        match rustix::io::pwrite(file, rest, offset + done as u64) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => done += written,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

impl Region {
    /// Takes a mapped region's tables into use. The mapping is as long as `geometry.len`;
    /// `reservation` is the socket whose name keeps its addresses free of other domains.
    pub(crate) fn new(
        fd: OwnedFd,
        mapping: Mapping,
        geometry: Geometry,
        reservation: OwnedFd,
    ) -> Self {
        assert!(
            mapping.len() as u64 >= geometry.len,
            "the mapping was made for this geometry"
        );
        // SAFETY:
        // - mapped and aligned: `mapping` covers the geometry and is page-aligned;
        // - live: the mapping is kept by the same struct, and `tables()` hands the
        //   reference out for no longer than a borrow of it;
        // - protocol: the file is a region of our format; that members keep to the
        //   protocol is the trust inside a domain (CAVEATS.md).
        let tables = unsafe { Tables::new(mapping.base(), geometry) };
        let ground = Ground {
            tables,
            base: mapping.base() as usize,
            place: Arc::new(Place {
                _mapping: mapping,
                reservation: Descriptor::new(reservation),
            }),
        };
        Self {
            ground,
            fd: Descriptor::new(fd),
        }
    }

    /// The tables.
    #[inline]
    pub(crate) fn tables(&self) -> &Tables<'_> {
        &self.ground.tables
    }

    /// The mapping, to be kept apart from the file.
    pub(crate) fn ground(&self) -> &Ground {
        &self.ground
    }

    /// The owner words of `space`, ours.
    pub(crate) fn own_words(&self, space: u8) -> OwnWords {
        OwnWords {
            row: self.ground.tables.owner_row(space),
            _place: Arc::clone(&self.ground.place),
        }
    }

    /// The file.
    pub(crate) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// The socket that reserves the region's addresses.
    pub(crate) fn reservation(&self) -> &OwnedFd {
        &self.ground.place.reservation
    }

    /// Address of the region in every member.
    pub(crate) fn base(&self) -> usize {
        self.ground.base
    }

    /// Offset in the file of the pool's page `page`.
    pub(crate) fn offset(&self, page: u32) -> u64 {
        self.tables().geometry.pool + u64::from(page) * PAGE as u64
    }

    /// Address of the pool's page `page`.
    #[inline]
    pub(crate) fn address(&self, page: u32) -> usize {
        self.ground.address(page)
    }

    /// Reads the extent at `page`, from byte `at` on, through the file, so its pages need not be
    /// open here. Returns how many bytes came. A hole reads as zeros, and stays one.
    pub(crate) fn peek(&self, page: u32, at: usize, out: &mut [u8]) -> usize {
        read_at(&self.fd, self.offset(page) + at as u64, out)
    }

    /// The bytes of the extent at `page`.
    ///
    /// The caller is an [`crate::Extent`]: it holds the pages, is not cloned, and lends
    /// its own borrow out; or a [`crate::SharedExtent`], whose right keeps the pages, and
    /// to which no handle in any space writes while there is another one (B1 of topics'
    /// samples). `len` was checked against its size.
    #[inline]
    pub(crate) fn bytes(&self, page: u32, len: usize) -> &[u8] {
        self.check(page, len);
        // SAFETY:
        // - in bounds: checked above against the pool;
        // - live: the mapping lives as long as `self`;
        // - initialised: file memory reads as zeros or what was written;
        // - not written meanwhile: the caller holds the extent (O1), the space that sent or shared
        //   it has given up its handle, and members are trusted not to write past theirs.
        unsafe { core::slice::from_raw_parts(self.address(page) as *const u8, len) }
    }

    /// The bytes of the extent at `page`, to write.
    ///
    /// The caller is an [`crate::Extent`] that lends its own exclusive borrow out; or a block
    /// of a topic's publisher on which no other process has a right, or can come by one (B1 of
    /// topics' samples), and which does the same.
    #[inline]
    #[allow(clippy::mut_from_ref)]
    pub(crate) fn bytes_mut(&self, page: u32, len: usize) -> &mut [u8] {
        self.check(page, len);
        // SAFETY:
        // - in bounds, live, initialised: as in `bytes`;
        // - exclusive: the caller holds the extent, or the one right on it, and lends its
        //   `&mut` borrow.
        unsafe { core::slice::from_raw_parts_mut(self.address(page) as *mut u8, len) }
    }

    /// The words of the extent at `page`, which others may write meanwhile.
    ///
    /// The caller is a [`crate::Segment`], whose right keeps the memory, and lends its own
    /// borrow out; or it is about to take a message of its own queue, reads what that says, and
    /// believes nothing of it. `len` was checked against the extent's size.
    pub(crate) fn words(&self, page: u32, len: usize) -> &[AtomicU64] {
        self.check(page, len);
        // SAFETY:
        // - in bounds, live, initialised: as in `bytes`; a page is aligned for words;
        // - written meanwhile: by atomics only, as every member reaches a segment through this
        //   function (or through copies that the compiler cannot look into). What a message
        //   says was written before it was published, and no other process takes it.
        unsafe { core::slice::from_raw_parts(self.address(page) as *const AtomicU64, len / 8) }
    }

    /// Does something with the channel in the extent at `page`, if one is there. The caller
    /// has counted a right on its segment. `closed`: the page may be closed to us.
    pub(crate) fn with_channel(
        &self,
        page: u32,
        len: usize,
        closed: bool,
        act: impl FnOnce(&Channel<'_>),
    ) {
        let mut magic = [0; 8];
        if self.peek(page, 0, &mut magic) < 8 || u64::from_le_bytes(magic) != CHANNEL_MAGIC {
            return;
        }
        if !closed {
            if let Ok(channel) = channel_over(self.words(page, len)) {
                act(&channel);
            }
            return;
        }
        self.check(page, len);
        // Another door to the same memory. Fails where there are too many mappings.
        let Ok(mapping) = Mapping::shared_part(&self.fd, self.offset(page), len) else {
            return;
        };
        let words = mapping.base().cast_const().cast::<AtomicU64>();
        // SAFETY:
        // - in bounds, aligned: the mapping has `len` bytes, and begins at a page;
        // - live: it is dropped after its last use, below;
        // - written meanwhile: as in `words`.
        let words = unsafe { core::slice::from_raw_parts(words, len / 8) };
        if let Ok(channel) = channel_over(words) {
            act(&channel);
        }
        drop(mapping);
    }

    #[inline]
    fn check(&self, page: u32, len: usize) {
        let end = u64::from(page) * PAGE as u64 + len as u64;
        assert!(
            end <= self.tables().geometry.pages() * PAGE as u64,
            "extents lie in the pool"
        );
    }
}

impl Ground {
    /// The tables.
    #[inline]
    pub(crate) fn tables(&self) -> &Tables<'_> {
        &self.tables
    }

    /// Address of the pool's page `page`.
    #[inline]
    pub(crate) fn address(&self, page: u32) -> usize {
        let pool = usize::try_from(self.tables.geometry.pool).unwrap_or(0);
        self.base + pool + page as usize * PAGE
    }

    /// The pool's page that holds `address`.
    pub(crate) fn page_of(&self, address: usize) -> Option<u32> {
        let page = address.checked_sub(self.address(0))? / PAGE;
        u32::try_from(page)
            .ok()
            .filter(|p| u64::from(*p) < self.tables.geometry.pages())
    }

    /// Drops pages from this process's page tables. Where they are registered with a
    /// userfaultfd they are closed then, for every thread.
    pub(crate) fn close_small(&self, page: u32, pages: usize) -> io::Result<()> {
        self.check(page, pages);
        // SAFETY:
        // - shared memory: the range lies in the region's mapping (checked above), which
        //   is one of a file.
        unsafe { memory::zap(self.address(page), pages * PAGE) }
    }

    /// Changes what this process may do with pages that no reference is lent into: the
    /// caller is the guard, and has just taken the extent from its handle, is about to
    /// make one, or found by its owner row that there is one ([`Access::ReadWrite`]).
    pub(crate) fn protect(&self, page: u32, pages: usize, access: Access) -> io::Result<()> {
        self.check(page, pages);
        // SAFETY:
        // - ours: the range lies in the region's mapping (checked above);
        // - no reference asks for more: extents lend references out under a borrow, and
        //   are consumed (sent, freed) when they are closed; opening takes nothing away.
        unsafe { memory::protect(self.address(page), pages * PAGE, access) }
    }

    fn check(&self, page: u32, pages: usize) {
        let end = u64::from(page) + pages as u64;
        assert!(
            end <= self.tables.geometry.pages(),
            "extents lie in the pool"
        );
    }
}

/// Our own owner words, looked up once, and kept mapped for as long as this lives.
pub(crate) struct OwnWords {
    // Declared before the mapping that it points into; both go together.
    row: OwnerRow<'static>,
    _place: Arc<Place>,
}

impl OwnWords {
    /// The row.
    #[inline(always)]
    pub(crate) fn row(&self) -> OwnerRow<'_> {
        self.row
    }
}

/// Who answers faults of a range of addresses. Async-signal-safe.
pub(crate) trait Answer: Send + Sync {
    /// Decides a fault, in the thread that faulted.
    fn answer(&self, fault: &Fault) -> Verdict;
}

/// A range of addresses whose faults `A` answers, until this is dropped.
pub(crate) struct Watched<A: Answer> {
    // Declared before what its handler points to: once it is dropped, no handler runs.
    _watch: Watch,
    answerer: Arc<A>,
}

impl<A: Answer> Watched<A> {
    pub(crate) fn new(start: usize, len: usize, answerer: A) -> Result<Self, WatchError> {
        let answerer = Arc::new(answerer);
        let context = Arc::as_ptr(&answerer).expose_provenance();
        let watch = fault::watch(start, len, Self::ask, context)?;
        Ok(Self {
            _watch: watch,
            answerer,
        })
    }

    fn ask(fault: &Fault, context: usize) -> Verdict {
        let answerer = core::ptr::with_exposed_provenance::<A>(context);
        // SAFETY:
        // - live: the watch, whose handler this is, is dropped before the answerer, and its
        //   drop waits for handlers that run (F2 of `portolan_sys::fault`);
        // - of this type: `new::<A>` stored an `A` with `ask::<A>`;
        // - shared: `A` is `Sync`, and only `&A` is ever made of it.
        let answerer = unsafe { &*answerer };
        answerer.answer(fault)
    }
}

impl<A: Answer> Deref for Watched<A> {
    type Target = A;

    fn deref(&self) -> &A {
        &self.answerer
    }
}

/// A port's queue together with the membership that keeps it mapped: what every
/// handle of a port holds.
pub(crate) struct Attached {
    // Declared before the member that it points into.
    queue: Queue<'static>,
    /// Whose handle it is.
    pub(crate) member: Arc<Member>,
    /// The port.
    pub(crate) port: PortName,
    /// What is sent there needs work that a retry does not repeat: it is copied, closed here, or
    /// looked at because it goes on to another domain or node. Of a port that has become a proxy
    /// since, the status word says it.
    pub(crate) prepares: bool,
    // As the queue.
    own: OwnLines<'static>,
}

/// The lines of our own space's entry that every send and receive looks at.
#[derive(Clone, Copy)]
pub(crate) struct OwnLines<'r> {
    pub(crate) trace: &'r TraceLine,
    pub(crate) threads: &'r [ThreadLine; THREAD_LINES],
}

impl Attached {
    /// The handle of `port`, if its entry has a queue.
    pub(crate) fn new(member: &Arc<Member>, port: PortName) -> Option<Self> {
        let region: *const Region = &raw const member.region;
        // SAFETY:
        // - live: `member` is cloned into the same struct, so the region outlives `queue` and
        //   `own`, which are lent out for no longer than a borrow of the struct;
        // - in place: the region lies inside the `Arc` and never moves.
        let region: &'static Region = unsafe { &*region };
        let tables = region.tables();
        let queue = tables.queue(port.index)?;
        let own = OwnLines {
            trace: &tables.spaces.get(usize::from(member.space))?.trace,
            threads: tables.thread_lines(member.space),
        };
        // Acquire: of a port that lives, its options. The others take no messages.
        let status = PortStatus::unpack(queue.port.control.status.load(Ordering::Acquire));
        // Relaxed: of a port that lives, as its options; it was stored before its status.
        let goes_on = queue.port.control.most.load(Ordering::Relaxed) != ANY_BYTES;
        let prepares = member.guard.is_some() || status.copied || status.proxied || goes_on;
        Some(Self {
            queue,
            member: Arc::clone(member),
            port,
            prepares,
            own,
        })
    }

    /// The queue.
    #[inline]
    pub(crate) fn queue(&self) -> &Queue<'_> {
        &self.queue
    }

    /// What each send and receive looks at of our own space.
    #[inline]
    pub(crate) fn own(&self) -> OwnLines<'_> {
        self.own
    }

    /// Whether we record events of this kind. Not to be asked in a forked child.
    #[inline(always)]
    pub(crate) fn traces(&self, kind: EventKind) -> bool {
        // Relaxed: as `record::traces`.
        self.own.trace.switch.load(Ordering::Relaxed) & u64::from(kind.bit()) != 0
    }
}

impl Clone for Attached {
    fn clone(&self) -> Self {
        Self {
            queue: self.queue,
            member: Arc::clone(&self.member),
            port: self.port,
            prepares: self.prepares,
            own: self.own,
        }
    }
}

/// Memory of the pool as a channel, together with the membership that keeps it mapped.
#[derive(Clone)]
pub(crate) struct MappedChannel {
    // Declared before the member that it points into.
    channel: Channel<'static>,
    _member: Arc<Member>,
}

impl MappedChannel {
    /// Takes the extent at `page` for a channel, if its head says so; nothing in a forked child.
    ///
    /// The caller is a channel's ring, which has a right on this memory for as long as this.
    pub(crate) fn open(member: &Arc<Member>, page: u32, len: usize) -> Result<Self, NotAChannel> {
        let memory: *const [AtomicU64] = match member.present() {
            Ok(()) => member.region.words(page, len),
            Err(_) => &[],
        };
        // SAFETY:
        // - live: the member, whose region keeps the memory mapped, goes into the same struct,
        //   and `channel()` lends the reference out for no longer than a borrow of it;
        // - in place: the memory lies in the region and never moves.
        let memory: &'static [AtomicU64] = unsafe { &*memory };
        Ok(Self {
            channel: channel_over(memory)?,
            _member: Arc::clone(member),
        })
    }

    /// The channel.
    #[inline]
    pub(crate) fn channel(&self) -> &Channel<'_> {
        &self.channel
    }
}

/// The parts of a channel in `memory`, as far as its head can be believed.
fn channel_over(memory: &[AtomicU64]) -> Result<Channel<'_>, NotAChannel> {
    let short = |says| NotAChannel::Short {
        says,
        has: 8 * memory.len() as u64,
    };
    let head_words = size_of::<Head>() / 8;
    let (head, rest) = memory
        .split_at_checked(head_words)
        .ok_or_else(|| short(HEAD_BYTES))?;
    // SAFETY:
    // - in bounds: `head` has as many bytes as a `Head`, which is asserted beside it;
    // - aligned: a segment begins at a page;
    // - initialised, shared: both consist of atomics alone.
    let head: &Head = unsafe { &*head.as_ptr().cast() };
    // An allegation: whether it is true is asked by `Channel::open`, of what we cut off here.
    let count = head.config.readers.load(Ordering::Relaxed).min(MAX_READERS);
    let count = usize::try_from(count).unwrap_or(0);
    let (entries, words) = rest
        .split_at_checked(count * (size_of::<ReaderEntry>() / 8))
        .ok_or_else(|| short(HEAD_BYTES + count as u64 * READER_BYTES))?;
    // SAFETY:
    // - in bounds: `entries` has as many bytes as `count` of them;
    // - aligned: a head is a whole number of lines, as is an entry;
    // - initialised, shared: both consist of atomics alone.
    let entries =
        unsafe { core::slice::from_raw_parts(entries.as_ptr().cast::<ReaderEntry>(), count) };
    Channel::open(head, entries, words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use portolan_sys::socket::{self, Address, abstract_names};

    #[test]
    fn addresses_are_reserved_for_as_long_as_anything_keeps_them_mapped() {
        let geometry = Geometry::new(64 << 20).unwrap();
        let len = usize::try_from(geometry.len).unwrap();
        let file = memory::create("portolan-test", geometry.len).unwrap();
        let mapping = Mapping::shared_anywhere(&file, len).unwrap();
        let socket = socket::unbound().unwrap();
        let name = format!("portolan-test-reserves-{}", std::process::id()).into_bytes();
        socket::reserve(&socket, &Address::Abstract(name.clone())).unwrap();
        let is_reserved = || abstract_names().unwrap().contains(&name);
        let region = Region::new(file, mapping, geometry, socket);
        let (words, ground) = (region.own_words(1), region.ground().clone());
        drop(region);
        assert!(is_reserved());
        drop(words);
        assert!(is_reserved());
        drop(ground);
        assert!(!is_reserved());
    }
}
