//! Renders a report as one page that needs no network and no script.
//!
//! The markup is well-formed, so that a strict parser can check it: every element is
//! closed, every text escaped ([`markup`]). Colours come from one style sheet, light or
//! dark as the reader has it.

mod axis;
mod bars;
mod markup;
mod svg;

use crate::claims::UNTOLD;
use crate::outcome::{Answer, Cell, Outcome, Table, Verdict};
use crate::report::{self, About, Earlier, Ending, Record, Report};
use crate::unit::Unit;
use markup::{classed, element, escape};

pub(crate) use svg::file as plot_file;

/// Quartiles that are farther apart than this part of their middle are shown with it.
const FAR: f64 = 0.5;
/// A table with more columns than this says paper and machine below each other.
const SIDE_BY_SIDE: usize = 3;

pub(crate) fn render(report: &Report, earlier: Option<&Report>) -> String {
    let records: String = report
        .records
        .iter()
        .map(|record| {
            let earlier = Earlier::of(earlier, &record.about.name);
            self::record(record, earlier, report.pace_of(record).as_deref())
        })
        .collect();
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
         <meta name=\"color-scheme\" content=\"light dark\"/>\n\
         <title>Portolan: the papers' experiments</title>\n\
         <style>:root{{{}}}\n@media (prefers-color-scheme:dark){{:root{{{}}}}}\n{}{}</style>\n\
         </head>\n<body>\n{}{}{records}</body>\n</html>\n",
        svg::COLOURS,
        svg::COLOURS_DARK,
        include_str!("style.css"),
        svg::rules(),
        head(report, earlier),
        summary(report),
    )
}

/// When, on what, and beside what.
fn head(report: &Report, earlier: Option<&Report>) -> String {
    let machine = &report.machine;
    let mut page = element("h1", "The papers' experiments, on this machine");
    page += &classed(
        "p",
        "muted",
        "What the papers measured, measured again: the paper's figure beside this machine's, \
         and for each claim whether it holds here.",
    );
    page += &classed("p", "muted", &report.covers());
    page += &classed(
        "p",
        "muted",
        &format!("{UNTOLD} Where the quartiles of a figure lie far apart they stand below it."),
    );
    let kind = if machine.facts.virtual_machine {
        " (virtual machine)"
    } else {
        ""
    };
    let pinned = match machine.line_seconds {
        Some(line) => format!(
            "processors {} and {}, a cache line {} apart",
            machine.facts.pinned[0],
            machine.facts.pinned[1],
            Unit::Seconds.show(line)
        ),
        None => format!("processor {}", machine.facts.pinned[0]),
    };
    let mut facts = vec![
        ("made", report.made.clone()),
        ("processor", format!("{}{kind}", machine.facts.cpu)),
        (
            "processors",
            format!(
                "{}, {} usable",
                machine.facts.cpus, machine.facts.cpus_allowed
            ),
        ),
        ("ran on", pinned),
        (
            "memory",
            Unit::Bytes.show(machine.facts.memory_bytes as f64),
        ),
        ("kernel", format!("Linux {}", machine.facts.kernel)),
        (
            "huge pages",
            format!(
                "{}; shared memory: {}",
                machine.facts.huge_pages, machine.facts.shared_huge_pages
            ),
        ),
        ("load before", format!("{:.2}", machine.facts.load_before)),
        ("portolan", report.version.clone()),
        ("commit", report.build.commit.clone()),
        (
            "compiler",
            format!("{}, {}", report.build.compiler, report.build.profile),
        ),
        ("features", report.build.features()),
    ];
    if let Some(earlier) = earlier {
        facts.push(("beside", earlier.origin()));
    }
    page += "<dl class=\"facts\">\n";
    for (name, value) in facts {
        page += &element("dt", name);
        page += &element("dd", &value);
    }
    page += "</dl>\n";
    let quick = report.quick.then(|| report::QUICK.to_owned());
    for warning in [quick, report.unfinished(), report.pace()] {
        page += &warning.map_or_else(String::new, |text| classed("p", "warning", &text));
    }
    page
}

