//! Presents a channel as a stream of bytes: [`Read`], [`Write`], and under tokio `AsyncRead` and
//! `AsyncWrite`.

use super::{ReadError, Reader, WriteError, Writer};
use crate::Deadline;
use std::io::{self, IoSlice, Read, Write};
use std::time::Duration;

/// One message, of any length, that is written as a stream of bytes.
///
/// Readers see whole units as they fill, and the rest at a flush. Its end is the end of the
/// stream: [`finish`](Self::finish), a shutdown, or its drop.
///
/// ```
/// use portolan::channel::{ChannelOptions, ReaderOptions};
/// use portolan::Domain;
/// use std::io::{Read, Write};
/// use std::time::Duration;
///
/// let domain = Domain::private()?;
/// let channel = domain.make_channel(&ChannelOptions::unnamed().reliable().units(8))?;
/// let patience = Duration::from_secs(10);
/// let mut reader = channel.bind_reader(ReaderOptions::default())?.into_stream(patience);
/// let mut writer = channel.bind_writer()?.into_stream(patience);
/// std::thread::scope(|scope| {
///     scope.spawn(move || {
///         for line in 0..1000 {
///             writeln!(writer, "line {line}").unwrap();
///         }
///     });
///     let mut all = String::new();
///     reader.read_to_string(&mut all).unwrap();
///     assert_eq!(all.lines().last(), Some("line 999"));
/// });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct StreamWriter {
    writer: Option<Writer>,
    ended: bool,
    patience: Duration,
    #[cfg(feature = "tokio")]
    pub(super) bell: Option<crate::wait::Bell>,
}

/// One message that is read as a stream of bytes, to its end. See [`StreamWriter`].
///
/// What was missed, and a writer that went away without ending it, are errors: the
/// [`ReadError`] is inside.
#[derive(Debug)]
pub struct StreamReader {
    reader: Reader,
    patience: Duration,
    ended: bool,
    #[cfg(feature = "tokio")]
    pub(super) bell: Option<crate::wait::Bell>,
}

impl Writer {
    /// Writes the next message as a stream. A call that waits for readers waits for
    /// `patience` at most.
    pub fn into_stream(self, patience: Duration) -> StreamWriter {
        StreamWriter {
            writer: Some(self),
            ended: false,
            patience,
            #[cfg(feature = "tokio")]
            bell: None,
        }
    }
}

impl Reader {
    /// Reads the next message as a stream. A call that waits for the writer waits for
    /// `patience` at most.
    pub fn into_stream(self, patience: Duration) -> StreamReader {
        StreamReader {
            reader: self,
            patience,
            ended: false,
            #[cfg(feature = "tokio")]
            bell: None,
        }
    }
}

impl StreamWriter {
    /// Ends the stream; the writer again, for another one.
    ///
    /// # Errors
    ///
    /// [`WriteError`], if there was no room for its end; it has none then.
    pub fn finish(mut self) -> Result<Writer, WriteError> {
        self.end(Deadline::after(self.patience))?;
        Ok(self.writer.take().expect("a stream in use has its writer"))
    }

    pub(super) fn writer(&mut self) -> io::Result<&mut Writer> {
        let writer = self.writer.as_mut().filter(|_| !self.ended);
        writer.ok_or(io::ErrorKind::BrokenPipe.into())
    }

    /// Appends as much of the parts as there is room for; waits only for the first of it.
    pub(super) fn append_parts(
        &mut self,
        parts: &[IoSlice<'_>],
        deadline: Deadline,
    ) -> io::Result<Result<usize, WriteError>> {
        let writer = self.writer()?;
        let mut done = 0;
        for part in parts.iter().filter(|part| !part.is_empty()) {
            let deadline = if done == 0 { deadline } else { Deadline::NOW };
            match writer.append_some(part, deadline) {
                Ok(now) if now < part.len() => return Ok(Ok(done + now)),
                Ok(now) => done += now,
                Err(_) if done > 0 => return Ok(Ok(done)),
                Err(error) => return Ok(Err(error)),
            }
        }
        Ok(Ok(done))
    }

    /// Ends it, if there is room, and it has not ended.
    pub(super) fn end(&mut self, deadline: Deadline) -> Result<(), WriteError> {
        if let Some(writer) = self.writer.as_mut().filter(|_| !self.ended) {
            writer.end(deadline)?;
            self.ended = true;
        }
        Ok(())
    }
}

impl Drop for StreamWriter {
    fn drop(&mut self) {
        // Without room it has no end, and its readers hear that the writer has gone.
        let _ = self.end(Deadline::after(self.patience));
    }
}

impl Write for StreamWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let patience = self.patience;
        Ok(self.writer()?.append_some(bytes, patience)?)
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let deadline = Deadline::after(self.patience);
        Ok(self.append_parts(parts, deadline)??)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer()?.show();
        Ok(())
    }
}

impl StreamReader {
    /// The reader again. If the stream was not read to its end, the rest of it comes first.
    pub fn into_reader(self) -> Reader {
        self.reader
    }

    #[cfg(feature = "tokio")]
    pub(super) fn reader(&mut self) -> &mut Reader {
        &mut self.reader
    }

    pub(super) fn read_by(
        &mut self,
        out: &mut [u8],
        deadline: Deadline,
    ) -> Result<usize, ReadError> {
        if self.ended || out.is_empty() {
            return Ok(0);
        }
        let (bytes, ended) = self.reader.read_into(out, deadline)?;
        self.ended = ended;
        Ok(bytes)
    }
}

impl Read for StreamReader {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        Ok(self.read_by(out, Deadline::after(self.patience))?)
    }
}

impl From<WriteError> for io::Error {
    fn from(error: WriteError) -> Self {
        let kind = match error {
            WriteError::Full { .. } | WriteError::Contended => io::ErrorKind::TimedOut,
            WriteError::Disowned(_) => io::ErrorKind::NotConnected,
            _ => io::ErrorKind::InvalidInput,
        };
        Self::new(kind, error)
    }
}

impl From<ReadError> for io::Error {
    fn from(error: ReadError) -> Self {
        let kind = match error {
            ReadError::TimedOut => io::ErrorKind::TimedOut,
            ReadError::WriterGone => io::ErrorKind::UnexpectedEof,
            ReadError::Dropped => io::ErrorKind::ConnectionAborted,
            ReadError::Disowned(_) => io::ErrorKind::NotConnected,
            ReadError::NoDescriptor(_) => io::ErrorKind::Other,
            _ => io::ErrorKind::InvalidData,
        };
        Self::new(kind, error)
    }
}
