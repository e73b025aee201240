//! Names what a wait has found ready.

use super::place::Place;
use super::waitable::Waitable;
use smallvec::SmallVec;
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;

/// Names one thing of one [`WaitSet`](super::WaitSet), and of which type it is.
///
/// What a wait names is a `Token` of whatever it is; it is compared with those that
/// [`add`](super::WaitSet::add) has given, or [taken for](Self::of) one of some type.
///
/// ```
/// use portolan::{Deadline, Domain, PortOptions, ReceiveRight, WaitSet};
/// let domain = Domain::private()?;
/// let mut set = WaitSet::new(&domain)?;
/// let port = domain.bind(PortOptions::unnamed())?;
/// let right = port.make_send();
/// let token = set.add(port)?;
/// drop(right);
/// for ready in set.wait(Deadline::NOW)? {
///     assert!(ready == token);
///     assert!(set.get_mut(ready.of::<ReceiveRight>()).is_some());
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Token<T: ?Sized = dyn Waitable> {
    pub(super) index: u32,
    pub(super) generation: u32,
    of: PhantomData<fn(&T)>,
}

impl<T: ?Sized> Token<T> {
    #[inline]
    pub(super) fn new(index: u32, generation: u32) -> Self {
        Self {
            index,
            generation,
            of: PhantomData,
        }
    }

    /// The same, of whatever type it is: as a wait names it.
    #[inline]
    pub fn any(self) -> Token {
        Token::new(self.index, self.generation)
    }

    /// The same, taken for one of this type. If it is not, it names nothing.
    pub fn of<U>(self) -> Token<U> {
        Token::new(self.index, self.generation)
    }

    fn key(&self) -> (u32, u32) {
        (self.index, self.generation)
    }
}

// By hand, because what it is of need not be any of these.
impl<T: ?Sized> Clone for Token<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: ?Sized> Copy for Token<T> {}

impl<T: ?Sized, U: ?Sized> PartialEq<Token<U>> for Token<T> {
    fn eq(&self, other: &Token<U>) -> bool {
        self.key() == other.key()
    }
}

impl<T: ?Sized> Eq for Token<T> {}

impl<T: ?Sized> PartialOrd for Token<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T: ?Sized> Ord for Token<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

impl<T: ?Sized> Hash for Token<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key().hash(state);
    }
}

impl<T: ?Sized> fmt::Debug for Token<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token")
            .field("index", &self.index)
            .field("generation", &self.generation)
            .finish()
    }
}

/// The ports where something is, each once.
///
/// ```
/// # let domain = portolan::Domain::private()?;
/// # let mut set = portolan::WaitSet::new(&domain)?;
/// let ready = set.wait(portolan::Deadline::NOW)?;
/// assert_eq!(ready.len(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "the ports that it names wait to be served"]
pub struct Ready {
    /// The next one is the last.
    pub(super) tokens: SmallVec<[Token; 8]>,
}

impl Ready {
    pub(super) fn push(&mut self, index: u32, place: &Place) {
        self.tokens.push(Token::new(index, place.generation));
    }

    /// How many ports are ready.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }
}

impl Iterator for Ready {
    type Item = Token;

    fn next(&mut self) -> Option<Token> {
        self.tokens.pop()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.tokens.len(), Some(self.tokens.len()))
    }
}
