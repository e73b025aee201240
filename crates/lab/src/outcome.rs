//! Defines what an experiment finds: tables, plots, verdicts, and rows that were left out.
//!
//! ```text
//! Outcome ─┬─ tables    rows and columns of cells: the paper's figure beside ours
//!          ├─ plots     the same as points, to be drawn
//!          ├─ verdicts  a claim, the figures that decide it, and a paragraph made of them
//!          └─ left out  what could not be measured here, and why
//! ```
//!
//! All of it is plain data: it is kept in the report, shown as text and as a page, and
//! compared with an earlier run's. Rows and columns are found again by their names, so
//! a name says the same thing in every run.

use serde::{Deserialize, Serialize};

use crate::unit::Unit;

/// Digits that a figure keeps; more would claim too much.
const DIGITS: i32 = 5;

/// All that one experiment found out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Outcome {
    pub(crate) tables: Vec<Table>,
    pub(crate) plots: Vec<Plot>,
    pub(crate) verdicts: Vec<Verdict>,
    pub(crate) left_out: Vec<LeftOut>,
}

impl Outcome {
    /// With all that another one has.
    pub(crate) fn merge(&mut self, more: Self) {
        self.tables.extend(more.tables);
        self.plots.extend(more.plots);
        self.verdicts.extend(more.verdicts);
        self.left_out.extend(more.left_out);
    }

    /// Says that `what` is not in the tables, and why; once, however often it is said.
    pub(crate) fn leave_out(&mut self, what: impl Into<String>, why: impl Into<String>) {
        let left_out = LeftOut {
            what: what.into(),
            why: why.into(),
        };
        if !self.left_out.contains(&left_out) {
            self.left_out.push(left_out);
        }
    }
}

/// Something that this machine, or this run, could not measure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LeftOut {
    pub(crate) what: String,
    pub(crate) why: String,
}

/// A table. Each cell holds the paper's figure and ours, where there is one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Table {
    /// Short and fixed, for finding it again: "table-1".
    pub(crate) id: String,
    pub(crate) title: String,
    /// What the reader has to know about it; may be empty.
    pub(crate) note: String,
    /// What the rows' labels are.
    pub(crate) corner: String,
    pub(crate) columns: Vec<Column>,
    pub(crate) rows: Vec<Row>,
    /// The page shows it when asked: its figures are in a plot, too.
    #[serde(default)]
    pub(crate) folded: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Column {
    pub(crate) name: String,
    pub(crate) unit: Unit,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) label: String,
    /// As many as there are columns.
    pub(crate) cells: Vec<Cell>,
}

/// One place of a table. Empty where neither the paper nor we have a figure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Cell {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) paper: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) here: Option<f64>,
    /// Between what the middle half of the measurements lie, where there were several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) range: Option<[f64; 2]>,
    /// `here` is the end of what was looked at: the figure sought lies beyond.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) bound: Option<Bound>,
}

/// Beyond which end of what was looked at a figure lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Bound {
    AtMost,
    MoreThan,
}

impl Table {
    pub(crate) fn new(id: &str, title: &str, corner: &str, columns: &[(&str, Unit)]) -> Self {
        let column = |&(name, unit): &(&str, Unit)| Column {
            name: name.to_owned(),
            unit,
        };
        Self {
            id: id.to_owned(),
            title: title.to_owned(),
            note: String::new(),
            corner: corner.to_owned(),
            columns: columns.iter().map(column).collect(),
            rows: Vec::new(),
            folded: false,
        }
    }

    /// With its rows folded away until the page's reader asks.
    pub(crate) fn fold(mut self) -> Self {
        self.folded = true;
        self
    }

    pub(crate) fn note(mut self, note: impl Into<String>) -> Self {
        self.note = note.into();
        self
    }

    /// Adds a row; missing cells at its end are empty.
    pub(crate) fn row(&mut self, label: impl Into<String>, cells: impl Into<Vec<Cell>>) {
        let mut cells = cells.into();
        debug_assert!(cells.len() <= self.columns.len(), "more cells than columns");
        cells.resize(self.columns.len(), Cell::default());
        self.rows.push(Row {
            label: label.into(),
            cells,
        });
    }

    /// The cell in the row and the column of these names.
    pub(crate) fn cell(&self, row: &str, column: &str) -> Option<&Cell> {
        let at = self.columns.iter().position(|c| c.name == column)?;
        self.rows.iter().find(|r| r.label == row)?.cells.get(at)
    }
}

impl Cell {
    /// What we measured or computed; nothing if that is no number.
    pub(crate) fn here(value: f64) -> Self {
        Self {
            here: number(value),
            ..Self::default()
        }
    }

