//! Draws plots as SVG.
//!
//! A plot is drawn with stand-in colours ([`INK`], [`SERIES`]); a style sheet turns them
//! into those of a light or of a dark page. Solid is this machine, dashed the paper.

use plotters::coord::Shift;
use plotters::element::DashedPathElement;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::axis::Scale;
use super::bars;
use super::markup::escape;
use crate::outcome::{Origin, Plot, Series};

/// So narrow that its text can be read on a narrow screen, where it is drawn smaller.
pub(super) const WIDTH: u32 = 520;
const HEIGHT: u32 = 360;
/// From line to line of the legend, below the graph.
pub(super) const LINE: i32 = 20;
/// Text of axes and legends.
pub(super) const TEXT: i32 = 15;

/// Stands for text and axes, lines of the grid, and the page.
pub(super) const INK: RGBColor = RGBColor(1, 0, 0);
pub(super) const GRID: RGBColor = RGBColor(2, 0, 0);
/// Stands for the colours of series.
pub(super) const SERIES: [RGBColor; 6] = [
    RGBColor(0, 1, 0),
    RGBColor(0, 2, 0),
    RGBColor(0, 3, 0),
    RGBColor(0, 4, 0),
    RGBColor(0, 5, 0),
    RGBColor(0, 6, 0),
];
/// The variables of the style sheet that these stand for, in that order.
const VARIABLES: [(RGBColor, &str); 8] = [
    (INK, "--ink"),
    (GRID, "--grid"),
    (SERIES[0], "--series-0"),
    (SERIES[1], "--series-1"),
    (SERIES[2], "--series-2"),
    (SERIES[3], "--series-3"),
    (SERIES[4], "--series-4"),
    (SERIES[5], "--series-5"),
];

/// The colours, light and dark; told apart by people who see fewer of them, too.
pub(super) const COLOURS: &str = "\
    --ground:#fff;--ink:#222;--muted:#5c6370;--grid:#ddd;--panel:#f6f7f9;--link:#0b57d0;\
    --series-0:#0072b2;--series-1:#d55e00;--series-2:#00855f;--series-3:#b8458c;\
    --series-4:#8a6d00;--series-5:#555;--good:#00754f;--bad:#b23c00;--open:#6b5900;";
pub(super) const COLOURS_DARK: &str = "\
    --ground:#16181d;--ink:#e4e6ea;--muted:#a0a7b4;--grid:#3a3f4a;--panel:#1f232b;\
    --link:#8ab4f8;--series-0:#56b4e9;--series-1:#ff9a52;--series-2:#35d0a0;\
    --series-3:#ee8fc8;--series-4:#e8cf4a;--series-5:#bbb;--good:#4fd3a4;--bad:#ff9d6c;\
    --open:#e8cf4a;";

/// What makes the stand-ins colours; both of the page and of a plot by itself.
pub(super) fn rules() -> String {
    let rule = |(RGBColor(r, g, b), variable): &(RGBColor, &str)| {
        let colour = format!("#{r:02X}{g:02X}{b:02X}");
        format!(
            "[fill=\"{colour}\"]{{fill:var({variable})}}[stroke=\"{colour}\"]{{stroke:var({variable})}}"
        )
    };
    VARIABLES.iter().map(rule).collect()
}

/// A plot as a file of its own.
pub(crate) fn file(plot: &Plot) -> Option<String> {
    let inner = draw(plot)?;
    let style = format!(
        "<style>svg{{{COLOURS}background:var(--ground)}}\
         @media (prefers-color-scheme:dark){{svg{{{COLOURS_DARK}}}}}{}</style>",
        rules()
    );
    let at = inner.find('>')? + 1;
    Some(format!("{}{style}{}\n", &inner[..at], &inner[at..]))
}

/// A plot for the page; `None` if there is nothing to draw.
pub(super) fn draw(plot: &Plot) -> Option<String> {
    let mut svg = String::new();
    if !plot.bars.is_empty() {
        return bars::paint(plot, &mut svg)
            .is_ok_and(|drawn| drawn)
            .then(|| labelled(&svg, plot));
    }
    let points = || plot.series.iter().flat_map(|series| &series.points);
    let x = Scale::over(&plot.x, points().map(|[x, _]| *x))?;
    let y = Scale::over(&plot.y, points().map(|[_, y]| *y))?;
    // Drawing into a string has nothing to fail at.
    paint(plot, x, y, &mut svg).ok()?;
    Some(labelled(&svg, plot))
}

