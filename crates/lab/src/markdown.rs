//! Writes a report's verdicts as Markdown, for documents that quote a run.

use crate::claims::table::ALL;
use crate::outcome::{Figure, Verdict};
use crate::report::{Ending, Report};

/// A table for each paper: every verdict with its answer, and the figures that decide it.
pub(crate) fn verdicts(report: &Report) -> String {
    let mut text = format!(
        "{}, {}, commit {}, {}, features: {}; {}.\n",
        report.machine.facts.cpu,
        report.made,
        report.build.commit,
        report.build.profile,
        report.build.features(),
        report.build.compiler
    );
    for said in [report.unfinished(), report.pace()].into_iter().flatten() {
        text += &format!("{said}\n");
    }
    for record in &report.records {
        if let Some(how) = record.how() {
            text += &format!("`{}`: {how}\n", record.about.name);
        }
    }
    let mut paper = "";
    for record in &report.records {
        let name = &record.about.name;
        let Some(outcome) = record.outcome() else {
            let why = match &record.result {
                Ending::LeftOut { why } => why.as_str(),
                Ending::Failed { error } => error.as_str(),
                Ending::Done(_) => "",
            };
            text += &format!("\n`{name}` is left out: {why}.\n");
            // The next table has a head of its own.
            paper = "";
            continue;
        };
        for verdict in &outcome.verdicts {
            // An experiment can judge claims of two papers.
            if verdict.paper != paper {
                paper = &verdict.paper;
                text += &format!("\n{paper}\n\n| claim | experiment | here | figures |\n");
                text += "|---|---|---|---|\n";
            }
            text += &row(name, verdict);
        }
    }
    text
}

fn row(experiment: &str, verdict: &Verdict) -> String {
    let mut answer = verdict.holds.name().to_owned();
    if !verdict.doubts.is_empty() {
        let why = verdict.doubts.join("; ");
        answer += &format!(
            " (by its figures: {}; but {why})",
            verdict.by_figures.name()
        );
    }
    // What decides comes first; of a model all stand beside.
    let claim = ALL.iter().find(|claim| claim.id == verdict.id);
    let deciding = claim.map_or(0, |claim| claim.rule.conditions().len());
    let shown = match deciding {
        0 => verdict.figures.len(),
        some => some,
    };
    let figures: Vec<String> = verdict.figures.iter().take(shown).map(figure).collect();
    format!(
        "| {} | `{experiment}` | {} | {} |\n",
        cell(&verdict.title()),
        cell(&answer),
        cell(&figures.join("; "))
    )
}

/// "gain: 65.0 % (64.5 % to 65.5 %), the paper's 12.6 %".
fn figure(figure: &Figure) -> String {
    let Figure { name, unit, cell } = figure;
    let here = cell.show(*unit).unwrap_or_else(|| "not measured".into());
    let range = cell.range.filter(|[lower, upper]| lower != upper);
    let range = range.map_or_else(String::new, |range| {
        let [lower, upper] = range.map(|value| unit.show(value));
        format!(" ({lower} to {upper})")
    });
    let paper = cell.paper.map_or_else(String::new, |paper| {
        format!(", the paper's {}", unit.quote(paper))
    });
    format!("{name}: {here}{range}{paper}")
}

/// A bar would begin another cell.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claims::Estimate;
    use crate::claims::table::{GAIN, MODEL_SHARES, MORE_THAN_30};
    use crate::outcome::{Cell, Outcome};
    use crate::report::Build;
    use crate::unit::Unit;

    #[test]
    fn verdicts_stand_under_their_own_paper_and_the_page_says_what_was_built() {
        let mut report = Report::example();
        let record = &mut report.records[0];
        record.result = Ending::Done(Outcome {
            verdicts: vec![GAIN.verdict(&[]), MORE_THAN_30.verdict(&[])],
            ..Outcome::default()
        });
        let by = Build {
            features: vec!["probes".to_owned()],
            ..report.build.clone()
        };
        report.records[0].by = Some(by);
        let said = verdicts(&report);
        assert!(said.contains("features: none;"), "{said}");
        assert!(
            said.contains("`n`: It was done by a build with probes."),
            "{said}"
        );
        let at = |text: &str| said.find(text).unwrap_or_else(|| panic!("{text}: {said}"));
        let (later, earlier) = (at(GAIN.paper), at(MORE_THAN_30.paper));
        assert!(later < at(GAIN.says) && at(GAIN.says) < earlier);
        assert!(earlier < at(MORE_THAN_30.says));
    }

    #[test]
    fn a_row_has_the_answer_and_what_decides_it() {
        let found = Estimate::between(0.65, 0.64, 0.66);
        let mut verdict = GAIN.verdict(&[found]);
        let beside = Cell::here(0.2);
        verdict = verdict.figure("beside", Unit::Share, beside);
        verdict.doubts.push("it was noisy".to_owned());
        let said = row("tables", &verdict);
        assert!(
            said.ends_with(
                "| `tables` | does not hold (by its figures: does not hold; but it was noisy) | gain: 65.0 % (64.0 % to \
                 66.0 %), the paper's 12.6 % |\n"
            ),
            "{said}"
        );
        // Of a model no figure decides, and all are shown.
        let model = MODEL_SHARES.verdict(&[]);
        let model = model.figure("a|b", Unit::Share, Cell::here(0.5));
        let said = row("scaling", &model);
        assert!(
            said.contains("| fit |") && said.contains("a\\|b: 50.0 %"),
            "{said}"
        );
    }
}
