//! Brings the clocks of nodes to one: that of the node beside this command, the *origin*.
//!
//! Each node has measured how far the clocks of its peers are ahead, and by how much that is wrong at the
//! most. What the origin has measured itself is believed first. A node that it has not measured is placed
//! over others, over those links that are together wrong by the least; their errors add up.
//!
//! Clocks drift: they are measured again and again while a trace runs, and an event lies between two
//! measures.

use std::collections::BTreeMap;

/// Two clocks drift apart by one part in so many at the most, as nodes have it.
const DRIFT: u64 = 5_000;
/// Nodes whose clocks are compared, at most.
const MOST_NODES: usize = 512;
/// Times at which a clock was placed, at most: an hour of seconds.
const MOST_PLACES: usize = 3600;

/// How far a clock is ahead of the origin's, and by how much that is wrong at the most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Offset {
    pub(super) ahead: i64,
    pub(super) error: u64,
}

#[derive(Clone, Copy, Debug)]
struct Measure {
    offset: Offset,
    /// When it was told, by the origin's clock.
    at: u64,
}

/// What nodes have measured, by who has and of whom.
#[derive(Debug, Default)]
pub(super) struct Clocks {
    origin: String,
    measures: BTreeMap<String, BTreeMap<String, Measure>>,
}

impl Clocks {
    pub(super) fn new(origin: &str) -> Self {
        Self {
            origin: origin.to_owned(),
            measures: BTreeMap::new(),
        }
    }

    /// A node has said how far another one's clock is ahead of its own.
    pub(super) fn measured(&mut self, by: &str, of: &str, offset: Offset, at: u64) {
        if by == of || (self.measures.len() >= MOST_NODES && !self.measures.contains_key(by)) {
            return;
        }
        let its = self.measures.entry(by.to_owned()).or_default();
        if its.len() < MOST_NODES || its.contains_key(of) {
            its.insert(of.to_owned(), Measure { offset, at });
        }
    }

    /// Where each clock stands now, and over which nodes that is known, the nearest to it last.
    pub(super) fn placed(&self, now: u64) -> BTreeMap<String, (Offset, Vec<String>)> {
        let mut placed = BTreeMap::new();
        let start = Offset { ahead: 0, error: 0 };
        placed.insert(self.origin.clone(), (start, Vec::new()));
        let links = self.links(now);
        // The origin's own measures first.
        for (one, other, offset) in self.measures_of(&self.origin, now) {
            if one == self.origin {
                placed.insert(other.to_owned(), (offset, Vec::new()));
            }
        }
        // Then, of all that are linked with one that is placed, the one that is wrong by the least.
        let direct: Vec<String> = placed.keys().cloned().collect();
        let mut open: Vec<String> = direct;
        let mut best: BTreeMap<String, (Offset, Vec<String>)> = BTreeMap::new();
        loop {
            for from in std::mem::take(&mut open) {
                let Some((at, via)) = placed.get(&from).cloned() else {
                    continue;
                };
                for (other, link) in links.get(from.as_str()).into_iter().flatten() {
                    let offset = Offset {
                        ahead: at.ahead.saturating_add(link.ahead),
                        error: at.error.saturating_add(link.error),
                    };
                    let is_better = best
                        .get(*other)
                        .is_none_or(|(known, _)| offset.error < known.error);
                    if !placed.contains_key(*other) && is_better {
                        let mut via = via.clone();
                        via.extend((from != self.origin).then(|| from.clone()));
                        best.insert((*other).to_owned(), (offset, via));
                    }
                }
            }
            let next = best.iter().min_by_key(|(_, (offset, _))| offset.error);
            let Some(name) = next.map(|(name, _)| name.clone()) else {
                return placed;
            };
            if let Some(place) = best.remove(&name) {
                placed.insert(name.clone(), place);
                open.push(name);
            }
        }
    }

    /// What a node has measured, with the drift since then.
    fn measures_of<'a>(
        &'a self,
        by: &'a str,
        now: u64,
    ) -> impl Iterator<Item = (&'a str, &'a str, Offset)> {
        let its = self.measures.get(by).into_iter().flatten();
        its.map(move |(of, measure)| {
            let since = now.saturating_sub(measure.at);
            let error = measure.offset.error.saturating_add(since / DRIFT);
            let ahead = measure.offset.ahead;
            (by, of.as_str(), Offset { ahead, error })
        })
    }

    /// Links both ways: of two nodes that have measured one another, the better measure.
    fn links(&self, now: u64) -> BTreeMap<&str, BTreeMap<&str, Offset>> {
        let mut links: BTreeMap<&str, BTreeMap<&str, Offset>> = BTreeMap::new();
        let mut add = |from, to, offset: Offset| {
            let known = links.entry(from).or_default().entry(to).or_insert(offset);
            if offset.error < known.error {
                *known = offset;
            }
        };
        for by in self.measures.keys() {
            for (by, of, offset) in self.measures_of(by, now) {
                add(by, of, offset);
                let ahead = offset.ahead.saturating_neg();
                add(of, by, Offset { ahead, ..offset });
            }
        }
        links
    }
}

/// Where one clock stood at several times, by the origin's clock.
#[derive(Clone, Debug, Default)]
pub(super) struct Places(Vec<(u64, Offset)>);

impl Places {
    /// It stands there at that time, which is later than all before.
    pub(super) fn add(&mut self, at: u64, offset: Offset) {
        if self.0.len() >= MOST_PLACES {
            // The long pauses are known well enough by every second one.
            let mut at = 0;
            self.0.retain(|_| {
                at += 1;
                at % 2 == 1
            });
        }
        self.0.push((at, offset));
    }

