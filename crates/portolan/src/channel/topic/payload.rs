//! Says which types a topic's samples can have.

use super::plain::{Held, NotHeld, Plain};
use super::sample::{Bytes, Few};
use super::store::{Form, structure_of};
use super::{NotASample, content_of_flat};
use crate::schema::Hash;
use crate::space::Member;
use crate::structure::{Root, Structure, layout_of, root_in};
use portolan_abi::limits::PAGE;
use std::sync::Arc;

/// What a topic's samples are made of: a type, or a slice of one, whose length each sample
/// has of its own, or a [`Structure`].
///
/// # Types of fixed size
///
/// Numbers, `bool`, `char`, `NonZero` numbers, arrays of these of any length, and types of one's
/// own with the derive: structs with `#[repr(C)]` or `#[repr(transparent)]`, and enums with
/// `#[repr(u8)]` or another number (their variants may have fields). Nothing needs `unsafe`:
///
/// - What the fields mean is part of the type, so that two programs notice when they mean
///   different things ([`super::TopicError::OtherType`]).
/// - Padding is shared as zeros: nothing of the publisher's memory gets out by it.
/// - A sample is looked at before it becomes a value: a `bool` that is neither, a number that is
///   no variant or no character, are the error [`super::SubscribeError::NotAValue`]. That
///   costs nothing for types of which any bytes are a value (numbers, and what is made of them).
///
/// ```
/// use portolan::channel::{Payload, TopicOptions};
/// use portolan::{Deadline, Domain};
///
/// #[derive(Clone, Copy, Debug, PartialEq, Payload)]
/// #[repr(C)]
/// struct Track {
///     id: u64,
///     seen: bool, // and seven bytes of padding after what follows
///     kind: Kind,
///     at: [f32; 2],
/// }
///
/// #[derive(Clone, Copy, Debug, PartialEq, Payload)]
/// #[repr(u8)]
/// enum Kind {
///     Ship = 1,
///     Buoy { lit: bool },
/// }
///
/// let domain = Domain::private()?;
/// let mut publisher = domain.publisher::<[Track]>("tracks", TopicOptions::default())?;
/// let mut subscriber = domain.subscriber::<[Track]>("tracks", TopicOptions::default())?;
/// let buoy = Track { id: 7, seen: true, kind: Kind::Buoy { lit: true }, at: [0.5, 2.0] };
/// publisher.publish(&[buoy, Track { kind: Kind::Ship, ..buoy }])?;
/// let sample = subscriber.receive(Deadline::NEVER)?;
/// assert_eq!((sample.len(), sample[0], sample[1].kind), (2, buoy, Kind::Ship));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Structures
///
/// Maps, trees, lists and texts: `publisher::<Structure<T>>`, where `T` has
/// [`Handover`](trait@crate::Handover). See [`Structure`], and
/// [`Publisher::loan`](super::Publisher#method.loan-2).
///
/// A type without the derive is refused when it is compiled:
///
/// ```compile_fail,E0277
/// #[derive(Clone, Copy)]
/// struct Point { x: f32, y: f32 }
/// let domain = portolan::Domain::private().unwrap();
/// let topic = domain.publisher::<Point>("outline", Default::default());
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be published as a sample",
    label = "it is not known what its bytes may be",
    note = "write `#[derive(Clone, Copy, portolan::channel::Payload)]` and `#[repr(C)]` (of an enum, `#[repr(u8)]`) above a type of your own, and above each type in it",
    note = "maps, lists and texts are published as `portolan::structure::Structure<T>`, where `T` has `#[derive(portolan::Handover)]`"
)]
pub trait Payload: sealed::Payload + 'static {}

impl<T: Plain> Payload for T {}
impl<T: Plain> Payload for [T] {}
impl<T: Root + 'static> Payload for Structure<T> {}

pub(super) mod sealed {
    use super::*;

    /// What publishers and subscribers of every kind of sample do.
    pub trait Payload {
        /// Bytes of every sample; none if each has a length of its own.
        const SIZE: Option<usize>;
        /// Where a sample may lie.
        const ALIGN: usize;
        /// Bytes that a sample's reference has at the most, if it lies in several buffers.
        const REFERENCE: usize = 0;

        /// What tells the type from another.
        fn content() -> u64;

        /// The sample that a message holds, or, of a structure, tells of; nothing, if it is gone, or was
        /// never one.
        #[doc(hidden)]
        #[allow(private_interfaces)]
        fn hold(
            form: Form,
            message: &[u8],
            member: &Arc<Member>,
        ) -> Result<Option<Held<Self>>, NotASample>;

        /// The sample that lies in a buffer; nothing, if it cannot.
        #[doc(hidden)]
        #[allow(private_interfaces)]
        fn hold_shared(bytes: Bytes) -> Result<Option<Held<Self>>, NotASample>;

        /// The sample whose `len` bytes, and nothing else, were copied to the beginning of `few`.
        #[doc(hidden)]
        #[allow(private_interfaces)]
        fn hold_few(few: &Few, len: usize) -> Result<Held<Self>, NotHeld>;
    }

