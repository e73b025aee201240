//! A task reads and writes channels under tokio.
//!
//! As elsewhere, an async call looks as a blocking one does, sets the same sleep marks, and
//! arms a bell instead of sleeping. What is cancelled loses nothing.

use super::{
    Delivery, ParcelReader, ReadError, Reader, Received, StreamReader, StreamWriter, WriteError,
    Writer,
};
use crate::wait::Bell;
use crate::{Deadline, NoDescriptor};
use ::tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use ::tokio::task::coop::consume_budget;
use std::io;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};

impl Reader {
    /// As [`Reader::receive`], without blocking the thread. A future that is dropped loses
    /// no message.
    ///
    /// # Errors
    ///
    /// [`ReadError`], but not [`ReadError::TimedOut`]: for a deadline, put the future into
    /// `tokio::time::timeout`.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime, and in one without its I/O driver.
    ///
    /// ```
    /// use portolan::channel::{ChannelOptions, ReaderOptions};
    /// use portolan::Domain;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let domain = Domain::private()?;
    /// let channel = domain.make_channel(&ChannelOptions::unnamed().reliable())?;
    /// let mut reader = channel.bind_reader(ReaderOptions::default())?;
    /// let mut writer = channel.bind_writer()?;
    /// tokio::spawn(async move { writer.write_async(b"hello").await });
    /// assert_eq!(*reader.receive_async().await?, *b"hello");
    /// # Ok(())
    /// # }
    /// ```
    pub async fn receive_async(&mut self) -> Result<Received<'_>, ReadError> {
        let mut bell = None;
        loop {
            consume_budget().await;
            match self.next(true, Deadline::NOW) {
                Ok(()) => return Ok(self.lend_whole()),
                Err(ReadError::TimedOut) => {}
                Err(other) => return Err(other),
            }
            if self.ring_later(&mut bell).map_err(NoDescriptor::from)?
                && let Some(bell) = &mut bell
            {
                bell.fired().await.map_err(NoDescriptor::from)?;
            }
        }
    }

    /// Arms the bell, unless something is there.
    fn ring_later(&mut self, bell: &mut Option<Bell>) -> io::Result<bool> {
        let Some(value) = self.arm() else {
            return Ok(false);
        };
        if self.may_have() {
            return Ok(false);
        }
        Bell::of(bell)?.arm(self.doorbell(), value)?;
        Ok(true)
    }
}

impl ParcelReader {
    /// As [`ParcelReader::receive`], without blocking the thread. A future that is dropped
    /// loses nothing.
    ///
    /// # Errors
    ///
    /// [`ReadError`], but not [`ReadError::TimedOut`]: for a deadline, put the future into
    /// `tokio::time::timeout`.
    ///
    /// # Panics
    ///
    /// As [`Reader::receive_async`].
    ///
    /// ```
    /// use portolan::channel::{ChannelOptions, Parcel, ReaderOptions};
    /// use portolan::{Deadline, Domain};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let domain = Domain::private()?;
    /// let channel = domain.make_channel(&ChannelOptions::unnamed().reliable())?;
    /// let mut writer = channel.bind_parcel_writer()?;
    /// let mut reader = channel.bind_parcel_reader(ReaderOptions::default(), Deadline::NOW)?;
    /// let picture = Parcel::Moved(domain.allocate(8 << 20)?);
    /// std::thread::spawn(move || writer.send(b"a picture", Some(picture), Deadline::NEVER));
    /// let delivery = reader.receive_async().await?;
    /// assert!(matches!(delivery.parcel, Some(Parcel::Moved(picture)) if picture.len() == 8 << 20));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn receive_async(&mut self) -> Result<Delivery, ReadError> {
        let mut bell = None;
        loop {
            consume_budget().await;
            match self.receive(Deadline::NOW) {
                Err(ReadError::TimedOut) => {}
                other => return other,
            }
            // Before sleep is announced: a wake after that changes it.
            let value = self.reader().doorbell().load(Ordering::SeqCst);
            if self.idles() {
                let bell = Bell::of(&mut bell).map_err(NoDescriptor::from)?;
                let doorbell = self.reader().doorbell();
                bell.arm(doorbell, value).map_err(NoDescriptor::from)?;
                bell.fired().await.map_err(NoDescriptor::from)?;
            }
        }
    }
}