    /// What the paper says.
    pub(crate) fn paper(value: f64) -> Self {
        Self {
            paper: number(value),
            ..Self::default()
        }
    }

    /// With the paper's figure, if it has one.
    pub(crate) fn beside(mut self, paper: impl Into<Option<f64>>) -> Self {
        self.paper = paper.into().and_then(number);
        self
    }

    /// Known only to lie at or below, or above, the figure.
    pub(crate) fn bounded(mut self, bound: Bound) -> Self {
        self.bound = Some(bound);
        self
    }

    /// Our figure as people write it.
    pub(crate) fn show(&self, unit: Unit) -> Option<String> {
        let figure = unit.show(self.here?);
        Some(match self.bound {
            None => figure,
            Some(Bound::AtMost) => format!("≤ {figure}"),
            Some(Bound::MoreThan) => format!("> {figure}"),
        })
    }

    /// With what the middle half of the measurements lie between.
    pub(crate) fn within(mut self, lower: f64, upper: f64) -> Self {
        self.range = number(lower).zip(number(upper)).map(<[f64; 2]>::from);
        self
    }
}

/// Points to be drawn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Plot {
    /// Short and fixed; the name of its file: "figure-3".
    pub(crate) id: String,
    pub(crate) title: String,
    pub(crate) x: Axis,
    pub(crate) y: Axis,
    pub(crate) series: Vec<Series>,
    /// Places on the x axis worth a line of their own.
    pub(crate) marks: Vec<Mark>,
    /// Too few points, or too far apart, for a line between them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) apart: bool,
    /// Names of stacked bars. If there are any, points are not on lines but parts of bars:
    /// the bar's number, from 0, and the part's share.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) bars: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Axis {
    pub(crate) name: String,
    pub(crate) unit: Unit,
    /// Logarithmic: points that are not above zero are not drawn.
    pub(crate) log: bool,
}

/// One line of a plot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Series {
    pub(crate) name: String,
    pub(crate) origin: Origin,
    /// Series of one colour in the paper and here are the same thing.
    pub(crate) colour: u8,
    pub(crate) points: Vec<[f64; 2]>,
}

/// Whose figures they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Origin {
    Paper,
    Here,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Mark {
    pub(crate) name: String,
    pub(crate) x: f64,
}

impl Plot {
    pub(crate) fn new(id: &str, title: &str, x: Axis, y: Axis) -> Self {
        Self {
            id: id.to_owned(),
            title: title.to_owned(),
            x,
            y,
            series: Vec::new(),
            marks: Vec::new(),
            apart: false,
            bars: Vec::new(),
        }
    }

    /// Of points that no line joins: what lies between them was not measured.
    pub(crate) fn of_points(mut self) -> Self {
        self.apart = true;
        self
    }

    /// Of stacked bars of these names.
    #[cfg_attr(
        not(any(test, feature = "probes")),
        expect(dead_code, reason = "only the breakdown has bars")
    )]
    pub(crate) fn of_bars<N: Into<String>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        self.bars = names.into_iter().map(Into::into).collect();
        self
    }

    /// Adds a line; points that are no numbers are left out.
    pub(crate) fn series(
        &mut self,
        name: impl Into<String>,
        origin: Origin,
        colour: u8,
        points: impl IntoIterator<Item = (f64, f64)>,
    ) {
        let points = points
            .into_iter()
            .filter_map(|(x, y)| Some([number(x)?, number(y)?]));
        self.series.push(Series {
            name: name.into(),
            origin,
            colour,
            points: points.collect(),
        });
    }
}

impl Axis {
    pub(crate) fn log(name: &str, unit: Unit) -> Self {
        Self {
            name: name.to_owned(),
            unit,
            log: true,
        }
    }

    #[allow(dead_code, reason = "for the figures to come")]
    pub(crate) fn linear(name: &str, unit: Unit) -> Self {
        Self {
            log: false,
            ..Self::log(name, unit)
        }
    }
}

