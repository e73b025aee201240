//! `portolan doctor`: which kernel features are there, and what is lost without each.

use portolan_measure::{Result, out};
use portolan_sys::probe::{Feature, probe};
use serde::Serialize;

use crate::args::DoctorArgs;

#[derive(Serialize)]
struct Report<'a> {
    features: Vec<Finding<'a>>,
}

/// A finding as JSON.
#[derive(Serialize)]
struct Finding<'a> {
    name: &'a str,
    present: bool,
    detail: &'a str,
    /// What is lost where it is missing.
    without: &'a str,
}

pub(crate) fn run(args: &DoctorArgs) -> Result<()> {
    let features = probe();
    if args.json {
        return out::print_json(&Report {
            features: features.iter().map(finding).collect(),
        });
    }
    out::print(&format!(
        "{}\n\n{}",
        portolan_sys::machine::describe(),
        list(&features)
    ))
}

fn finding(feature: &Feature) -> Finding<'_> {
    let Feature {
        name,
        present,
        detail,
        without,
    } = feature;
    Finding {
        name,
        present: *present,
        detail,
        without,
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
    let indent = " ".repeat(17);
    let mut line = format!("     {label:<12}");
    let mut lines = String::new();
    for word in text.split_whitespace() {
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
