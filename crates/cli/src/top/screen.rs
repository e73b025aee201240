//! The screen draws what is shown, and handles keys.

use std::time::Duration;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph};

use super::cells::{Cell, Column, Tables};

/// Intervals that `+` and `-` go through.
const INTERVALS: [Duration; 8] = [
    Duration::from_millis(100),
    Duration::from_millis(200),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(5),
    Duration::from_secs(10),
    Duration::from_secs(60),
];
const HELP: &[(&str, &str)] = &[
    ("s  S", "sort by the next column, or the one before"),
    ("r", "the other way round"),
    ("/", "only rows with this (Enter keeps, Esc drops)"),
    ("Up Down PgUp PgDn Home End", "scroll"),
    ("p", "pause, and go on"),
    ("+  -", "look less often, or more often"),
    ("?", "this"),
    ("q  Esc  Ctrl-C", "quit"),
];

/// What a key asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    /// Nothing but to be drawn again.
    Stay,
    /// To look anew, at once.
    Look,
    Quit,
}

/// What a screen shows: a head, and tables.
pub(crate) trait Shown: Sized {
    type Tab: Tables<Self>;

    /// What the tables are, for the page of help.
    const TABLES: &'static str;
    /// What words of the head and the tables mean, for the same.
    const WORDS: &'static [(&'static str, &'static str)];

    /// Four lines.
    fn head(&self, paint: Paint) -> Vec<Line<'static>>;
}

/// Whether there are colours.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Paint(bool);

impl Paint {
    #[cfg(test)]
    pub(crate) fn none() -> Self {
        Self(false)
    }

    pub(crate) fn style(self, colour: Color) -> Style {
        match self {
            Self(true) => Style::new().fg(colour),
            Self(false) => Style::new(),
        }
    }
}

/// How one table is sorted and scrolled.
#[derive(Clone, Copy, Debug)]
struct Place {
    sort: usize,
    reverse: bool,
    top: usize,
}

/// All that the screen shows and remembers.
#[derive(Debug)]
pub(crate) struct Screen<S> {
    pub(crate) snapshot: S,
    pub(crate) interval: Duration,
    pub(crate) paused: bool,
    /// The last look is not answered yet.
    pub(crate) late: bool,
    paint: Paint,
    /// The table that is shown, and how each is.
    tab: usize,
    places: Vec<Place>,
    filter: String,
    /// The filter is being typed.
    typing: bool,
    help: bool,
    /// Rows that the table had room for when it was drawn last.
    page: usize,
}

impl<S: Shown> Screen<S> {
    pub(crate) fn new(snapshot: S, interval: Duration, colour: bool) -> Self {
        let place = |tab: &S::Tab| Place {
            sort: tab.first_sort(),
            reverse: false,
            top: 0,
        };
        Self {
            snapshot,
            interval,
            paused: false,
            late: false,
            paint: Paint(colour),
            tab: 0,
            places: S::Tab::ALL.iter().map(place).collect(),
            filter: String::new(),
            typing: false,
            help: false,
            page: 1,
        }
    }

    fn place(&mut self) -> &mut Place {
        &mut self.places[self.tab]
    }

    fn shown(&self) -> S::Tab {
        S::Tab::ALL[self.tab]
    }

    /// Does what a key says.
    pub(crate) fn key(&mut self, key: KeyEvent) -> Wish {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        if control && matches!(key.code, KeyCode::Char('c' | 'd')) {
            return Wish::Quit;
        }
        if self.typing {
            self.type_filter(key.code);
            return Wish::Stay;
        }
        if self.help {
            self.help = false;
            return Wish::Stay;
        }
        let columns = self.shown().columns().len();
        let page = self.page.max(1);
        match key.code {
            KeyCode::Char('q') => return Wish::Quit,
            KeyCode::Esc if self.filter.is_empty() => return Wish::Quit,
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Char('?' | 'h') => self.help = true,
            KeyCode::Tab | KeyCode::Right => self.turn(1),
            KeyCode::BackTab | KeyCode::Left => self.turn(S::Tab::ALL.len() - 1),
            KeyCode::Char(digit @ '1'..='9') => {
                let nth = usize::from(digit as u8 - b'1');
                if nth < S::Tab::ALL.len() {
                    self.tab = nth;
                }
            }
            KeyCode::Char('s') => self.sort(1),
            KeyCode::Char('S') => self.sort(columns - 1),
            KeyCode::Char('r') => self.place().reverse ^= true,
            KeyCode::Char('/') => self.typing = true,
            KeyCode::Char('p' | ' ') => {
                self.paused ^= true;
                return if self.paused { Wish::Stay } else { Wish::Look };
            }
            KeyCode::Char('+' | '=') => self.slower(),
            KeyCode::Char('-') => self.faster(),
            KeyCode::Down => self.place().top += 1,
            KeyCode::Up => self.place().top = self.place().top.saturating_sub(1),
            KeyCode::PageDown => self.place().top += page,
            KeyCode::PageUp => self.place().top = self.place().top.saturating_sub(page),
            KeyCode::Home => self.place().top = 0,
            KeyCode::End => self.place().top = usize::MAX,
            _ => {}
        }
        Wish::Stay
    }

