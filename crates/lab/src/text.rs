//! Prints a report on a terminal.

use crate::claims::UNTOLD;
use crate::outcome::{Cell, Outcome, Table, Verdict};
use crate::report::{self, About, Earlier, Ending, Record, Report, Stated};
use crate::unit::Unit;

/// Columns of a paragraph.
const WIDTH: usize = 80;

pub(crate) fn list(all: &[About]) -> String {
    let name = all.iter().map(|about| about.name.len()).max().unwrap_or(0);
    all.iter()
        .map(|About { name: n, title, .. }| format!("{n:name$}  {title}\n"))
        .collect()
}

pub(crate) fn claims(all: &[Stated]) -> String {
    let mut text = wrapped(UNTOLD);
    let mut papers: Vec<&str> = Vec::new();
    for claim in all {
        if !papers.contains(&claim.paper) {
            papers.push(claim.paper);
        }
    }
    for paper in papers {
        text += &format!("\n{}\n", wrapped(paper));
        for claim in all.iter().filter(|claim| claim.paper == paper) {
            let words = format!("{}. {}. {}", claim.claim, claim.section, claim.rule);
            text += &format!("{}\n{}\n", claim.id, wrapped(&words));
        }
    }
    text
}

pub(crate) fn report(report: &Report, earlier: Option<&Report>) -> String {
    let build = &report.build;
    let mut text = format!(
        "{}\n{}; commit {}; {}, {}; features: {}\n",
        report.machine,
        report.made,
        build.commit,
        build.compiler,
        build.profile,
        build.features()
    );
    if report.quick {
        text += &wrapped(report::QUICK);
    }
    if let Some(earlier) = earlier {
        text += &wrapped(&format!("beside {}", earlier.origin()));
    }
    for said in [report.summary(), report.unfinished(), report.pace()]
        .into_iter()
        .flatten()
    {
        text += &wrapped(&said);
    }
    text += &wrapped(&report.covers());
    text += &wrapped(UNTOLD);
    for record in &report.records {
        let earlier = Earlier::of(earlier, &record.about.name);
        let pace = report.pace_of(record);
        text += &format!("\n{}", self::record(record, earlier, pace.as_deref()));
    }
    text
}

fn record(record: &Record, earlier: Earlier<'_>, pace: Option<&str>) -> String {
    let title = &record.about.title;
    let rule = "=".repeat(title.chars().count());
    let body = match &record.result {
        Ending::Done(outcome) => self::outcome(outcome, earlier),
        Ending::LeftOut { why } => wrapped(&format!("Left out: {why}.")),
        Ending::Failed { error } => wrapped(&format!("Failed: {error}.")),
    };
    let how = record.how();
    format!(
        "{title}\n{rule}\n{}{}{}{body}",
        wrapped(&record.about.hypothesis),
        pace.map_or_else(String::new, wrapped),
        how.as_deref().map_or_else(String::new, wrapped),
    )
}

fn outcome(outcome: &Outcome, earlier: Earlier<'_>) -> String {
    let mut text = String::new();
    for table in &outcome.tables {
        text += &format!("\n{}", self::table(table, earlier));
    }
    for verdict in &outcome.verdicts {
        text += &format!("\n{}", self::verdict(verdict, earlier));
    }
    if !outcome.left_out.is_empty() {
        text += "\nLeft out:\n";
        for left_out in &outcome.left_out {
            text += &wrapped(&format!("- {}: {}.", left_out.what, left_out.why));
        }
    }
    text
}

/// Each row once for this machine, once for the paper, and so on, as far as there is one.
fn table(table: &Table, earlier: Earlier<'_>) -> String {
    let mut lines = vec![vec![table.corner.clone(), String::new()]];
    lines[0].extend(table.columns.iter().map(|column| column.name.clone()));
    for row in &table.rows {
        let unit = |at: usize| table.columns[at].unit;
        let then = |at: usize| earlier.cell(table, &row.label, at);
        let ratio = |at: usize, cell: &Cell| {
            let ratio = cell.here? / then(at)?;
            ratio.is_finite().then(|| Unit::Times.show(ratio))
        };
        let says = |who: &str, at: usize, cell: &Cell| match who {
            "here" => cell.show(unit(at)),
            "paper" => Some(unit(at).quote(cell.paper?)),
            "earlier" => Some(unit(at).show(then(at)?)),
            _ => ratio(at, cell),
        };
        let mut label = row.label.as_str();
        for who in ["here", "paper", "earlier", "ratio"] {
            let cells = row.cells.iter().enumerate();
            let figures: Vec<Option<String>> =
                cells.map(|(at, cell)| says(who, at, cell)).collect();
            if figures.iter().any(Option::is_some) {
                let mut line = vec![std::mem::take(&mut label).to_owned(), who.to_owned()];
                line.extend(figures.into_iter().map(Option::unwrap_or_default));
                lines.push(line);
            }
        }
    }
    let note = if table.note.is_empty() {
        String::new()
    } else {
        wrapped(&table.note)
    };
    format!("{}\n{note}{}", table.title, aligned(&lines))
}

