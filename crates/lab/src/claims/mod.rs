//! States what the papers claim, and the one rule by which measurements decide each claim.
//!
//! | file | holds |
//! |---|---|
//! | this one | what a rule is, and how it answers |
//! | [`table`] | every claim with its rule; by paper in `dash`, `mbm`, `vmmc` and `nodes` |
//! | `examples` | tests: for every rule, figures at which it holds and figures at which it does not |
//!
//! A verdict can be made in no other way than from a claim of the table ([`Claim::verdict`]), so
//! two experiments that judge one claim use one rule. A rule looks at the middle half of the
//! measurements: a condition is met where all of that half lies within the bounds, and missed
//! where none of it does; else it cannot be told, and the verdict says why. A condition may be *presumed*:
//! where it is not met, the others say nothing. What follows from a model's constants alone is
//! no measurement: its rule is [`Rule::Model`] or [`Rule::Fit`], which never answer *holds*; nor do
//! [`Rule::NoHardware`] and [`Rule::ByHand`]. The rules judge an earlier run's figures, too
//! ([`judge_again`]).

mod dash;
#[cfg(test)]
mod examples;
mod mbm;
mod nodes;
pub(crate) mod table;
mod vmmc;

use crate::clock::Timed;
use crate::lanes::Beside;
use crate::outcome::{Answer, Cell, Figure, Verdict};
use crate::unit::Unit;

/// What all rules have in common, for people.
pub(crate) const UNTOLD: &str = "About n is within a quarter of n, and n times as much within a quarter of what \
    that is more than once: the papers themselves call 37 µs about 30. It cannot be told whether a claim holds where the middle half of the measurements lies \
    on both sides of a bound of its rule, where a figure is missing or what the rule presumes is not so, where others took more than half a \
    processor or a cache line's time changed by more than a half while the experiment ran, or where two \
    experiments differ by the same rule. What a model gives, with the paper's parameters or with this \
    machine's, or the delay that the lab chose for a link, is called model, or fit where the constants of a \
    model were chosen for that; what the library does not have is not built; a claim about hardware that this machine does not have is answered by \
    saying so; and one about what is counted by hand, in the source, is called that.";

/// One statement of a paper.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim {
    /// Short and fixed, for finding it again.
    pub(crate) id: &'static str,
    pub(crate) paper: &'static str,
    pub(crate) section: &'static str,
    /// What the paper states, in our words.
    pub(crate) says: &'static str,
    pub(crate) rule: Rule,
}

/// How a claim is decided.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Rule {
    /// It holds if all of these are met.
    All(&'static [Condition]),
    /// A model gives it, or the delay of a link that the lab shaped: no such message is measured.
    Model,
    /// A model's constants were chosen for it.
    Fit,
    /// The library does not have what the claim is about.
    NotBuilt,
    /// The claim is about hardware that no machine of ours has.
    NoHardware,
    /// The claim is about what is counted by hand, in the source: no run could make it otherwise.
    ByHand,
}

/// What one measured figure must be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Condition {
    pub(crate) what: &'static str,
    pub(crate) unit: Unit,
    pub(crate) least: Option<f64>,
    pub(crate) most: Option<f64>,
    /// The paper's own figure.
    pub(crate) paper: Option<f64>,
    /// Why there is no figure, where there is none although all was measured; empty if that cannot be.
    pub(crate) absent: &'static str,
    /// Without it the other figures say nothing: where it is not met, it cannot be told.
    pub(crate) presumed: bool,
}

/// A measured figure, and what the middle half of its measurements lies between.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Estimate {
    middle: f64,
    range: [f64; 2],
    /// The paper's figure, where it differs from the condition's; no number where there is none.
    paper: Option<f64>,
}

impl Claim {
    /// Judges by these figures, one for each condition of the rule, in its order. A figure that
    /// there is not makes *cannot tell*.
    pub(crate) fn verdict(&self, found: &[Option<Estimate>]) -> Verdict {
        self.verdict_of("", found)
    }

    /// The same for one case out of several to which the claim applies.
    pub(crate) fn verdict_of(&self, of: &str, found: &[Option<Estimate>]) -> Verdict {
        let answer = self.rule.answer(found);
        let at = |at: usize| found.get(at).copied().flatten();
        let conditions = self.rule.conditions().iter().enumerate();
        Verdict {
            id: self.id.to_owned(),
            of: of.to_owned(),
            paper: self.paper.to_owned(),
            section: self.section.to_owned(),
            claim: self.says.to_owned(),
            rule: self.rule.words(),
            by_figures: answer,
            holds: answer,
            open: self.rule.open(found),
            doubts: Vec::new(),
            paragraph: String::new(),
            figures: conditions
                .map(|(index, condition)| condition.figure(at(index)))
                .collect(),
        }
    }

