//! Chooses the mark at which a worker dies or stops next.

use super::random::Random;
use crate::marks::{MARKS, Passer, passer};

/// Attempts that weigh as much as one hit, so that a mark nobody reaches does not keep
/// the others waiting.
const ATTEMPTS_PER_HIT: u64 = 6;

/// How often somebody died or stopped, or should have, at each mark.
pub(crate) struct Marked {
    pub(crate) hits: Vec<u64>,
    attempts: Vec<u64>,
    allowed: Vec<usize>,
}

impl Marked {
    /// All marks, or only `only`.
    pub(crate) fn new(only: &[String]) -> Self {
        let all = 0..MARKS.len();
        let allowed = all
            .filter(|m| only.is_empty() || only.iter().any(|o| o == MARKS[*m]))
            .collect();
        Self {
            hits: vec![0; MARKS.len()],
            attempts: vec![0; MARKS.len()],
            allowed,
        }
    }

    /// Whether a mark was hit less often than most.
    pub(crate) fn is_behind(&self, mark: usize) -> bool {
        let total: u64 = self.hits.iter().sum();
        self.hits[mark] * (self.hits.len() as u64) < total
    }

    fn score(&self, mark: usize) -> u64 {
        ATTEMPTS_PER_HIT * self.hits[mark] + self.attempts[mark]
    }

    /// A mark, and all others with the same passer that were hit no more often: at whichever of
    /// them somebody comes to first, something happens. So a step that is taken seldom is met when
    /// it is taken: nobody waits for it, nor dies before it at what many have died at.
    pub(crate) fn beside(&self, mark: usize) -> Vec<usize> {
        let (same, most) = (passer(MARKS[mark]), self.hits[mark]);
        let alike = |other: &usize| passer(MARKS[*other]) == same && self.hits[*other] <= most;
        self.allowed.iter().copied().filter(alike).collect()
    }

    /// The mark that was hit least, by somebody of those `wanted`.
    pub(crate) fn next(
        &mut self,
        random: &mut Random,
        wanted: impl Fn(Passer) -> bool,
    ) -> Option<usize> {
        let candidates = self
            .allowed
            .iter()
            .copied()
            .filter(|m| wanted(passer(MARKS[*m])));
        let mark = candidates
            .map(|m| (self.score(m), random.next(), m))
            .min()?
            .2;
        self.attempts[mark] += 1;
        Some(mark)
    }
}