/// Every verdict in one line, as links.
fn summary(report: &Report) -> String {
    let mut rows = String::new();
    for Record { about, result, .. } in &report.records {
        let name = escape(&about.name);
        let title = escape(&about.title);
        let link = format!("<th scope=\"row\"><a href=\"#{name}\">{title}</a></th>");
        match result {
            Ending::Done(outcome) if outcome.verdicts.is_empty() => {
                rows += &format!("<tr>{link}<td>&#8211;</td><td></td></tr>\n");
            }
            Ending::Done(outcome) => {
                for (at, verdict) in outcome.verdicts.iter().enumerate() {
                    let link = if at == 0 { &link } else { "<th></th>" };
                    let class = class(verdict.holds);
                    rows += &format!(
                        "<tr>{link}<td>{}</td><td class=\"answer {class}\">{}{}</td></tr>\n",
                        escape(&verdict.title()),
                        verdict.holds.name(),
                        in_doubt(verdict)
                    );
                }
            }
            Ending::LeftOut { .. } => {
                rows += &format!("<tr>{link}<td></td><td>left out</td></tr>\n");
            }
            Ending::Failed { .. } => {
                rows += &format!("<tr>{link}<td></td><td>failed</td></tr>\n");
            }
        }
    }
    let summary = report.summary();
    let summary = summary.map_or_else(String::new, |summary| element("p", &summary));
    format!(
        "{summary}<div class=\"scroll\"><table class=\"summary\">\n<thead><tr><th>experiment</th>\
         <th>claim</th><th>here</th></tr></thead>\n<tbody>\n{rows}</tbody>\n</table></div>\n"
    )
}

/// What the figures say, where something else says that they decide nothing.
fn in_doubt(verdict: &Verdict) -> String {
    if verdict.doubts.is_empty() {
        return String::new();
    }
    let by_figures = verdict.by_figures.name();
    format!("<span class=\"paper\">by its figures: {by_figures}</span>")
}

fn record(record: &Record, earlier: Earlier<'_>, pace: Option<&str>) -> String {
    let About {
        name,
        title,
        paper,
        section,
        hypothesis,
        method,
    } = &record.about;
    let mut page = format!(
        "<section id=\"{}\">\n{}",
        escape(name),
        element("h2", title)
    );
    page += &classed("p", "source", &format!("{paper}. {section}."));
    page += &element("p", hypothesis);
    let mut took = format!("It took {}.", Unit::Seconds.show(record.seconds));
    if let Some(line) = record.line_seconds {
        let [before, after] = line.map(|line| Unit::Seconds.show(line));
        took += &format!(" A cache line took {before} before it and {after} after it.");
    }
    if let Some(others) = record.others {
        let others = Unit::Count.show(others);
        took += &format!(" Others took {others} processors meanwhile.");
    }
    page += &format!(
        "<details><summary>method</summary>{}{}</details>\n",
        element("p", method),
        classed("p", "muted", &took)
    );
    page += &pace.map_or_else(String::new, |pace| classed("p", "warning", pace));
    page += &record
        .how()
        .map_or_else(String::new, |how| classed("p", "muted", &how));
    page += &match &record.result {
        Ending::Done(outcome) => self::outcome(outcome, earlier),
        Ending::LeftOut { why } => classed("p", "warning", &format!("Left out: {why}.")),
        Ending::Failed { error } => classed("p", "warning", &format!("Failed: {error}.")),
    };
    page + "</section>\n"
}

fn outcome(outcome: &Outcome, earlier: Earlier<'_>) -> String {
    let mut page = String::new();
    for verdict in &outcome.verdicts {
        page += &self::verdict(verdict, earlier);
    }
    for plot in &outcome.plots {
        page += &element("h3", &plot.title);
        match svg::draw(plot) {
            Some(svg) => page += &format!("<div class=\"scroll\">{svg}</div>\n"),
            None => page += &classed("p", "note", "Nothing could be measured to draw."),
        }
    }
    for table in &outcome.tables {
        page += &self::table(table, earlier);
    }
    if !outcome.left_out.is_empty() {
        page += &element("h3", "Left out");
        page += "<ul>\n";
        for left_out in &outcome.left_out {
            page += &element("li", &format!("{}: {}.", left_out.what, left_out.why));
        }
        page += "</ul>\n";
    }
    page
}

fn class(answer: Answer) -> &'static str {
    match answer {
        Answer::Holds => "holds",
        Answer::DoesNotHold => "fails",
        Answer::CannotTell => "open",
        Answer::Model | Answer::Fit | Answer::NotBuilt | Answer::NoHardware | Answer::ByHand => {
            "unjudged"
        }
    }
}

