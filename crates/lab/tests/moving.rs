//! Tables I to III, Figures 3 and 4: every place is there, and verdicts follow from the
//! tables beside them.
//!
//! Experiments run in their quick size; what is checked is structure, never a time.

#[allow(dead_code, reason = "each test program uses some of it")]
mod support;

use serde_json::Value;
use support::{array, cell, figure, quick, rows, table, verdict, why_left_out};

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

/// What a verdict must say if it holds where `holds`. One that cannot be told is let be.
fn says(verdict: &Value, holds: bool) {
    let expected = if holds { "holds" } else { "does not hold" };
    let answer = verdict["holds"].as_str().unwrap();
    assert!([expected, "cannot tell"].contains(&answer), "{verdict}");
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
}

#[test]
fn verdicts_of_tables_1_and_2_follow_from_them() {
    let outcome = quick("tables", &[]);
    let at = |id, row, size| here(cell(table(&outcome, id).unwrap(), row, size));
    let whole = |id| at(id, "64 KiB", "64 KiB");

    let gain = verdict(&outcome, "gain");
    let found = here(figure(gain, "8 extents of 8 KiB"));
    let ratio = whole("table-2") / whole("table-1");
    within(found, 1.0 - ratio, 1.0 + ratio);
    says(gain, found > 0.0);
    let gains = table(&outcome, "gain").unwrap();
    about(
        here(cell(gains, "64 KiB in extents of 8 KiB", "gain")),
        found,
    );
    let paper = cell(gains, "64 KiB in extents of 8 KiB", "gain")["paper"]
        .as_f64()
        .unwrap();
    assert!((paper - 0.126).abs() < 1e-3);

    let share = verdict(&outcome, "data-dominates");
    let found = here(figure(share, "share at 64 KiB"));
    let ratio = at("table-1", "nothing", "0 B") / whole("table-1");
    within(found, 1.0 - ratio, 1.0 + ratio);
    says(share, found > 0.5);

    let only = verdict(&outcome, "only-when-all");
    let as_said = here(figure(only, "as in the paper"));
    assert_eq!(here(figure(only, "places")), 14.0);
    says(only, as_said == 14.0);

    let linear = verdict(&outcome, "linear");
    let curves = array(&linear["figures"]).iter().map(|f| here(&f["cell"]));
    says(linear, curves.fold(0.0, f64::max) <= 0.1);
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

    let first = verdict(&outcome, "first-page");
    let (one, more) = (at(accessed, "first page"), at(accessed, "later pages"));
    let dearer = one - more;
    within(
        here(figure(first, "dearer by")),
        dearer,
        one.abs() + more.abs(),
    );
    says(first, dearer < at("copy once", "first page"));

    let pays = verdict(&outcome, "pays-from-one-page");
    about(here(figure(pays, "guarded")), at(accessed, "first page"));
    says(
        pays,
        at(accessed, "first page") < at("copy once", "first page"),
    );

    let three_times = verdict(&outcome, "three-times");
    let n = figure(three_times, "N");
    if let Some(n) = n["here"].as_f64() {
        let [saved, wasted] = ["saved", "wasted"].map(|name| here(figure(three_times, name)));
        about(n, saved / wasted);
        says(three_times, (2.0..=4.0).contains(&n));
    } else {
        // Without an N it does not hold, or cannot be told.
        says(three_times, false);
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
    about(here(figure(magnitude, "64 KiB, not accessed")), tenfold);
    says(magnitude, tenfold >= 10.0);
    let claim = verdict(&outcome, "throughput");
    let moved = rate("on demand, not accessed").min(rate("by receive, all accessed"));
    says(claim, moved > rate("copy once"));
    let crossover = verdict(&outcome, "crossover");
    let factors = ["4 KiB pages", "2 MiB pages"].map(|pages| {
        here(figure(
            crossover,
            &format!("one copy against moving, {pages}"),
        ))
    });
    says(crossover, factors.into_iter().all(|factor| factor >= 2.0));
}

#[test]
fn figures_are_drawn_beside_the_papers() {
    let outcome = quick("figures", &[]);
    let plots = array(&outcome["plots"]);
    let ids: Vec<&str> = plots
        .iter()
        .map(|plot| plot["id"].as_str().unwrap())
        .collect();
    let expected = [
        "figure-3-small-hot",
        "figure-3-small-cold",
        "figure-4-small",
        "figure-3-huge-hot",
        "figure-3-huge-cold",
        "figure-4-huge",
    ];
    assert_eq!(ids, expected);
    for plot in plots {
        let series = array(&plot["series"]);
        let of = |origin: &str| series.iter().filter(|s| s["origin"] == origin).count();
        let papers = plot["id"].as_str().unwrap().contains("small")
            && !plot["id"].as_str().unwrap().contains("cold");
        assert_eq!((of("here"), of("paper")), (6, if papers { 5 } else { 0 }));
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
            assert_eq!(verdict["holds"], "cannot tell", "{verdict}");
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
