//! Prints the results of a benchmark, as a table and as JSON.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};

use portolan_measure::Result;
use portolan_measure::case::update::Update;
use portolan_measure::case::{
    Case, Mode, Pattern, Payload, Protection, Shape, System, Temper, Unit,
};
use portolan_measure::machine::Machine;
use portolan_measure::out::{self, Align, Table};
use serde::Serialize;

use super::Measured;
use super::budget::{self, Verdict};

/// Digits that a figure in JSON keeps; more would claim too much.
const DIGITS: i32 = 5;

#[derive(Serialize)]
struct Report<'a> {
    machine: &'a Machine,
    rows: Vec<Row>,
    budgets: Vec<Verdict>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    left_out: &'a [LeftOut],
}

/// Rows that this machine, or this build, cannot have.
#[derive(Debug, Serialize)]
pub(crate) struct LeftOut {
    pub(crate) what: &'static str,
    pub(crate) why: Cow<'static, str>,
}

#[derive(Serialize)]
struct Row {
    system: &'static str,
    case: String,
    mode: &'static str,
    protection: &'static str,
    payload: &'static str,
    bytes: u64,
    unit: Unit,
    p50: f64,
    p99: f64,
    p999: f64,
    max: f64,
    ratio_to_limit: f64,
    /// The row that this one is held against, and the ratio to it in the same slices.
    #[serde(skip_serializing_if = "Option::is_none")]
    yardstick: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ratio_to_yardstick: Option<f64>,
    /// What was counted, by event.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    counted: BTreeMap<String, f64>,
}

impl Row {
    fn new(measured: &Measured) -> Self {
        let Measured { case, figures, .. } = measured;
        let unit = case.unit();
        let value = |picos: f64| round(unit.value(picos, case.bytes));
        Self {
            system: case.system_name(),
            case: case.name(),
            mode: case.mode.name(),
            protection: case.protection.name(),
            payload: case.payload.name(),
            bytes: case.bytes,
            unit,
            p50: value(figures.p50),
            p99: value(figures.p99),
            p999: value(figures.p999),
            max: value(figures.max),
            ratio_to_limit: round(ratio(case, measured.ratio_to_limit)),
            yardstick: measured.yardstick.as_ref().map(|(other, _)| label(other)),
            ratio_to_yardstick: measured
                .yardstick
                .as_ref()
                .map(|(_, times)| round(ratio(case, *times))),
            counted: measured
                .counted
                .iter()
                .map(|counted| (counted.what.clone(), round(counted.value)))
                .collect(),
        }
    }
}

/// Prints the rows as asked.
pub(crate) fn print(
    machine: &Machine,
    measured: &[Measured],
    left_out: &[LeftOut],
    json: bool,
) -> Result<()> {
    let budgets = budget::judge(measured);
    if json {
        return crate::json::print(&Report {
            machine,
            rows: measured.iter().map(Row::new).collect(),
            budgets,
            left_out,
        });
    }
    let mut text = format!("{machine}\n");
    // Together what has the same heading, in the order of its first row.
    let mut headings: Vec<String> = measured.iter().map(|row| heading(&row.case)).collect();
    let mut seen = HashSet::new();
    headings.retain(|heading| seen.insert(heading.clone()));
    for heading_ in headings {
        let rows = measured.iter().filter(|row| heading(&row.case) == heading_);
        text += &format!("\n{heading_}\n{}", table(rows));
    }
    text += &legend(measured);
    for LeftOut { what, why } in left_out {
        text += &format!("\nleft out: {what}: {why}\n");
    }
    if !budgets.is_empty() {
        text += &format!("\n{}", verdicts(&budgets));
    }
    out::print(&text)
}

/// What the rows of one table have in common.
fn heading(case: &Case) -> String {
    if case.limit {
        return format!("the limit, {}", case.unit().name());
    }
    match case.unit() {
        Unit::Kibibytes => case.unit().name().to_owned(),
        Unit::Operation => format!("{}, {}", out::size(case.bytes), case.unit().name()),
        unit => {
            let mode = match case.mode {
                Mode::Poll => "polling",
                Mode::Block => "blocking",
                Mode::Adaptive => "adaptive",
                Mode::Monitor => "monitor-wait",
                Mode::Upcall => "upcalls",
            };
            format!("{}, {}, {mode}", out::size(case.bytes), unit.name())
        }
    }
}

/// One row's name within its table: what is not as in most rows.
fn name(case: &Case) -> String {
    let mut name = String::new();
    // Copies alone say what they do.
    if !case.limit && !matches!(case.system, System::Marshal { .. }) {
        name += case.system_name();
    }
    let protection = match case.protection {
        // What a domain is unless asked otherwise.
        Protection::None | Protection::Trusted => "",
        Protection::Guarded | Protection::OpenPeer | Protection::Copied | Protection::Sealed => {
            case.protection.name()
        }
    };
    let words = case.name();
    let words = words.strip_prefix("message").unwrap_or(&words);
    // Nothing to touch in an empty message; and calls leave their bytes alone, all of them.
    let untouched = case.payload == Payload::Untouched && case.bytes > 0 && !case.system.calls();
    let payload = if untouched { "untouched" } else { "" };
    let size = match case.pattern {
        Pattern::Stream if case.limit => out::size(case.bytes),
        _ => String::new(),
    };
    for word in [protection, words.trim_start_matches(", "), payload, &size] {
        if !word.is_empty() {
            if !name.is_empty() {
                name += " ";
            }
            name += word;
        }
    }
    name
}