fn verdict(verdict: &Verdict, earlier: Earlier<'_>) -> String {
    let mut page = format!(
        "<div class=\"verdict {}\">\n<p><strong>{}</strong> <span class=\"answer\">{}</span></p>\n",
        class(verdict.holds),
        escape(&verdict.title()),
        verdict.holds.name(),
    );
    if let Some(doubt) = verdict.doubt() {
        page += &classed("p", "doubt", &format!("It cannot be told: {doubt}."));
    }
    page += &element("p", &verdict.paragraph);
    let rule = format!("{}. {}", verdict.section, verdict.rule);
    page += &classed("p", "rule", &rule);
    if let Some(answer) = earlier.answer(verdict) {
        page += &classed("p", "muted", &format!("earlier: {}", answer.name()));
    }
    page += "<ul class=\"figures\">\n";
    for figure in &verdict.figures {
        let of = |who: &str, value: Option<String>| value.map(|v| format!("{who} {v}"));
        let then = earlier.figure(verdict, figure);
        let range = range(figure.unit, &figure.cell);
        let here = figure.cell.show(figure.unit).map(|here| match range {
            Some(range) => format!("here {here} ({range})"),
            None => format!("here {here}"),
        });
        let parts = [
            here.or_else(|| Some("no figure here".to_owned())),
            of("paper", figure.cell.paper.map(|v| figure.unit.quote(v))),
            of("earlier", then.map(|v| figure.unit.show(v))),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        let parts = parts.join(", ");
        page += &element("li", &format!("{}: {parts}", figure.name));
    }
    page + "</ul>\n</div>\n"
}

fn table(table: &Table, earlier: Earlier<'_>) -> String {
    let mut page = element("h3", &table.title);
    if !table.note.is_empty() {
        page += &classed("p", "note", &table.note);
    }
    let body = if table.columns.len() <= SIDE_BY_SIDE {
        side_by_side(table, earlier)
    } else {
        stacked(table, earlier)
    };
    let body = format!("<div class=\"scroll\"><table>\n{body}</table></div>\n");
    page + &if table.folded {
        let rows = table.rows.len();
        format!("<details><summary>{rows} rows</summary>{body}</details>\n")
    } else {
        body
    }
}

/// Who says a figure, in the order of columns.
#[derive(Clone, Copy)]
enum Who {
    Paper,
    Here,
    /// Here, to the paper.
    Factor,
    Earlier,
    Ratio,
}

impl Who {
    const ALL: [(Self, &'static str); 5] = [
        (Self::Paper, "paper"),
        (Self::Here, "here"),
        (Self::Factor, "here / paper"),
        (Self::Earlier, "earlier"),
        (Self::Ratio, "here / earlier"),
    ];

    fn of(
        self,
        table: &Table,
        earlier: Earlier<'_>,
        row: &str,
        column: usize,
        cell: &Cell,
    ) -> Option<String> {
        let unit = table.columns[column].unit;
        let then = || earlier.cell(table, row, column);
        match self {
            Self::Paper => Some(unit.quote(cell.paper?)),
            Self::Here => cell.show(unit),
            Self::Factor => {
                let factor = cell.here? / cell.paper?;
                (factor.is_finite() && cell.bound.is_none()).then(|| Unit::Times.show(factor))
            }
            Self::Earlier => Some(unit.show(then()?)),
            Self::Ratio => {
                let ratio = cell.here? / then()?;
                ratio.is_finite().then(|| Unit::Times.show(ratio))
            }
        }
    }
}

/// Each column as many times as there are sources with a figure in it.
fn side_by_side(table: &Table, earlier: Earlier<'_>) -> String {
    let speaks = |who: Who, column: usize| {
        table.rows.iter().any(|row| {
            who.of(table, earlier, &row.label, column, &row.cells[column])
                .is_some()
        })
    };
    let columns: Vec<(usize, Vec<(Who, &str)>)> = (0..table.columns.len())
        .map(|column| {
            let whos = Who::ALL.into_iter().filter(|(who, _)| speaks(*who, column));
            (column, whos.collect())
        })
        .collect();
    let mut page = format!(
        "<thead><tr><th rowspan=\"2\">{}</th>",
        escape(&table.corner)
    );
    for (column, whos) in &columns {
        page += &format!(
            "<th scope=\"colgroup\" colspan=\"{}\">{}</th>",
            whos.len().max(1),
            escape(&table.columns[*column].name)
        );
    }
    page += "</tr>\n<tr>";
    for (_, whos) in &columns {
        for (_, name) in whos {
            page += &format!("<th scope=\"col\">{name}</th>");
        }
        if whos.is_empty() {
            page += "<th></th>";
        }
    }
    page += "</tr></thead>\n<tbody>\n";
    for row in &table.rows {
        page += &format!("<tr><th scope=\"row\">{}</th>", escape(&row.label));
        for (column, whos) in &columns {
            for (who, name) in whos {
                let cell = &row.cells[*column];
                let text = who.of(table, earlier, &row.label, *column, cell);
                let class = match who {
                    Who::Here | Who::Ratio => "",
                    Who::Paper | Who::Factor | Who::Earlier => " class=\"muted\"",
                };
                let title =
                    range(table.columns[*column].unit, cell).filter(|_| matches!(who, Who::Here));
                let title =
                    title.map_or_else(String::new, |t| format!(" title=\"{}\"", escape(&t)));
                let of = named(&format!("{}, {name}", table.columns[*column].name));
                let spread = match who {
                    Who::Here => spread(table.columns[*column].unit, cell),
                    _ => String::new(),
                };
                page += &format!(
                    "<td{class}{of}{title}>{}{spread}</td>",
                    escape(&text.unwrap_or_default())
                );
            }
            if whos.is_empty() {
                page += "<td></td>";
            }
        }
        page += "</tr>\n";
    }
    page + "</tbody>\n"
}

/// Each cell once, with what the others say below.
fn stacked(table: &Table, earlier: Earlier<'_>) -> String {
    let mut page = format!("<thead><tr><th>{}</th>", escape(&table.corner));
    for column in &table.columns {
        page += &format!("<th scope=\"col\">{}</th>", escape(&column.name));
    }
    page += "</tr></thead>\n<tbody>\n";
    for row in &table.rows {
        page += &format!("<tr><th scope=\"row\">{}</th>", escape(&row.label));
        for (column, cell) in row.cells.iter().enumerate() {
            let of = |who: Who| who.of(table, earlier, &row.label, column, cell);
            let title = range(table.columns[column].unit, cell);
            let title = title.map_or_else(String::new, |t| format!(" title=\"{}\"", escape(&t)));
            let name = named(&table.columns[column].name);
            page += &format!(
                "<td{name}{title}>{}{}",
                escape(&of(Who::Here).unwrap_or_default()),
                spread(table.columns[column].unit, cell)
            );
            // Each on a line of its own, so that a column is no wider than one of them.
            let paper = of(Who::Paper).map(|paper| format!("paper {paper}"));
            let factor = of(Who::Factor).map(|factor| format!("{factor} of it"));
            for said in paper.into_iter().chain(factor) {
                page += &format!("<span class=\"paper\">{}</span>", escape(&said));
            }
            if let Some(then) = of(Who::Earlier) {
                let ratio = of(Who::Ratio).map_or_else(String::new, |ratio| format!(", {ratio}"));
                page += &format!(
                    "<span class=\"earlier\">was {}</span>",
                    escape(&(then + &ratio))
                );
            }
            page += "</td>";
        }
        page += "</tr>\n";
    }
    page + "</tbody>\n"
}

/// What a narrow screen writes before a cell, where it has no room for columns.
fn named(name: &str) -> String {
    format!(" data-name=\"{}\"", escape(name))
}

/// What the middle half of the measurements lie between, to be seen at once where the ends are far
/// apart: the figure says little then.
fn spread(unit: Unit, cell: &Cell) -> String {
    let far = |[lower, upper]: [f64; 2]| {
        let middle = cell.here.unwrap_or(f64::NAN);
        (upper - lower) > FAR * middle.abs()
    };
    let range = cell.range.filter(|range| far(*range));
    range.map_or_else(String::new, |[lower, upper]| {
        let (lower, upper) = (unit.show(lower), unit.show(upper));
        format!("<span class=\"spread\">{lower} to {upper}</span>")
    })
}

/// Says what the middle half of the measurements lie between.
fn range(unit: Unit, cell: &Cell) -> Option<String> {
    let [lower, upper] = cell.range?;
    let (lower, upper) = (unit.show(lower), unit.show(upper));
    // Of a count, and of what does not vary, there is nothing to say.
    if lower == upper {
        return None;
    }
    Some(format!("half of them from {lower} to {upper}"))
}