    /// Answers by the rule of today what was measured then. A verdict of which a figure has no place there,
    /// because its rule was another one, stays as it was.
    fn again(&self, verdict: &mut Verdict) {
        let figure = |condition: &Condition| {
            let mut named = verdict.figures.iter();
            named.find(|figure| figure.name == condition.what && figure.unit == condition.unit)
        };
        let figures: Option<Vec<&Figure>> = self.rule.conditions().iter().map(figure).collect();
        let Some(figures) = figures else {
            return;
        };
        let found: Vec<Option<Estimate>> =
            figures.iter().map(|it| Estimate::of(&it.cell)).collect();
        let answer = self.rule.answer(&found);
        verdict.open = self.rule.open(&found);
        (verdict.by_figures, verdict.holds) = (answer, answer);
        verdict.rule = self.rule.words();
        self.says.clone_into(&mut verdict.claim);
        self.section.clone_into(&mut verdict.section);
    }
}

/// Answers by the rules of today what an earlier run measured; doubts about it are the report's.
pub(crate) fn judge_again(verdict: &mut Verdict) {
    let mut claims = table::ALL.iter();
    if let Some(claim) = claims.find(|claim| claim.id == verdict.id) {
        claim.again(verdict);
    }
}

impl Rule {
    pub(crate) fn conditions(&self) -> &'static [Condition] {
        match self {
            Self::All(conditions) => conditions,
            Self::Model | Self::Fit | Self::NotBuilt | Self::NoHardware | Self::ByHand => &[],
        }
    }

    fn answer(&self, found: &[Option<Estimate>]) -> Answer {
        let conditions = match self {
            Self::All(conditions) => *conditions,
            Self::Model => return Answer::Model,
            Self::Fit => return Answer::Fit,
            Self::NotBuilt => return Answer::NotBuilt,
            Self::NoHardware => return Answer::NoHardware,
            Self::ByHand => return Answer::ByHand,
        };
        let at = |at: usize| found.get(at).copied().flatten();
        let met: Vec<Option<bool>> = conditions
            .iter()
            .enumerate()
            .map(|(index, condition)| condition.is_met(at(index)?))
            .collect();
        let unfounded = |(condition, met): (&Condition, &Option<bool>)| {
            condition.presumed && *met != Some(true)
        };
        if conditions.iter().zip(&met).any(unfounded) {
            Answer::CannotTell
        } else if met.contains(&Some(false)) {
            Answer::DoesNotHold
        } else if met.contains(&None) {
            Answer::CannotTell
        } else {
            Answer::Holds
        }
    }

    /// Why the figures cannot tell, one reason for each that leaves it open; none where they can.
    fn open(&self, found: &[Option<Estimate>]) -> Vec<String> {
        if self.answer(found) != Answer::CannotTell {
            return Vec::new();
        }
        let conditions = self.conditions().iter().enumerate();
        let why =
            |(at, condition): (usize, &Condition)| condition.open(found.get(at).copied().flatten());
        conditions.filter_map(why).collect()
    }

    /// The rule for people.
    pub(crate) fn words(&self) -> String {
        match self {
            Self::Model => {
                "Not judged: a model gives the figures, or a delay that the lab chose.".to_owned()
            }
            Self::Fit => {
                "Not judged: constants of the model were chosen for these figures.".to_owned()
            }
            Self::NotBuilt => "Not judged: the library has no such mechanism.".to_owned(),
            Self::NoHardware => {
                "Not judged: it is about hardware that this machine does not have.".to_owned()
            }
            Self::ByHand => {
                "Not judged: what it is about is counted by hand, the same on every machine."
                    .to_owned()
            }
            Self::All(conditions) => {
                let words = |presumed: bool| {
                    let of_kind = conditions.iter().filter(|it| it.presumed == presumed);
                    of_kind
                        .map(Condition::words)
                        .collect::<Vec<_>>()
                        .join(", and ")
                };
                let presumed = match words(true) {
                    none if none.is_empty() => none,
                    some => format!(" It cannot be told unless {some}."),
                };
                format!("It holds if {}.{presumed}", words(false))
            }
        }
    }
}

