//! A message that comes from another machine is received straight into extents of the domain.

use crate::{Domain, Message, MessageError, Urgency};
use portolan_abi::bridge::bytes_taken;
use portolan_abi::limits::MAX_EXTENTS;
use std::io::IoSliceMut;
use std::time::{Duration, Instant};

/// A message whose bytes are still to come. Its extents are this process's until it is sent, so a
/// process that dies meanwhile leaves nothing; dropped, they are freed.
///
/// ```
/// use portolan::proxy::Incoming;
/// use portolan::{Domain, Message};
/// use std::io::Read;
/// let domain = Domain::private()?;
/// let mut stream: &[u8] = &[7; 5000]; // a socket, say
/// let mut incoming = Incoming::new(&domain, b"frame 1", &[100, 4900], 1 << 20)?;
/// while !incoming.is_whole() {
///     let bytes = stream.read_vectored(&mut incoming.unfilled())?;
///     incoming.filled(bytes);
/// }
/// let message = incoming.into_message().map_err(|_| "not whole")?;
/// assert_eq!((message.header(), message.len()), (&b"frame 1"[..], 5000));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Incoming {
    message: Message,
    /// The extent that is filled next, and how much of it there is.
    at: usize,
    within: usize,
}

/// Slices in one call: more than the kernel takes in one are of no use.
const MOST_SLICES: usize = 64;

impl Incoming {
    /// Makes extents of these lengths for a message with this header, which may take `most` bytes of
    /// memory together. An extent counts as the pages that hold it.
    ///
    /// The lengths may be a peer's: they are checked before anything is allocated.
    ///
    /// # Errors
    ///
    /// [`MessageError`]; nothing is left behind.
    pub fn new(
        domain: &Domain,
        header: &[u8],
        lengths: &[u64],
        most: u64,
    ) -> Result<Self, MessageError> {
        if lengths.len() > MAX_EXTENTS {
            return Err(MessageError::Extents { limit: MAX_EXTENTS });
        }
        let bytes = bytes_taken(header.len(), lengths.iter().copied());
        if bytes > most {
            return Err(MessageError::TooLong { bytes, most });
        }
        let mut message = domain.message(header)?;
        for length in lengths {
            // What no address space holds was refused by `most`, or is refused here.
            let length = usize::try_from(*length).unwrap_or(usize::MAX);
            let extent = domain.allocate(length)?;
            message.push(extent).map_err(|refused| refused.why)?;
        }
        let mut incoming = Self {
            message,
            at: 0,
            within: 0,
        };
        incoming.filled(0);
        Ok(incoming)
    }

    /// Where the bytes that come next belong, in order; empty once it is whole.
    pub fn unfilled(&mut self) -> Vec<IoSliceMut<'_>> {
        let (at, within) = (self.at, self.within);
        let rest = self.message.extents_mut().iter_mut().skip(at);
        let skipped = std::iter::once(within).chain(std::iter::repeat(0));
        rest.zip(skipped)
            .take(MOST_SLICES)
            .filter_map(|(extent, skip)| extent.get_mut(skip..))
            .map(IoSliceMut::new)
            .collect()
    }

    /// So many bytes have come; not more than there is room for are counted.
    pub fn filled(&mut self, mut bytes: usize) {
        while let Some(extent) = self.message.extents().get(self.at) {
            let left = extent.len() - self.within;
            if bytes < left {
                self.within += bytes;
                return;
            }
            bytes -= left;
            (self.at, self.within) = (self.at + 1, 0);
        }
    }

    /// Whether all bytes have come.
    pub fn is_whole(&self) -> bool {
        self.at >= self.message.extents().len()
    }

    /// Says how much of its time is left: see [`time_left`](super::time_left).
    pub fn set_time_left(&mut self, left: Duration) {
        // What is too far away to express never comes.
        let at = Instant::now().checked_add(left).map(Urgency::Deadline);
        self.message.set_urgency(at);
    }

    /// The message, to be sent, after rights were [attached](Message::attach).
    ///
    /// # Errors
    ///
    /// It comes back if not all bytes have come.
    pub fn into_message(self) -> Result<Message, Box<Self>> {
        match self.is_whole() {
            true => Ok(self.message),
            false => Err(Box::new(self)),
        }
    }
}
