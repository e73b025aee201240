//! Computes axes with marks at round numbers: decimal ones, and binary ones for bytes.

use std::ops::Range;

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};

use crate::outcome::Axis;
use crate::unit::Unit;

/// Marks of an axis at the most.
const MARKS: usize = 9;

/// An axis that covers some points, with a little room.
#[derive(Clone, Debug)]
pub(super) struct Scale {
    unit: Unit,
    log: bool,
    range: Range<f64>,
}

impl Scale {
    /// `None` if no point can be drawn.
    pub(super) fn over(axis: &Axis, points: impl Iterator<Item = f64>) -> Option<Self> {
        let drawn = points.filter(|&point| !axis.log || point > 0.0);
        let (least, most) = drawn.fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), p| {
            (least.min(p), most.max(p))
        });
        if least > most {
            return None;
        }
        let range = if axis.log {
            let room = (most / least).powf(0.04).max(1.1);
            least / room..most * room
        } else {
            let room = ((most - least) * 0.04)
                .max(most.abs() * 0.01)
                .max(f64::MIN_POSITIVE);
            let from = if least >= 0.0 { 0.0 } else { least - room };
            from..most + room
        };
        Some(Self {
            unit: axis.unit,
            log: axis.log,
            range,
        })
    }

    /// Whether `value` can be drawn.
    pub(super) fn has(&self, value: f64) -> bool {
        self.range.contains(&value)
    }

    fn marks(&self, most: usize) -> Vec<f64> {
        let most = most.clamp(2, MARKS);
        let base = if self.unit == Unit::Bytes { 2.0 } else { 10.0 };
        if self.log {
            // Powers of the base, every so many that there are not too many.
            let power = |value: f64| value.ln() / f64::ln(base);
            let (first, last) = (
                power(self.range.start).ceil(),
                power(self.range.end).floor(),
            );
            if last - first < 2.0 && self.unit != Unit::Bytes {
                // Fewer than three powers: what lies between them, too.
                let steps = [1.0, 2.0, 5.0];
                let powers = from_to(first - 1.0, last, 1.0);
                return powers
                    .flat_map(|power| steps.map(|times| times * base.powf(power)))
                    .filter(|mark| self.has(*mark))
                    .collect();
            }
            let step = ((last - first + 1.0) / most as f64).ceil().max(1.0);
            // Counted from 1, so that bytes fall on 4, 16, 64 KiB and the like.
            let first = (first / step).ceil() * step;
            return from_to(first, last, step)
                .map(|power| base.powf(power))
                .collect();
        }
        let span = self.range.end - self.range.start;
        let rough = span / most as f64;
        let power = base.powf((rough.ln() / f64::ln(base)).floor());
        let steps = [1.0, 2.0, 5.0, 10.0].map(|times| times * power);
        let step = steps
            .into_iter()
            .find(|step| *step >= rough)
            .unwrap_or(rough);
        // There is no half of a thing that is counted.
        let step = if self.unit == Unit::Count {
            step.max(1.0)
        } else {
            step
        };
        let first = (self.range.start / step).ceil();
        let last = (self.range.end / step).floor();
        from_to(first, last, 1.0)
            .map(|times| times * step)
            .collect()
    }
}

fn from_to(first: f64, last: f64, step: f64) -> impl Iterator<Item = f64> {
    std::iter::successors(Some(first), move |at| Some(at + step)).take_while(move |at| *at <= last)
}

impl Ranged for Scale {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let Range { start, end } = self.range;
        let share = if self.log {
            (value / start).ln() / (end / start).ln()
        } else {
            (value - start) / (end - start)
        };
        let pixel = f64::from(limit.0) + share * f64::from(limit.1 - limit.0);
        #[expect(
            clippy::cast_possible_truncation,
            reason = "a pixel of a small picture"
        )]
        let pixel = pixel.round() as i32;
        pixel
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        self.marks(hint.max_num_points())
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

impl ValueFormatter<f64> for Scale {
    fn format(value: &f64) -> String {
        value.to_string()
    }

    fn format_ext(&self, value: &f64) -> String {
        self.unit.quote(*value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scale(axis: &Axis, points: &[f64]) -> Scale {
        Scale::over(axis, points.iter().copied()).unwrap()
    }

    #[test]
    fn marks_are_round() {
        let bytes = Axis::log("size", Unit::Bytes);
        let marks = scale(&bytes, &[0.0, 8192.0, 67_108_864.0]).marks(8);
        assert_eq!(marks[..2], [16_384.0, 65_536.0]);
        let time = Axis::log("time", Unit::Seconds);
        let marks = scale(&time, &[3e-6, 2e-3]).marks(8);
        let texts: Vec<String> = marks.iter().map(|m| Unit::Seconds.quote(*m)).collect();
        assert_eq!(texts, ["10 µs", "100 µs", "1 ms"]);
        // One power only: the figures between are marked, too.
        let time = Axis::log("time", Unit::Seconds);
        let marks = scale(&time, &[2.5e-6, 22e-6]).marks(8);
        let texts: Vec<String> = marks.iter().map(|m| Unit::Seconds.quote(*m)).collect();
        assert_eq!(texts, ["5 µs", "10 µs", "20 µs"]);
        let count = Axis::linear("forwarders", Unit::Count);
        let marks = scale(&count, &[0.0, 4.0]).marks(9);
        assert_eq!(marks, [0.0, 1.0, 2.0, 3.0, 4.0]);
        let time = Axis::linear("time", Unit::Seconds);
        let marks = scale(&time, &[1.0, 9.0]).marks(5);
        assert_eq!(marks, [0.0, 2.0, 4.0, 6.0, 8.0]);
    }

    #[test]
    fn there_is_no_axis_over_nothing() {
        let time = Axis::log("time", Unit::Seconds);
        assert!(Scale::over(&time, [0.0].into_iter()).is_none());
    }

    #[test]
    fn the_ends_lie_within_the_picture() {
        for axis in [
            Axis::log("t", Unit::Seconds),
            Axis::linear("t", Unit::Seconds),
        ] {
            let scale = scale(&axis, &[1.0, 1000.0]);
            assert!((100..=900).contains(&scale.map(&1.0, (100, 900))));
            assert!((100..=900).contains(&scale.map(&1000.0, (100, 900))));
        }
    }
}
