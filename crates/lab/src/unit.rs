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
        if self == Self::Count && (value.fract() == 0.0 || value.abs() >= 100.0) {
            return grouped(value);
        }
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
            Self::Share => {
                let percent = format!("{:.1} %", value * 100.0);
                // Nothing, from whichever side.
                match percent.as_str() {
                    "-0.0 %" => "0.0 %".to_owned(),
                    _ => percent,
                }
            }
            Self::Count => digits(value),
        }
    }
}

/// Three digits, two below a tenth, and all of the whole part.
fn three_digits(value: f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        v if v < 0.0995 => {
            // As many zeros as there are before the first digit.
            let zeros = (1..9_u8).find(|zeros| v * 10_f64.powi((*zeros).into()) >= 0.995);
            zeros.map_or_else(
                || "0".into(),
                |zeros| format!("{value:.digits$}", digits = usize::from(zeros) + 1),
            )
        }
        v if v < 9.995 => format!("{value:.2}"),
        v if v < 99.95 => format!("{value:.1}"),
        _ => grouped(value),
    }
}

/// "30,395".
fn grouped(value: f64) -> String {
    let whole = format!("{:.0}", value.abs());
    let mut text = String::new();
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && (whole.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if value < 0.0 && whole != "0" {
        text.insert(0, '-');
    }
    text
}

/// Up to four digits: a paper's own zeros at the end are not known.
fn four_digits(value: f64) -> String {
    let text = match value.abs() {
        v if v < 9.9995 => format!("{value:.3}"),
        v if v < 99.995 => format!("{value:.2}"),
        v if v < 999.95 => format!("{value:.1}"),
        _ => return grouped(value),
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
        assert_eq!(Unit::Share.show(-0.0), "0.0 %");
        assert_eq!(Unit::Share.show(-0.000_4), "0.0 %");
        assert_eq!(Unit::Share.show(-0.04), "-4.0 %");
        assert_eq!(Unit::Times.show(2.4), "2.40 ×");
        assert_eq!(Unit::Count.show(14.0), "14");
        assert_eq!(Unit::Count.quote(2030.0 / 4.7), "432");
        assert_eq!(Unit::Count.show(20_000_000.0), "20,000,000");
        assert_eq!(Unit::Count.show(37.36), "37.4");
        assert_eq!(Unit::Times.show(30_395.2), "30,395 ×");
        assert_eq!(Unit::Times.show(-1234.0), "-1,234 ×");
        assert_eq!(Unit::Times.show(0.0318), "0.032 ×");
        assert_eq!(Unit::Times.show(0.0089), "0.0089 ×");
        assert_eq!(Unit::Times.show(0.0995), "0.10 ×");
        assert_eq!(Unit::Seconds.show(2.36e-12), "0.0024 ns");
        assert_eq!(Unit::Seconds.show(1e-20), "0 ns");
    }
}
