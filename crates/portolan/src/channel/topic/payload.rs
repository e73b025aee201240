//! What a topic's samples are made of.

use crate::rpc::Schema;
use bytemuck::Pod;

/// What a topic's samples are made of: a type, or a slice of one, whose length each sample
/// has of its own.
///
/// Any bytes are a value of the type ([`Pod`]), and it says what they mean ([`Schema`]), so
/// that two programs notice when they mean different things. Of numbers, arrays of numbers,
/// and types of one's own with both derives:
///
/// ```
/// use portolan::channel::TopicOptions;
/// use portolan::rpc::Schema;
/// use portolan::{Deadline, Domain};
///
/// #[derive(Clone, Copy, Schema)]
/// #[repr(C)]
/// struct Point {
///     x: f32,
///     y: f32,
/// }
/// // By `#[derive(Pod, Zeroable)]` with bytemuck's feature `derive`.
/// # unsafe impl bytemuck::Zeroable for Point {}
/// # unsafe impl bytemuck::Pod for Point {}
///
/// let domain = Domain::private()?;
/// let mut publisher = domain.publisher::<[Point]>("outline", TopicOptions::default())?;
/// let mut subscriber = domain.subscriber::<[Point]>("outline", TopicOptions::default())?;
/// publisher.publish(&[Point { x: 0.0, y: 1.0 }, Point { x: 2.0, y: 3.0 }])?;
/// let sample = subscriber.receive(Deadline::NEVER)?;
/// assert_eq!((sample.len(), sample[1].x), (2, 2.0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Payload: Schema + sealed::Payload + 'static {}

impl<T: Pod + Schema> Payload for T {}
impl<T: Pod + Schema> Payload for [T] {}

pub(super) mod sealed {
    use super::Pod;

    /// A value as bytes, and bytes as a value.
    pub trait Payload {
        /// Bytes of every value; none if each has a length of its own.
        const SIZE: Option<usize>;
        /// Where a value may lie.
        const ALIGN: usize;

        fn bytes(&self) -> &[u8];

        /// `None` if they have another length than any value, or lie where none may.
        fn of(bytes: &[u8]) -> Option<&Self>;

        /// As [`Self::of`].
        fn of_mut(bytes: &mut [u8]) -> Option<&mut Self>;
    }

    impl<T: Pod> Payload for T {
        const SIZE: Option<usize> = Some(size_of::<T>());
        const ALIGN: usize = align_of::<T>();

        #[inline]
        fn bytes(&self) -> &[u8] {
            bytemuck::bytes_of(self)
        }

        #[inline]
        fn of(bytes: &[u8]) -> Option<&Self> {
            bytemuck::try_from_bytes(bytes).ok()
        }

        #[inline]
        fn of_mut(bytes: &mut [u8]) -> Option<&mut Self> {
            bytemuck::try_from_bytes_mut(bytes).ok()
        }
    }

    impl<T: Pod> Payload for [T] {
        const SIZE: Option<usize> = {
            assert!(size_of::<T>() > 0, "a slice of nothing has no length");
            None
        };
        const ALIGN: usize = align_of::<T>();

        #[inline]
        fn bytes(&self) -> &[u8] {
            bytemuck::cast_slice(self)
        }

        #[inline]
        fn of(bytes: &[u8]) -> Option<&Self> {
            if bytes.is_empty() {
                return Some(&[]);
            }
            bytemuck::try_cast_slice(bytes).ok()
        }

        #[inline]
        fn of_mut(bytes: &mut [u8]) -> Option<&mut Self> {
            if bytes.is_empty() {
                return Some(&mut []);
            }
            bytemuck::try_cast_slice_mut(bytes).ok()
        }
    }
}