/// With a name for those who do not see it.
fn labelled(svg: &str, plot: &Plot) -> String {
    let label = escape(&plot.title);
    svg.replacen(
        "<svg ",
        &format!("<svg role=\"img\" aria-label=\"{label}\" class=\"plot\" "),
        1,
    )
}

type Painted = Result<(), Box<dyn std::error::Error>>;

fn paint(plot: &Plot, x: Scale, y: Scale, svg: &mut String) -> Painted {
    let names = plot.series.iter().map(|series| &series.name);
    let names = names.chain(plot.marks.iter().map(|mark| &mark.name));
    let below = legend_height(names);
    let size = (WIDTH, HEIGHT + u32::try_from(below)?);
    let root = SVGBackend::with_string(svg, size).into_drawing_area();
    let (graph, legend) = root.split_vertically(HEIGHT);
    let mut chart = ChartBuilder::on(&graph)
        .margin(12)
        .margin_right(16)
        .x_label_area_size(46)
        .y_label_area_size(78)
        .build_cartesian_2d(x.clone(), y.clone())?;
    let text = |size: i32| ("sans-serif", size).into_font().color(&INK);
    chart
        .configure_mesh()
        .axis_style(INK)
        .bold_line_style(GRID)
        .light_line_style(TRANSPARENT)
        .label_style(text(TEXT))
        .axis_desc_style(text(TEXT))
        .x_desc(plot.x.name.as_str())
        .y_desc(plot.y.name.as_str())
        .draw()?;
    let (bottom, top) = (y.range().start, y.range().end);
    for mark in plot.marks.iter().filter(|mark| x.has(mark.x)) {
        let line = vec![(mark.x, bottom), (mark.x, top)];
        chart.draw_series([DashedPathElement::new(line, 2, 3, INK)])?;
    }
    for series in &plot.series {
        let (colour, shape) = look(series);
        let drawn = series
            .points
            .iter()
            .filter(|[px, py]| x.has(*px) && y.has(*py));
        let drawn: Vec<(f64, f64)> = drawn.map(|[px, py]| (*px, *py)).collect();
        match series.origin {
            _ if plot.apart => {}
            Origin::Here => {
                chart.draw_series(LineSeries::new(drawn.clone(), colour.stroke_width(2)))?;
            }
            Origin::Paper => {
                let line = DashedLineSeries::new(drawn.clone(), 6, 4, colour.stroke_width(2));
                chart.draw_series(line)?;
            }
        }
        for point in drawn {
            mark(&root, chart.backend_coord(&point), colour, shape)?;
        }
    }
    explain(plot, &legend, &text(TEXT))?;
    root.present()?;
    Ok(())
}

/// Pixels of a legend with these names.
pub(super) fn legend_height<'a>(names: impl Iterator<Item = &'a String>) -> i32 {
    let lines = names.map(|name| broken(name).len()).sum::<usize>();
    i32::try_from(lines).unwrap_or(0) * LINE + LINE
}

/// Names each line, below.
fn explain(
    plot: &Plot,
    legend: &DrawingArea<SVGBackend<'_>, Shift>,
    text: &TextStyle<'_>,
) -> Painted {
    let text = text.pos(Pos::new(HPos::Left, VPos::Center));
    let mut y = LINE / 2;
    for series in &plot.series {
        let (colour, shape) = look(series);
        let line = vec![(LEFT - 17, y), (LEFT + 17, y)];
        match series.origin {
            _ if plot.apart => {}
            Origin::Here => legend.draw(&PathElement::new(line, colour.stroke_width(2)))?,
            Origin::Paper => {
                legend.draw(&DashedPathElement::new(line, 6, 4, colour.stroke_width(2)))?;
            }
        }
        mark(legend, (LEFT, y), colour, shape)?;
        for part in broken(&series.name) {
            legend.draw(&Text::new(part, (LEFT + 25, y), text.clone()))?;
            y += LINE;
        }
    }
    for mark in &plot.marks {
        legend.draw(&DashedPathElement::new(
            vec![(LEFT, y - 8), (LEFT, y + 8)],
            2,
            3,
            INK,
        ))?;
        for part in broken(&mark.name) {
            legend.draw(&Text::new(part, (LEFT + 25, y), text.clone()))?;
            y += LINE;
        }
    }
    Ok(())
}

