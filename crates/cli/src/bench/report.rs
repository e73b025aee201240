//! The results, as a table and as JSON.

use serde::Serialize;

use super::case::{Case, Unit};
use super::harness::Measured;
use super::machine::Machine;
use crate::error::Result;
use crate::out::{self, Align, Table};

/// Digits that a figure in JSON keeps; more would claim too much.
const DIGITS: i32 = 5;

#[derive(Serialize)]
struct Report<'a> {
    machine: &'a Machine,
    rows: Vec<Row>,
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
        }
    }
}

/// Prints the rows as asked.
pub(crate) fn print(machine: &Machine, measured: &[Measured], json: bool) -> Result<()> {
    let rows: Vec<Row> = measured.iter().map(Row::new).collect();
    if json {
        return out::print_json(&Report { machine, rows });
    }
    out::print(&format!("{machine}\n\n{}", table(&rows)))
}

fn table(rows: &[Row]) -> String {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("system", Left),
        ("case", Left),
        ("mode", Left),
        ("protection", Left),
        ("payload", Left),
        ("size", Right),
        ("p50", Right),
        ("p99", Right),
        ("p99.9", Right),
        ("max", Right),
        ("unit", Left),
        ("x limit", Right),
        ("x yardstick", Left),
    ]);
    for row in rows {
        let held_against = row.yardstick.as_ref().zip(row.ratio_to_yardstick);
        table.row(vec![
            row.system.to_owned(),
            row.case.clone(),
            row.mode.to_owned(),
            row.protection.to_owned(),
            row.payload.to_owned(),
            out::size(row.bytes),
            figure(row.unit, row.p50),
            figure(row.unit, row.p99),
            figure(row.unit, row.p999),
            figure(row.unit, row.max),
            row.unit.name().to_owned(),
            format!("{:.2}", row.ratio_to_limit),
            held_against.map_or(String::new(), |(other, ratio)| {
                format!("{ratio:.2} {other}")
            }),
        ]);
    }
    table.render()
}

/// A ratio of times becomes one of rates where the row's figures are rates.
fn ratio(case: &Case, times: f64) -> f64 {
    match case.unit() {
        Unit::Messages | Unit::Gigabytes => 1.0 / times,
        Unit::OneWay | Unit::RoundTrip | Unit::CpuTime => times,
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

/// A figure for people: short, with separators between thousands.
fn figure(unit: Unit, value: f64) -> String {
    match unit {
        Unit::Messages => format!("{:.2} M", value / 1e6),
        Unit::Gigabytes => format!("{value:.2}"),
        _ if value < 1000.0 => format!("{value:.1}"),
        _ => thousands(&format!("{value:.0}")),
    }
}

fn thousands(digits: &str) -> String {
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_read_well() {
        assert_eq!(figure(Unit::OneWay, 61.24), "61.2");
        assert_eq!(figure(Unit::OneWay, 1_234_567.0), "1,234,567");
        assert_eq!(figure(Unit::Messages, 4.5e8), "450.00 M");
    }

    #[test]
    fn five_digits_are_kept() {
        assert_eq!(round(61.234_567), 61.235);
        assert_eq!(round(123_456_789.0), 123_460_000.0);
        assert_eq!(round(0.0), 0.0);
    }
}
