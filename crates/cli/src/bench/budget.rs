//! States what the rows of a benchmark must reach, and judges whether they did.
//!
//! A budget is a ratio that one run measures by itself (or memory), so it holds on any
//! machine. Several rows may share one; the worst of them counts.

use serde::Serialize;

use super::Measured;

/// What a row must reach. Rows of the same `what` are judged together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Budget {
    pub(crate) what: &'static str,
    pub(crate) measure: Measure,
    /// None where there is only something to stretch for.
    pub(crate) must: Option<f64>,
    pub(crate) stretch: Option<f64>,
}

/// Which figure of the row is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Measure {
    /// Its ratio to the limit, at the most.
    Limit,
    /// Its rate to that of the limit, at the least.
    Rate,
    /// Its ratio to its yardstick, at the most.
    Yardstick,
    /// So many times as fast as its yardstick, at the least.
    Faster,
    /// Bytes above the limit's, at the most; figures in KiB.
    Above,
    /// What was counted beside its time, at the most; nanoseconds.
    Counted,
    /// A number between none and one, at the least.
    Index,
    /// Of a processor, at the most.
    Percent,
    /// Instructions more than without, at the most.
    Instructions,
}

/// A budget and what was measured.
#[derive(Debug, Serialize)]
pub(crate) struct Verdict {
    pub(crate) what: &'static str,
    /// "at most" or "at least": on which side of `must` it has to be.
    pub(crate) bound: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) must: Option<f64>,
    pub(crate) stretch: Option<f64>,
    /// The worst of its rows.
    pub(crate) measured: f64,
    pub(crate) rows: usize,
    /// "stretch", "met" or "missed"; "short" of the stretch, where there is no must; "cannot tell"
    /// where slices of one run say both.
    pub(crate) verdict: &'static str,
}

impl Budget {
    pub(crate) const fn new(
        what: &'static str,
        measure: Measure,
        must: f64,
        stretch: Option<f64>,
    ) -> Self {
        Self {
            what,
            measure,
            must: Some(must),
            stretch,
        }
    }

    /// One that is stretched for, and need not be reached.
    pub(crate) const fn stretch(what: &'static str, measure: Measure, stretch: f64) -> Self {
        Self {
            what,
            measure,
            must: None,
            stretch: Some(stretch),
        }
    }

    fn at_least(&self) -> bool {
        matches!(
            self.measure,
            Measure::Faster | Measure::Rate | Measure::Index
        )
    }

    /// Whether `measured` is on the right side of `bound`.
    fn reached(&self, measured: f64, bound: f64) -> bool {
        if self.at_least() {
            measured >= bound
        } else {
            measured <= bound
        }
    }

    fn figure(&self, row: &Measured, limit: Option<&Measured>) -> Option<f64> {
        let yardstick = row.yardstick.as_ref().map(|(_, ratio)| *ratio);
        match self.measure {
            Measure::Limit => Some(row.ratio_to_limit),
            Measure::Rate => Some(1.0 / row.ratio_to_limit),
            Measure::Yardstick => yardstick,
            Measure::Faster => yardstick.map(|ratio| 1.0 / ratio),
            Measure::Counted => row.counted.first().map(|counted| counted.value),
            Measure::Above => Some((row.figures.p50 - limit?.figures.p50) / 1024.0),
            // Of rows that are no rows of a harness.
            Measure::Index | Measure::Percent | Measure::Instructions => None,
        }
    }
}

/// The budgets that some row of this run has, in the rows' order.
pub(crate) fn judge(rows: &[Measured]) -> Vec<Verdict> {
    let limit = rows.iter().find(|row| row.case.limit);
    let mut verdicts: Vec<Verdict> = Vec::new();
    for row in rows {
        let Some(budget) = row.tag else { continue };
        let Some(figure) = budget.figure(row, limit) else {
            continue;
        };
        let known = verdicts.iter().position(|one| one.what == budget.what);
        let index = known.unwrap_or_else(|| {
            verdicts.push(budget.verdict(figure));
            verdicts.len() - 1
        });
        let one = &mut verdicts[index];
        let worst = if budget.at_least() {
            one.measured.min(figure)
        } else {
            one.measured.max(figure)
        };
        let rows = one.rows + 1;
        *one = Verdict {
            rows,
            ..budget.verdict(worst)
        };
    }
    verdicts
}

impl Budget {
    /// What `measured` over so many rows comes to.
    pub(crate) fn verdict_of(&self, measured: f64, rows: usize) -> Verdict {
        Verdict {
            rows,
            ..self.verdict(measured)
        }
    }

    fn verdict(&self, measured: f64) -> Verdict {
        let stretched = self
            .stretch
            .is_some_and(|bound| self.reached(measured, bound));
        Verdict {
            what: self.what,
            bound: if self.at_least() {
                "at least"
            } else {
                "at most"
            },
            unit: match self.measure {
                Measure::Above => "KiB",
                Measure::Counted => "ns",
                Measure::Index => "",
                Measure::Percent => "%",
                Measure::Instructions => "instructions",
                _ => "times",
            },
            must: self.must,
            stretch: self.stretch,
            measured,
            rows: 0,
            verdict: match self.must.map(|must| self.reached(measured, must)) {
                _ if stretched => "stretch",
                Some(true) => "met",
                Some(false) => "missed",
                None => "short",
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_says_how_far_it_got() {
        let slower = Budget::new("slower", Measure::Limit, 1.35, Some(1.1));
        let verdicts = [1.1, 1.2, 1.4].map(|measured| slower.verdict(measured).verdict);
        assert_eq!(verdicts, ["stretch", "met", "missed"]);
        let faster = Budget::new("faster", Measure::Faster, 4.0, Some(8.0));
        let verdicts = [9.0, 4.0, 3.9].map(|measured| faster.verdict(measured).verdict);
        assert_eq!(verdicts, ["stretch", "met", "missed"]);
        let plain = Budget::new("plain", Measure::Above, 4096.0, None);
        assert_eq!(plain.verdict(1.0).verdict, "met");
        let wish = Budget::stretch("wish", Measure::Limit, 2.0);
        let verdicts = [2.0, 2.1].map(|measured| wish.verdict(measured).verdict);
        assert_eq!(verdicts, ["stretch", "short"]);
    }
}
