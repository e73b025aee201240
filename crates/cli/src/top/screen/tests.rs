//! Tests the screen as it is drawn at 80x24, and what keys do to it.

use super::*;
use crate::seen::{Bridge, Channel, Export, Listener, Memory, Reader, Segment};
use crate::top::snapshot::{Connected, Exported, Extents, Port, Shared, Snapshot, Space, Totals};
use crate::top::table::Tab;
use ratatui::Terminal;
use ratatui::backend::TestBackend;

fn sample() -> Snapshot {
    let space = |id: u8, name: &str, rate: f64| Space {
        id,
        pid: 41_000 + u32::from(id),
        name: name.to_owned(),
        host: id == 1,
        state: if id == 4 { "dead" } else { "live" },
        sent_per_second: rate,
        sent_bytes_per_second: rate * 6_220_800.0,
        taken_per_second: rate / 2.0,
        spinning: u32::from(id == 2),
        sleeping: u32::from(id != 2) * 3,
        calls_per_second: rate,
        answers_per_second: rate / 3.0,
        signals_per_second: rate * 2.0,
        delivered_per_second: rate,
        awaiting_room: u32::from(id == 3),
        owned_bytes: u64::from(id) << 21,
        ..Space::default()
    };
    let port = |index: u16, name: Option<&str>, depth: usize, rate: f64| Port {
        index,
        name: name.map(str::to_owned),
        owner: 1,
        kind: if name.is_some() {
            "messages"
        } else {
            "replies"
        },
        state: "open",
        depth,
        slots: 64,
        taken_per_second: rate,
        taken_bytes_per_second: rate * 1e6,
        sleeping: u32::from(depth == 0),
        armed: depth < 2,
        voids: u64::from(index == 2) * 3,
        dropped: u64::from(index == 2) * 14_000,
        ..Port::default()
    };
    Snapshot {
        domain: "cameras".to_owned(),
        user: 1000,
        protection: "guarded",
        host: 1,
        takeovers: 2,
        seconds: 1.0,
        memory: Memory {
            limit_bytes: 8 << 30,
            taken_bytes: 3 << 30,
            used_bytes: 5 << 28,
            free_bytes: 6 << 30,
            queued_bytes: 40 << 20,
            shared_bytes: 1023 << 20,
        },
        totals: Totals {
            sent_per_second: 1_200_000.0,
            sent_bytes_per_second: 7.7e12,
            // Of senders that have left since, too.
            taken_per_second: 1_234_567.0,
            taken_bytes_per_second: 7.6e12,
            queued_messages: 120,
            spinning: 1,
            sleeping: 9,
            awaiting_room: 1,
            voids: 3,
            dropped: 14_000,
            units_per_second: 12_345_678.0,
            calls_per_second: 1_234_567.0,
            signals_per_second: 98_765.0,
            passed_per_second: 12_345.0,
        },
        spaces: vec![
            space(1, "grabber", 60.0),
            space(2, "a-classifier-with-a-long-name", 1_234_500.0),
            space(3, "writer", 0.5),
            space(4, "lost", 0.0),
        ],
        ports: vec![
            port(0, Some("frames"), 0, 120.0),
            port(1, Some("results"), 1, 0.0),
            port(2, Some("slow"), 63, 4_000_000.0),
            port(3, None, 2, 7.0),
        ],
        segments: vec![
            shared("position#0", "topic", 4096, 12_345_678.0, &[0, 14]),
            shared("", "calls", 1088, 7.0, &[1]),
            shared(
                "a-frame-buffer-with-a-long-name",
                "frame buffer",
                1 << 20,
                60.0,
                &[],
            ),
            Shared {
                segment: Segment {
                    index: 32_767,
                    kind: "shared extent",
                    bytes: 1 << 30,
                    rights: 2,
                    ..Segment::default()
                },
                units_per_second: 0.0,
            },
        ],
        listeners: vec![Listener {
            fifo: 0,
            space: 2,
            handlers: 120,
            waiting: 128,
            depth: 128,
            dropped: 14_000,
            upcalls: false,
        }],
        exports: vec![
            exported("picture", "read", false, 3),
            exported("an-export-with-quite-a-long-name", "read, write", true, 0),
        ],
        connections: vec![
            connected("sends to", "orders", Some("robot")),
            connected("tells", "temperature-of-the-engine", None),
        ],
        whole: true,
        extents: vec![
            Extents {
                space: Some(1),
                name: "grabber".to_owned(),
                size_bytes: 8 << 20,
                count: 12,
                bytes: 96 << 20,
                by_age: [4, 6, 1, 1, 0],
                oldest_seconds: 3599,
            },
            Extents {
                space: None,
                name: "(in queues)".to_owned(),
                size_bytes: 4096,
                count: 120_000,
                bytes: 120_000 * 4096,
                by_age: [120_000, 0, 0, 0, 0],
                oldest_seconds: 0,
            },
            Extents {
                space: Some(3),
                name: "writer".to_owned(),
                size_bytes: 1 << 30,
                count: 1,
                bytes: 1 << 30,
                by_age: [0, 0, 0, 0, 1],
                oldest_seconds: 90_000,
            },
        ],
    }
}