fn table<'a>(rows: impl Iterator<Item = &'a Measured> + Clone) -> String {
    use Align::{Left, Right};
    let mut columns = vec![
        ("", Left),
        ("p50", Right),
        ("p99", Right),
        ("p99.9", Right),
        ("max", Right),
        ("xlimit", Right),
        ("xyard", Right),
    ];
    let mut counted: Vec<&str> = Vec::new();
    for one in rows.clone().flat_map(|row| &row.counted) {
        if !counted.contains(&one.what.as_str()) {
            counted.push(&one.what);
        }
    }
    columns.extend(counted.iter().map(|what| (*what, Right)));
    let mut table = Table::new(&columns);
    for measured in rows {
        let Measured { case, figures, .. } = measured;
        let row = Row::new(measured);
        let unit = case.unit();
        let value = |picos: f64| figure(unit, unit.value(picos, case.bytes));
        let yard = measured.yardstick.as_ref().zip(row.ratio_to_yardstick);
        let mut cells = vec![
            name(case),
            value(figures.p50),
            value(figures.p99),
            value(figures.p999),
            value(figures.max),
            times(row.ratio_to_limit),
            yard.map_or(String::new(), |((other, _), ratio)| {
                format!("{}{}", times(ratio), mark(other))
            }),
        ];
        cells.extend(counted.iter().map(|what| {
            let count = row.counted.get(*what);
            count.map_or(String::new(), |count| short(*count))
        }));
        table.row(cells);
    }
    table.render()
}

/// A yardstick's letter, which the legend explains.
fn mark(yardstick: &Case) -> &'static str {
    match yardstick.system {
        System::Buffer => "b",
        System::Memcpy { .. } if yardstick.temper == Temper::Cold => "c",
        System::Memcpy { .. } => "m",
        System::Portolan if yardstick.bytes == 0 => "n",
        System::Signal => "p",
        System::Futex => "f",
        System::Portolan if yardstick.pattern == Pattern::Stream => "u",
        System::Portolan | System::Topic
            if yardstick.mode == Mode::Block
                && matches!(yardstick.pattern, Pattern::RoundTrip { .. }) =>
        {
            "z"
        }
        System::Channel => "r",
        System::Call => match yardstick.shape {
            Shape::IdleClient { .. } => "i",
            Shape::Late { .. } => "l",
            _ => "a",
        },
        System::Marshal { .. } => "o",
        System::UnixStream => "x",
        System::Update(Update::Copy) => "m",
        System::Update(Update::Bare) => "y",
        System::Update(Update::FreshCopy) => "k",
        System::Update(Update::InTurn) => "v",
        System::Update(_) => "q",
        _ if matches!(yardstick.pattern, Pattern::Multicast { .. }) => "t",
        _ => "s",
    }
}

/// What the letters of this run stand for.
fn legend(measured: &[Measured]) -> String {
    let explained = [
        ("a", "portolan's call of as much, and one client"),
        ("b", "the same work in a shared buffer"),
        ("c", "one memcpy of as much, cold"),
        ("f", "a bare futex, one way"),
        ("i", "the same with channels of its own"),
        (
            "k",
            "as much copied into new private memory, which is taken for it",
        ),
        ("l", "the same within the timer's period"),
        ("m", "one memcpy of as much"),
        ("n", "portolan's message without a byte"),
        ("o", "the copies alone"),
        ("p", "the signal alone, polled"),
        ("q", "the same stores to private memory"),
        ("r", "the same with one reader"),
        ("s", "the same with one sender"),
        ("t", "the same with one subscriber"),
        ("u", "the same while nobody watches"),
        ("v", "one after the other"),
        ("x", "the same through a Unix socket"),
        ("y", "the same system call without the library"),
        ("z", "the same, asleep at once"),
    ];
    let used: Vec<&str> = measured
        .iter()
        .filter_map(|row| row.yardstick.as_ref())
        .map(|(other, _)| mark(other))
        .collect();
    let lines = explained
        .iter()
        .filter(|(letter, _)| used.contains(letter))
        .map(|(letter, meaning)| format!("  {letter}: {meaning}\n"));
    let lines: String = lines.collect();
    let mut text = String::new();
    if !lines.is_empty() {
        text += &format!("\nxyard: the ratio to another row of this run, the yardstick\n{lines}");
    }
    text + &counts(measured)
}

