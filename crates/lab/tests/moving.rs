//! Tables I to III, Figures 3 and 4: every place is there, and verdicts follow from the
//! tables beside them.
//!
//! Experiments run in their quick size; what is checked is structure, never a time.

mod support;

use serde_json::Value;
use support::{array, cell, figure, quick, rows, table, verdict, verdict_of, why_left_out};

/// Our figure in a cell.
fn here(cell: &Value) -> f64 {
    cell["here"].as_f64().unwrap_or(f64::NAN)
}

fn names(table: &Value) -> Vec<&str> {
    let columns = array(&table["columns"]).iter();
    columns.map(|c| c["name"].as_str().unwrap()).collect()
}

/// Figures keep five digits.
fn about(one: f64, other: f64) {
    within(one, other, other.abs());
}

/// The same for a difference of figures as large as `of`.
fn within(one: f64, other: f64, of: f64) {
    let close = (one - other).abs() <= 1e-3 * of;
    assert!(close || (one.is_nan() && other.is_nan()), "{one} {other}");
}

/// What the figures must say if the claim holds where `holds`. One that cannot be told is let be.
fn says(verdict: &Value, holds: bool) {
    let expected = if holds { "holds" } else { "does not hold" };
    let answer = verdict["by_figures"].as_str().unwrap();
    assert!([expected, "cannot tell"].contains(&answer), "{verdict}");
}

fn two_processors() -> bool {
    portolan_sys::machine::cpus_allowed().len() > 1
}

#[test]
fn tables_1_and_2_have_every_place_of_the_papers() {
    let outcome = quick("tables", &[]);
    for (id, last) in [("table-1", 3.026e-3), ("table-2", 2.645e-3)] {
        let table = table(&outcome, id).unwrap();
        let sizes = ["0 B", "8 KiB", "16 KiB", "32 KiB", "64 KiB"];
        assert_eq!(names(table), sizes);
        for (accessed, row) in ["nothing", "8 KiB", "16 KiB", "32 KiB", "64 KiB"]
            .iter()
            .enumerate()
        {
            for (sent, size) in sizes.iter().enumerate() {
                let cell = cell(table, row, size);
                assert_eq!(cell["paper"].is_f64(), accessed <= sent, "{row} of {size}");
                assert_eq!(here(cell) > 0.0, accessed <= sent, "{row} of {size}");
            }
        }
        assert_eq!(cell(table, "64 KiB", "64 KiB")["paper"], last);
        for row in [
            "trusted, nothing",
            "trusted, all",
            "copy once",
            "copy twice",
        ] {
            assert!(here(cell(table, row, "64 KiB")) > 0.0, "{row}");
        }
        // Copies hold only the copy.
        assert_eq!(cell(table, "copy once", "8 KiB")["paper"], 2.105e-3);
        assert!(here(cell(table, "copy once", "0 B")).is_nan());
    }
    for id in ["table-1-large", "table-2-large"] {
        let table = table(&outcome, id).unwrap();
        for row in [
            "nothing",
            "1/8",
            "1/4",
            "1/2",
            "all",
            "trusted, all",
            "copy once",
        ] {
            for size in names(table) {
                assert!(here(cell(table, row, size)) > 0.0, "{id}: {row} of {size}");
            }
        }
        assert_eq!(names(table).last(), Some(&"64 MiB"));
    }
    // The papers' rounds are asleep on one processor; those that poll stand beside them.
    let polling = table(&outcome, "table-1-polling");
    assert_eq!(polling.is_some(), two_processors());
    if let Some(polling) = polling {
        let cell = cell(polling, "64 KiB", "64 KiB");
        assert!(here(cell) > 0.0 && cell["paper"].is_null(), "{cell}");
    }
}

