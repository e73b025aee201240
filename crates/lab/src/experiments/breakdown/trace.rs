//! Holds the points that one process passed in a round, and says how a message gets to the other
//! process.

use portolan::probes::{Collected, Point};

pub(super) const POINTS: usize = Point::ALL.len();

/// What one process passed in one round.
#[derive(Clone, Debug)]
pub(super) struct Trace {
    pub(super) begun: u64,
    ticks: [u64; POINTS],
    at: [u64; POINTS],
    passes: [u64; POINTS],
}

impl Trace {
    /// As words: when it began, then three for each point.
    pub(super) const WORDS: usize = 1 + 3 * POINTS;

    pub(super) fn of(collected: &Collected) -> Self {
        Self {
            begun: collected.begun,
            ticks: std::array::from_fn(|i| collected.ticks(Point::ALL[i])),
            at: std::array::from_fn(|i| collected.at(Point::ALL[i])),
            passes: std::array::from_fn(|i| collected.passes(Point::ALL[i]).into()),
        }
    }

    pub(super) fn words(&self) -> impl Iterator<Item = u64> {
        let points = (0..POINTS).flat_map(|i| [self.ticks[i], self.at[i], self.passes[i]]);
        std::iter::once(self.begun).chain(points)
    }

    pub(super) fn from_words(word: impl Fn(usize) -> u64) -> Self {
        Self {
            begun: word(0),
            ticks: std::array::from_fn(|i| word(1 + 3 * i)),
            at: std::array::from_fn(|i| word(2 + 3 * i)),
            passes: std::array::from_fn(|i| word(3 + 3 * i)),
        }
    }

    pub(super) fn at(&self, point: Point) -> u64 {
        self.at[point as usize]
    }

    pub(super) fn passes(&self, point: Point) -> u64 {
        self.passes[point as usize]
    }

    /// Ticks of the segments that end at a point, and how often it was passed.
    pub(super) fn segment(&self, point: Point) -> (i64, u64) {
        (self.ticks[point as usize].cast_signed(), self.passes(point))
    }
}

/// How a message gets from one process to the other: what one passes last before it, and
/// the other first after it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Passage {
    pub(super) notice: Point,
    pub(super) noticed: Point,
}

impl Passage {
    /// To one that sleeps: the system calls that wake and sleep are part of it.
    pub(super) const WAKE: Self = Self {
        notice: Point::WakeFound,
        noticed: Point::SleepWoken,
    };
    /// To one that polls: a line of cache.
    pub(super) const LINE: Self = Self {
        notice: Point::SendPublished,
        noticed: Point::ReceiveSeen,
    };

    /// Whether the segment lies on a message's way, and not beside it.
    pub(super) fn is_on_way(self, point: Point) -> bool {
        point <= self.notice || (point > self.noticed && point <= Point::AccessDone)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A trace that passes these points at these times.
    pub(in super::super) fn trace(begun: u64, points: &[(Point, u64)]) -> Trace {
        let mut words = vec![0; Trace::WORDS];
        words[0] = begun;
        let mut last = begun;
        for (point, at) in points {
            let first = 1 + 3 * *point as usize;
            words[first] += at - last;
            words[first + 1] = *at;
            words[first + 2] += 1;
            last = *at;
        }
        Trace::from_words(|at| words[at])
    }

    #[test]
    fn traces_survive_as_words() {
        let before = trace(5, &[(Point::SendCalled, 7), (Point::AccessDone, 19)]);
        let words: Vec<u64> = before.words().collect();
        assert_eq!(words.len(), Trace::WORDS);
        let after = Trace::from_words(|at| words[at]);
        assert_eq!(after.begun, 5);
        assert_eq!(after.at(Point::AccessDone), 19);
        assert_eq!(after.ticks[Point::AccessDone as usize], 12);
        assert_eq!(after.passes(Point::SendCalled), 1);
    }
}