/// What the counts of this run stand for.
fn counts(measured: &[Measured]) -> String {
    let explained = [
        ("signals", "looks for sleeping readers that the writer made"),
        ("wakes", "those that found one, and woke it"),
        (
            "exporter ns",
            "processor time of the process whose memory is written",
        ),
        (
            "instructions",
            "of who does the operation, in user mode; a system call is one",
        ),
        ("system calls", "of who does the operation"),
        ("asks", "questions that the transport's timer asked"),
        (
            "P/T",
            "the timer's processor time, to the time that it watched over",
        ),
    ];
    let used = |what: &str| {
        let mut counted = measured.iter().flat_map(|row| &row.counted);
        counted.any(|counted| counted.what == what)
    };
    let lines = explained
        .iter()
        .filter(|(what, _)| used(what))
        .map(|(what, meaning)| format!("  {what}: {meaning}\n"));
    let lines: String = lines.collect();
    if lines.is_empty() {
        return lines;
    }
    format!("\ncounted, by message, call or operation:\n{lines}")
}

pub(super) fn verdicts(budgets: &[Verdict]) -> String {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("budget", Left),
        ("must", Right),
        ("stretch", Right),
        ("measured", Right),
        ("", Left),
    ]);
    for one in budgets {
        let bound = |bound: f64| {
            let sign = if one.bound == "at least" { ">=" } else { "<=" };
            format!("{sign} {bound}")
        };
        table.row(vec![
            one.what.to_owned(),
            one.must.map_or(String::new(), bound),
            one.stretch.map_or(String::new(), |bound| bound.to_string()),
            times(one.measured),
            one.verdict.to_uppercase().replace("MET", "met"),
        ]);
    }
    table.render()
}

/// A time for people.
pub(super) fn nanos(time: f64) -> String {
    figure(Unit::OneWay, time)
}

/// A count by event in few characters.
fn short(count: f64) -> String {
    match count {
        0.0 => "0".to_owned(),
        _ if count < 0.0995 => format!("{count:.4}"),
        _ if count < 99.95 => format!("{count:.2}"),
        _ => format!("{count:.0}"),
    }
}

/// A ratio in few characters.
fn times(ratio: f64) -> String {
    match ratio {
        _ if ratio < 99.995 => format!("{ratio:.2}"),
        _ if ratio < 99_999.5 => format!("{ratio:.0}"),
        _ => format!("{ratio:.0e}"),
    }
}

/// A ratio of times becomes one of rates where the row's figures are rates.
fn ratio(case: &Case, times: f64) -> f64 {
    match case.unit() {
        Unit::Messages | Unit::Gigabytes => 1.0 / times,
        Unit::OneWay
        | Unit::RoundTrip
        | Unit::Written
        | Unit::CpuTime
        | Unit::Operation
        | Unit::Kibibytes => times,
    }
}

fn label(case: &Case) -> String {
    format!("{}, {}", case.system_name(), case.name())
}

/// To a few significant digits.
fn round(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    // Of a finite figure: between -308 and 308.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "a decimal exponent is small"
    )]
    let exponent = value.abs().log10().floor() as i32;
    let scale = 10_f64.powi(DIGITS - 1 - exponent);
    (value * scale).round() / scale
}

/// A figure for people: three digits and the power of a thousand. A time gets its
/// unit, which the heading's ns would hide in zeros.
fn figure(unit: Unit, value: f64) -> String {
    let (scale, suffixes): (f64, &[&str]) = match unit {
        Unit::OneWay | Unit::RoundTrip | Unit::Written | Unit::CpuTime | Unit::Operation => {
            (1.0, &["ns", "us", "ms", "s"])
        }
        Unit::Messages => (1e-3, &["k", "M", "G"]),
        Unit::Gigabytes | Unit::Kibibytes => (1.0, &[""]),
    };
    let mut value = value * scale;
    let mut suffixes = suffixes.iter();
    let mut suffix = suffixes.next().copied().unwrap_or_default();
    // Not 1000 after rounding.
    while value >= 999.5
        && let Some(next) = suffixes.next()
    {
        value /= 1000.0;
        suffix = next;
    }
    match value {
        _ if value < 9.995 => format!("{value:.2}{suffix}"),
        _ if value < 99.95 => format!("{value:.1}{suffix}"),
        _ => format!("{value:.0}{suffix}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_read_well() {
        assert_eq!(figure(Unit::OneWay, 61.24), "61.2ns");
        assert_eq!(figure(Unit::OneWay, 999.7), "1.00us");
        assert_eq!(figure(Unit::OneWay, 1_234_567.0), "1.23ms");
        assert_eq!(figure(Unit::Messages, 4.5e8), "450M");
        assert_eq!(figure(Unit::Gigabytes, 7.126), "7.13");
    }

    #[test]
    fn five_digits_are_kept() {
        assert_eq!(round(61.234_567), 61.235);
        assert_eq!(round(123_456_789.0), 123_460_000.0);
        assert_eq!(round(0.0), 0.0);
    }
}