    /// Where it stood last.
    pub(super) fn last(&self) -> Option<Offset> {
        self.0.last().map(|(_, offset)| *offset)
    }

    /// A time that the clock showed, by the origin's, and by how much that is wrong at the most. `None` if
    /// it was never placed.
    pub(super) fn by_origin(&self, shown: i128) -> Option<(i128, u64)> {
        let (_, first) = self.0.first()?;
        // Near enough to find the two measures that it lies between.
        let about = shown - i128::from(first.ahead);
        let behind = self.0.partition_point(|(at, _)| i128::from(*at) <= about);
        let before = behind.checked_sub(1).and_then(|before| self.0.get(before));
        let (ahead, error) = match (before, self.0.get(behind)) {
            (Some((from, one)), Some((to, other))) => {
                let whole = i128::from(to.saturating_sub(*from)).max(1);
                let part = (about - i128::from(*from)).clamp(0, whole);
                let apart = i128::from(other.ahead) - i128::from(one.ahead);
                let ahead = i128::from(one.ahead) + apart * part / whole;
                let pause = to.saturating_sub(*from) / 2 / DRIFT;
                (ahead, one.error.max(other.error).saturating_add(pause))
            }
            (Some((at, one)), None) | (None, Some((at, one))) => {
                let away = (about - i128::from(*at)).unsigned_abs() / u128::from(DRIFT);
                let away = u64::try_from(away).unwrap_or(u64::MAX);
                (i128::from(one.ahead), one.error.saturating_add(away))
            }
            (None, None) => return None,
        };
        Some((shown - ahead, error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offset(ahead: i64, error: u64) -> Offset {
        Offset { ahead, error }
    }

    #[test]
    fn a_clock_that_was_not_measured_here_is_placed_over_the_best_links() {
        let mut clocks = Clocks::new("a");
        clocks.measured("a", "b", offset(100, 10), 0);
        clocks.measured("a", "c", offset(-1000, 1), 0);
        // Of d only b and c know: over c it is less wrong. Measured by d itself, which has c behind.
        clocks.measured("b", "d", offset(7, 5), 0);
        clocks.measured("d", "c", offset(-1107, 2), 0);
        // And e is behind d.
        clocks.measured("e", "d", offset(-50, 4), 0);
        clocks.measured("x", "y", offset(1, 1), 0);
        let placed = clocks.placed(0);
        let via =
            |names: &[&str]| -> Vec<String> { names.iter().map(|it| (*it).to_owned()).collect() };
        assert_eq!(placed["a"], (offset(0, 0), via(&[])));
        assert_eq!(placed["b"], (offset(100, 10), via(&[])));
        assert_eq!(placed["c"], (offset(-1000, 1), via(&[])));
        assert_eq!(placed["d"], (offset(107, 3), via(&["c"])));
        assert_eq!(placed["e"], (offset(157, 7), via(&["c", "d"])));
        // Nobody who is placed has measured these.
        assert!(!placed.contains_key("x") && !placed.contains_key("y"));
    }

    #[test]
    fn what_the_origin_has_measured_no_other_node_can_move() {
        let mut clocks = Clocks::new("a");
        clocks.measured("a", "b", offset(100, 50_000), 0);
        clocks.measured("a", "c", offset(0, 10), 0);
        clocks.measured("c", "b", offset(9_999_999, 0), 0);
        clocks.measured("b", "a", offset(5, 0), 0);
        let placed = clocks.placed(0);
        assert_eq!(placed["b"].0, offset(100, 50_000));
        assert_eq!(placed["a"].0, offset(0, 0));
    }

    #[test]
    fn an_old_measure_is_wrong_by_the_drift_too_and_the_last_one_counts() {
        let mut clocks = Clocks::new("a");
        clocks.measured("a", "b", offset(1, 10), 0);
        assert_eq!(clocks.placed(5_000_000)["b"].0, offset(1, 1010));
        clocks.measured("a", "b", offset(3, 20), 5_000_000);
        assert_eq!(clocks.placed(5_000_000)["b"].0, offset(3, 20));
    }

    #[test]
    fn what_a_node_says_of_clocks_may_be_anything() {
        let mut clocks = Clocks::new("a");
        clocks.measured("a", "b", offset(i64::MIN, u64::MAX), 0);
        clocks.measured("b", "c", offset(i64::MIN, u64::MAX), 0);
        clocks.measured("c", "c", offset(1, 1), 0);
        for node in 0..MOST_NODES * 2 {
            clocks.measured(&node.to_string(), "a", offset(1, 1), 0);
        }
        assert_eq!(clocks.measures.len(), MOST_NODES);
        assert_eq!(clocks.placed(u64::MAX)["c"].0, offset(i64::MIN, u64::MAX));
    }

    #[test]
    fn a_time_lies_between_two_measures() {
        let mut places = Places::default();
        assert_eq!(places.by_origin(7), None);
        places.add(1_000_000, offset(500, 10));
        assert_eq!(places.by_origin(1_000_500), Some((1_000_000, 10)));
        // Long before and after, drift counts.
        assert_eq!(places.by_origin(500), Some((0, 210)));
        places.add(2_000_000, offset(600, 30));
        assert_eq!(places.by_origin(1_500_500), Some((1_499_950, 130)));
        assert_eq!(places.by_origin(3_000_600), Some((3_000_000, 230)));
        assert_eq!(places.last(), Some(offset(600, 30)));
        for second in 3..3 * MOST_PLACES as u64 {
            places.add(second * 1_000_000, offset(600, 30));
        }
        assert!(places.0.len() <= MOST_PLACES);
        assert!(places.0.is_sorted_by_key(|(at, _)| *at));
    }
}
