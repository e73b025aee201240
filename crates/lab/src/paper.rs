//! States figures of Tzou and Anderson's paper that several experiments use, in seconds and bytes.

/// A page of the Sun 3/50.
pub(crate) const PAGE: u64 = 8 << 10;
/// Copying one page.
pub(crate) const COPY: f64 = 2.105e-3;
/// Pages in a message, and pages accessed, of Tables I and II.
pub(crate) const PAGES: [u64; 5] = [0, 1, 2, 4, 8];

const NONE: f64 = f64::NAN;

/// Table I: mapped on reference. A row for the pages accessed, a column for the pages sent.
const TABLE_1: [[f64; 5]; 5] = [
    [0.957e-3, 1.077e-3, 1.163e-3, 1.334e-3, 1.679e-3],
    [NONE, 1.248e-3, 1.334e-3, 1.506e-3, 1.851e-3],
    [NONE, NONE, 1.500e-3, 1.673e-3, 2.020e-3],
    [NONE, NONE, NONE, 2.008e-3, 2.354e-3],
    [NONE, NONE, NONE, NONE, 3.026e-3],
];

/// Table II: mapped by the receive operation.
const TABLE_2: [[f64; 5]; 5] = [
    [0.957e-3, 1.186e-3, 1.387e-3, 1.790e-3, 2.596e-3],
    [NONE, 1.194e-3, 1.392e-3, 1.798e-3, 2.603e-3],
    [NONE, NONE, 1.400e-3, 1.804e-3, 2.609e-3],
    [NONE, NONE, NONE, 1.815e-3, 2.621e-3],
    [NONE, NONE, NONE, NONE, 2.645e-3],
];

/// One way, for a message of `bytes` of which `accessed` are accessed; mapped `now`, by the
/// receive operation, or on reference. None where the tables have no figure.
pub(crate) fn one_way(now: bool, bytes: u64, accessed: u64) -> Option<f64> {
    let at = |bytes: u64| PAGES.iter().position(|pages| pages * PAGE == bytes);
    let table = if now { &TABLE_2 } else { &TABLE_1 };
    Some(table[at(accessed)?][at(bytes)?]).filter(|figure| !figure.is_nan())
}

/// Copying `bytes` so many times, and nothing else. The paper's Figure 3 ends at 64 KiB.
pub(crate) fn copy(bytes: u64, times: u8) -> Option<f64> {
    let drawn = bytes.is_multiple_of(PAGE) && (1..=8).contains(&(bytes / PAGE));
    drawn.then(|| COPY * f64::from(times) * (bytes / PAGE) as f64)
}

/// How a page is moved, and Table III's cost of the first page and of a later one.
pub(crate) const TABLE_3: [(&str, f64, f64); 5] = [
    ("mapped on demand, not accessed", 0.120e-3, 0.087e-3),
    ("mapped by receive, accessed", 0.237e-3, 0.208e-3),
    ("mapped on demand, accessed", 0.291e-3, 0.254e-3),
    ("copy once", COPY, COPY),
    ("copy twice", 2.0 * COPY, 2.0 * COPY),
];

/// What mapping on demand saves for a page that is not accessed (Figure 6: C, G and H), and
/// wastes for one that is (F and I).
pub(crate) const SAVES: f64 = 113e-6;
pub(crate) const WASTES: f64 = 47e-6;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_agree_with_each_other() {
        // Table III is made of Tables I and II.
        let step = |now, accessed: fn(u64) -> u64| {
            let at = |pages: u64| one_way(now, pages * PAGE, accessed(pages) * PAGE).unwrap();
            [at(1) - at(0), (at(8) - at(1)) / 7.0]
        };
        for (row, found) in [
            (0, step(false, |_| 0)),
            (1, step(true, |pages| pages)),
            (2, step(false, |pages| pages)),
        ] {
            let (_, first, later) = TABLE_3[row];
            assert!((found[0] - first).abs() < 2e-6, "{found:?}");
            assert!((found[1] - later).abs() < 2e-6, "{found:?}");
        }
        assert_eq!(one_way(false, 8192, 16_384), None);
        assert_eq!(one_way(false, 4096, 0), None);
        assert_eq!((copy(16_384, 1), copy(1 << 20, 1)), (Some(4.21e-3), None));
    }
}