    fn type_filter(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.typing = false,
            KeyCode::Esc => {
                self.typing = false;
                self.filter.clear();
            }
            KeyCode::Backspace => {
                self.filter.pop();
            }
            KeyCode::Char(letter) => self.filter.push(letter),
            _ => {}
        }
        self.place().top = 0;
    }

    fn turn(&mut self, by: usize) {
        self.tab = (self.tab + by) % S::Tab::ALL.len();
    }

    fn sort(&mut self, by: usize) {
        let columns = self.shown().columns().len();
        let place = self.place();
        place.sort = (place.sort + by) % columns;
        place.reverse = false;
        place.top = 0;
    }

    fn slower(&mut self) {
        let next = INTERVALS.iter().find(|i| **i > self.interval);
        self.interval = *next.unwrap_or(&self.interval);
    }

    fn faster(&mut self) {
        let next = INTERVALS.iter().rev().find(|i| **i < self.interval);
        self.interval = *next.unwrap_or(&self.interval);
    }

    /// The rows of the table that is shown: filtered and sorted, numbers downwards.
    fn rows(&self) -> Vec<Vec<Cell>> {
        let Place { sort, reverse, .. } = self.places[self.tab];
        let wanted = self.filter.to_lowercase();
        let mut rows = self.shown().rows(&self.snapshot);
        rows.retain(|row| {
            wanted.is_empty() || row.iter().any(|c| c.text.to_lowercase().contains(&wanted))
        });
        let upwards = self.shown().columns()[sort].text ^ reverse;
        // Stable, so that rows which are alike stay where they are.
        rows.sort_by(|a, b| {
            let order = a[sort].key.order(&b[sort].key);
            if upwards { order } else { order.reverse() }
        });
        rows
    }

    /// Draws all of it.
    pub(crate) fn draw(&mut self, frame: &mut Frame<'_>) {
        let [head, tabs, table, foot] = Layout::vertical([
            Constraint::Length(4),
            Constraint::Length(1),
            Constraint::Min(1),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        frame.render_widget(Paragraph::new(self.snapshot.head(self.paint)), head);
        frame.render_widget(Paragraph::new(self.tabs()), tabs);
        self.draw_table(frame, table);
        frame.render_widget(Paragraph::new(self.foot()), foot);
        if self.help {
            self.draw_help(frame);
        }
    }

    fn tabs(&self) -> Line<'static> {
        let mut line = Vec::new();
        for (number, tab) in (1..).zip(S::Tab::ALL) {
            let style = if *tab == self.shown() {
                Style::new().add_modifier(Modifier::BOLD | Modifier::UNDERLINED)
            } else {
                Style::new()
            };
            line.push(Span::styled(format!("{number} {}", tab.title()), style));
            line.push(Span::raw(" "));
        }
        Line::from(line)
    }

    fn draw_table(&mut self, frame: &mut Frame<'_>, area: Rect) {
        let columns = self.shown().columns();
        let widths = widths(columns, area.width);
        let rows = self.rows();
        self.page = usize::from(area.height.saturating_sub(1));
        let last = rows.len().saturating_sub(self.page);
        let place = self.place();
        place.top = place.top.min(last);
        let Place { sort, reverse, top } = *place;
        let mut lines = vec![self.heading(columns, &widths, sort, reverse)];
        let shown = rows.iter().skip(top).take(self.page);
        lines.extend(shown.map(|row| {
            let mut line = Vec::new();
            for ((cell, column), width) in row.iter().zip(columns).zip(&widths) {
                let style = if cell.alarm {
                    self.paint.style(Color::Red).add_modifier(Modifier::BOLD)
                } else {
                    Style::new()
                };
                line.push(Span::styled(fit(&cell.text, *width, column.text), style));
                line.push(Span::raw(" "));
            }
            Line::from(line)
        }));
        if rows.is_empty() {
            let nothing = if self.filter.is_empty() {
                "none"
            } else {
                "none with this text (Esc drops it)"
            };
            lines.push(Line::raw(nothing));
        }
        frame.render_widget(Paragraph::new(lines), area);
        if rows.len() > self.page && self.page > 0 {
            let end = (top + self.page).min(rows.len());
            let note = format!(" {}-{end} of {} ", top + 1, rows.len());
            let width = u16::try_from(note.len()).unwrap_or(0).min(area.width);
            let at = Rect {
                x: area.right() - width,
                y: area.y.saturating_sub(1),
                width,
                height: 1,
            };
            frame.render_widget(Paragraph::new(note), at);
        }
    }

    fn heading(
        &self,
        columns: &[Column],
        widths: &[usize],
        sort: usize,
        reverse: bool,
    ) -> Line<'static> {
        let plain = Style::new().add_modifier(Modifier::REVERSED);
        let mut line = Vec::new();
        for (index, (column, width)) in columns.iter().zip(widths).enumerate() {
            let title = fit(column.title, *width, column.text);
            let style = if index == sort {
                plain.add_modifier(Modifier::BOLD | Modifier::UNDERLINED)
            } else {
                plain
            };
            line.push(Span::styled(title, style));
            // Beside the column that it is sorted by: which way.
            let arrow = match (index == sort, column.text ^ reverse) {
                (false, _) => " ",
                (true, true) => "\u{2191}",
                (true, false) => "\u{2193}",
            };
            line.push(Span::styled(arrow, plain));
        }
        Line::from(line)
    }

    fn foot(&self) -> Line<'static> {
        let state = if self.paused {
            Span::styled("paused", self.paint.style(Color::Yellow))
        } else if self.late {
            Span::styled("no answer", self.paint.style(Color::Red))
        } else {
            Span::raw(format!("every {}s", self.interval.as_secs_f64()))
        };
        if self.typing || !self.filter.is_empty() {
            let cursor = if self.typing { "_" } else { "" };
            let wanted = format!("  /{}{cursor}", self.filter);
            let keys = if self.typing {
                "  Enter keeps it, Esc drops it"
            } else {
                "  Esc drops it  q quit  ? help"
            };
            let wanted = Span::styled(wanted, self.paint.style(Color::Yellow));
            return Line::from(vec![state, wanted, Span::raw(keys)]);
        }
        let keys = "  q quit  Tab table  s sort  r turn  / find  p pause  +- pace  ? help";
        Line::from(vec![state, Span::raw(keys)])
    }

    fn draw_help(&self, frame: &mut Frame<'_>) {
        let tables = format!("Tab 1 ... {}", S::Tab::ALL.len());
        let first = [(tables.as_str(), S::TABLES)];
        let keys = first.iter().chain(HELP).chain(&[("", "")]);
        let lines: Vec<Line<'_>> = keys
            .chain(S::WORDS)
            .map(|(key, what)| Line::raw(format!(" {key:<27}{what}")))
            .collect();
        let height = u16::try_from(lines.len() + 2).unwrap_or(u16::MAX);
        let all = frame.area();
        let area = Rect {
            x: all.x,
            y: all.y,
            width: all.width.min(78),
            height: height.min(all.height),
        };
        let block = Block::bordered().title(" keys and words (any key closes this) ");
        frame.render_widget(Clear, area);
        frame.render_widget(Paragraph::new(lines).block(block), area);
    }
}

/// The columns' widths on a line of `room`: the first wide text column gets what is left over.
fn widths(columns: &[Column], room: u16) -> Vec<usize> {
    let mut widths: Vec<usize> = columns.iter().map(|c| usize::from(c.width)).collect();
    let needed = widths.iter().sum::<usize>() + widths.len();
    let over = usize::from(room).saturating_sub(needed);
    let name = columns.iter().position(|c| c.title == "NAME");
    if let Some(width) = name.and_then(|name| widths.get_mut(name)) {
        *width += over.min(40);
    }
    widths
}

/// A text in exactly `width` places; cut with a `~` where it is longer.
fn fit(text: &str, width: usize, left: bool) -> String {
    let text: String = text
        .chars()
        .map(|c| if c.is_control() { '?' } else { c })
        .collect();
    let length = text.chars().count();
    if length > width {
        let kept: String = text.chars().take(width.saturating_sub(1)).collect();
        return kept + "~";
    }
    if left {
        format!("{text:<width$}")
    } else {
        format!("{text:>width$}")
    }
}

#[cfg(test)]
mod tests;
