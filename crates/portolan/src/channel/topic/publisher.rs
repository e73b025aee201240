//! A publisher writes samples, each once for all subscribers.

use super::payload::Payload;
use super::payload::sealed::Flat;
use super::plain::{Draft, Memory, Plain, Room, copy, whole};
use super::sample::COPY_ALIGN;
use super::store::{Buffer, Form, Store, TAG};
use super::{PublishError, TopicOptions};
use crate::channel::{Channel, Writer};
use crate::space::record::{About, Begun};
use crate::structure::FIRST;
use crate::{Deadline, Domain, EventKind};
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

/// Publishes samples of `T`. See [`Domain::publisher`].
pub struct Publisher<T: ?Sized> {
    // Before the store: nothing is told of any more when it goes.
    pub(super) writer: Writer,
    pub(super) store: Store,
    form: Form,
    /// Where samples that are copied are filled.
    stage: Vec<u128>,
    /// Bytes of memory that a structure begins with.
    pub(super) usual: usize,
    channel: Channel,
    /// Keeps the rendezvous channel alive for publishers and subscribers to come.
    _rendezvous: Channel,
    id: u8,
    of: PhantomData<fn(&T)>,
}

impl<T: Payload + ?Sized> Publisher<T> {
    pub(super) fn new(
        domain: &Domain,
        options: &TopicOptions,
        (writer, channel): (Writer, Channel),
        rendezvous: Channel,
        id: u8,
    ) -> Self {
        Self {
            writer,
            store: Store::new(domain, options.history),
            form: super::form_of::<T>(&channel),
            stage: vec![0; channel.unit_payload().div_ceil(COPY_ALIGN)],
            usual: FIRST,
            channel,
            _rendezvous: rendezvous,
            id,
            of: PhantomData,
        }
    }
}

impl<T: Flat + ?Sized> Publisher<T> {
    /// Publishes a sample; its position. Never waits.
    ///
    /// # Errors
    ///
    /// [`PublishError`]; no subscriber was told.
    #[inline]
    pub fn publish(&mut self, sample: &T) -> Result<u64, PublishError> {
        let begun = self.begins();
        let position = self.publish_untraced(sample)?;
        self.has_published(begun, position, size_of_val(sample));
        Ok(position)
    }

    #[inline]
    fn publish_untraced(&mut self, sample: &T) -> Result<u64, PublishError> {
        let values = sample.values();
        let len = size_of_val(values);
        if !self.copies(len) {
            let mut buffer = self.buffer(len)?;
            copy(values, &mut buffer.bytes_mut()[..len]);
            return self.tell(buffer, len);
        }
        let bytes = match whole(values) {
            Some(bytes) => bytes,
            None => {
                let stage = &mut bytemuck::cast_slice_mut(&mut self.stage)[..len];
                copy(values, stage);
                stage
            }
        };
        let parts = self.form.parts(bytes);
        match parts {
            [[], bytes] => Ok(self.writer.write(bytes, Deadline::NOW)?),
            parts => Ok(self.writer.write_parts(&parts, Deadline::NOW)?),
        }
    }

    /// Publishes what was filled in place, or copies it.
    fn publish_room(&mut self, room: Room, len: usize) -> Result<u64, PublishError> {
        match room {
            Room::Buffer(buffer) => self.tell(buffer, len),
            room @ Room::Stage(_) => {
                let parts = self.form.parts(&room.bytes()[..len]);
                let written = self.writer.write_parts(&parts, Deadline::NOW);
                self.give_back(room);
                Ok(written?)
            }
        }
    }

    /// Room for a sample of so many bytes.
    fn room(&mut self, len: usize) -> Result<Loan<'_, T>, PublishError> {
        let room = if self.copies(len) {
            Room::Stage(std::mem::take(&mut self.stage))
        } else {
            Room::Buffer(self.buffer(len)?)
        };
        Ok(Loan {
            draft: Some(Draft::new(room, len)),
            publisher: self,
        })
    }

    /// Whether a sample of so many bytes goes through the ring.
    #[inline]
    fn copies(&self, len: usize) -> bool {
        match self.form {
            Form::Bare => true,
            Form::Tagged => {
                T::ALIGN <= COPY_ALIGN && len.saturating_add(TAG) <= self.channel.unit_payload()
            }
        }
    }

    fn buffer(&mut self, len: usize) -> Result<Buffer, PublishError> {
        Ok(self.store.buffer(&self.writer, len)?)
    }

    fn tell(&mut self, buffer: Buffer, len: usize) -> Result<u64, PublishError> {
        let reference = buffer.reference(len).pack();
        let position = self.writer.write(&reference, Deadline::NOW)?;
        self.store.keep(buffer, position);
        Ok(position)
    }

    /// Takes the room of a loan back.
    fn give_back(&mut self, room: Room) {
        match room {
            Room::Stage(stage) => self.stage = stage,
            Room::Buffer(buffer) => self.store.give_back(buffer),
        }
    }
}