/// A legend's text in lines that fit.
pub(super) fn broken(name: &str) -> Vec<String> {
    const LINE: usize = 52;
    let mut lines: Vec<String> = Vec::new();
    for word in name.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= LINE => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// Where the legend's signs are.
const LEFT: i32 = 40;

/// Colour and shape of a series: twelve of them differ in one or the other.
fn look(series: &Series) -> (RGBColor, usize) {
    let at = usize::from(series.colour);
    (SERIES[at % SERIES.len()], at % SHAPES)
}

/// Shapes of points.
const SHAPES: usize = 4;

/// One point, by shape as well as by colour.
fn mark(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    at: (i32, i32),
    colour: RGBColor,
    shape: usize,
) -> Painted {
    let filled = colour.filled();
    let (x, y) = at;
    match shape {
        0 => area.draw(&Circle::new(at, 4, filled))?,
        1 => area.draw(&TriangleMarker::new(at, 5, filled))?,
        2 => area.draw(&Rectangle::new([(x - 3, y - 3), (x + 4, y + 4)], filled))?,
        _ => area.draw(&Cross::new(at, 4, colour.stroke_width(2)))?,
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::{Axis, Mark};
    use crate::unit::Unit;

    fn plot() -> Plot {
        let x = Axis::log("message", Unit::Bytes);
        let y = Axis::log("one way", Unit::Seconds);
        let mut plot = Plot::new("figure", "A <figure> & more", x, y);
        plot.series(
            "moved",
            Origin::Here,
            0,
            [(0.0, 1e-6), (8192.0, 2e-6), (65536.0, 4e-6)],
        );
        plot.series("moved", Origin::Paper, 0, [(8192.0, 1e-3), (65536.0, 2e-3)]);
        plot.marks.push(Mark {
            name: "crossover".into(),
            x: 16_384.0,
        });
        plot
    }

    #[test]
    fn a_plot_shows_every_series_and_its_names() {
        let svg = file(&plot()).unwrap();
        let parsed = roxmltree::Document::parse(&svg).unwrap();
        let texts: Vec<String> = parsed
            .descendants()
            .filter(|node| node.has_tag_name(("http://www.w3.org/2000/svg", "text")))
            .filter_map(|node| Some(node.text()?.trim().to_owned()))
            .collect();
        for text in ["message", "one way", "16 KiB", "1 ms", "moved", "crossover"] {
            assert!(
                texts.iter().any(|found| found == text),
                "{text} in {texts:?}"
            );
        }
        // Two points of each line and its sign in the legend; zero has no place on this axis.
        let circles = parsed
            .descendants()
            .filter(|node| node.tag_name().name() == "circle");
        assert_eq!(circles.count(), 2 * 3);
    }

    #[test]
    fn twelve_series_look_different() {
        let series = |colour| Series {
            name: String::new(),
            origin: Origin::Here,
            colour,
            points: Vec::new(),
        };
        for one in 0..12 {
            for other in 0..one {
                let (a, b) = (look(&series(one)), look(&series(other)));
                assert!(a != b, "{one} and {other}");
            }
        }
    }

    #[test]
    fn points_that_lie_apart_are_not_joined() {
        let joined = draw(&plot()).unwrap();
        let apart = draw(&plot().of_points()).unwrap();
        let lines = |svg: &str| svg.matches("<polyline").count();
        assert!(lines(&apart) < lines(&joined));
        assert_eq!(
            apart.matches("<circle").count(),
            joined.matches("<circle").count()
        );
    }

    #[test]
    fn every_colour_follows_the_page() {
        let svg = draw(&plot()).unwrap();
        let known: Vec<String> = VARIABLES
            .iter()
            .map(|(RGBColor(r, g, b), _)| format!("#{r:02X}{g:02X}{b:02X}"))
            .collect();
        for attribute in ["fill=\"#", "stroke=\"#"] {
            for (at, _) in svg.match_indices(attribute) {
                let from = at + attribute.len() - 1;
                let colour = &svg[from..from + 7];
                // Drawn with no opacity at all: the grid between the marks.
                assert!(
                    known.iter().any(|k| k == colour),
                    "{colour} in {}",
                    &svg[at..at + 60]
                );
            }
        }
    }

    #[test]
    fn nothing_to_draw_is_no_plot() {
        let mut empty = plot();
        empty.series.clear();
        assert!(draw(&empty).is_none());
    }
}