impl Condition {
    /// `None` where the middle half of the measurements says both.
    fn is_met(&self, found: Estimate) -> Option<bool> {
        let (least, most) = (
            self.least.unwrap_or(f64::NEG_INFINITY),
            self.most.unwrap_or(f64::INFINITY),
        );
        let [lower, upper] = found.range;
        if lower >= least && upper <= most {
            Some(true)
        } else if upper < least || lower > most {
            Some(false)
        } else {
            None
        }
    }

    /// Why it cannot be told whether it is met, or why nothing else can where it is not.
    fn open(&self, found: Option<Estimate>) -> Option<String> {
        let what = self.what;
        let Some(estimate) = found else {
            let why = match self.absent {
                "" => String::new(),
                why => format!(", because {why}"),
            };
            return Some(format!("there is no \u{201c}{what}\u{201d}{why}"));
        };
        match self.is_met(estimate) {
            Some(true) => None,
            Some(false) => self.presumed.then(|| {
                let found = self.unit.show(estimate.middle);
                format!("\u{201c}{what}\u{201d} is {found}, without which the rest says nothing")
            }),
            None => {
                let [lower, upper] = estimate.range;
                let bounds = [self.least, self.most].into_iter().flatten();
                let between = bounds.filter(|bound| lower <= *bound && *bound <= upper);
                let between: Vec<String> = between.map(|bound| self.unit.quote(bound)).collect();
                Some(format!(
                    "the middle half of \u{201c}{what}\u{201d} lies on both sides of {}",
                    between.join(" and of ")
                ))
            }
        }
    }

    fn words(&self) -> String {
        let show = |bound: f64| self.unit.quote(bound);
        let what = self.what;
        match (self.least, self.most) {
            (Some(least), Some(most)) => {
                format!(
                    "\u{201c}{what}\u{201d} is from {} to {}",
                    show(least),
                    show(most)
                )
            }
            (Some(least), None) => format!("\u{201c}{what}\u{201d} is at least {}", show(least)),
            (None, Some(most)) => format!("\u{201c}{what}\u{201d} is at most {}", show(most)),
            (None, None) => format!("\u{201c}{what}\u{201d} was measured"),
        }
    }

    fn figure(&self, found: Option<Estimate>) -> Figure {
        let paper = found.and_then(|found| found.paper).or(self.paper);
        Figure {
            name: self.what.to_owned(),
            unit: self.unit,
            cell: found
                .map_or_else(Cell::default, Estimate::cell)
                .beside(paper),
        }
    }
}

impl Estimate {
    /// `None` for what is no number.
    pub(crate) fn between(middle: f64, lower: f64, upper: f64) -> Option<Self> {
        // As figures keep them, so that words, figures and answers say the same.
        let kept = |value: f64| Cell::here(value).here;
        Some(Self {
            middle: kept(middle)?,
            range: [kept(lower)?, kept(upper)?],
            paper: None,
        })
    }

    /// Of a figure that was kept.
    fn of(cell: &Cell) -> Option<Self> {
        let middle = cell.here?;
        let [lower, upper] = cell.range.unwrap_or([middle; 2]);
        Self::between(middle, lower, upper)
    }

    /// A count, or what else has no spread.
    pub(crate) fn exact(value: f64) -> Option<Self> {
        Self::between(value, value, value)
    }

    /// Of something that the paper has no figure of, though it has one of the rule's.
    pub(crate) fn without_paper(mut self) -> Self {
        self.paper = Some(f64::NAN);
        self
    }

    /// Whether all of its middle half is more than nothing.
    pub(crate) fn is_positive(self) -> bool {
        self.range[0] > 0.0
    }

    pub(crate) fn middle(self) -> f64 {
        self.middle
    }

    pub(crate) fn cell(self) -> Cell {
        let [lower, upper] = self.range;
        Cell::here(self.middle).within(lower, upper)
    }

    /// "0.84 × (0.82 × to 0.86 ×)"; without what would say the same thrice.
    pub(crate) fn show(self, unit: Unit) -> String {
        spread(unit, self.middle, self.range)
    }

    /// What this is more than another, which was measured apart.
    pub(crate) fn less(self, other: Self) -> Option<Self> {
        let ([lower, upper], [least, most]) = (self.range, other.range);
        Self::between(self.middle - other.middle, lower - most, upper - least)
    }

    /// The sum of two that were measured apart.
    pub(crate) fn plus(self, other: Self) -> Option<Self> {
        let ([lower, upper], [least, most]) = (self.range, other.range);
        Self::between(self.middle + other.middle, lower + least, upper + most)
    }

