//! Keeps each figure in one unit, and scales it only when it is shown.

use serde::{Deserialize, Serialize};

/// What a figure counts. Every figure of a kind is in the same unit, so that the paper's
/// milliseconds and this machine's nanoseconds compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Unit {
    #[serde(rename = "s")]
    Seconds,
    #[serde(rename = "B/s")]
    BytesPerSecond,
    #[serde(rename = "B")]
    Bytes,
    /// One thing relative to another.
    #[serde(rename = "times")]
    Times,
    /// A part of a whole, 0 to 1; shown in percent.
    #[serde(rename = "share")]
    Share,
    #[serde(rename = "count")]
    Count,
}

impl Unit {
    /// `value` as people write it: three digits, in the unit's nearest multiple.
    pub(crate) fn show(self, value: f64) -> String {
        self.with(value, three_digits)
    }

    /// The same with what a paper prints: up to four digits.
    pub(crate) fn quote(self, value: f64) -> String {
        self.with(value, four_digits)
    }

    fn with(self, value: f64, digits: fn(f64) -> String) -> String {
        let scaled = |multiples: &[(f64, &str)]| {
            // The first multiple that leaves at least one whole; the last one for the rest.
            let fits = |(one, _): &&(f64, &str)| value.abs() >= *one * 0.9995;
            let found = multiples.iter().find(fits).or(multiples.last());
            found.map_or_else(String::new, |(one, name)| {
                format!("{} {name}", digits(value / one))
            })
        };
        match self {
            Self::Seconds => scaled(&[(1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")]),
            Self::BytesPerSecond => {
                scaled(&[(1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"), (1.0, "B/s")])
            }
            Self::Bytes => size(value),
            Self::Times => format!("{} ×", digits(value)),
            Self::Share => format!("{:.1} %", value * 100.0),
            Self::Count if value.fract() == 0.0 => format!("{value:.0}"),
            Self::Count => digits(value),
        }
    }
}

/// Three digits, and all of the whole part.
fn three_digits(value: f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        v if v < 0.01 => format!("{value:.1e}"),
        v if v < 9.995 => format!("{value:.2}"),
        v if v < 99.95 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

/// Up to four digits: a paper's own zeros at the end are not known.
fn four_digits(value: f64) -> String {
    let text = match value.abs() {
        v if v < 9.9995 => format!("{value:.3}"),
        v if v < 99.995 => format!("{value:.2}"),
        v if v < 999.95 => format!("{value:.1}"),
        _ => return format!("{value:.0}"),
    };
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A size: whole binary multiples as such.
fn size(bytes: f64) -> String {
    const UNITS: [(f64, &str); 3] = [
        ((1_u64 << 30) as f64, "GiB"),
        ((1_u64 << 20) as f64, "MiB"),
        ((1_u64 << 10) as f64, "KiB"),
    ];
    let Some((one, name)) = UNITS.iter().find(|(one, _)| bytes >= *one) else {
        return format!("{bytes:.0} B");
    };
    let multiple = bytes / one;
    if multiple.fract() == 0.0 {
        format!("{multiple:.0} {name}")
    } else {
        format!("{} {name}", three_digits(multiple))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_read_well() {
        assert_eq!(Unit::Seconds.show(0.002_106), "2.11 ms");
        assert_eq!(Unit::Seconds.quote(0.002_105), "2.105 ms");
        assert_eq!(Unit::Seconds.quote(0.000_120), "120 µs");
        assert_eq!(Unit::Seconds.show(0.000_000_081), "81.0 ns");
        assert_eq!(Unit::Seconds.show(0.000_999_9), "1.00 ms");
        assert_eq!(Unit::Seconds.show(-0.000_03), "-30.0 µs");
        assert_eq!(Unit::Seconds.show(4e-10), "0.40 ns");
        assert_eq!(Unit::Seconds.show(0.0), "0 ns");
        assert_eq!(Unit::BytesPerSecond.show(3.9e6), "3.90 MB/s");
        assert_eq!(Unit::Bytes.show(8192.0), "8 KiB");
        assert_eq!(Unit::Bytes.show(10_000.0), "9.77 KiB");
        assert_eq!(Unit::Share.show(0.435), "43.5 %");
        assert_eq!(Unit::Times.show(2.4), "2.40 ×");
        assert_eq!(Unit::Count.show(14.0), "14");
    }
}