fn shared(name: &str, kind: &'static str, unit: usize, rate: f64, behind: &[u64]) -> Shared {
    let reader = |behind: &u64| Reader {
        space: 2,
        behind_units: *behind,
        dropped: false,
    };
    Shared {
        segment: Segment {
            index: 7,
            name: Some(name.to_owned()).filter(|name| !name.is_empty()),
            kind,
            bytes: 16 * unit as u64,
            rights: 3,
            channel: Some(Channel {
                unit_bytes: unit,
                units: 16,
                writer: Some(1),
                written_units: 1 << 40,
                entries: 32,
                readers: behind.iter().map(reader).collect(),
                ..Channel::default()
            }),
            ..Segment::default()
        },
        units_per_second: rate,
    }
}

fn exported(name: &str, permits: &'static str, kernel: bool, importers: u64) -> Exported {
    Exported {
        export: Export {
            space: 3,
            pid: 4711,
            exporter: "camera".to_owned(),
            name: name.to_owned(),
            bytes: 64 << 20,
            permits,
            kernel_mediated: kernel,
            importers,
            notifications: 12,
        },
        notifications_per_second: 1_000_000.0,
    }
}

fn connected(kind: &'static str, offer: &str, domain: Option<&str>) -> Connected {
    Connected {
        bridge: Bridge {
            space: 255,
            kind,
            offer: offer.to_owned(),
            domain: domain.map(str::to_owned),
            user: 4_294_967,
            pid: 4_194_303,
            ..Bridge::default()
        },
        out_per_second: 1_234_567.0,
        out_bytes_per_second: 9.9e9,
        in_per_second: 12.0,
        in_bytes_per_second: 0.0,
    }
}

fn screen() -> Screen<Snapshot> {
    Screen::new(sample(), Duration::from_secs(1), true)
}

fn drawn(screen: &mut Screen<Snapshot>, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| screen.draw(frame)).unwrap();
    terminal.backend().to_string()
}

fn press(screen: &mut Screen<Snapshot>, keys: &str) -> Wish {
    let mut wish = Wish::Stay;
    for letter in keys.chars() {
        let code = match letter {
            '\t' => KeyCode::Tab,
            '\n' => KeyCode::Enter,
            '\x1b' => KeyCode::Esc,
            letter => KeyCode::Char(letter),
        };
        wish = screen.key(KeyEvent::new(code, KeyModifiers::NONE));
    }
    wish
}

#[test]
fn spaces_at_80_by_24() {
    insta::assert_snapshot!(drawn(&mut screen(), 80, 24));
}

#[test]
fn ports_at_80_by_24() {
    let mut screen = screen();
    press(&mut screen, "\t");
    insta::assert_snapshot!(drawn(&mut screen, 80, 24));
}

#[test]
fn extents_at_80_by_24() {
    let mut screen = screen();
    press(&mut screen, "7");
    insta::assert_snapshot!(drawn(&mut screen, 80, 24));
}

#[test]
fn shared_memory_at_80_by_24() {
    let mut screen = screen();
    press(&mut screen, "3");
    insta::assert_snapshot!(drawn(&mut screen, 80, 24));
}

#[test]
fn calls_at_80_by_24() {
    let mut screen = screen();
    press(&mut screen, "4");
    insta::assert_snapshot!(drawn(&mut screen, 80, 24));
}

#[test]
fn exports_at_80_by_24() {
    let mut screen = screen();
    press(&mut screen, "5");
    insta::assert_snapshot!(drawn(&mut screen, 80, 24));
}

#[test]
fn bridges_at_80_by_24() {
    let mut screen = screen();
    press(&mut screen, "6");
    insta::assert_snapshot!(drawn(&mut screen, 80, 24));
}

#[test]
fn the_foot_fits_whatever_it_says() {
    for keys in ["", "p", "/abc", "/abc\n", "----------"] {
        let mut screen = screen();
        press(&mut screen, keys);
        let foot: usize = screen.foot().spans.iter().map(|s| s.content.len()).sum();
        assert!(foot <= 80, "{foot}: {:?}", screen.foot());
    }
    for line in sample().head(Paint(true)) {
        let width: usize = line.spans.iter().map(|s| s.content.len()).sum();
        assert!(width <= 80, "{width}: {line:?}");
    }
}

