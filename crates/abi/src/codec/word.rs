//! The macro that declares words: structs that are packed into 64 bits of shared memory.
//!
//! Any member may write any word, and words are on the way of every message. So `unpack` never
//! fails, and what no member writes reads as what the declaration of its field's type says.

/// How a value lies in the lower bits of a word.
pub(crate) struct Bits<T>(core::marker::PhantomData<T>);

macro_rules! numbers {
    ($($number:ty)+) => {
        $(impl Bits<$number> {
            #[inline]
            pub(crate) const fn put(value: $number) -> u64 {
                value as u64
            }

            #[inline]
            #[allow(clippy::cast_possible_truncation, reason = "the field has no more bits")]
            pub(crate) const fn get(bits: u64) -> $number {
                bits as $number
            }
        })+
    };
}

numbers! { u8 u16 u32 u64 }

impl Bits<bool> {
    #[inline]
    pub(crate) const fn put(value: bool) -> u64 {
        value as u64
    }

    #[inline]
    pub(crate) const fn get(bits: u64) -> bool {
        bits != 0
    }
}

/// Declares a word: a struct, and of each field the bits that it takes, the lowest first.
///
/// Of a value that has more bits the lowest are packed. The type of a field is a number, `bool`,
/// or an enum that is declared with [`codes!`](crate::codes) and has `Bits` by `bits_of!`.
///
/// ```text
/// word! {
///     /// Who has a place.
///     #[derive(Clone, Copy, Debug, PartialEq, Eq)]
///     pub struct Place {
///         /// Whether somebody has.
///         pub taken: bool = 0..1,
///         /// Who.
///         pub space: u8 = 8..16,
///     }
/// }
/// assert_eq!(Place { taken: true, space: 3 }.pack(), 0x0301);
/// ```
macro_rules! word {
    (
        $(#[$meta:meta])*
        $vis:vis struct $Name:ident {
            $(
                $(#[$doc:meta])*
                pub $field:ident: $type:ty = $low:literal..$high:literal,
            )+
        }
    ) => {
        $(#[$meta])*
        $vis struct $Name {
            $($(#[$doc])* pub $field: $type,)+
        }

        impl $Name {
            // No two fields have a bit in common, and each has at least one.
            const _APART: () = {
                let mut used = 0_u64;
                $(
                    assert!($low < $high && $high <= 64);
                    let mask = u64::MAX >> (64 - ($high - $low)) << $low;
                    assert!(used & mask == 0, "fields overlap");
                    used |= mask;
                )+
                assert!(used != 0);
            };

            /// Packs it into a word.
            #[inline]
            $vis const fn pack(self) -> u64 {
                let () = Self::_APART;
                $(
                    (
                        $crate::codec::Bits::<$type>::put(self.$field)
                            & u64::MAX >> (64 - ($high - $low))
                    ) << $low
                )|+
            }

            /// Reads a word.
            #[inline]
            $vis const fn unpack(word: u64) -> Self {
                Self {
                    $($field: $crate::codec::Bits::<$type>::get(
                        word >> $low & u64::MAX >> (64 - ($high - $low))
                    ),)+
                }
            }
        }
    };
}

/// Lets fields of words have this enum, which is declared with [`codes!`](crate::codes); a number
/// without a meaning reads as the variant after `unknown`.
macro_rules! bits_of {
    ($($Name:ident: $number:ty, unknown => $Unknown:ident;)+) => {
        $(impl $crate::codec::Bits<$Name> {
            #[inline]
            pub(crate) const fn put(value: $Name) -> u64 {
                value as u64
            }

            #[inline]
            pub(crate) const fn get(bits: u64) -> $Name {
                match $Name::from_code($crate::codec::Bits::<$number>::get(bits)) {
                    Some(known) => known,
                    None => $Name::$Unknown,
                }
            }
        })+
    };
}

pub(crate) use {bits_of, word};

#[cfg(test)]
mod tests {
    word! {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) struct Place {
            pub taken: bool = 3..4,
            pub space: u8 = 8..16,
            pub number: u32 = 40..64,
        }
    }

    #[test]
    fn a_word_keeps_its_fields_and_no_more_of_them_than_has_room() {
        let place = Place {
            taken: true,
            space: 0xab,
            number: 0xff12_3456,
        };
        assert_eq!(place.pack(), 0x1234_5600_0000_ab08);
        let number = 0x0012_3456;
        assert_eq!(Place::unpack(place.pack()), Place { number, ..place });
        // Bits of no field are not looked at.
        assert_eq!(Place::unpack(0xf7), Place::unpack(0));
    }
}
