//! `portolan doctor` says which kernel features are there, what is lost without each, and whether
//! Portolan works here.

use std::time::Duration;

use portolan::{Access, Deadline, Domain, Message, PortOptions, WhenFull};
use portolan_measure::out;
use portolan_sys::probe::{Feature, Need, probe};
use serde::Serialize;

use crate::args::DoctorArgs;
use crate::error::{CliError, Result};
use crate::json;

/// How long a message of this process to itself may take.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Serialize)]
struct Report<'a> {
    features: Vec<Finding<'a>>,
    verdict: &'a Verdict,
}

/// A finding as JSON.
#[derive(Serialize)]
struct Finding<'a> {
    name: &'a str,
    present: bool,
    detail: &'a str,
    /// What is lost where it is missing.
    without: &'a str,
    /// Whether nothing works without it.
    required: bool,
}

/// What follows from the findings.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Verdict {
    works: bool,
    /// Why it does not.
    because: Option<String>,
    /// What is missing, and costs something.
    without: Vec<&'static str>,
    /// The same for people.
    text: String,
}

pub(crate) fn run(args: &DoctorArgs) -> Result<()> {
    let features = probe();
    let verdict = judge(&features, tried());
    if args.json {
        json::print(&Report {
            features: features.iter().map(finding).collect(),
            verdict: &verdict,
        })?;
    } else {
        let machine = portolan_sys::machine::describe().to_string();
        let machine: String = machine.lines().map(|line| wrapped_line(line, 12)).collect();
        let verdict = wrapped_line(&format!("verdict: {}", verdict.text), 9);
        out::print(&format!("{machine}\n{}\n{verdict}", list(&features)))?;
    }
    match verdict.because {
        None => Ok(()),
        Some(because) => Err(CliError::Unfit { because }),
    }
}

/// A message through a domain that is made for it.
fn tried() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let name = format!("portolan-doctor-{}", std::process::id());
    let domain = Domain::builder(&name).size(64 << 20).join()?;
    let mut port = domain.bind(PortOptions::named("trial"))?;
    let right = domain.connect("trial", Deadline::after(PATIENCE))?;
    let mut message = Message::new(b"trial")?;
    message.push(domain.allocate(1)?)?;
    right.send(message, WhenFull::Fail)?;
    drop(port.receive(Access::Now, Deadline::after(PATIENCE))?);
    Ok(())
}

/// What follows from the features, and from a trial of the whole.
fn judge(
    features: &[Feature],
    tried: std::result::Result<(), Box<dyn std::error::Error>>,
) -> Verdict {
    let missed = features.iter().filter(|f| f.is_missed(features));
    let (required, without): (Vec<_>, Vec<_>) = missed.partition(|f| f.need == Need::Required);
    let without: Vec<&str> = without.into_iter().map(|feature| feature.name).collect();
    let missing = required
        .iter()
        .map(|feature| format!("{} is missing ({})", feature.name, feature.detail));
    let failed = tried
        .err()
        .map(|error| format!("a message could not be sent ({error})"));
    let reasons: Vec<String> = missing.chain(failed).collect();
    let because = (!reasons.is_empty()).then(|| enumerated(&reasons));
    let text = match &because {
        Some(because) => format!("Portolan does not work here, because {because}"),
        None if without.is_empty() => "everything works here".to_owned(),
        None => format!("Portolan works here, without {}", enumerated(&without)),
    };
    Verdict {
        works: because.is_none(),
        because,
        without,
        text,
    }
}

/// `a, b and c`.
fn enumerated<T: AsRef<str>>(items: &[T]) -> String {
    let items: Vec<&str> = items.iter().map(AsRef::as_ref).collect();
    match &items[..] {
        [first @ .., before, last] => {
            let first: String = first.iter().map(|item| format!("{item}, ")).collect();
            format!("{first}{before} and {last}")
        }
        few => few.concat(),
    }
}

fn finding(feature: &Feature) -> Finding<'_> {
    let Feature {
        name,
        present,
        detail,
        without,
        need,
    } = feature;
    Finding {
        name,
        present: *present,
        detail,
        without,
        required: *need == Need::Required,
    }
}

/// A paragraph a feature, within 80 columns.
fn list(features: &[Feature]) -> String {
    let paragraph = |feature: &Feature| {
        let here = if feature.present { "yes" } else { "NO " };
        let mut text = format!("{here}  {}\n", feature.name);
        text += &wrapped("found", &feature.detail);
        text += &wrapped("without it", feature.without);
        text
    };
    features.iter().map(paragraph).collect()
}

/// A label and its text, wrapped between words.
fn wrapped(label: &str, text: &str) -> String {
    wrapped_line(&format!("     {label:<12}{text}"), 17)
}

/// A line, wrapped between words after the first `indent` columns, to which the rest keeps.
fn wrapped_line(text: &str, indent: usize) -> String {
    let (label, words) = text.split_at_checked(indent).unwrap_or((text, ""));
    let indent = " ".repeat(indent);
    let mut line = label.to_owned();
    let mut lines = String::new();
    for word in words.split_whitespace() {
        if line.len() + word.len() >= WIDTH && line.len() > indent.len() {
            lines += line.trim_end();
            lines.push('\n');
            line.clone_from(&indent);
        }
        line += word;
        line.push(' ');
    }
    lines + line.trim_end() + "\n"
}

/// Columns of the terminal that this is written for.
const WIDTH: usize = 80;

#[cfg(test)]
mod tests {
    use super::*;

    fn features() -> Vec<Feature> {
        let feature = |name, need| Feature {
            name,
            present: true,
            detail: "not permitted".to_owned(),
            without: "",
            need,
        };
        vec![
            feature("pidfd", Need::Required),
            feature("io_uring", Need::Wanted),
            feature("PAGEMAP_SCAN", Need::Wanted),
            feature("huge pages", Need::Wanted),
            feature("user interrupts", Need::Unused),
        ]
    }

    /// The verdict on a machine without these.
    fn without(missing: &[usize]) -> Verdict {
        let mut features = features();
        for index in missing {
            features[*index].present = false;
        }
        judge(&features, Ok(()))
    }

    #[test]
    fn a_verdict_is_one_of_three() {
        let works = [
            (&[][..], "everything works here"),
            (&[4], "everything works here"),
            (&[1], "Portolan works here, without io_uring"),
            (
                &[1, 2, 3, 4],
                "Portolan works here, without io_uring, PAGEMAP_SCAN and huge pages",
            ),
        ];
        for (missing, text) in works {
            let verdict = without(missing);
            assert_eq!(verdict.text, text);
            assert!(verdict.works && verdict.because.is_none());
        }
        let fails = without(&[0, 1]);
        assert!(!fails.works);
        assert_eq!(fails.without, ["io_uring"]);
        let because = "pidfd is missing (not permitted)";
        assert_eq!(fails.because.as_deref(), Some(because));
        assert_eq!(
            fails.text,
            format!("Portolan does not work here, because {because}")
        );
    }

    #[test]
    fn what_was_tried_counts_as_well() {
        let verdict = judge(&features(), Err("no memory".into()));
        assert_eq!(
            verdict.text,
            "Portolan does not work here, because a message could not be sent (no memory)"
        );
    }
}
