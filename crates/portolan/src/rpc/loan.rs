//! A loan is an argument or a result that lies in an extent from the start: filled in place, moved,
//! and read in place.
//!
//! No byte of it goes through the channel, so none is copied and none is summed: the extent changes
//! its owner, as [`Large`] does. A value is looked at before its receiver has it, unless any bytes
//! are one.

use super::parcel::Large;
use super::{Hash, Schema};
use crate::channel::{Draft, Flat, Plain};
use crate::{AllocateError, Domain, Extent};
use serde::de::Error as _;
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::cell::{Ref, RefCell};
use std::fmt::{self, Debug, Formatter};

/// Plain data as an argument or a result, in memory that moves with it: a type with
/// [`Payload`](trait@crate::channel::Payload), or a slice of one.
///
/// Above a few KiB this is the quick way: `&[u8]` and `Vec<f32>` are copied into the channel and
/// out of it, with a checksum. Who receives a loan may change it, and return it.
///
/// It moves once. What was sent is gone: [`read`](Self::read) and [`write`](Self::write) then find
/// nothing. Serialised outside a call it is an error, and stays.
///
/// ```
/// use portolan::rpc::{self, Loan};
/// use portolan::{Deadline, Domain};
///
/// #[portolan::service]
/// pub trait Filter {
///     /// The same picture, brighter.
///     fn brighter(&self, picture: Loan<[u8]>) -> Loan<[u8]>;
/// }
///
/// struct Lamp;
/// impl Filter for Lamp {
///     fn brighter(&self, mut picture: Loan<[u8]>) -> Loan<[u8]> {
///         for pixel in picture.write().into_iter().flatten() {
///             *pixel = pixel.saturating_add(100);
///         }
///         picture
///     }
/// }
///
/// let domain = Domain::private()?;
/// let _server = rpc::serve(&domain, "filter", FilterService(Lamp), &Default::default())?;
/// let client = FilterClient::connect(&domain, "filter", Deadline::NEVER)?;
///
/// let mut picture = Loan::<[u8]>::slice(&domain, 1 << 20)?;
/// picture.write().ok_or("it is here")?.fill(50);
/// let picture = client.brighter(picture)?;
/// assert!(picture.read().is_some_and(|pixels| pixels.iter().all(|pixel| *pixel == 150)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a loan that is dropped gives its memory back"]
pub struct Loan<T: ?Sized>(RefCell<Option<Draft<T, Extent>>>);

impl<T: Flat + ?Sized> Loan<T> {
    fn of(draft: Draft<T, Extent>) -> Self {
        Self(RefCell::new(Some(draft)))
    }

    fn room(domain: &Domain, bytes: usize) -> Result<Self, AllocateError> {
        let extent = domain.allocate(bytes)?;
        Ok(Self::of(Draft::new(extent, bytes)))
    }

    /// The value, until it is sent.
    pub fn read(&self) -> Option<Ref<'_, T>> {
        let draft = self.0.try_borrow().ok()?;
        Ref::filter_map(draft, |draft| draft.as_ref().map(Draft::get)).ok()
    }

    /// The same, to be filled.
    pub fn write(&mut self) -> Option<&mut T> {
        self.0.get_mut().as_mut().map(Draft::get_mut)
    }

    /// The memory, as long as the value; nothing, if it was sent.
    pub fn into_extent(self) -> Option<Extent> {
        self.0.into_inner().map(extent)
    }
}

impl<T: Flat> Loan<T> {
    /// Room for one value. Until it is filled it holds whatever was there, or, if not any bytes are a
    /// value, zeros and the first variant of each enum.
    ///
    /// # Errors
    ///
    /// As [`Domain::allocate`].
    pub fn new(domain: &Domain) -> Result<Self, AllocateError> {
        Self::room(domain, size_of::<T>())
    }
}

impl<T> Loan<[T]>
where
    [T]: Flat<Element = T>,
{
    /// Room for so many values, as [`Loan::new`] says.
    ///
    /// # Errors
    ///
    /// As [`Domain::allocate`].
    pub fn slice(domain: &Domain, count: usize) -> Result<Self, AllocateError> {
        // More than there is memory for is refused as that.
        Self::room(domain, size_of::<T>().saturating_mul(count))
    }
}

/// The memory of a value, without a byte that was not written.
fn extent<T: Flat + ?Sized>(draft: Draft<T, Extent>) -> Extent {
    let (mut extent, len) = draft.finish();
    // It was cut to this length.
    let _ = extent.set_len(len);
    extent
}

impl<T: Flat + ?Sized> Schema for Loan<T> {
    const HASH: u64 = {
        let of = match T::SIZE {
            Some(_) => "loan",
            None => "loan of list",
        };
        Hash::new().text(of).word(T::Element::HASH).finish()
    };
    const MOVES: bool = true;
}

impl<T: Flat + ?Sized> Serialize for Loan<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // A value that is being read, or is sent already, does not move.
        let draft = self.0.try_borrow_mut().ok().and_then(|mut d| d.take());
        let draft = draft.ok_or_else(|| S::Error::custom("the loan was sent, or is being read"))?;
        let large = Large::from(extent(draft));
        let sent = large.serialize(serializer);
        if let Some(Ok(draft)) = large.into_extent().map(Draft::found) {
            self.0.replace(Some(draft));
        }
        sent
    }
}

impl<'de, T: Flat + ?Sized> Deserialize<'de> for Loan<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let extent = Large::deserialize(deserializer)?.into_extent();
        let extent = extent.ok_or_else(|| D::Error::custom("its extent was sent before"))?;
        let draft = Draft::found(extent)
            .map_err(|_extent| D::Error::custom("its extent holds no value of this type"))?;
        Ok(Self::of(draft))
    }
}

impl<T: Flat + Debug + ?Sized> Debug for Loan<T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.read() {
            Some(value) => f.debug_tuple("Loan").field(&&*value).finish(),
            None => f.write_str("Loan(sent)"),
        }
    }
}
