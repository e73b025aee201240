//! What the library says through `tracing` of who comes, goes and dies.

use crate::child::{Child, PATIENCE, unique, until};
use portolan::Domain;
use portolan_abi::hello::socket_name;
use portolan_sys::socket::{self, Address};
use std::fmt::Debug;
use std::sync::{Mutex, Once, PoisonError};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber, span};

/// Everything that was said in this process, with its fields sorted by nothing.
static SAID: Mutex<Vec<Said>> = Mutex::new(Vec::new());

#[derive(Clone, Debug)]
struct Said {
    level: Level,
    message: String,
    fields: Vec<(&'static str, String)>,
}

impl Said {
    fn field(&self, name: &str) -> &str {
        let found = self.fields.iter().find(|(field, _)| *field == name);
        found.map_or("", |(_, value)| value)
    }
}

impl Visit for Said {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let text = format!("{value:?}");
        if field.name() == "message" {
            self.message = text;
        } else {
            self.fields.push((field.name(), text));
        }
    }
}

/// Keeps what is said.
struct Listener;

impl Subscriber for Listener {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("portolan")
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut said = Said {
            level: *event.metadata().level(),
            message: String::new(),
            fields: Vec::new(),
        };
        event.record(&mut said);
        SAID.lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(said);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

fn listen() {
    static LISTENS: Once = Once::new();
    LISTENS.call_once(|| tracing::subscriber::set_global_default(Listener).unwrap());
}

/// The first that was said of `domain` with this message, waited for.
fn said(domain: &str, message: &str) -> Said {
    let mut found = None;
    until(message, || {
        let all = SAID.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all = all
            .iter()
            .filter(|s| s.field("domain") == format!("{domain:?}"));
        found = all.find(|s| s.message == message).cloned();
        found.is_some()
    });
    found.unwrap()
}

fn host(name: &str) -> Domain {
    let builder = Domain::builder(name).size(64 << 20).limit(16 << 20);
    builder.deadline(PATIENCE).join().unwrap()
}

#[test]
fn a_members_life_is_logged_with_its_process() {
    listen();
    let name = unique("logged-life");
    let domain = host(&name);
    let created = said(&name, "this process has created the domain, and hosts it");
    assert_eq!((created.level, created.field("space")), (Level::INFO, "1"));

    let mut victim = Child::joined(&name);
    victim.ask("allocate 10000");
    victim.ask("bind frames");
    let (space, process) = (victim.space().to_string(), victim.pid().to_string());
    let admitted = said(&name, "a newcomer is admitted");
    assert_eq!(admitted.level, Level::DEBUG);
    assert_eq!(admitted.field("process"), process);

    victim.kill();
    let died = said(&name, "a member has died");
    assert_eq!(died.level, Level::WARN);
    assert_eq!(
        (died.field("space"), died.field("process")),
        (&*space, &*process)
    );
    let returned = said(&name, "what a member held is returned");
    assert_eq!(returned.level, Level::INFO);
    assert_eq!(returned.field("process"), process);
    let held = ["extents", "bytes", "ports"].map(|what| returned.field(what));
    assert_eq!(held, ["1", "16384", "1"]);

    let mut leaver = Child::joined(&name);
    let process = leaver.pid().to_string();
    leaver.ask("leave");
    let left = said(&name, "a member leaves");
    assert_eq!(
        (left.level, left.field("process")),
        (Level::INFO, &*process)
    );

    domain.leave().unwrap();
    assert_eq!(
        said(&name, "this process has left the domain").level,
        Level::INFO
    );
}

#[test]
fn taking_the_hosts_place_is_logged() {
    listen();
    let name = unique("logged-host");
    let mut first = Child::joined(&name);
    let domain = host(&name);
    said(&name, "this process has joined the domain");
    first.kill();
    let taken = said(&name, "this process has taken the host's place");
    assert_eq!(taken.field("space"), domain.space().to_string());
}

#[test]
fn refusals_and_shortages_are_logged_with_their_reason() {
    listen();
    let name = unique("logged-refused");
    let domain = host(&name);
    let refusal = domain.allocate(32 << 20).unwrap_err();
    let out = said(&name, "out of pages");
    assert_eq!(out.level, Level::DEBUG, "{refusal}");
    assert_eq!(out.field("wanted"), (32 << 20).to_string());

    // A stranger that knocks and talks of something else.
    let address = socket_name(portolan_sys::process::user(), &name).unwrap();
    let connection = socket::connect(&Address::Abstract(address.into_bytes())).unwrap();
    socket::send(&connection, b"good morning", &[]).unwrap();
    let refused = said(&name, "a newcomer is refused");
    assert_eq!(
        (refused.level, refused.field("reason")),
        (Level::WARN, "Garbled")
    );
}