/// Whether a claim of the paper holds here. [`Claim`](crate::claims::Claim) makes it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Verdict {
    /// The claim's: short and fixed, for finding it again.
    pub(crate) id: String,
    /// To which of several cases the claim is applied; empty if there is one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) of: String,
    pub(crate) paper: String,
    pub(crate) section: String,
    /// What the paper states.
    pub(crate) claim: String,
    /// When it holds.
    pub(crate) rule: String,
    /// What the rule says about the figures.
    pub(crate) by_figures: Answer,
    /// The answer: the same, unless the figures are in doubt.
    pub(crate) holds: Answer,
    /// Why the figures leave it open, where they do.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) open: Vec<String>,
    /// Why the figures decide nothing: what happened while they were measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) doubts: Vec<String>,
    /// What was found, in words made from `figures`.
    pub(crate) paragraph: String,
    /// What decided it, in the rule's order, and then what stands beside that.
    pub(crate) figures: Vec<Figure>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Answer {
    #[serde(rename = "holds")]
    Holds,
    #[serde(rename = "does not hold")]
    DoesNotHold,
    #[serde(rename = "cannot tell")]
    CannotTell,
    /// Figures of a model's constants, which no measurement could have changed.
    #[serde(rename = "model")]
    Model,
    /// Figures for which a model's constants were chosen.
    #[serde(rename = "fit")]
    Fit,
    /// The library does not have it.
    #[serde(rename = "not built")]
    NotBuilt,
    /// The machine does not have the hardware that it is about.
    #[serde(rename = "no such hardware")]
    NoHardware,
    /// It is about what is counted by hand, in the source, which no machine could count otherwise.
    #[serde(rename = "counted by hand")]
    ByHand,
}

/// One figure that decides a verdict.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Figure {
    pub(crate) name: String,
    pub(crate) unit: Unit,
    pub(crate) cell: Cell,
}

impl Answer {
    pub(crate) const ALL: [Self; 8] = [
        Self::Holds,
        Self::DoesNotHold,
        Self::CannotTell,
        Self::Model,
        Self::Fit,
        Self::NotBuilt,
        Self::NoHardware,
        Self::ByHand,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Holds => "holds",
            Self::DoesNotHold => "does not hold",
            Self::CannotTell => "cannot tell",
            Self::Model => "model",
            Self::Fit => "fit",
            Self::NotBuilt => "not built",
            Self::NoHardware => "no such hardware",
            Self::ByHand => "counted by hand",
        }
    }

    /// Whether measurements decided it.
    pub(crate) fn is_decided(self) -> bool {
        matches!(self, Self::Holds | Self::DoesNotHold)
    }
}

impl Verdict {
    pub(crate) fn because(mut self, paragraph: impl Into<String>) -> Self {
        self.paragraph = paragraph.into();
        self
    }

    /// With a figure that stands beside those of the rule.
    pub(crate) fn figure(mut self, name: impl Into<String>, unit: Unit, cell: Cell) -> Self {
        self.figures.push(Figure {
            name: name.into(),
            unit,
            cell,
        });
        self
    }

    /// The claim, and the case to which it is applied.
    pub(crate) fn title(&self) -> String {
        if self.of.is_empty() {
            self.claim.clone()
        } else {
            format!("{} ({})", self.claim, self.of)
        }
    }

    /// Why it cannot be told, without the sentence's end: what the figures say, and why that decides
    /// nothing; or what they leave open.
    pub(crate) fn doubt(&self) -> Option<String> {
        let (doubts, open) = (self.doubts.join("; "), self.open.join("; "));
        if !doubts.is_empty() {
            let by_figures = self.by_figures.name();
            Some(format!("by its figures it {by_figures}, but {doubts}"))
        } else if !open.is_empty() {
            Some(open)
        } else {
            None
        }
    }

    /// Whether the other judges the same claim of the same case.
    pub(crate) fn is_of(&self, other: &Self) -> bool {
        self.id == other.id && self.of == other.of
    }
}

/// A finite number with the digits that a figure keeps.
fn number(value: f64) -> Option<f64> {
    // Sizes and counts are exact.
    if value.fract() == 0.0 {
        return Some(value + 0.0);
    }
    if !value.is_finite() {
        return None;
    }
    // By way of decimal text, so that JSON says 0.002105 and not 0.0021049999.
    let digits = usize::try_from(DIGITS - 1).unwrap_or(0);
    format!("{value:.digits$e}").parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_keep_five_digits_and_nothing_that_is_no_number() {
        assert_eq!(Cell::here(0.123_456_789).here, Some(0.123_46));
        assert_eq!(Cell::here(67_108_864.0).here, Some(67_108_864.0));
        assert_eq!(Cell::here(f64::NAN), Cell::default());
        assert_eq!(Cell::here(f64::INFINITY), Cell::default());
        assert_eq!(Cell::here(1.0).beside(2.0).paper, Some(2.0));
    }

    #[test]
    fn rows_are_filled_and_found_by_name() {
        let columns = [("first", Unit::Seconds), ("later", Unit::Seconds)];
        let mut table = Table::new("t", "T", "way", &columns);
        table.row("copy", [Cell::here(1.0)]);
        assert_eq!(table.cell("copy", "first").unwrap().here, Some(1.0));
        assert_eq!(table.cell("copy", "later"), Some(&Cell::default()));
        assert_eq!(table.cell("move", "first"), None);
    }
}
