//! Turns arguments and results into bytes, in the `postcard` format, and back.
//!
//! `serde` writes and reads a list of bytes one by one, because it sees no more of it. What
//! has a [`Schema`] can say that it is such a list, and is copied in one go. The bytes are the
//! same: each way reads what the other writes.

use super::Schema;
use postcard::Error;
use postcard::ser_flavors::Flavor;
use serde::{Deserialize, Serialize};

/// A value as bytes, all but a few of which are there as they are.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct Bulk<'a> {
    /// Which variant of an `Option` or a `Result` it is, if it is one.
    tag: Option<u8>,
    /// How many bytes there are is written before them.
    counted: bool,
    bytes: &'a [u8],
}

impl<'a> Bulk<'a> {
    /// Bytes whose number both sides know.
    pub(super) fn fixed(bytes: &'a [u8]) -> Self {
        Self {
            tag: None,
            counted: false,
            bytes,
        }
    }

    /// Bytes whose number only the writer knows.
    pub(super) fn list(bytes: &'a [u8]) -> Self {
        Self {
            counted: true,
            ..Self::fixed(bytes)
        }
    }

    /// As this variant of an enumeration that is none yet.
    pub(super) fn tagged(self, tag: u8) -> Option<Self> {
        let tag = Some(tag);
        self.tag.is_none().then_some(Self { tag, ..self })
    }

    #[inline]
    fn write(self, out: &mut Vec<u8>) {
        // A number of 64 bits has ten times seven at most.
        out.reserve(11 + self.bytes.len());
        out.extend(self.tag);
        if self.counted {
            let mut left = self.bytes.len() as u64;
            while left >= 0x80 {
                let [low, ..] = left.to_le_bytes();
                out.push(low | 0x80);
                left >>= 7;
            }
            let [last, ..] = left.to_le_bytes();
            out.push(last);
        }
        out.extend_from_slice(self.bytes);
    }
}

/// Takes a list off the beginning of `bytes`: its bytes, and what comes after them.
#[inline]
pub(super) fn split_list(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (mut len, mut shift, mut rest) = (0_u64, 0, bytes);
    loop {
        let (byte, after) = rest.split_first()?;
        rest = after;
        let bits = u64::from(byte & 0x7f);
        let moved = bits.checked_shl(shift)?;
        if moved >> shift != bits {
            return None;
        }
        len |= moved;
        shift += 7;
        if byte & 0x80 == 0 {
            return rest.split_at_checked(usize::try_from(len).ok()?);
        }
    }
}

/// Values that are written one after another: what a call takes, or what it returns.
#[doc(hidden)]
pub trait Pack {
    /// Whether there may be extents in them ([`Schema::MOVES`]).
    const MOVES: bool;

    /// Adds them to `out`.
    ///
    /// # Errors
    ///
    /// A value's own `Serialize` has refused.
    fn pack(&self, out: &mut Vec<u8>) -> Result<(), Error>;
}

/// As [`Pack`], the other way round.
#[doc(hidden)]
pub trait Unpack<'a>: Sized {
    /// As [`Pack::MOVES`].
    const MOVES: bool;

    /// Takes them off the beginning of `bytes`; `None` if they are something else.
    fn unpack(bytes: &mut &'a [u8]) -> Option<Self>;
}

#[inline]
fn put<T: Schema + Serialize + ?Sized>(value: &T, out: &mut Vec<u8>) -> Result<(), Error> {
    match value.bulk() {
        Some(bulk) => bulk.write(out),
        None => postcard::serialize_with_flavor(value, Added(out))?,
    }
    Ok(())
}

/// What `serde` writes is added to this. It is not moved there and back, as
/// [`postcard::to_extend`] wants it: a vector that comes back inside a `Result` is copied in
/// overlapping parts just after it was stored, for which the processor waits each time.
struct Added<'a>(&'a mut Vec<u8>);

impl Flavor for Added<'_> {
    type Output = ();

    #[inline]
    fn try_push(&mut self, byte: u8) -> Result<(), Error> {
        self.0.push(byte);
        Ok(())
    }

    #[inline]
    fn try_extend(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    #[inline]
    fn finalize(self) -> Result<(), Error> {
        Ok(())
    }
}

#[inline]
fn get<'a, T: Schema + Deserialize<'a>>(bytes: &mut &'a [u8]) -> Option<T> {
    let (value, rest) = match T::from_bulk(bytes) {
        Some(read) => read,
        None => postcard::take_from_bytes(bytes).ok()?,
    };
    *bytes = rest;
    Some(value)
}