#[test]
fn help_at_80_by_24() {
    let mut screen = screen();
    press(&mut screen, "?");
    insta::assert_snapshot!(drawn(&mut screen, 80, 24));
    assert_eq!(press(&mut screen, "q"), Wish::Stay, "any key closes it");
    assert_eq!(press(&mut screen, "q"), Wish::Quit);
}

#[test]
fn a_wide_screen_gives_names_their_room() {
    let shown = drawn(&mut screen(), 120, 10);
    assert!(shown.contains("a-classifier-with-a-long-name"), "{shown}");
}

#[test]
fn any_size_can_be_drawn() {
    for (width, height) in [(1, 1), (10, 3), (40, 6), (200, 60)] {
        for tab in ["1", "2", "3", "4", "5", "6", "7", "?"] {
            let mut screen = screen();
            press(&mut screen, tab);
            drawn(&mut screen, width, height);
        }
    }
}

fn names(screen: &Screen<Snapshot>) -> Vec<String> {
    screen
        .rows()
        .iter()
        .map(|row| row[2].text.clone())
        .collect()
}

#[test]
fn columns_are_sorted_by_in_turn_and_the_other_way_round() {
    let mut screen = screen();
    assert!(names(&screen)[0].starts_with("a-classifier"), "by rate");
    press(&mut screen, "r");
    assert_eq!(names(&screen)[0], "lost dead");
    // From SENT/s back to NAME, which goes upwards.
    press(&mut screen, "S");
    assert_eq!(names(&screen)[1], "grabber");
    press(&mut screen, "r");
    assert_eq!(names(&screen)[0], "writer");
    // Once round all columns.
    for _ in 0..Tab::Spaces.columns().len() {
        press(&mut screen, "s");
    }
    assert_eq!(names(&screen)[1], "grabber");
}

#[test]
fn a_filter_is_typed_kept_and_dropped() {
    let mut screen = screen();
    press(&mut screen, "/GRABq");
    assert!(drawn(&mut screen, 80, 24).contains("none with this text"));
    screen.key(KeyEvent::new(KeyCode::Backspace, KeyModifiers::NONE));
    assert_eq!(names(&screen), ["grabber"]);
    press(&mut screen, "\n");
    assert!(drawn(&mut screen, 80, 24).contains("/GRAB"));
    assert_eq!(press(&mut screen, "\x1b"), Wish::Stay, "drops the filter");
    assert_eq!(names(&screen).len(), 4);
    assert_eq!(press(&mut screen, "\x1b"), Wish::Quit);
}

#[test]
fn long_tables_scroll_and_stop_at_their_end() {
    let mut screen = screen();
    let one = screen.snapshot.spaces[0].clone();
    screen.snapshot.spaces = (1..=100)
        .map(|id| Space {
            id,
            sent_per_second: 1000.0 - f64::from(id),
            ..one.clone()
        })
        .collect();
    let shown = drawn(&mut screen, 80, 24);
    assert!(shown.contains("1-17 of 100"), "{shown}");
    screen.key(KeyEvent::new(KeyCode::PageDown, KeyModifiers::NONE));
    assert!(drawn(&mut screen, 80, 24).contains("18-34 of 100"));
    screen.key(KeyEvent::new(KeyCode::End, KeyModifiers::NONE));
    assert!(drawn(&mut screen, 80, 24).contains("84-100 of 100"));
    screen.key(KeyEvent::new(KeyCode::Up, KeyModifiers::NONE));
    assert!(drawn(&mut screen, 80, 24).contains("83-99 of 100"));
}

#[test]
fn pace_and_pause() {
    let mut screen = screen();
    assert_eq!(press(&mut screen, "p"), Wish::Stay);
    assert!(drawn(&mut screen, 80, 24).contains("paused"));
    assert_eq!(press(&mut screen, "p"), Wish::Look);
    press(&mut screen, "+");
    assert_eq!(screen.interval, Duration::from_secs(2));
    press(&mut screen, "-----------");
    assert_eq!(screen.interval, INTERVALS[0]);
    let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert_eq!(screen.key(interrupt), Wish::Quit);
}

#[test]
fn without_colour_there_is_none() {
    let mut screen = Screen::new(sample(), Duration::from_secs(1), false);
    let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
    for tab in ["1", "2", "3", "4", "5", "6", "7"] {
        press(&mut screen, tab);
        terminal.draw(|frame| screen.draw(frame)).unwrap();
        let cells = terminal.backend().buffer().content();
        assert!(
            cells
                .iter()
                .all(|c| c.fg == Color::Reset && c.bg == Color::Reset)
        );
    }
}
