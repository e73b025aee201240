//! Prints on standard output, also to a reader who leaves, and aligns tables.

use std::io::{self, Write as _};

use crate::error::{MeasureError, Result};

/// Prints `text` (no newline added). A closed pipe is [`MeasureError::ReaderLeft`], not a panic.
pub fn print(text: &str) -> Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
    {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(MeasureError::ReaderLeft),
        Err(source) => Err(MeasureError::System {
            doing: "writing to standard output",
            source,
        }),
    }
}

/// Prints any value as indented JSON.
pub fn print_json<T: serde::Serialize>(value: &T) -> Result<()> {
    // Serialising our own plain structs to memory cannot fail.
    let text = serde_json::to_string_pretty(value).expect("plain data serialises");
    print(&(text + "\n"))
}

/// Which edge of its column a cell keeps to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// Texts.
    Left,
    /// Figures.
    Right,
}

/// A table with a heading, columns two blanks apart.
#[derive(Debug)]
pub struct Table {
    columns: Vec<Align>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table without rows.
    pub fn new(heading: &[(&str, Align)]) -> Self {
        Self {
            columns: heading.iter().map(|(_, align)| *align).collect(),
            rows: vec![
                heading
                    .iter()
                    .map(|(title, _)| (*title).to_owned())
                    .collect(),
            ],
        }
    }

    /// Adds a row: as many cells as the heading has.
    pub fn row(&mut self, cells: Vec<String>) {
        debug_assert_eq!(cells.len(), self.columns.len());
        self.rows.push(cells);
    }

    /// The table as lines.
    pub fn render(&self) -> String {
        let width = |column: usize| {
            self.rows
                .iter()
                .map(|row| row[column].chars().count())
                .max()
                .unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        let mut text = String::new();
        for row in &self.rows {
            let cells: Vec<String> = row
                .iter()
                .zip(&widths)
                .zip(&self.columns)
                .map(|((cell, &width), align)| match align {
                    Align::Left => format!("{cell:<width$}"),
                    Align::Right => format!("{cell:>width$}"),
                })
                .collect();
            text.push_str(cells.join("  ").trim_end());
            text.push('\n');
        }
        text
    }
}

/// A size as people write it: exact powers in their unit, others in the nearest.
pub fn size(bytes: u64) -> String {
    const UNITS: [(&str, u64); 3] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    for (unit, one) in UNITS {
        if bytes >= one {
            return if bytes.is_multiple_of(one) {
                format!("{} {unit}", bytes / one)
            } else {
                format!("{:.1} {unit}", bytes as f64 / one as f64)
            };
        }
    }
    format!("{bytes} B")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_well() {
        assert_eq!(size(0), "0 B");
        assert_eq!(size(48), "48 B");
        assert_eq!(size(4096), "4 KiB");
        assert_eq!(size(3 << 19), "1.5 MiB");
    }

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(&[("name", Align::Left), ("n", Align::Right)]);
        table.row(vec!["a".into(), "10".into()]);
        assert_eq!(table.render(), "name   n\na     10\n");
    }
}
