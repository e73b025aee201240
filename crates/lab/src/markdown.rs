//! Writes a report's verdicts as Markdown, for documents that quote a run.

use crate::claims::table::ALL;
use crate::outcome::{Figure, Verdict};
use crate::report::{Ending, Report};

/// A chapter for each paper: every verdict with its answer and the figures that decide it, the reasons,
/// and what was left out.
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
    for said in [report.summary(), report.unfinished(), report.pace()]
        .into_iter()
        .flatten()
    {
        text += &format!("\n{said}\n");
    }
    for record in &report.records {
        if let Some(how) = record.how() {
            text += &format!("\n`{}`: {how}\n", record.about.name);
        }
    }
    for chapter in chapters(report) {
        text += &chapter.text();
    }
    text
}

/// What a run says of one paper.
struct Chapter<'a> {
    paper: &'a str,
    rows: String,
    reasons: String,
    left_out: String,
}

impl Chapter<'_> {
    fn text(&self) -> String {
        let mut text = format!("\n## {}\n", self.paper);
        if !self.rows.is_empty() {
            text += "\n| claim | experiment | here | figures |\n|---|---|---|---|\n";
            text += &self.rows;
        }
        for (head, list) in [("Reasons", &self.reasons), ("Left out", &self.left_out)] {
            if !list.is_empty() {
                text += &format!("\n{head}:\n\n{list}");
            }
        }
        text
    }
}

/// Each paper once, in the order in which the run came to them. An experiment can judge claims of two.
fn chapters(report: &Report) -> Vec<Chapter<'_>> {
    let mut chapters: Vec<Chapter<'_>> = Vec::new();
    for record in &report.records {
        let name = &record.about.name;
        match &record.result {
            Ending::Done(outcome) => {
                for verdict in &outcome.verdicts {
                    let chapter = of(&mut chapters, &verdict.paper);
                    chapter.rows += &row(name, verdict);
                    chapter.reasons += &reason(name, verdict);
                }
                for left_out in &outcome.left_out {
                    let said = format!("- of `{name}`: {}: {}.\n", left_out.what, left_out.why);
                    of(&mut chapters, &record.about.paper).left_out += &said;
                }
            }
            Ending::LeftOut { why } | Ending::Failed { error: why } => {
                let said = format!("- `{name}`: {why}.\n");
                of(&mut chapters, &record.about.paper).left_out += &said;
            }
        }
    }
    chapters
}

/// The chapter of a paper, which begins when it is first spoken of.
fn of<'a, 'c>(chapters: &'c mut Vec<Chapter<'a>>, paper: &'a str) -> &'c mut Chapter<'a> {
    let at = chapters.iter().position(|chapter| chapter.paper == paper);
    let at = at.unwrap_or_else(|| {
        chapters.push(Chapter {
            paper,
            rows: String::new(),
            reasons: String::new(),
            left_out: String::new(),
        });
        chapters.len() - 1
    });
    &mut chapters[at]
}

/// The paragraph that the page has.
fn reason(experiment: &str, verdict: &Verdict) -> String {
    if verdict.paragraph.is_empty() {
        return String::new();
    }
    let case = match verdict.of.as_str() {
        "" => String::new(),
        of => format!(" ({of})"),
    };
    // Text, and no tags.
    let paragraph = verdict.paragraph.replace('<', "&lt;");
    format!("- `{}`, `{experiment}`{case}: {paragraph}\n", verdict.id)
}

fn row(experiment: &str, verdict: &Verdict) -> String {
    let mut answer = verdict.holds.name().to_owned();
    if let Some(why) = verdict.doubt() {
        answer += &format!(" ({why})");
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
        "| `{}`: {} | `{experiment}` | {} | {} |\n",
        verdict.id,
        cell(&verdict.title()),
        cell(&answer),
        cell(&figures.join("; "))
    )
}

/// "gain: 65.0 % (64.5 % to 65.5 %), the paper's 12.6 %".
fn figure(figure: &Figure) -> String {
    let Figure { name, unit, cell } = figure;
    let here = cell.show(*unit).unwrap_or_else(|| "no figure".into());
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
    use crate::claims::table::{GAIN, LAZY, MODEL_SHARES, MORE_THAN_30};
    use crate::outcome::{Cell, Outcome};
    use crate::report::Build;
    use crate::unit::Unit;

    #[test]
    fn a_paper_has_one_chapter_with_all_its_verdicts_and_their_reasons() {
        let mut report = Report::example();
        let found = |verdicts| {
            Ending::Done(Outcome {
                verdicts,
                ..Outcome::default()
            })
        };
        report.records[0].result = found(vec![
            GAIN.verdict(&[]).because("Because of it."),
            MORE_THAN_30.verdict_of("a case", &[]).because("1 < 2."),
        ]);
        let mut more = report.records[0].clone();
        more.about.name = "m".to_owned();
        more.result = found(vec![LAZY.verdict(&[])]);
        report.records.push(more.clone());
        more.about.name = "absent".to_owned();
        more.about.paper = GAIN.paper.to_owned();
        more.result = Ending::LeftOut {
            why: "no such thing".to_owned(),
        };
        report.records.push(more);
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
        // Both of one paper's experiments, though one of another's came between.
        let heads: Vec<&str> = said.lines().filter(|l| l.starts_with('#')).collect();
        let papers = [GAIN.paper, MORE_THAN_30.paper];
        assert_eq!(heads, papers.map(|paper| format!("## {paper}")), "{said}");
        let at = |text: &str| said.find(text).unwrap_or_else(|| panic!("{text}: {said}"));
        let second = at(heads[1]);
        for first in [
            GAIN.says,
            LAZY.says,
            "- `gain`, `n`: Because of it.",
            "- `absent`: no such thing.",
        ] {
            assert!(at(first) < second, "{first}: {said}");
        }
        for later in [
            MORE_THAN_30.says,
            "- `more-than-30`, `n` (a case): 1 &lt; 2.",
        ] {
            assert!(at(later) > second, "{later}: {said}");
        }
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
                "| `tables` | does not hold (by its figures it does not hold, but it was noisy) | gain: 65.0 % (64.0 % to \
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
