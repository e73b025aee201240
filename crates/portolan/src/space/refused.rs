//! A refusal gives back what the call was given.

use std::error::Error;
use std::fmt;

/// What a call did not take, and why. It is the caller's again.
///
/// Printed, it says what [`why`](Self::why) says; it is an error where that is one.
///
/// ```
/// use portolan::{Domain, Message, PortOptions, Refused, SendError, WhenFull};
/// let domain = Domain::private()?;
/// let port = domain.bind(PortOptions::unnamed())?;
/// let right = port.make_send();
/// drop(port);
/// let refused = right.send(Message::new(b"anybody?")?, WhenFull::Fail);
/// let Err(Refused { why: SendError::DeadName, item }) = refused else { panic!() };
/// assert_eq!(item.header(), b"anybody?");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Refused<T, E> {
    /// Why.
    pub why: E,
    /// What the call was given.
    pub item: Box<T>,
}

impl<T, E> Refused<T, E> {
    #[cold]
    pub(crate) fn new(item: T, why: impl Into<E>) -> Self {
        Self {
            why: why.into(),
            item: Box::new(item),
        }
    }
}

// Of any item: not all can be shown, and some are long.
impl<T, E: fmt::Debug> fmt::Debug for Refused<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Refused")
            .field("why", &self.why)
            .finish_non_exhaustive()
    }
}

impl<T, E: fmt::Display> fmt::Display for Refused<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.why, f)
    }
}

impl<T, E: Error> Error for Refused<T, E> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.why.source()
    }
}