#[test]
fn verdicts_of_tables_1_and_2_follow_from_them() {
    let outcome = quick("tables", &[]);
    let at = |id, row, size| here(cell(table(&outcome, id).unwrap(), row, size));
    let whole = |id| at(id, "64 KiB", "64 KiB");

    let gain = verdict(&outcome, "gain");
    let found = here(figure(gain, "gain"));
    let ratio = whole("table-2") / whole("table-1");
    within(found, 1.0 - ratio, 1.0 + ratio);
    says(gain, (0.0945..=0.1575).contains(&found));
    let gains = table(&outcome, "gain").unwrap();
    about(
        here(cell(gains, "64 KiB in extents of 8 KiB", "gain")),
        found,
    );
    let paper = cell(gains, "64 KiB in extents of 8 KiB", "gain")["paper"]
        .as_f64()
        .unwrap();
    assert!((paper - 0.126).abs() < 1e-3);

    // The paper's share of data movement is another quantity, which the breakdown has.
    let judged = array(&outcome["verdicts"]).iter();
    let ids: Vec<_> = judged.map(|it| it["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["gain", "only-when-all", "linear"]);
    let beyond = table(&outcome, "beyond-empty").unwrap();
    let found = cell(
        beyond,
        "64 KiB in extents of 8 KiB",
        "whole less empty, of the whole",
    );
    let ratio = at("table-1", "nothing", "0 B") / whole("table-1");
    within(here(found), 1.0 - ratio, 1.0 + ratio);
    // 957 of 3,026.
    assert_eq!(found["paper"], 0.68374);

    let only = verdict(&outcome, "only-when-all");
    let as_said = here(figure(only, "places of the tables, of 14, where it is so"));
    says(only, as_said == 14.0);

    let linear = verdict(&outcome, "linear");
    let curves = array(&linear["figures"]).iter().map(|f| here(&f["cell"]));
    says(linear, curves.fold(0.0, f64::max) <= 0.1);
    assert_eq!(array(&linear["figures"]).len(), 3);
    for curve in array(&linear["figures"]) {
        // The paper's own tables are straight.
        assert!(curve["cell"]["paper"].as_f64().unwrap() < 0.05, "{curve}");
    }
}

#[test]
fn table_3_has_first_and_later_pages_and_n() {
    let outcome = quick("pages", &[]);
    for id in ["table-3", "table-3-one", "table-3-huge"] {
        let table = table(&outcome, id).unwrap();
        assert_eq!(rows(table).len(), 8);
        for row in rows(table) {
            for column in ["first page", "later pages"] {
                assert!(here(cell(table, row, column)).is_finite(), "{id}: {row}");
            }
        }
    }
    let three = table(&outcome, "table-3").unwrap();
    for (row, first, later) in [
        ("mapped on demand, not accessed", 0.120e-3, 0.087e-3),
        ("mapped by receive, accessed", 0.237e-3, 0.208e-3),
        ("mapped on demand, accessed", 0.291e-3, 0.254e-3),
        ("copy once", 2.105e-3, 2.105e-3),
        ("copy twice", 4.210e-3, 4.210e-3),
    ] {
        assert_eq!(cell(three, row, "first page")["paper"], first);
        assert_eq!(cell(three, row, "later pages")["paper"], later);
    }
    let at = |row, column| here(cell(three, row, column));
    let accessed = "mapped on demand, accessed";
    // A page by itself and the first one of a large extent are the same message: the middle of both.
    let one = table(&outcome, "table-3-one").unwrap();
    let one = here(cell(one, accessed, "first page"));
    let first_page = f64::midpoint(at(accessed, "first page"), one);

    let first = verdict(&outcome, "first-page");
    let (one, more) = (first_page, at(accessed, "later pages"));
    let dearer = one - more;
    within(
        here(figure(first, "dearer by")),
        dearer,
        one.abs() + more.abs(),
    );
    let ratio = here(figure(first, "first page to a later one"));
    if ratio.is_finite() {
        about(ratio, one / more);
        says(first, ratio <= 1.0 + 1.25 * 30.0 / 254.0);
    } else {
        assert_eq!(first["by_figures"], "cannot tell");
    }

    let pays = verdict(&outcome, "pays-from-one-page");
    about(here(figure(pays, "guarded")), first_page);
    says(pays, first_page <= at("copy once", "first page"));

    let lazy = verdict(&outcome, "lazy");
    let n = figure(lazy, "N, saved to wasted");
    if let Some(n) = n["here"].as_f64() {
        let [saved, wasted] = ["saved", "wasted"].map(|name| here(figure(lazy, name)));
        about(n, saved / wasted);
        says(lazy, (2.25..=3.75).contains(&n));
    } else {
        assert_eq!(lazy["by_figures"], "cannot tell");
    }
    assert!((n["paper"].as_f64().unwrap() - 113.0 / 47.0).abs() < 1e-3);
}

#[test]
fn figures_cross_where_their_points_do() {
    let outcome = quick("figures", &[]);
    let crossover = table(&outcome, "crossover").unwrap();
    assert_eq!(rows(crossover).len(), 2 * 2 * 3);
    for (pages, id) in [("4 KiB pages", "small"), ("2 MiB pages", "huge")] {
        for temper in ["hot", "cold"] {
            let points = table(&outcome, &format!("latency-{id}-{temper}")).unwrap();
            for curve in [
                "on demand, not accessed",
                "by receive, all accessed",
                "on demand, all accessed",
            ] {
                let row = format!("{pages}, {temper}, {curve}");
                for copy in ["copy once", "copy twice"] {
                    let found = cell(crossover, &row, copy);
                    let below: Vec<bool> = rows(points)
                        .iter()
                        // Not the null message.
                        .skip(1)
                        .map(|size| {
                            here(cell(points, size, curve)) <= here(cell(points, size, copy))
                        })
                        .collect();
                    let expected = match (below.last(), below.iter().all(|below| *below)) {
                        (_, true) => "at_most".into(),
                        (Some(false), _) => "more_than".into(),
                        _ => Value::Null,
                    };
                    assert_eq!(found["bound"], expected, "{row} against {copy}");
                    assert!((4096.0..=8_388_608.0).contains(&here(found)), "{found}");
                }
            }
        }
    }
    let throughput = table(&outcome, "throughput").unwrap();
    let rate = |row| here(cell(throughput, row, "64 KiB"));
    let magnitude = verdict(&outcome, "order-of-magnitude");
    let tenfold = rate("on demand, not accessed") / rate("copy once");
    about(
        here(figure(
            magnitude,
            "one copy of 64 KiB, to a message that is not accessed",
        )),
        tenfold,
    );
    says(magnitude, tenfold >= 7.75);
    let [unread, read] = ["on demand, not accessed", "by receive, all accessed"].map(rate);
    says(
        verdict(&outcome, "throughput"),
        unread >= 39e6 && read >= 24.8e6,
    );
    says(verdict(&outcome, "more-than-30"), unread >= 30e6);
    // Two sentences, two verdicts; and one for each size of page.
    let faster = |of: &str| verdict_of(&outcome, "faster-than-copying", of).clone();
    let ratio = "copying, to moving what is all accessed";
    let small = faster("64 KiB on 4 KiB pages");
    about(here(figure(&small, ratio)), read / rate("copy once"));
    for (pages, id) in [("4 KiB pages", "small"), ("2 MiB pages", "huge")] {
        let verdict = faster(&format!("8 MiB on {pages}"));
        let points = table(&outcome, &format!("latency-{id}-hot")).unwrap();
        let of = |curve| here(cell(points, "8 MiB", curve));
        let factor = of("copy once") / of("by receive, all accessed");
        about(here(figure(&verdict, ratio)), factor);
        says(&verdict, factor >= 2.0);
    }
}

#[test]
fn figures_are_drawn_beside_the_papers() {
    let outcome = quick("figures", &[]);
    let plots = array(&outcome["plots"]);
    let ids: Vec<&str> = plots
        .iter()
        .map(|plot| plot["id"].as_str().unwrap())
        .collect();
    let mut expected: Vec<String> = [
        "figure-3-small-hot",
        "figure-3-small-cold",
        "figure-4-small",
        "figure-3-huge-hot",
        "figure-3-huge-cold",
        "figure-4-huge",
    ]
    .map(String::from)
    .into();
    if two_processors() {
        let polling: Vec<String> = expected.iter().map(|id| format!("{id}-polling")).collect();
        expected.extend(polling);
    }
    assert_eq!(ids, expected);
    for plot in plots {
        let series = array(&plot["series"]);
        let of = |origin: &str| series.iter().filter(|s| s["origin"] == origin).count();
        let papers = plot["id"].as_str().unwrap().contains("small")
            && !plot["id"].as_str().unwrap().contains("cold")
            && !plot["id"].as_str().unwrap().contains("polling");
        // A descriptor alone is no rate: what is not accessed has none on large pages.
        let rates_of_large = plot["id"].as_str().unwrap().contains("figure-4-huge");
        let ours = if rates_of_large { 5 } else { 6 };
        assert_eq!(
            (of("here"), of("paper")),
            (ours, if papers { 5 } else { 0 })
        );
        for series in series {
            assert!(array(&series["points"]).len() >= 2, "{series}");
        }
    }
}

#[test]
fn without_guards_what_is_left_is_trusted_and_copied() {
    for (experiment, id, row, column) in [
        ("tables", "table-1", "trusted, all", "64 KiB"),
        ("pages", "table-3", "trusted, accessed", "first page"),
        (
            "figures",
            "latency-small-hot",
            "64 KiB",
            "trusted, all accessed",
        ),
    ] {
        let outcome = quick(experiment, &["--without", "guarded"]);
        let why = why_left_out(&outcome, "guarded rows, mapped on demand and by receive");
        assert!(why.contains("--without guarded"), "{why}");
        let table = table(&outcome, id).unwrap();
        assert!(here(cell(table, row, column)).is_finite(), "{experiment}");
        for verdict in array(&outcome["verdicts"]) {
            assert_eq!(verdict["by_figures"], "cannot tell", "{verdict}");
        }
    }
}

#[test]
fn one_processor_is_enough_to_pass_messages() {
    // What is started by this thread may use no more than it may itself.
    let cpu = portolan_sys::machine::cpus_allowed()[0];
    portolan_sys::machine::pin(cpu).unwrap();
    let outcome = quick("tables", &[]);
    let table = table(&outcome, "table-1").unwrap();
    assert!(here(cell(table, "64 KiB", "64 KiB")) > 0.0);
}