    /// Of what is a topic's samples ([`super::Payload`]): a type, or a slice of one, and no
    /// structure. What is published by reference, and read by dereferencing.
    pub trait Flat: super::Payload {
        /// The type.
        type Element: Plain;

        /// Values in so many bytes.
        #[doc(hidden)]
        fn count(bytes: usize) -> usize;
        #[doc(hidden)]
        fn values(&self) -> &[Self::Element];
        #[doc(hidden)]
        fn of(values: &[Self::Element]) -> &Self;
        #[doc(hidden)]
        fn of_mut(values: &mut [Self::Element]) -> &mut Self;
    }

    impl<T: Plain> Payload for T {
        const SIZE: Option<usize> = Some(size_of::<T>());
        const ALIGN: usize = {
            assert!(
                align_of::<T>() <= PAGE,
                "no memory is aligned to more than a page"
            );
            align_of::<T>()
        };

        fn content() -> u64 {
            content_of_flat::<T>(T::HASH)
        }

        #[inline]
        #[allow(private_interfaces)]
        fn hold(
            form: Form,
            message: &[u8],
            _: &Arc<Member>,
        ) -> Result<Option<Held<T>>, NotASample> {
            form.bytes(message).map_or(Ok(None), hold)
        }

        #[inline]
        #[allow(private_interfaces)]
        fn hold_shared(bytes: Bytes) -> Result<Option<Held<T>>, NotASample> {
            hold(bytes)
        }

        #[inline(always)]
        #[allow(private_interfaces)]
        fn hold_few(few: &Few, len: usize) -> Result<Held<Self>, NotHeld> {
            Held::check_few(few, len)
        }
    }

    impl<T: Plain> Flat for T {
        type Element = T;

        #[inline]
        fn count(_: usize) -> usize {
            1
        }

        #[inline]
        fn values(&self) -> &[T] {
            std::slice::from_ref(self)
        }

        #[inline]
        fn of(values: &[T]) -> &T {
            &values[0]
        }

        #[inline]
        fn of_mut(values: &mut [T]) -> &mut T {
            &mut values[0]
        }
    }

    impl<T: Plain> Payload for [T] {
        const SIZE: Option<usize> = {
            assert!(size_of::<T>() > 0, "a slice of nothing has no length");
            None
        };
        const ALIGN: usize = <T as Payload>::ALIGN;

        fn content() -> u64 {
            content_of_flat::<[T]>(Hash::new().text("list").word(T::HASH).finish())
        }

        #[inline]
        #[allow(private_interfaces)]
        fn hold(
            form: Form,
            message: &[u8],
            _: &Arc<Member>,
        ) -> Result<Option<Held<[T]>>, NotASample> {
            form.bytes(message).map_or(Ok(None), hold)
        }

        #[inline]
        #[allow(private_interfaces)]
        fn hold_shared(bytes: Bytes) -> Result<Option<Held<[T]>>, NotASample> {
            hold(bytes)
        }

        #[inline(always)]
        #[allow(private_interfaces)]
        fn hold_few(few: &Few, len: usize) -> Result<Held<Self>, NotHeld> {
            Held::check_few(few, len)
        }
    }

    impl<T: Plain> Flat for [T] {
        type Element = T;

        #[inline]
        fn count(bytes: usize) -> usize {
            bytes / size_of::<T>()
        }

        #[inline]
        fn values(&self) -> &[T] {
            self
        }

        #[inline]
        fn of(values: &[T]) -> &[T] {
            values
        }

        #[inline]
        fn of_mut(values: &mut [T]) -> &mut [T] {
            values
        }
    }

    impl<T: Root + 'static> Payload for Structure<T> {
        const SIZE: Option<usize> = None;
        const ALIGN: usize = PAGE;
        const REFERENCE: usize = super::super::store::LONGEST_REFERENCE;

        fn content() -> u64 {
            // Not the build: a subscriber that was built in another way is told so when it reads
            // one.
            let hash = Hash::new().text("topic of structures");
            hash.word(layout_of::<T>()).finish()
        }

        #[allow(private_interfaces)]
        fn hold(
            _: Form,
            message: &[u8],
            member: &Arc<Member>,
        ) -> Result<Option<Held<Self>>, NotASample> {
            let Some(extents) = structure_of(message, member) else {
                return Ok(None);
            };
            root_in::<T>(&extents)?;
            Ok(Some(Held::arena(extents)))
        }

        #[allow(private_interfaces)]
        fn hold_shared(_: Bytes) -> Result<Option<Held<Self>>, NotASample> {
            // None of them is told of as bytes.
            Ok(None)
        }

        #[inline]
        #[allow(private_interfaces)]
        fn hold_few(_: &Few, _: usize) -> Result<Held<Self>, NotHeld> {
            // None of them is written as its own bytes.
            Err(NotHeld::Shape)
        }
    }

    #[inline]
    fn hold<T: Flat + ?Sized>(bytes: Bytes) -> Result<Option<Held<T>>, NotASample> {
        match Held::check(bytes) {
            Ok(held) => Ok(Some(held)),
            Err(NotHeld::Shape) => Ok(None),
            Err(NotHeld::Value) => Err(NotASample::Value),
        }
    }
}
