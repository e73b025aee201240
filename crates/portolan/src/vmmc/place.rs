//! Presents memory that other processes write as words.
//!
//! Hand-written `unsafe` is here for three reasons: a mapping becomes words, memory that no other
//! process writes becomes bytes ([`Sole`]), and a range of the program's own is shared and taken
//! back at its address. No code here makes a `&[u8]` or a `&mut [u8]` of memory that others can write. It uses atomics, and copies that the compiler
//! cannot look into (`portolan_shm::bulk`), so the writes of others change values and nothing else.
#![allow(unsafe_code)]

use super::memory::Memory;
use super::{ExportError, ExportMemory};
use portolan_sys::memory::{self, Mapping, PAGE, PrivatiseError, ShareError};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// Whole pages, mapped for as long as this lives; in a forked child there is nothing.
#[derive(Debug)]
pub(crate) struct Place {
    start: usize,
    len: usize,
    /// None of a range of the program's own.
    mapping: Option<Mapping>,
}

impl Place {
    /// The whole of a mapping, from which forked children are kept.
    pub(crate) fn new(mapping: Mapping) -> Self {
        Self {
            start: mapping.base().expose_provenance(),
            len: mapping.len(),
            mapping: Some(mapping),
        }
    }

    /// A range of the program's own.
    ///
    /// # Safety
    ///
    /// - As of [`ExportMemory::in_place`], for as long as this lives.
    pub(crate) unsafe fn of_program(start: *mut u8, len: usize) -> Self {
        Self {
            start: start.expose_provenance(),
            len,
            mapping: None,
        }
    }

    /// First address.
    pub(crate) fn start(&self) -> usize {
        self.start
    }

    /// Bytes: whole pages, not zero.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Whether it goes when this is dropped.
    pub(crate) fn is_mapping(&self) -> bool {
        self.mapping.is_some()
    }

    /// The words, which other processes may write meanwhile. A caller must only load from memory
    /// that is mapped to be read only.
    #[inline]
    pub(crate) fn words(&self) -> &[AtomicU64] {
        let first: *const AtomicU64 = std::ptr::with_exposed_provenance(self.start);
        // SAFETY:
        // - in bounds and live: the mapping, or what the caller of `of_program` promised, has
        //   `len` bytes for as long as `self` lives; a forked child does not get here (all
        //   callers ask `in_child` first), and it would end in a signal;
        // - aligned: it begins at a page;
        // - initialised: memory of files reads as zero or what was written;
        // - written meanwhile: by atomics, by opaque copies, and by other processes.
        unsafe { std::slice::from_raw_parts(first, self.len / 8) }
    }

    /// The bytes, to write. For an [`ExportMemory`] that no other process has and that is not
    /// exported, and lends its exclusive borrow out.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        let first: *mut u8 = std::ptr::with_exposed_provenance_mut(self.start);
        // SAFETY:
        // - in bounds, live, initialised: as in `words`;
        // - exclusive: no other process has the memory, as the caller has seen, and in this one
        //   it is reached only through this, which is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(first, self.len) }
    }

    /// The bytes.
    ///
    /// # Safety
    ///
    /// As long as what this returns lives:
    ///
    /// - no process and no thread writes the memory;
    /// - this process has it mapped, so it is no forked child.
    unsafe fn bytes(&self) -> &[u8] {
        let first: *const u8 = std::ptr::with_exposed_provenance(self.start);
        // SAFETY:
        // - in bounds, live, initialised: as in `words`, and the caller is no forked child;
        // - not written: the caller promises it.
        unsafe { std::slice::from_raw_parts(first, self.len) }
    }

    /// The bytes, to write.
    ///
    /// # Safety
    ///
    /// As long as what this returns lives:
    ///
    /// - no other process writes the memory, and this one reaches it through that alone;
    /// - this process has it mapped, so it is no forked child.
    #[expect(
        clippy::mut_from_ref,
        reason = "who promises it has the memory exclusively"
    )]
    unsafe fn bytes_alone(&self) -> &mut [u8] {
        let first: *mut u8 = std::ptr::with_exposed_provenance_mut(self.start);
        // SAFETY:
        // - in bounds, live, initialised: as in `words`, and the caller is no forked child;
        // - exclusive: the caller promises it.
        unsafe { std::slice::from_raw_parts_mut(first, self.len) }
    }

    /// Moves a private range into `file`, at the same address.
    pub(crate) fn share_into(&self, file: &OwnedFd) -> Result<(), ShareError> {
        // SAFETY:
        // - no references: only `words` hands any out, of atomics; `bytes_mut` borrows
        //   exclusively, and for a range of the program's own its maker has promised it;
        // - no thread maps, unmaps or protects it: a mapping of ours is changed here alone, under
        //   the lock of its state, and else its maker has promised it;
        // - no stack, no thread-local storage: a mapping of ours holds neither, and else its
        //   maker has promised it.
        unsafe { memory::share_into(file, self.start, self.len) }
    }

    /// Takes the range back from `file`, at the same address.
    pub(crate) fn privatise(&self, file: &OwnedFd) -> Result<(), PrivatiseError> {
        self.privatise_part(0..self.len, file, 0)
    }

    /// The same, and gives the file's pages back meanwhile, which no process reads any more.
    pub(crate) fn privatise_giving_up(&self, file: &OwnedFd) -> Result<(), PrivatiseError> {
        // SAFETY:
        // - as in `privatise_part`.
        unsafe { memory::privatise_giving_up(file, 0, self.start, self.len) }
    }

    /// Takes part of the range, whole pages, back from where it shows `file` from `offset` on.
    pub(crate) fn privatise_part(
        &self,
        part: Range<usize>,
        file: &OwnedFd,
        offset: u64,
    ) -> Result<(), PrivatiseError> {
        let (start, len) = self.part(part);
        // SAFETY:
        // - no code relies on its being shared: that is what ends here;
        // - no thread maps, unmaps or protects it: as in `share_into`.
        unsafe { memory::privatise(file, offset, start, len) }
    }

    /// Shows `file`, from `offset` on, instead of part of the range: whole private pages, whose
    /// content is gone.
    pub(crate) fn replace_part(
        &self,
        part: Range<usize>,
        file: &OwnedFd,
        offset: u64,
    ) -> Result<(), ShareError> {
        let (start, len) = self.part(part);
        // SAFETY:
        // - no references, and no code that relies on the content: as in `share_into`, and
        //   a caller that asks for an alias asks for other content;
        // - no thread maps, unmaps or protects it: as in `share_into`;
        // - no stack, no thread-local storage: as in `share_into`.
        unsafe { memory::replace(file, offset, start, len) }
    }

    /// Where a part lies: not before the range, and not past its end.
    fn part(&self, part: Range<usize>) -> (usize, usize) {
        let (start, end) = (part.start.min(self.len), part.end.min(self.len));
        (self.start + start, end.saturating_sub(start))
    }
}

