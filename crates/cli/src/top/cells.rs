//! Makes columns and cells, of which every table of the screen consists.

use std::cmp::Ordering;

/// The tables of a screen that shows an `S`, in the order of its tabs.
pub(crate) trait Tables<S>: Copy + PartialEq + 'static {
    const ALL: &'static [Self];

    fn title(self) -> &'static str;

    fn columns(self) -> &'static [Column];

    /// The column that it is sorted by at first: what does most.
    fn first_column(self) -> &'static str;

    fn rows(self, shown: &S) -> Vec<Vec<Cell>>;

    /// The number of that column.
    fn first_sort(self) -> usize {
        let wanted = self.first_column();
        let at = self.columns().iter().position(|c| c.title == wanted);
        at.unwrap_or(0)
    }
}

/// A column: its heading, its width, and whether it is text, which keeps left, gets the
/// room that is left over, and is sorted upwards at first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Column {
    pub(crate) title: &'static str,
    pub(crate) width: u16,
    pub(crate) text: bool,
}

pub(crate) const fn text(title: &'static str, width: u16) -> Column {
    Column {
        title,
        width,
        text: true,
    }
}

pub(crate) const fn number(title: &'static str, width: u16) -> Column {
    Column {
        title,
        width,
        text: false,
    }
}

/// One cell: what it shows and what it is sorted by.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Cell {
    pub(crate) text: String,
    pub(crate) key: Key,
    /// Something to look at: a queue that is full, a message that was lost.
    pub(crate) alarm: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Key {
    Text(String),
    Number(f64),
}

impl Key {
    pub(crate) fn order(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Number(a), Self::Number(b)) => a.total_cmp(b),
            (Self::Text(a), Self::Text(b)) => a.cmp(b),
            (Self::Text(_), Self::Number(_)) => Ordering::Greater,
            (Self::Number(_), Self::Text(_)) => Ordering::Less,
        }
    }
}

pub(crate) fn cell(text: String, key: f64) -> Cell {
    Cell {
        text,
        key: Key::Number(key),
        alarm: false,
    }
}

pub(crate) fn name(text: &str) -> Cell {
    Cell {
        text: text.to_owned(),
        key: Key::Text(text.to_lowercase()),
        alarm: false,
    }
}

/// A count; nothing to see where it is 0.
pub(crate) fn count(value: u64) -> Cell {
    let text = match value {
        0 => "-".to_owned(),
        _ => short(value as f64),
    };
    cell(text, value as f64)
}

pub(crate) fn lost(value: u64) -> Cell {
    Cell {
        alarm: value > 0,
        ..count(value)
    }
}

pub(crate) fn rate(value: f64) -> Cell {
    cell(short(value), value)
}

pub(crate) fn bytes(value: f64) -> Cell {
    cell(short_bytes(value), value)
}

/// A number in five places at the most.
pub(crate) fn short(value: f64) -> String {
    // The sum of no numbers is -0.
    let value = value + 0.0;
    for (limit, one, unit) in [(1e4, 1.0, ""), (1e6, 1e3, "k"), (1e9, 1e6, "M")] {
        let shown = value / one;
        if value < limit {
            return match (unit, shown) {
                ("", shown) if shown > 0.0 && shown < 10.0 && shown.fract() > 0.05 => {
                    format!("{shown:.1}")
                }
                ("M", shown) if shown < 99.95 => format!("{shown:.1}M"),
                (unit, shown) => format!("{shown:.0}{unit}"),
            };
        }
    }
    format!("{:.1}G", value / 1e9)
}

/// Bytes in eight places at the most.
pub(crate) fn short_bytes(value: f64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    if value < 0.5 {
        return "-".to_owned();
    }
    let mut value = value;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 || value >= 99.95 || (value.fract() * 10.0).round() % 10.0 == 0.0 {
        format!("{value:.0} {}", UNITS[unit])
    } else {
        format!("{value:.1} {}", UNITS[unit])
    }
}

/// Seconds in six places at the most.
pub(crate) fn age(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h{:02}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d{:02}h", seconds / 86_400, seconds / 3600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_whatever_they_are() {
        for (value, shown) in [
            (0.0, "0"),
            (-0.0, "0"),
            (0.4, "0.4"),
            (7.0, "7"),
            (9_999.0, "9999"),
            (65_536.0, "66k"),
            (999_999.0, "1000k"),
            (12_345_678.0, "12.3M"),
            (123_456_789.0, "123M"),
            (5.2e9, "5.2G"),
        ] {
            assert_eq!(short(value), shown);
            assert!(short(value).len() <= 5);
        }
        for (value, shown) in [
            (0.0, "-"),
            (999.0, "999 B"),
            (1023.0, "1 KiB"),
            (4096.0, "4 KiB"),
            (1536.0, "1.5 KiB"),
            (1_048_575.0, "1 MiB"),
            (3.25e9, "3 GiB"),
            (1e15, "909 TiB"),
        ] {
            assert_eq!(short_bytes(value), shown);
        }
        for value in 0..4000 {
            assert!(short_bytes(1.013f64.powi(value)).len() <= 8 || value > 2700);
        }
        for (seconds, shown) in [
            (59, "59s"),
            (3599, "59m59s"),
            (86_399, "23h59m"),
            (48 * 86_400, "48d00h"),
        ] {
            assert_eq!(age(seconds), shown);
        }
    }
}