    /// This to another, which was measured apart. `None` where the other may be nothing.
    pub(crate) fn to(self, other: Self) -> Option<Self> {
        let ([lower, upper], [least, most]) = (self.range, other.range);
        if least <= 0.0 || other.middle <= 0.0 {
            return None;
        }
        let lower = (lower / least).min(lower / most);
        let upper = (upper / least).max(upper / most);
        Self::between(self.middle / other.middle, lower, upper)
    }

    /// One thing that was measured twice, apart: the middle of both, between the ends of both.
    pub(crate) fn and(self, other: Self) -> Option<Self> {
        let ([lower, upper], [least, most]) = (self.range, other.range);
        let middle = f64::midpoint(self.middle, other.middle);
        Self::between(middle, lower.min(least), upper.max(most))
    }

    /// So many times as much.
    pub(crate) fn times(self, factor: f64) -> Option<Self> {
        let [one, other] = self.range.map(|value| value * factor);
        Self::between(self.middle * factor, one.min(other), one.max(other))
    }
}

/// A figure with its range, "0.84 × (0.82 × to 0.86 ×)"; without one that says no more than the figure.
pub(crate) fn spread(unit: Unit, middle: f64, range: [f64; 2]) -> String {
    let [lower, upper] = range.map(|value| unit.show(value));
    let middle = unit.show(middle);
    if lower == middle && upper == middle {
        middle
    } else {
        format!("{middle} ({lower} to {upper})")
    }
}

/// [`Estimate::show`], where there may be nothing to show.
pub(crate) fn shown(estimate: Option<Estimate>, unit: Unit) -> String {
    estimate.map_or_else(|| "not measured".into(), |estimate| estimate.show(unit))
}

/// This to that, measured apart.
pub(crate) fn ratio(one: Option<Estimate>, other: Option<Estimate>) -> Option<Estimate> {
    one?.to(other?)
}

/// Paired slice by slice.
pub(crate) fn paired(beside: Option<Beside>) -> Option<Estimate> {
    let Beside {
        middle, quartiles, ..
    } = beside?;
    let [lower, upper] = quartiles;
    Estimate::between(middle, lower, upper)
}

