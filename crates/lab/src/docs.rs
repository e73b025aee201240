//! Writes what documents quote of a run: its verdicts and its picture, both of the same report.

use std::fs;
use std::io;
use std::path::Path;

use crate::error::{LabError, Result};
use crate::markdown;
use crate::page;
use crate::report::{Record, Report};

/// What stands above this line people write; what stands below it is written anew.
const MARK: &str = "<!-- What follows is written by `portolan-lab verdicts REPORT --docs DIR`. -->";
/// The document, and its picture.
const DOCUMENT: &str = "lab.md";
const PICTURE: &str = "figure-3.svg";
/// The plot that is the picture: the paper's Figure 3, on pages on which moving overtakes copying.
pub(crate) const PLOT: &str = "figure-3-huge-hot-polling";

/// Writes both into a directory, which has the document: or neither, where the report lacks the plot, since
/// the picture would be of another run.
pub(crate) fn write(directory: &Path, report: &Report) -> Result<()> {
    let (path, picture) = (directory.join(DOCUMENT), directory.join(PICTURE));
    let before = fs::read_to_string(&path).map_err(output(&path))?;
    let text = document(&before, report).ok_or_else(|| {
        let missing = io::Error::other(format!("it has no line {MARK}"));
        output(&path)(missing)
    })?;
    let svg = picture_of(report).ok_or_else(|| {
        let missing = io::Error::other(format!(
            "the report has no plot `{PLOT}`, which `run all` on two processors has"
        ));
        output(&picture)(missing)
    })?;
    crate::run::write(&picture, &svg)?;
    crate::run::write(&path, &text)
}

fn output(path: &Path) -> impl FnOnce(io::Error) -> LabError {
    let path = path.to_owned();
    move |source| LabError::Output { path, source }
}

/// The document anew: its head as it was, and this run. `None` without the line between.
fn document(before: &str, report: &Report) -> Option<String> {
    let (head, _) = before.split_once(MARK)?;
    let verdicts = markdown::verdicts(report);
    let picture = format!("![Latency of a message against its size, moved and copied]({PICTURE})");
    Some(format!("{head}{MARK}\n\n{picture}\n\n{verdicts}"))
}

fn picture_of(report: &Report) -> Option<String> {
    let mut outcomes = report.records.iter().filter_map(Record::outcome);
    let plot = outcomes.find_map(|outcome| outcome.plots.iter().find(|plot| plot.id == PLOT));
    page::plot_file(plot?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::{Axis, Origin, Outcome, Plot};
    use crate::report::Ending;
    use crate::unit::Unit;

    fn with_plot(id: &str) -> Report {
        let mut report = Report::example();
        let axis = || Axis::log("bytes", Unit::Bytes);
        let mut plot = Plot::new(id, "T", axis(), axis());
        plot.series("moved", Origin::Here, 0, [(1.0, 1.0), (2.0, 2.0)]);
        report.records[0].result = Ending::Done(Outcome {
            plots: vec![plot],
            ..Outcome::default()
        });
        report
    }

    #[test]
    fn the_document_of_this_repository_says_from_where_on_it_is_written() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
        let before = fs::read_to_string(path.join(DOCUMENT)).unwrap();
        let after = document(&before, &with_plot(PLOT)).unwrap();
        assert!(after.starts_with("# The lab's verdicts"), "{after}");
    }

    #[test]
    fn the_document_and_its_picture_are_of_one_run_and_the_head_stays() {
        let directory = std::env::temp_dir().join(format!("lab-docs-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let [document, picture] = [DOCUMENT, PICTURE].map(|name| directory.join(name));
        let read = |path: &Path| fs::read_to_string(path).unwrap();
        fs::write(&document, format!("# Head\n\n{MARK}\nof an earlier run\n")).unwrap();
        write(&directory, &with_plot(PLOT)).unwrap();
        let first = read(&document);
        assert!(first.starts_with("# Head\n") && first.contains("(figure-3.svg)"));
        assert!(!first.contains("earlier"), "{first}");
        assert!(read(&picture).contains("<svg"));
        // Again is the same; and a run without the plot changes neither.
        write(&directory, &with_plot(PLOT)).unwrap();
        let before = (read(&document), read(&picture));
        assert_eq!(before.0, first);
        let refused = write(&directory, &with_plot("another")).unwrap_err();
        assert!(refused.to_string().contains(PLOT), "{refused}");
        assert_eq!((read(&document), read(&picture)), before);
        // What people wrote is not overwritten where nothing says from where on.
        fs::write(&document, "all by hand").unwrap();
        let refused = write(&directory, &with_plot(PLOT)).unwrap_err();
        assert!(refused.to_string().contains(DOCUMENT), "{refused}");
        assert_eq!(read(&document), "all by hand");
        fs::remove_dir_all(&directory).unwrap();
    }
}
