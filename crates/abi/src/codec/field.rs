//! Fields are read from, and written to, so many bytes of a record.

use super::DecodeError;
use crate::FORMAT_VERSION;

/// A value that takes the same number of bytes in every record: a field of a record, or a record.
pub trait Field: Sized {
    /// Bytes that it takes.
    const BYTES: usize;

    /// Writes them.
    fn put(&self, to: &mut Writer<'_>);

    /// Reads them.
    ///
    /// # Errors
    ///
    /// [`DecodeError`]: no such value was written there.
    fn get(from: &mut Reader<'_>) -> Result<Self, DecodeError>;
}

/// The bytes of a record that are not written yet: zeros.
#[derive(Debug)]
pub struct Writer<'a> {
    rest: &'a mut [u8],
}

impl<'a> Writer<'a> {
    /// Writes to these bytes, which are zeros.
    #[inline]
    pub fn new(bytes: &'a mut [u8]) -> Self {
        Self { rest: bytes }
    }

    /// The next `count` bytes. There are as many, because a record has as many as its fields.
    #[inline]
    fn next(&mut self, count: usize) -> &'a mut [u8] {
        let rest = std::mem::take(&mut self.rest);
        let (next, rest) = rest.split_at_mut(count.min(rest.len()));
        self.rest = rest;
        next
    }

    /// Writes bytes.
    #[inline]
    pub fn bytes(&mut self, bytes: &[u8]) {
        let to = self.next(bytes.len());
        if to.len() == bytes.len() {
            to.copy_from_slice(bytes);
        }
    }

    /// How many there are.
    #[inline]
    pub fn left(&self) -> usize {
        self.rest.len()
    }

    /// Leaves reserved bytes out.
    #[inline]
    pub fn reserved(&mut self, count: usize) {
        self.next(count);
    }

    /// Writes what a record begins with that says its version.
    #[inline]
    pub fn opening(&mut self, magic: u32) {
        magic.put(self);
        FORMAT_VERSION.put(self);
    }
}

/// The bytes of a record, or of several, that are not read yet.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
    /// The field that is read, or was read last.
    field: &'static str,
    /// Whether the next optional field is there.
    present: bool,
}

impl<'a> Reader<'a> {
    /// Reads these bytes.
    #[inline]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self {
            rest: bytes,
            field: "",
            present: false,
        }
    }

    /// Whether all is read.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// All that is not read, borrowed.
    #[inline]
    pub const fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// The next `count` bytes, borrowed.
    ///
    /// # Errors
    ///
    /// There are not as many.
    #[inline]
    pub fn bytes(&mut self, count: usize) -> Result<&'a [u8], DecodeError> {
        let Some((next, rest)) = self.rest.split_at_checked(count) else {
            let (found, wanted) = (self.rest.len(), count);
            return Err(DecodeError::Length { found, wanted });
        };
        self.rest = rest;
        Ok(next)
    }

    #[inline]
    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let mut array = [0; N];
        array.copy_from_slice(self.bytes(N)?);
        Ok(array)
    }

    /// The next field.
    ///
    /// # Errors
    ///
    /// No such value was written there.
    #[inline]
    pub fn field<F: Field>(&mut self, name: &'static str) -> Result<F, DecodeError> {
        self.field = name;
        let value = F::get(self);
        // A record has had names of its own.
        self.field = name;
        value
    }

    /// The next `count` fields.
    ///
    /// # Errors
    ///
    /// One of them is none.
    #[inline]
    pub fn list<F: Field>(
        &mut self,
        name: &'static str,
        count: usize,
    ) -> Result<Vec<F>, DecodeError> {
        (0..count).map(|_| self.field(name)).collect()
    }

    /// The error that the field which is read has a value that no sender writes.
    #[inline]
    pub const fn invalid(&self) -> DecodeError {
        DecodeError::Value { field: self.field }
    }

    /// Steps over reserved bytes, which are zeros.
    ///
    /// # Errors
    ///
    /// One is not.
    #[inline]
    pub fn reserved(&mut self, count: usize) -> Result<(), DecodeError> {
        let zeros = self.bytes(count)?.iter().all(|byte| *byte == 0);
        let after = self.field;
        zeros.then_some(()).ok_or(DecodeError::Reserved { after })
    }

    /// Reads whether the next optional field is there.
    ///
    /// # Errors
    ///
    /// It is neither yes nor no.
    #[inline]
    pub fn has(&mut self, name: &'static str) -> Result<(), DecodeError> {
        self.present = self.field(name)?;
        Ok(())
    }

    /// Reads a magic number.
    ///
    /// # Errors
    ///
    /// It is another one.
    #[inline]
    pub fn magic(&mut self, wanted: u32) -> Result<(), DecodeError> {
        match self.field("magic")? {
            found if found == wanted => Ok(()),
            found => Err(DecodeError::Magic { found, wanted }),
        }
    }

    /// Reads a magic number, and our version.
    ///
    /// # Errors
    ///
    /// It is another one, or another version.
    #[inline]
    pub fn opening(&mut self, magic: u32) -> Result<(), DecodeError> {
        self.magic(magic)?;
        match self.field("version")? {
            FORMAT_VERSION => Ok(()),
            found => Err(DecodeError::Version { found }),
        }
    }
}