impl<T: Plain> Publisher<T> {
    /// Room for a sample, to be filled in place.
    ///
    /// # Errors
    ///
    /// [`PublishError::NoMemory`].
    pub fn loan(&mut self) -> Result<Loan<'_, T>, PublishError> {
        self.room(size_of::<T>())
    }
}

impl<T: Plain> Publisher<[T]> {
    /// Room for a sample of `len` elements, to be filled in place.
    ///
    /// # Errors
    ///
    /// [`PublishError::NoMemory`].
    pub fn loan(&mut self, len: usize) -> Result<Loan<'_, [T]>, PublishError> {
        self.room(len.saturating_mul(size_of::<T>()))
    }
}

impl<T: ?Sized> Publisher<T> {
    /// Which of the topic's publishers it is.
    pub fn id(&self) -> u8 {
        self.id
    }

    /// How many buffers of memory it has: those of its last long samples, and what it keeps for
    /// later ones.
    ///
    /// ```
    /// use portolan::Domain;
    /// use portolan::channel::TopicOptions;
    ///
    /// let domain = Domain::private()?;
    /// let mut publisher = domain.publisher::<[u8]>("pictures", TopicOptions::default())?;
    /// publisher.publish(b"a small one")?;
    /// assert_eq!(publisher.buffers(), 0);
    /// publisher.publish(&[7; 10_000])?;
    /// assert_eq!(publisher.buffers(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn buffers(&self) -> usize {
        self.store.buffers()
    }

    /// The channel that it writes to.
    pub fn channel(&self) -> &Channel {
        &self.channel
    }
}

impl<T: ?Sized> Publisher<T> {
    /// When it begins to publish, if that is recorded.
    #[inline]
    pub(super) fn begins(&self) -> Option<Begun> {
        let member = &self.channel.segment().right().to.member;
        member.present().ok()?;
        member.begins(EventKind::Publish)
    }

    #[inline]
    pub(super) fn has_published(&self, begun: Option<Begun>, position: u64, bytes: usize) {
        if let Some(begun) = begun {
            let to = &self.channel.segment().right().to;
            let about = About::message(to.port.index, position, bytes as u64);
            to.member.record(begun, about);
        }
    }
}

impl<T: ?Sized> std::fmt::Debug for Publisher<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Publisher")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

/// Room for a sample; given up if it is dropped instead of published.
///
/// Until it is filled it holds an older sample, or any other value: zeros, and the first variant
/// of each enum, if not any bytes are a value of the type. A sample that is long is filled where
/// its readers read it; a short one is copied once, when it is published.
#[must_use = "a loan that is not published writes nothing"]
pub struct Loan<'p, T: Payload + ?Sized> {
    publisher: &'p mut Publisher<T>,
    /// Nothing, once it was published.
    draft: Option<Draft<T, Room>>,
}

impl<T: Flat + ?Sized> Loan<'_, T> {
    /// Publishes it; its position. Never waits.
    ///
    /// # Errors
    ///
    /// [`PublishError::Write`]; no subscriber was told.
    pub fn publish(mut self) -> Result<u64, PublishError> {
        let begun = self.publisher.begins();
        let (room, len) = self.draft.take().expect(THERE).finish();
        let position = self.publisher.publish_room(room, len)?;
        self.publisher.has_published(begun, position, len);
        Ok(position)
    }
}

/// It is taken only by what ends the loan.
const THERE: &str = "a loan has its room until it is published";

impl<T: Flat + ?Sized> Deref for Loan<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.draft.as_ref().expect(THERE).get()
    }
}

impl<T: Flat + ?Sized> DerefMut for Loan<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.draft.as_mut().expect(THERE).get_mut()
    }
}

impl<T: Payload + ?Sized> Drop for Loan<'_, T> {
    fn drop(&mut self) {
        match self.draft.take().map(Draft::give_up) {
            Some(Room::Stage(stage)) => self.publisher.stage = stage,
            Some(Room::Buffer(buffer)) => self.publisher.store.give_back(buffer),
            None => {}
        }
    }
}

impl<T: Payload + ?Sized> std::fmt::Debug for Loan<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Loan").finish_non_exhaustive()
    }
}
