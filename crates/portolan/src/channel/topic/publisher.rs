//! Publishing.

use super::payload::Payload;
use super::sample::COPY_ALIGN;
use super::store::{Block, Form, Store, TAG};
use super::{PublishError, TopicOptions};
use crate::channel::{Channel, Writer};
use crate::trace::{About, Begun};
use crate::{Deadline, Domain, EventKind};
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

/// Publishes samples of `T`. See [`Domain::publisher`].
pub struct Publisher<T: ?Sized> {
    // Before the store: nothing is told of any more when it goes.
    writer: Writer,
    store: Store,
    form: Form,
    /// Where samples that are copied are filled.
    stage: Vec<u128>,
    channel: Channel,
    /// Keeps it, for whoever comes.
    _lobby: Channel,
    id: u8,
    of: PhantomData<fn(&T)>,
}

impl<T: Payload + ?Sized> Publisher<T> {
    pub(super) fn new(
        domain: &Domain,
        options: &TopicOptions,
        (writer, channel): (Writer, Channel),
        lobby: Channel,
        id: u8,
    ) -> Self {
        Self {
            writer,
            store: Store::new(domain, options.history),
            form: super::form_of::<T>(&channel),
            stage: vec![0; channel.unit_payload().div_ceil(COPY_ALIGN)],
            channel,
            _lobby: lobby,
            id,
            of: PhantomData,
        }
    }

    /// Publishes a sample; its position. Never waits for anybody.
    ///
    /// # Errors
    ///
    /// [`PublishError`]; nobody was told.
    #[inline]
    pub fn publish(&mut self, sample: &T) -> Result<u64, PublishError> {
        let begun = self.begins();
        let position = self.publish_sample(sample)?;
        self.has_published(begun, position, size_of_val(sample));
        Ok(position)
    }

    /// When it begins to publish, if that is recorded.
    #[inline]
    fn begins(&self) -> Option<Begun> {
        let member = &self.channel.segment().right().to.member;
        member.present().ok()?;
        member.begins(EventKind::Publish)
    }

    #[inline]
    fn has_published(&self, begun: Option<Begun>, position: u64, bytes: usize) {
        if let Some(begun) = begun {
            let to = &self.channel.segment().right().to;
            let about = About::message(to.port.index, position, bytes as u64);
            to.member.record(begun, about);
        }
    }

    #[inline]
    fn publish_sample(&mut self, sample: &T) -> Result<u64, PublishError> {
        let bytes = sample.bytes();
        if self.copies(bytes.len()) {
            let parts = self.form.parts(bytes);
            return Ok(self.writer.write_parts(&parts, Deadline::NOW)?);
        }
        let mut block = self.block(bytes.len())?;
        block.bytes_mut()[..bytes.len()].copy_from_slice(bytes);
        self.tell(block, bytes.len())
    }

    /// Room for a sample of so many bytes.
    fn room(&mut self, len: usize) -> Result<Loan<'_, T>, PublishError> {
        let block = if self.copies(len) {
            None
        } else {
            Some(self.block(len)?)
        };
        let publisher = self;
        Ok(Loan {
            publisher,
            block,
            len,
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

    fn block(&mut self, len: usize) -> Result<Block, PublishError> {
        Ok(self.store.block(self.writer.position(), len)?)
    }

    fn tell(&mut self, block: Block, len: usize) -> Result<u64, PublishError> {
        // Kept first, so that whoever reads the note finds the block.
        let note = self.store.keep(block, self.writer.position(), len);
        Ok(self.writer.write(&note.pack(), Deadline::NOW)?)
    }
}

impl<T: Payload> Publisher<T> {
    /// Room for a sample, to be filled in place.
    ///
    /// # Errors
    ///
    /// [`PublishError::NoMemory`].
    pub fn loan(&mut self) -> Result<Loan<'_, T>, PublishError> {
        self.room(size_of::<T>())
    }
}

impl<T> Publisher<[T]>
where
    [T]: Payload,
{
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

    /// How many blocks of memory it has: those of its last long samples, and what it keeps for
    /// later ones.
    ///
    /// ```
    /// use portolan::Domain;
    /// use portolan::channel::TopicOptions;
    ///
    /// let domain = Domain::private()?;
    /// let mut publisher = domain.publisher::<[u8]>("pictures", TopicOptions::default())?;
    /// publisher.publish(b"a small one")?;
    /// assert_eq!(publisher.blocks(), 0);
    /// publisher.publish(&[7; 10_000])?;
    /// assert_eq!(publisher.blocks(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn blocks(&self) -> usize {
        self.store.blocks()
    }

    /// The channel that it writes to.
    pub fn channel(&self) -> &Channel {
        &self.channel
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
/// It holds an older sample, or any other bytes, until it is filled. A sample that is long
/// is filled where its readers read it; a short one is copied once, when it is published.
#[must_use = "a loan that is not published writes nothing"]
pub struct Loan<'p, T: Payload + ?Sized> {
    publisher: &'p mut Publisher<T>,
    /// None: it lies on the publisher's stage.
    block: Option<Block>,
    len: usize,
}

impl<T: Payload + ?Sized> Loan<'_, T> {
    /// Publishes it; its position. Never waits for anybody.
    ///
    /// # Errors
    ///
    /// [`PublishError::Write`]; nobody was told.
    pub fn publish(mut self) -> Result<u64, PublishError> {
        let begun = self.publisher.begins();
        let position = self.publish_untraced()?;
        self.publisher.has_published(begun, position, self.len);
        Ok(position)
    }

    fn publish_untraced(&mut self) -> Result<u64, PublishError> {
        let len = self.len;
        match self.block.take() {
            Some(block) => self.publisher.tell(block, len),
            None => {
                let Publisher {
                    writer,
                    form,
                    stage,
                    ..
                } = &mut *self.publisher;
                let parts = form.parts(&bytemuck::cast_slice(stage)[..len]);
                Ok(writer.write_parts(&parts, Deadline::NOW)?)
            }
        }
    }
}

impl<T: Payload + ?Sized> Deref for Loan<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        let bytes = match &self.block {
            Some(block) => block.bytes(),
            None => bytemuck::cast_slice(&self.publisher.stage),
        };
        T::of(&bytes[..self.len]).expect(FITS)
    }
}

impl<T: Payload + ?Sized> DerefMut for Loan<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        let bytes = match &mut self.block {
            Some(block) => block.bytes_mut(),
            None => bytemuck::cast_slice_mut(&mut self.publisher.stage),
        };
        T::of_mut(&mut bytes[..self.len]).expect(FITS)
    }
}

/// Length and alignment of a loan are chosen by its type.
const FITS: &str = "a loan is as long, and as aligned, as its type";

impl<T: Payload + ?Sized> Drop for Loan<'_, T> {
    fn drop(&mut self) {
        if let Some(block) = self.block.take() {
            self.publisher.store.give_back(block);
        }
    }
}

impl<T: Payload + ?Sized> std::fmt::Debug for Loan<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Loan").field("bytes", &self.len).finish()
    }
}
