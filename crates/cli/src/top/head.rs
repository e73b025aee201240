//! Writes the head of a domain's screen, and what its words mean.

use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};

use super::cells::{short, short_bytes};
use super::screen::{Paint, Shown};
use super::snapshot::Snapshot;
use super::table::Tab;

/// Cells of the bar that shows how much memory is used.
const BAR: usize = 10;

impl Shown for Snapshot {
    type Tab = Tab;

    const TABLES: &'static str = "spaces, ports, shared memory, calls, ...";

    const WORDS: &'static [(&'static str, &'static str)] = &[
        (
            "SPIN SLEEP ROOM",
            "threads that wait: looking, asleep, for a queue",
        ),
        ("set", "a wait set or a task sleeps there"),
        ("VOID DROP", "lost: sender died, queue was full"),
        ("READ BEHIND", "a channel's readers; the slowest, in units"),
        ("RUN", "calls that a server runs"),
        ("*", "the space that hosts"),
    ];

    fn head(&self, paint: Paint) -> Vec<Line<'static>> {
        let Snapshot { memory, totals, .. } = self;
        let now = self;
        let bold = Style::new().add_modifier(Modifier::BOLD);
        let host = match now.host {
            0 => "no host".to_owned(),
            host => format!("host {host}"),
        };
        let takeovers = match now.takeovers {
            0 => String::new(),
            1 => ", taken over once".to_owned(),
            times => format!(", taken over {times} times"),
        };
        let first = Line::from(vec![
            Span::styled(now.domain.clone(), bold.patch(paint.style(Color::Cyan))),
            Span::raw(format!(
                "  user {}  {}  {host}{takeovers}  {}  {}",
                now.user,
                now.protection,
                counted(now.spaces.len(), "space"),
                counted(now.ports.len(), "port"),
            )),
        ]);
        let share = |bytes: u64| {
            let part = bytes as f64 / memory.limit_bytes.max(1) as f64;
            // At most the bar's length, and not negative.
            (0..BAR)
                .filter(|cell| part > *cell as f64 / BAR as f64)
                .count()
        };
        let used = share(memory.used_bytes);
        let taken = share(memory.taken_bytes).max(used);
        let second = Line::from(vec![
            Span::raw("memory ["),
            Span::styled("#".repeat(used), paint.style(Color::Green)),
            Span::raw("|".repeat(taken - used)),
            Span::raw(format!("{}] ", " ".repeat(BAR - taken))),
            Span::raw(format!(
                "{} used, {} taken of {}; {} queued",
                sum(memory.used_bytes as f64),
                sum(memory.taken_bytes as f64),
                sum(memory.limit_bytes as f64),
                sum(memory.queued_bytes as f64),
            )),
        ]);
        let lost = totals.voids + totals.dropped;
        // What a sender sent that has left since, only its receiver tells.
        let messages = totals.sent_per_second.max(totals.taken_per_second);
        let bytes = totals
            .sent_bytes_per_second
            .max(totals.taken_bytes_per_second);
        let third = Line::from(vec![
            Span::styled(format!("{} msg/s", short(messages)), bold),
            Span::raw(format!(
                "  {}/s  {} queued  waiting: {} spin, {} sleep, {} room  ",
                sum(bytes),
                short(totals.queued_messages as f64),
                totals.spinning,
                totals.sleeping,
                totals.awaiting_room,
            )),
            Span::styled(
                format!("{} lost", short(lost as f64)),
                if lost > 0 {
                    paint.style(Color::Red)
                } else {
                    Style::new()
                },
            ),
        ]);
        let mut fourth = vec![
            Span::raw(format!("{} shared  ", sum(memory.shared_bytes as f64))),
            Span::styled(format!("{} units/s", short(totals.units_per_second)), bold),
            Span::raw("  "),
            Span::styled(format!("{} calls/s", short(totals.calls_per_second)), bold),
            Span::raw("  "),
            Span::styled(
                format!("{} signals/s", short(totals.signals_per_second)),
                bold,
            ),
            Span::raw(format!(
                "  {}  {}",
                counted(now.exports.len(), "export"),
                counted(now.connections.len(), "bridge"),
            )),
        ];
        if !now.whole {
            fourth.push(Span::styled("  not all", paint.style(Color::Red)));
        }
        vec![first, second, third, Line::from(fourth)]
    }
}

/// Bytes of a sentence, where a dash would be no number.
pub(super) fn sum(bytes: f64) -> String {
    if bytes < 0.5 {
        return "0 B".to_owned();
    }
    short_bytes(bytes)
}

/// `1 port`, `2 ports`.
pub(super) fn counted(number: usize, what: &str) -> String {
    let ending = if number == 1 { "" } else { "s" };
    format!("{number} {what}{ending}")
}