macro_rules! numbers {
    ($($number:ty)+) => {
        $(impl Field for $number {
            const BYTES: usize = size_of::<Self>();

            #[inline]
            fn put(&self, to: &mut Writer<'_>) {
                to.bytes(&self.to_le_bytes());
            }

            #[inline]
            fn get(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
                from.array().map(Self::from_le_bytes)
            }
        })+
    };
}

numbers! { u8 u16 u32 u64 i32 }

/// A count: 32 bits. One that has more is written as the largest, which no bound of ours admits.
impl Field for usize {
    const BYTES: usize = 4;

    #[inline]
    fn put(&self, to: &mut Writer<'_>) {
        u32::try_from(*self).unwrap_or(u32::MAX).put(to);
    }

    #[inline]
    fn get(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let count = u32::get(from)?;
        Self::try_from(count).map_err(|_| from.invalid())
    }
}

/// A byte: 0 or 1.
impl Field for bool {
    const BYTES: usize = 1;

    #[inline]
    fn put(&self, to: &mut Writer<'_>) {
        u8::from(*self).put(to);
    }

    #[inline]
    fn get(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        match u8::get(from)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(from.invalid()),
        }
    }
}

impl<F: Field + Copy + Default, const N: usize> Field for [F; N] {
    const BYTES: usize = N * F::BYTES;

    #[inline]
    fn put(&self, to: &mut Writer<'_>) {
        self.iter().for_each(|item| item.put(to));
    }

    #[inline]
    fn get(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let mut all = [F::default(); N];
        for item in &mut all {
            *item = F::get(from)?;
        }
        Ok(all)
    }
}

impl<A: Field, B: Field> Field for (A, B) {
    const BYTES: usize = A::BYTES + B::BYTES;

    #[inline]
    fn put(&self, to: &mut Writer<'_>) {
        self.0.put(to);
        self.1.put(to);
    }

    #[inline]
    fn get(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok((A::get(from)?, B::get(from)?))
    }
}

/// Zeros, if there is none. A byte before it, declared by `has`, says whether there is one.
impl<F: Field> Field for Option<F> {
    const BYTES: usize = F::BYTES;

    #[inline]
    fn put(&self, to: &mut Writer<'_>) {
        match self {
            Some(value) => value.put(to),
            None => to.reserved(F::BYTES),
        }
    }

    #[inline]
    fn get(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        if std::mem::take(&mut from.present) {
            return F::get(from).map(Some);
        }
        from.reserved(F::BYTES).map(|()| None)
    }
}
