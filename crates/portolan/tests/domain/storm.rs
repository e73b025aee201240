//! Processes come, work, leave and are killed in no order; then everything is there again.

use crate::child::{Child, PATIENCE, REPORT, unique, until};
use std::path::PathBuf;

/// Bytes that the domain may have.
const LIMIT: usize = 24 << 20;
/// Processes at one time.
const CROWD: usize = 5;

/// A generator of no quality; the timing of the processes is the greater chance.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        usize::try_from(self.0 >> 33).unwrap() % sides
    }
}

/// Where newcomers say why they could not join.
fn report(name: &str) -> PathBuf {
    std::env::temp_dir().join(name)
}

/// A process with orders that it has not answered yet.
fn newcomer(name: &str, dice: &mut Dice) -> Child {
    let mut child = Child::with(|command| {
        command.env(REPORT, report(name));
    });
    child.tell(&format!("join {name} limit={LIMIT}"));
    for order in 0..dice.roll(12) {
        match dice.roll(6) {
            0 => child.tell(&format!("bind port{}", dice.roll(4))),
            1 => child.tell(&format!("try-connect port{}", dice.roll(4))),
            2 => child.tell("try-send 5000"),
            3 => child.tell("try-receive"),
            4 => child.tell(&format!("allocate {}", 1000 << dice.roll(11))),
            _ if order > 5 => {
                child.tell("leave");
                child.tell(&format!("join {name} limit={LIMIT}"));
            }
            _ => child.tell("allocate 2000000"),
        }
    }
    child
}

#[test]
fn a_storm_leaves_everything_where_it_was() {
    let rounds = std::env::var("PORTOLAN_TEST_STORM").ok();
    let rounds: usize = rounds.and_then(|r| r.parse().ok()).unwrap_or(60);
    let name = unique("storm");
    let mut dice = Dice(u64::from(std::process::id()));
    println!("seed {}", dice.0);
    let mut crowd: Vec<Child> = (0..CROWD).map(|_| newcomer(&name, &mut dice)).collect();
    for _ in 0..rounds {
        // Some are killed while they join, some while they work, some as host.
        std::thread::sleep(std::time::Duration::from_micros(dice.roll(20_000) as u64));
        for _ in 0..=dice.roll(2) {
            let victim = dice.roll(crowd.len());
            crowd[victim].kill_only();
            crowd[victim] = newcomer(&name, &mut dice);
        }
    }
    // A last one that keeps the domain alive while all others die.
    let mut last = Child::new();
    let joined = last.ask(&format!("join {name} limit={LIMIT}"));
    assert!(joined.starts_with("space "), "{joined}");
    crowd.iter_mut().for_each(|child| child.kill());
    let failed = std::fs::read_to_string(report(&name));
    assert!(failed.is_err(), "somebody could not join: {failed:?}");
    until("the last one hosts", || last.is_host());
    let end = std::time::Instant::now() + PATIENCE;
    loop {
        let mut probe = Child::joined(&name);
        let space = probe.space();
        let bound: Vec<_> = (0..4)
            .map(|i| probe.ask(&format!("bind port{i}")))
            .collect();
        let all: Vec<_> = (0..LIMIT / (2 << 20))
            .map(|_| probe.ask("allocate 2097152"))
            .collect();
        probe.ask("leave");
        if space <= 2 && bound.iter().chain(&all).all(|a| a == "done") {
            return;
        }
        assert!(
            std::time::Instant::now() < end,
            "space {space}\n{bound:#?}\n{all:#?}\n{}",
            crate::dump::dump(&name)
        );
    }
}