macro_rules! tuples {
    ($first:ident $($rest:ident)*) => {
        impl<$first: Schema + Serialize $(, $rest: Schema + Serialize)*> Pack for ($first, $($rest,)*) {
            const MOVES: bool = $first::MOVES $(|| $rest::MOVES)*;

            #[inline]
            fn pack(&self, out: &mut Vec<u8>) -> Result<(), Error> {
                #[expect(non_snake_case, reason = "values are named as their types")]
                let ($first, $($rest,)*) = self;
                put($first, out)?;
                $(put($rest, out)?;)*
                Ok(())
            }
        }

        impl<'a, $first: Schema + Deserialize<'a> $(, $rest: Schema + Deserialize<'a>)*> Unpack<'a>
            for ($first, $($rest,)*)
        {
            const MOVES: bool = $first::MOVES $(|| $rest::MOVES)*;

            #[inline]
            fn unpack(bytes: &mut &'a [u8]) -> Option<Self> {
                Some((get::<$first>(bytes)?, $(get::<$rest>(bytes)?,)*))
            }
        }

        tuples!($($rest)*);
    };
    () => {
        impl Pack for () {
            const MOVES: bool = false;

            #[inline]
            fn pack(&self, _: &mut Vec<u8>) -> Result<(), Error> {
                Ok(())
            }
        }

        impl Unpack<'_> for () {
            const MOVES: bool = false;

            #[inline]
            fn unpack(_: &mut &[u8]) -> Option<Self> {
                Some(())
            }
        }
    };
}

// As many as `serde` has.
tuples!(A B C D E F G H I J K L M N O P);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde::de::DeserializeOwned;
    use std::fmt::Debug;

    /// Both ways write the same, and each reads what the other wrote.
    fn both_ways<T: Schema + Serialize + DeserializeOwned + PartialEq + Debug>(value: &T) {
        let by_serde = postcard::to_allocvec(value).unwrap();
        let mut ours = vec![9];
        (value, 3_u8).pack(&mut ours).unwrap();
        assert_eq!(ours[1..ours.len() - 1], by_serde, "{value:?}");
        let mut left = &ours[1..];
        let read = <(T, u8)>::unpack(&mut left);
        assert_eq!(
            (read.as_ref().map(|r| (&r.0, r.1)), left.len()),
            (Some((value, 3)), 0)
        );
        for cut in 0..by_serde.len() {
            let mut left = &by_serde[..cut];
            assert!(
                <(T,)>::unpack(&mut left).is_none(),
                "{value:?} cut at {cut}"
            );
        }
    }

    proptest! {
        #[test]
        fn bytes_in_one_go_are_what_serde_writes_and_reads(
            bytes in proptest::collection::vec(any::<u8>(), 0..300),
            array: [u8; 24],
            words in proptest::collection::vec(any::<u16>(), 0..9),
            number: u64,
            text: String,
        ) {
            both_ways(&bytes);
            both_ways(&array);
            both_ways(&Some(bytes.clone()));
            both_ways(&Some(Some(bytes.clone())));
            both_ways(&None::<Vec<u8>>);
            both_ways(&Ok::<_, String>(bytes.clone()));
            both_ways(&Err::<Vec<u8>, _>(text.clone()));
            both_ways(&Ok::<_, Vec<u8>>(array));
            both_ways(&vec![bytes.clone(), Vec::new()]);
            both_ways(&words);
            both_ways(&(number, text));
            let mut lent = Vec::new();
            (&bytes[..], &array).pack(&mut lent).unwrap();
            let mut left = &lent[..];
            let read = <(&[u8], [u8; 24])>::unpack(&mut left);
            prop_assert_eq!((read, left.len()), (Some((&bytes[..], array)), 0));
        }

        #[test]
        fn what_is_no_list_of_bytes_is_refused_as_serde_refuses_it(
            bytes in proptest::collection::vec(any::<u8>(), 0..40),
        ) {
            let by_serde = postcard::take_from_bytes::<Vec<u8>>(&bytes).ok();
            let mut left = &bytes[..];
            let ours = <(Vec<u8>,)>::unpack(&mut left).map(|(list,)| (list, left));
            prop_assert_eq!(ours, by_serde);
        }
    }

    #[test]
    fn the_longest_numbers_are_read_as_serde_reads_them() {
        for last in [0, 1, 2, 0x7f] {
            let mut bytes = vec![0x80; 9];
            bytes.push(last);
            let by_serde = postcard::take_from_bytes::<Vec<u8>>(&bytes).ok();
            let mut left = &bytes[..];
            let ours = <(Vec<u8>,)>::unpack(&mut left).map(|(list,)| (list, left));
            assert_eq!(ours, by_serde, "{last}");
        }
    }
}
