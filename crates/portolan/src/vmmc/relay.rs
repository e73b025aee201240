//! A relay copy moves bytes between an import and memory that other processes may write.
//!
//! Such memory (exported itself, aliased, or with another clone) is never lent as a slice. So
//! [`Import::write_from`] and [`Import::read_into`] copy it piece by piece through a buffer.

use super::{Exportable, Import, UpdateError};
use std::ops::Range;

/// The size of a piece in bytes: a multiple of a word that fits the first-level cache.
const STEP: usize = 16 << 10;

impl Import {
    /// Copies a part of memory that can be exported, whether it is or not, to `offset` and the
    /// following: what came into an export goes on, or what an alias shows. Else as
    /// [`write`](Self::write), which such memory cannot be lent to as a slice. What another
    /// thread writes there meanwhile may be copied in part. Where the memory is the import's own
    /// and the two places overlap, anything of it may arrive.
    ///
    /// # Examples
    ///
    /// ```
    /// use portolan::vmmc::{ExportMemory, ExportOptions, Reach};
    /// use portolan::{Deadline, Domain};
    /// # let soon = || Deadline::after(std::time::Duration::from_secs(60));
    /// let domain = Domain::private()?;
    /// let options = ExportOptions::new(Reach::ReadWrite);
    /// let (first, second) = (ExportMemory::new(4096)?, ExportMemory::new(4096)?);
    /// let _first = domain.export(&first, "first", &options, soon())?;
    /// let _second = domain.export(&second, "second", &options, soon())?;
    /// let here = domain.import("first", soon())?;
    /// let there = domain.import("second", soon())?;
    ///
    /// here.write(100, b"message")?;
    /// // On it goes, out of memory that is exported.
    /// there.write_from(0, &first, 100..107)?;
    /// let mut bytes = [0; 7];
    /// second.read(0, &mut bytes)?;
    /// assert_eq!(&bytes, b"message");
    ///
    /// // And back, into such memory.
    /// there.read_into(3, &first, 0..4)?;
    /// first.read(0, &mut bytes)?;
    /// assert_eq!(&bytes, b"sage\0\0\0");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`UpdateError`]; [`UpdateError::OutOfBounds`] with the `size` of what is too small. Then
    /// nothing is written.
    pub fn write_from<'a>(
        &self,
        offset: usize,
        memory: impl Into<Exportable<'a>>,
        part: Range<usize>,
    ) -> Result<(), UpdateError> {
        let (import, memory) = (&**self.shared(), memory.into());
        let len = memory.holds(&part)?;
        import.may_write(offset, len)?;
        import.ready()?;
        by_pieces(len, |at, piece| {
            memory.read(part.start + at, piece)?;
            import.put(offset + at, piece)
        })?;
        import.landed()
    }

    /// Copies from `offset` on to a part of such memory as can be exported, whether it is or not.
    /// As [`read`](Self::read), and [`write_from`](Self::write_from) the other way round.
    ///
    /// # Errors
    ///
    /// [`UpdateError`]; the part may have changed, but for those errors that are the caller's.
    pub fn read_into<'a>(
        &self,
        offset: usize,
        memory: impl Into<Exportable<'a>>,
        part: Range<usize>,
    ) -> Result<(), UpdateError> {
        let (import, memory) = (&**self.shared(), memory.into());
        let len = memory.holds(&part)?;
        import.may_read(offset, len)?;
        import.ready()?;
        by_pieces(len, |at, piece| {
            import.take(offset + at, piece)?;
            memory.write(part.start + at, piece)
        })?;
        import.there()
    }
}

/// Has `len` bytes copied through one buffer: where each piece begins, and room for it.
fn by_pieces(
    len: usize,
    mut copy: impl FnMut(usize, &mut [u8]) -> Result<(), UpdateError>,
) -> Result<(), UpdateError> {
    let mut buffer = vec![0; STEP.min(len)];
    for at in (0..len).step_by(STEP) {
        let piece = buffer.get_mut(..STEP.min(len - at)).unwrap_or_default();
        copy(at, piece)?;
    }
    Ok(())
}
