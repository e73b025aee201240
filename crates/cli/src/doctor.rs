//! `portolan doctor`: which kernel features are there, and what is lost without each.

use portolan_sys::probe::{Feature, probe};
use serde::Serialize;

use crate::args::DoctorArgs;
use crate::error::Result;
use crate::out::{self, Align, Table};

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
        table(&features)
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

fn table(features: &[Feature]) -> String {
    use Align::Left;
    let mut table = Table::new(&[
        ("feature", Left),
        ("here", Left),
        ("found", Left),
        ("without it", Left),
    ]);
    for feature in features {
        table.row(vec![
            feature.name.to_owned(),
            if feature.present { "yes" } else { "NO" }.to_owned(),
            feature.detail.clone(),
            feature.without.to_owned(),
        ]);
    }
    table.render()
}