/// The one handle of this process on memory that no other process writes: what borrows this
/// borrows the memory.
///
/// - Made of the only clone of memory that no importer has ([`ExportMemory::bytes_mut`] says when).
/// - An export has another handle ([`lend`](Self::lend)), by which no code reads or writes the
///   bytes: it shares the memory and takes it back, which changes none of them. The caller exports
///   it to be read only, which the kernel enforces, or lends no bytes until that export has ended.
pub(crate) struct Sole(Arc<Memory>);

impl Sole {
    /// Gives the memory back if it is exported, or there are other clones.
    pub(crate) fn of(mut memory: ExportMemory) -> Result<Self, ExportMemory> {
        match memory.bytes_mut() {
            Some(_) => Ok(Self(memory.inner)),
            None => Err(memory),
        }
    }

    /// The bytes; none in a forked child.
    pub(crate) fn bytes(&self) -> &[u8] {
        if super::present().is_err() {
            return &[];
        }
        // SAFETY:
        // - not written: no other process writes it, and in this one only `bytes_mut` does, which
        //   borrows exclusively;
        // - no forked child, as we have just seen.
        unsafe { self.0.place().bytes() }
    }

    /// The bytes, to write; none in a forked child.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        if super::present().is_err() {
            return &mut [];
        }
        // SAFETY:
        // - exclusive: no other process writes it, and this one reaches it through this, which is
        //   borrowed exclusively;
        // - no forked child, as we have just seen.
        unsafe { self.0.place().bytes_alone() }
    }

    /// The memory, for an export.
    pub(crate) fn lend(&self) -> ExportMemory {
        ExportMemory {
            inner: Arc::clone(&self.0),
        }
    }

    /// The memory, which may have other handles from now on.
    pub(crate) fn into_memory(self) -> ExportMemory {
        ExportMemory { inner: self.0 }
    }
}

impl ExportMemory {
    /// Private memory that is there already: whole pages from `start` on. An export moves it
    /// into shared memory at the same address, with its content; threads that store to it
    /// meanwhile wait for a moment, and none of their stores is lost. The end of the export
    /// makes it private again.
    ///
    /// # Examples
    ///
    /// ```
    /// use portolan::vmmc::ExportMemory;
    /// #[repr(align(4096))]
    /// struct Pages([u8; 8192]);
    /// let pages: &'static mut Pages = Box::leak(Box::new(Pages([7; 8192])));
    /// // SAFETY:
    /// // - leaked, so it stays; nothing else refers to it; whole pages of the heap.
    /// let memory = unsafe { ExportMemory::in_place(pages.0.as_mut_ptr(), 8192) }?;
    /// assert_eq!(memory.load_acquire(0)?, u64::from_ne_bytes([7; 8]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ExportError::NotWholePages`] and [`ExportError::Empty`]. What else may be wrong is
    /// found when it is exported.
    ///
    /// # Safety
    ///
    /// As long as any clone of this, or an export of it, lives:
    ///
    /// - the range stays mapped, to be read and written, and no thread maps, unmaps or protects
    ///   any of it;
    /// - it is reached through this, through raw pointers or through atomics: no code holds or
    ///   makes a reference into it that does not allow for other processes' stores;
    /// - it holds no stack and no thread-local storage, and nothing that a forked child needs.
    ///
    /// And once it has been exported, for as long as it stays mapped, also when all of these have
    /// gone: no code has the kernel forget its pages (`MADV_DONTNEED`, as some allocators do with
    /// what is freed). They would be the export's file again, which an importer may have kept.
    pub unsafe fn in_place(start: *mut u8, len: usize) -> Result<Self, ExportError> {
        if len == 0 {
            return Err(ExportError::Empty { len });
        }
        if !start.addr().is_multiple_of(PAGE) || !len.is_multiple_of(PAGE) {
            let start = start.addr();
            return Err(ExportError::NotWholePages { start, len });
        }
        // SAFETY:
        // - as the caller promises.
        let place = unsafe { Place::of_program(start, len) };
        Ok(Self::of_program(place))
    }
}