/// The median, between the quartiles.
pub(crate) fn timed(timed: &Timed) -> Option<Estimate> {
    let [lower, upper] = timed.quartiles();
    Estimate::between(timed.median(), lower, upper)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn estimate(middle: f64, lower: f64, upper: f64) -> Estimate {
        Estimate::between(middle, lower, upper).unwrap()
    }

    #[test]
    fn differences_and_ratios_of_what_was_measured_apart_have_the_widest_range() {
        let (one, other) = (estimate(4.0, 3.0, 6.0), estimate(2.0, 1.0, 3.0));
        assert_eq!(one.less(other), Some(estimate(2.0, 0.0, 5.0)));
        assert_eq!(one.to(other), Some(estimate(2.0, 1.0, 6.0)));
        // Twice the same thing.
        assert_eq!(one.and(other), Some(estimate(3.0, 1.0, 6.0)));
        // What may be nothing is no whole of anything.
        assert_eq!(one.to(estimate(2.0, -1.0, 3.0)), None);
        // Less than nothing, to something.
        let under = estimate(-2.0, -4.0, 2.0).to(estimate(2.0, 1.0, 4.0));
        assert_eq!(under, Some(estimate(-1.0, -4.0, 2.0)));
        assert_eq!(Estimate::exact(f64::NAN), None);
        assert_eq!(one.times(-1.0), Some(estimate(-4.0, -6.0, -3.0)));
    }

    #[test]
    fn a_range_is_shown_where_it_says_something() {
        assert_eq!(
            estimate(2.0, 1.0, 3.0).show(Unit::Times),
            "2.00 × (1.00 × to 3.00 ×)"
        );
        assert_eq!(estimate(2.0, 2.0, 2.001).show(Unit::Times), "2.00 ×");
    }

    #[test]
    fn one_condition_that_is_missed_decides_and_one_that_is_open_leaves_it_open() {
        const TWO: Rule = Rule::All(&[
            Condition {
                what: "a",
                unit: Unit::Times,
                least: Some(1.0),
                most: None,
                paper: None,
                absent: "",
                presumed: false,
            },
            Condition {
                what: "b",
                unit: Unit::Times,
                least: None,
                most: Some(2.0),
                paper: None,
                absent: "it was not looked for",
                presumed: false,
            },
        ]);
        let point = Estimate::exact;
        let wide = Some(estimate(1.0, 0.5, 3.0));
        for (found, answer) in [
            ([point(1.0), point(2.0)], Answer::Holds),
            ([point(0.9), point(2.0)], Answer::DoesNotHold),
            ([point(1.0), wide], Answer::CannotTell),
            ([point(0.9), wide], Answer::DoesNotHold),
            ([point(1.0), None], Answer::CannotTell),
            ([None, point(2.1)], Answer::DoesNotHold),
        ] {
            assert_eq!(TWO.answer(&found), answer, "{found:?}");
        }
        assert_eq!(TWO.answer(&[]), Answer::CannotTell);
        // Why it is open; and nothing where it is decided.
        assert_eq!(
            TWO.open(&[wide, None]),
            [
                "the middle half of \u{201c}a\u{201d} lies on both sides of 1 ×",
                "there is no \u{201c}b\u{201d}, because it was not looked for"
            ]
        );
        assert_eq!(TWO.open(&[point(0.9), None]), [""; 0]);
        let words = TWO.words();
        assert!(
            words.contains(
                "\u{201c}a\u{201d} is at least 1 ×, and \u{201c}b\u{201d} is at most 2 ×"
            ),
            "{words}"
        );
    }

    #[test]
    fn where_what_is_presumed_is_not_met_nothing_can_be_told() {
        let claim = table::FORWARDERS_PASS_FALSE;
        let point = Estimate::exact;
        let verdict = |less: f64, closed| claim.verdict(&[point(less), closed]);
        for (closed, answers) in [
            (point(9e-6), [Answer::Holds, Answer::DoesNotHold]),
            (point(-16e-6), [Answer::CannotTell; 2]),
            (
                Estimate::between(1e-6, -1e-6, 3e-6),
                [Answer::CannotTell; 2],
            ),
            (None, [Answer::CannotTell; 2]),
        ] {
            let found = [-26e-6, 26e-6].map(|less| verdict(less, closed).by_figures);
            assert_eq!(found, answers, "{closed:?}");
        }
        let verdict = verdict(-26e-6, point(-16e-6));
        assert_eq!(
            verdict.open,
            [
                "\u{201c}left closed, each forwarder\u{201d} is -16.0 µs, without which the rest says nothing"
            ]
        );
        let unless = "It cannot be told unless \u{201c}left closed, each forwarder\u{201d} is at least 0 ns.";
        assert!(verdict.rule.ends_with(unless), "{}", verdict.rule);
    }

    #[test]
    fn an_earlier_run_is_judged_by_the_rules_of_today() {
        let found = Estimate::between(1.2, 1.1, 1.3);
        let mut old = table::NULL_COMPARABLE.verdict(&[found]);
        let today = old.clone();
        // As another rule answered then, with the figure in another place.
        (old.by_figures, old.holds) = (Answer::DoesNotHold, Answer::DoesNotHold);
        old.rule = "It holds if it is at most 1.1 ×.".to_owned();
        old.claim = "as it was put then".to_owned();
        let beside = old.figures[0].clone();
        old.figures.insert(
            0,
            Figure {
                name: "beside".to_owned(),
                ..beside
            },
        );
        judge_again(&mut old);
        assert_eq!((old.by_figures, &old.rule), (today.by_figures, &today.rule));
        assert_eq!((&old.claim, old.figures.len()), (&today.claim, 2));
        // What a rule of today asks for and nobody measured then: the answer of then stays.
        let mut other = table::GAIN.verdict(&[Estimate::exact(0.126)]);
        other.figures[0].name = "another quantity".to_owned();
        let before = other.clone();
        judge_again(&mut other);
        assert_eq!(other, before);
        // What was measured and had no figure stays open.
        let mut open = table::GAIN.verdict(&[None]);
        judge_again(&mut open);
        assert_eq!(open.by_figures, Answer::CannotTell);
        // A claim that is gone keeps its answer.
        let mut gone = today.clone();
        gone.id = "no-such-claim".to_owned();
        let before = gone.clone();
        judge_again(&mut gone);
        assert_eq!(gone, before);
    }

    #[test]
    fn what_is_a_models_never_holds() {
        for (rule, answer) in [
            (Rule::Model, Answer::Model),
            (Rule::Fit, Answer::Fit),
            (Rule::NotBuilt, Answer::NotBuilt),
            (Rule::NoHardware, Answer::NoHardware),
            (Rule::ByHand, Answer::ByHand),
        ] {
            assert_eq!(rule.answer(&[Estimate::exact(1.0)]), answer);
        }
    }
}