impl Writer {
    /// As [`Writer::write`], waiting for room without blocking the thread. A future that is
    /// dropped before it is done has written nothing.
    ///
    /// # Errors
    ///
    /// [`WriteError`].
    ///
    /// # Panics
    ///
    /// As [`Reader::receive_async`].
    pub async fn write_async(&mut self, message: &[u8]) -> Result<u64, WriteError> {
        let mut bell = None;
        loop {
            consume_budget().await;
            match self.write(message, Deadline::NOW) {
                Err(WriteError::Full { wanted, .. }) => {
                    if self.ring_later(wanted, &mut bell)?
                        && let Some(bell) = &mut bell
                    {
                        bell.fired().await.map_err(NoDescriptor::from)?;
                    }
                }
                Err(WriteError::Contended) => ::tokio::task::yield_now().await,
                other => return other,
            }
        }
    }

    /// Arms the bell, unless there is room.
    fn ring_later(&mut self, units: u64, bell: &mut Option<Bell>) -> Result<bool, NoDescriptor> {
        let Some(value) = self.announce(units) else {
            return Ok(false);
        };
        Bell::of(bell)?.arm(self.room(), value)?;
        Ok(true)
    }
}

impl AsyncRead for StreamReader {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        loop {
            match this.read_by(out.initialize_unfilled(), Deadline::NOW) {
                Ok(bytes) => {
                    out.advance(bytes);
                    return Poll::Ready(Ok(()));
                }
                Err(ReadError::TimedOut) => {}
                Err(error) => return Poll::Ready(Err(error.into())),
            }
            let mut bell = this.bell.take();
            let armed = this.reader().ring_later(&mut bell);
            this.bell = bell;
            if armed? && let Some(bell) = &mut this.bell {
                ready!(bell.poll_fired(context))?;
            }
        }
    }
}

impl StreamWriter {
    /// Does `act` as soon as there is room for it.
    fn poll_act<T>(
        &mut self,
        context: &mut Context<'_>,
        mut act: impl FnMut(&mut Self) -> io::Result<Result<T, WriteError>>,
    ) -> Poll<io::Result<T>> {
        loop {
            let wanted = match act(self)? {
                Ok(done) => return Poll::Ready(Ok(done)),
                Err(WriteError::Full { wanted, .. }) => wanted,
                Err(error) => return Poll::Ready(Err(error.into())),
            };
            let mut bell = self.bell.take();
            let armed = self.writer()?.ring_later(wanted, &mut bell);
            self.bell = bell;
            if armed.map_err(io::Error::other)?
                && let Some(bell) = &mut self.bell
            {
                ready!(bell.poll_fired(context))?;
            }
        }
    }
}

/// ```
/// use portolan::channel::{ChannelOptions, ReaderOptions};
/// use portolan::Domain;
/// use std::time::Duration;
/// use tokio::io::{AsyncReadExt, AsyncWriteExt};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let domain = Domain::private()?;
/// let channel = domain.make_channel(&ChannelOptions::unnamed().reliable().units(4))?;
/// let patience = Duration::from_secs(10);
/// let mut reader = channel.bind_reader(ReaderOptions::default())?.into_stream(patience);
/// let mut writer = channel.bind_writer()?.into_stream(patience);
/// tokio::spawn(async move {
///     writer.write_all(&[7; 10_000]).await?;
///     writer.shutdown().await
/// });
/// let mut all = vec![];
/// reader.read_to_end(&mut all).await?;
/// assert_eq!(all, [7; 10_000]);
/// # Ok(())
/// # }
/// ```
impl AsyncWrite for StreamWriter {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_act(context, |this| {
            Ok(this.writer()?.append_some(bytes, Deadline::NOW))
        })
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_act(context, |this| this.append_parts(parts, Deadline::NOW))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.writer()?.show();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_act(context, |this| Ok(this.end(Deadline::NOW)))
    }
}
