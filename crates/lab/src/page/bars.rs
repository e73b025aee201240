//! Draws stacked horizontal bars: each is a whole, cut into the parts that its series name.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::svg::{GRID, INK, LINE, SERIES, TEXT, WIDTH, broken, legend_height};
use crate::outcome::{Plot, Series};

/// Room for the bars' names, at the left.
const NAMES: i32 = 235;
/// From one bar to the next, and a bar's own height.
const STEP: i32 = 36;
const HEIGHT: i32 = 22;
/// Room above the bars, and for the scale below them.
const ABOVE: i32 = 14;
const BELOW: i32 = 34;

/// Draws the bars of `plot`; false if it has nothing to draw.
pub(super) fn paint(plot: &Plot, svg: &mut String) -> Result<bool, Box<dyn std::error::Error>> {
    let longest = (0..plot.bars.len()).map(|bar| parts(plot, bar).map(|(_, share)| share).sum());
    if longest.fold(0.0, f64::max) <= 0.0 {
        return Ok(false);
    }
    let bars = i32::try_from(plot.bars.len()).unwrap_or(i32::MAX);
    let bottom = ABOVE + bars * STEP;
    let legend = legend_height(plot.series.iter().map(|series| &series.name));
    let size = (WIDTH, u32::try_from(bottom + BELOW + legend)?);
    let root = SVGBackend::with_string(svg, size).into_drawing_area();
    let end = i32::try_from(WIDTH)? - 24;
    let at = |share: f64| NAMES + pixels(share * f64::from(end - NAMES));
    let text = ("sans-serif", TEXT).into_font().color(&INK);
    let centred = |h| text.pos(Pos::new(h, VPos::Center));
    for quarter in 0..=4 {
        let x = at(f64::from(quarter) / 4.0);
        let line = vec![(x, ABOVE), (x, bottom)];
        root.draw(&PathElement::new(line, GRID))?;
        let name = format!("{} %", quarter * 25);
        let style = centred(HPos::Center);
        root.draw(&Text::new(name, (x, bottom + 14), style))?;
    }
    for (bar, name) in plot.bars.iter().enumerate() {
        let top = ABOVE + i32::try_from(bar)? * STEP + (STEP - HEIGHT) / 2;
        let middle = (NAMES - 8, top + HEIGHT / 2);
        root.draw(&Text::new(name.clone(), middle, centred(HPos::Right)))?;
        // A bar is as long as all its parts: a whole.
        let whole: f64 = parts(plot, bar).map(|(_, share)| share).sum();
        let mut done = 0.0;
        for (series, share) in parts(plot, bar) {
            let from = at(done / whole);
            done += share;
            let corners = [(from, top), (at(done / whole), top + HEIGHT)];
            root.draw(&Rectangle::new(corners, colour(series).filled()))?;
        }
    }
    let left = NAMES;
    let mut y = bottom + BELOW + LINE / 2;
    for series in &plot.series {
        let sign = [(left, y - 6), (left + 18, y + 6)];
        root.draw(&Rectangle::new(sign, colour(series).filled()))?;
        for part in broken(&series.name) {
            root.draw(&Text::new(part, (left + 26, y), centred(HPos::Left)))?;
            y += LINE;
        }
    }
    root.present()?;
    Ok(true)
}

/// A bar's parts, in the series' order: points are (bar, height).
fn parts(plot: &Plot, bar: usize) -> impl Iterator<Item = (&Series, f64)> {
    plot.series.iter().filter_map(move |series| {
        let found = series.points.iter().find(|[x, _]| *x == bar as f64)?;
        Some((series, found[1].max(0.0)))
    })
}

fn colour(series: &Series) -> RGBColor {
    SERIES[usize::from(series.colour) % SERIES.len()]
}

/// To the nearest pixel.
#[expect(
    clippy::cast_possible_truncation,
    reason = "a share of the picture's width"
)]
fn pixels(length: f64) -> i32 {
    length.round() as i32
}

#[cfg(test)]
mod tests {
    use super::super::svg::file;
    use super::*;
    use crate::outcome::{Axis, Origin};
    use crate::unit::Unit;

    fn plot(points: &[[(f64, f64); 2]]) -> Plot {
        let x = Axis::linear("run", Unit::Count);
        let y = Axis::linear("share", Unit::Share);
        let mut plot = Plot::new("figure-7", "Shares", x, y).of_bars(["paper", "here"]);
        for ((name, colour), points) in [("control", 0), ("data", 1)].into_iter().zip(points) {
            plot.series(name, Origin::Here, colour, *points);
        }
        plot
    }

    #[test]
    fn a_bar_is_cut_by_its_parts() {
        let svg = file(&plot(&[
            [(0.0, 0.25), (1.0, 1.0)],
            [(0.0, 0.75), (1.0, 3.0)],
        ]))
        .unwrap();
        let parsed = roxmltree::Document::parse(&svg).unwrap();
        let widths: Vec<i32> = parsed
            .descendants()
            .filter(|node| node.tag_name().name() == "rect")
            .map(|node| node.attribute("width").unwrap().parse().unwrap())
            .collect();
        // Both bars are whole, and the first part of each a quarter of it; then the legend.
        let whole = widths[0] + widths[1];
        assert_eq!(widths[2] + widths[3], whole);
        assert!((widths[0] * 4 - whole).abs() <= 8, "{widths:?}");
        assert_eq!(widths[0], widths[2]);
        assert_eq!(widths.len(), 6);
        for name in ["paper", "here", "control", "data", "50 %"] {
            assert!(svg.contains(name), "{name}");
        }
    }

    #[test]
    fn bars_without_length_are_no_plot() {
        assert!(file(&plot(&[[(0.0, 0.0), (1.0, 0.0)], [(0.0, 0.0), (1.0, 0.0)]])).is_none());
    }
}