fn verdict(verdict: &Verdict, earlier: Earlier<'_>) -> String {
    let Verdict {
        holds,
        rule,
        paragraph,
        ..
    } = verdict;
    let then = earlier.answer(verdict).map(|answer| {
        let figures = verdict.figures.iter().filter_map(|figure| {
            let then = earlier.figure(verdict, figure)?;
            Some(format!("{} {}", figure.name, figure.unit.show(then)))
        });
        let figures: Vec<String> = figures.collect();
        format!(" (Earlier: {}; {}.)", answer.name(), figures.join(", "))
    });
    let then = then.unwrap_or_default();
    let doubt = verdict
        .doubt()
        .map_or_else(String::new, |doubt| format!("It cannot be told: {doubt}. "));
    let figures: Vec<String> = verdict
        .figures
        .iter()
        .filter_map(|figure| {
            let here = figure.cell.show(figure.unit);
            let paper = figure.cell.paper.map(|paper| figure.unit.quote(paper));
            let paper = paper.map(|paper| format!("paper {paper}"));
            let both: Vec<String> = here.into_iter().chain(paper).collect();
            (!both.is_empty()).then(|| format!("{}: {}", figure.name, both.join(", ")))
        })
        .collect();
    let figures = if figures.is_empty() {
        String::new()
    } else {
        wrapped(&format!("({}.)", figures.join("; ")))
    };
    wrapped(&format!(
        "{}: {}. {doubt}{paragraph} {rule}{then}",
        holds.name().to_uppercase(),
        verdict.title()
    )) + &figures
}

/// The first two columns to the left, the others to the right.
fn aligned(lines: &[Vec<String>]) -> String {
    let columns = lines.iter().map(Vec::len).max().unwrap_or(0);
    let width = |at: usize| {
        let cells = lines.iter().filter_map(|line| line.get(at));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for line in lines {
        let cells: Vec<String> = line
            .iter()
            .zip(&widths)
            .enumerate()
            .map(|(at, (cell, &width))| {
                if at < 2 {
                    format!("{cell:<width$}")
                } else {
                    format!("{cell:>width$}")
                }
            })
            .collect();
        text += cells.join("  ").trim_end();
        text.push('\n');
    }
    text
}

/// A paragraph, broken between words.
fn wrapped(paragraph: &str) -> String {
    let mut text = String::new();
    let mut column = 0;
    for word in paragraph.split_whitespace() {
        let length = word.chars().count();
        if column > 0 && column + 1 + length > WIDTH {
            text.push('\n');
            column = 0;
        }
        if column > 0 {
            text.push(' ');
            column += 1;
        }
        text += word;
        column += length;
    }
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_a_line_for_each_figure_that_it_has() {
        let columns = [("first", Unit::Seconds), ("later", Unit::Seconds)];
        let mut rows = Table::new("t", "T", "way", &columns);
        rows.row("copy", [Cell::here(1e-6).beside(2e-3), Cell::here(2e-6)]);
        rows.row("move", [Cell::here(3e-6)]);
        assert_eq!(
            table(&rows, Earlier::default()),
            "T\nway            first    later\n\
             copy  here   1.00 µs  2.00 µs\n      paper     2 ms\n\
             move  here   3.00 µs\n"
        );
    }

    #[test]
    fn paragraphs_are_broken_between_words() {
        let text = wrapped(&"word ".repeat(40));
        assert!(text.lines().all(|line| line.len() <= WIDTH));
        assert_eq!(text.split_whitespace().count(), 40);
    }
}
