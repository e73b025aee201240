//! The macros that declare records and codes; [`codec`](crate::codec) explains them.

/// Declares a record: a struct whose fields lie one after another on the wire.
///
/// - `magic M,` first: the record begins with this number.
/// - `opens M,` instead: and with the format's version after it.
/// - `_: 3,` anywhere: so many reserved bytes, which are zeros.
/// - `has token,` after a field: a byte that says whether the next optional field is there.
/// - `check |it| ...` after the struct: what must hold between the fields.
///
/// See [`codec`](crate::codec) for an example.
#[macro_export]
macro_rules! record {
    (
        $(#[$meta:meta])*
        $vis:vis struct $Name:ident {
            $(magic $magic:expr,)?
            $(opens $opens:expr,)?
            $(_: $first:literal,)?
            $(
                $(#[$doc:meta])*
                pub $field:ident: $type:ty,
                $(has $option:ident,)?
                $(_: $reserved:literal,)?
            )*
        }
        $(check $check:expr)?
    ) => {
        $(#[$meta])*
        $vis struct $Name {
            $($(#[$doc])* pub $field: $type,)*
        }

        impl $crate::codec::Field for $Name {
            const BYTES: usize = 0
                $(+ { let _ = $magic; 4 })?
                $(+ { let _ = $opens; 8 })?
                $(+ $first)?
                $(
                    + <$type as $crate::codec::Field>::BYTES
                    $(+ { let _ = stringify!($option); 1 })?
                    $(+ $reserved)?
                )*;

            #[inline]
            fn put(&self, to: &mut $crate::codec::Writer<'_>) {
                $($crate::codec::Field::put(&$magic, to);)?
                $(to.opening($opens);)?
                $(to.reserved($first);)?
                $(
                    $crate::codec::Field::put(&self.$field, to);
                    $($crate::codec::Field::put(&self.$option.is_some(), to);)?
                    $(to.reserved($reserved);)?
                )*
            }

            #[inline]
            fn get(
                from: &mut $crate::codec::Reader<'_>,
            ) -> Result<Self, $crate::codec::DecodeError> {
                $(from.magic($magic)?;)?
                $(from.opening($opens)?;)?
                $(from.reserved($first)?;)?
                $(
                    let $field = from.field(stringify!($field))?;
                    $(from.has(stringify!($option))?;)?
                    $(from.reserved($reserved)?;)?
                )*
                let it = Self { $($field),* };
                $({
                    let holds: fn(&Self) -> bool = $check;
                    let record = stringify!($Name);
                    if !holds(&it) {
                        return Err($crate::codec::DecodeError::Check { record });
                    }
                })?
                Ok(it)
            }
        }

        $crate::record_methods! { $vis $Name }
    };
}

/// Declares a record that is an enum: a tag, and the fields of its variant. A variant that has
/// fewer bytes than the longest is followed by zeros.
///
/// ```
/// portolan_abi::tagged! {
///     /// What became of a fragment.
///     #[derive(Clone, Copy, Debug, PartialEq, Eq)]
///     pub enum Fate: u8 {
///         /// It has arrived.
///         Arrived = b'A',
///         /// It is missing from this byte on.
///         Missing = b'M' {
///             _: 3,
///             /// The first byte.
///             from: u32,
///         },
///     }
/// }
/// let missing = Fate::Missing { from: 0x0102_0304 };
/// assert_eq!(missing.encode(), [b'M', 0, 0, 0, 4, 3, 2, 1]);
/// assert_eq!(Fate::decode(&missing.encode()), Ok(missing));
/// assert_eq!(Fate::decode(b"A\0\0\0\0\0\0\0"), Ok(Fate::Arrived));
/// assert!(Fate::decode(b"A\0\0\0\0\0\0\x01").is_err());
/// ```
#[macro_export]
macro_rules! tagged {
    (
        $(#[$meta:meta])*
        $vis:vis enum $Name:ident: $tag:ty {
            $(
                $(#[$doc:meta])*
                $Variant:ident = $code:literal $({
                    $(_: $first:literal,)?
                    $(
                        $(#[$field_doc:meta])*
                        $field:ident: $type:ty,
                        $(_: $reserved:literal,)?
                    )+
                })?,
            )+
        }
    ) => {
        $(#[$meta])*
        $vis enum $Name {
            $($(#[$doc])* $Variant $({ $($(#[$field_doc])* $field: $type,)+ })?,)+
        }

        impl $crate::codec::Field for $Name {
            const BYTES: usize = {
                let of_each = [$(
                    <$tag as $crate::codec::Field>::BYTES
                        $($(+ $first)? $(
                            + <$type as $crate::codec::Field>::BYTES $(+ $reserved)?
                        )+)?
                ),+];
                let (mut i, mut most) = (0, 0);
                while i < of_each.len() {
                    if of_each[i] > most {
                        most = of_each[i];
                    }
                    i += 1;
                }
                most
            };

            #[inline]
            fn put(&self, to: &mut $crate::codec::Writer<'_>) {
                let after = to.left().saturating_sub(Self::BYTES);
                match self {
                    $(Self::$Variant $({ $($field),+ })? => {
                        <$tag as $crate::codec::Field>::put(&$code, to);
                        $(
                            $(to.reserved($first);)?
                            $(
                                $crate::codec::Field::put($field, to);
                                $(to.reserved($reserved);)?
                            )+
                        )?
                    })+
                }
                to.reserved(to.left() - after);
            }

            #[inline]
            fn get(
                from: &mut $crate::codec::Reader<'_>,
            ) -> Result<Self, $crate::codec::DecodeError> {
                let mut from_tag = $crate::codec::Reader::new(from.bytes(Self::BYTES)?);
                let from = &mut from_tag;
                let it = match from.field::<$tag>("tag")? {
                    $($code => {
                        $(
                            $(from.reserved($first)?;)?
                            $(
                                let $field = from.field(stringify!($field))?;
                                $(from.reserved($reserved)?;)?
                            )+
                        )?
                        Self::$Variant $({ $($field),+ })?
                    })+
                    _ => return Err(from.invalid()),
                };
                from.reserved(from.rest().len())?;
                Ok(it)
            }
        }

        $crate::record_methods! { $vis $Name }
    };
}

/// What all records have.
#[doc(hidden)]
#[macro_export]
macro_rules! record_methods {
    ($vis:vis $Name:ident) => {
        impl $crate::codec::Record for $Name {
            const NAME: &'static str = stringify!($Name);
        }

        #[allow(dead_code, reason = "a private one need not use all of them")]
        impl $Name {
            /// Bytes on the wire.
            $vis const BYTES: usize = <Self as $crate::codec::Field>::BYTES;

            /// The record's bytes.
            #[inline]
            $vis fn encode(&self) -> [u8; Self::BYTES] {
                let mut out = [0; Self::BYTES];
                $crate::codec::Field::put(self, &mut $crate::codec::Writer::new(&mut out));
                out
            }

            /// Reads a record, whole or not at all.
            ///
            /// # Errors
            ///
            /// A `DecodeError`: the bytes are no such record.
            #[inline]
            $vis fn decode(bytes: &[u8]) -> Result<Self, $crate::codec::DecodeError> {
                $crate::codec::Record::of_bytes(bytes)
            }
        }
    };
}

/// Declares an enum that is one number on the wire and in words.
///
/// A number without a meaning is an error in a record; with `unknown => Variant` after the enum,
/// it reads as that variant there.
///
/// ```
/// portolan_abi::codes! {
///     /// Why not.
///     pub enum Why: u32 {
///         /// There is no room.
///         Full = 1,
///         /// Another reason.
///         Other = 2,
///     }
///     unknown => Other
/// }
/// assert_eq!((Why::from_code(1), Why::from_code(9)), (Some(Why::Full), None));
/// assert_eq!(Why::or_unknown(9), Why::Other);
/// ```
#[macro_export]
macro_rules! codes {
    (
        $(#[$meta:meta])*
        $vis:vis enum $Name:ident: $number:ident {
            $($(#[$doc:meta])* $Variant:ident = $code:literal,)+
        }
        $(unknown => $Unknown:ident)?
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr($number)]
        $vis enum $Name {
            $($(#[$doc])* $Variant = $code,)+
        }

        #[allow(dead_code, reason = "a private one need not use all of them")]
        impl $Name {
            /// All of them, in the order of the declaration.
            $vis const ALL: [Self; [$($code),+].len()] = [$(Self::$Variant),+];

            /// What has this number, if anything.
            #[inline]
            $vis const fn from_code(code: $number) -> Option<Self> {
                match code {
                    $($code => Some(Self::$Variant),)+
                    _ => None,
                }
            }

            $(
                /// What has this number; what has none is read as
                #[doc = concat!("[`", stringify!($Unknown), "`](Self::", stringify!($Unknown), ").")]
                #[inline]
                $vis const fn or_unknown(code: $number) -> Self {
                    match Self::from_code(code) {
                        Some(known) => known,
                        None => Self::$Unknown,
                    }
                }
            )?
        }

        impl $crate::codec::Field for $Name {
            const BYTES: usize = size_of::<$number>();

            #[inline]
            fn put(&self, to: &mut $crate::codec::Writer<'_>) {
                $crate::codec::Field::put(&(*self as $number), to);
            }

            #[inline]
            fn get(
                from: &mut $crate::codec::Reader<'_>,
            ) -> Result<Self, $crate::codec::DecodeError> {
                let code = <$number as $crate::codec::Field>::get(from)?;
                Self::from_code(code)$(.or(Some(Self::$Unknown)))?.ok_or(from.invalid())
            }
        }
    };
}
