//! What a wait names.

use super::guest::Place;
use smallvec::SmallVec;

/// Names one port of one [`WaitSet`](super::WaitSet).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token {
    pub(super) index: u32,
    pub(super) generation: u32,
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
        let generation = place.generation;
        self.tokens.push(Token { index, generation });
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
