//! Pass a tree: a B-tree and a hash map go through three processes; each changes them where
//! they lie. Nothing is serialised.
//!
//! Run it with `cargo run -p portolan --example pass_a_tree`.

use portolan::structure::{Arena, List, Map, NoRoom, Structure, Text, Tree};
use portolan::{Access, Deadline, Domain, Handover, Message, PortOptions};
use std::process::{Child, Command};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(30);

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// A voyage: when the ship is where, and what it carries. `'a` is the arena that all of it
/// lies in.
#[derive(Handover)]
struct Voyage<'a> {
    days: Tree<'a, u32, Text<'a>>,
    cargo: Map<'a, Text<'a>, Load<'a>>,
}

#[derive(Handover)]
struct Load<'a> {
    tons: u32,
    seals: List<'a, Text<'a>>,
}

fn main() -> Outcome {
    let mut args = std::env::args().skip(1);
    match (args.next().as_deref(), args.next()) {
        (Some("merchant"), Some(domain)) => pass_on(&domain, "merchant", "customs", trade),
        (Some("customs"), Some(domain)) => pass_on(&domain, "customs", "captain", inspect),
        _ => captain(),
    }
}

/// The first process: plans the voyage, sends it round, and reads what has become of it.
fn captain() -> Outcome {
    let name = format!("pass-a-tree-{}", std::process::id());
    let domain = Domain::join(&name)?;
    let mut port = domain.bind(PortOptions::named("captain"))?;
    let others = [process("merchant", &name)?, process("customs", &name)?];
    let merchant = domain.connect("merchant", SOON)?;

    let mut voyage = Structure::<Voyage>::build(&domain, |arena| {
        Ok(Voyage {
            days: arena.tree(),
            cargo: arena.map(),
        })
    })?;
    voyage.edit(|voyage, arena| {
        for (day, port) in [(1, "Genoa"), (9, "Palermo"), (17, "Alexandria")] {
            voyage.days.insert(day, arena.text(port)?)?;
        }
        load(voyage, arena, "cloth", 40)?;
        load(voyage, arena, "timber", 65)
    })??;
    merchant.send(voyage.into_message(), Deadline::after(SOON))?;

    let message = port.receive(Access::Now, SOON)?;
    let voyage = message.root::<Voyage>()?;
    for (day, port) in voyage.days.iter() {
        println!("day {day}: {port}");
    }
    let mut cargo: Vec<_> = voyage.cargo.iter().collect();
    cargo.sort_by_key(|(goods, _)| *goods);
    for (goods, load) in cargo {
        println!("{goods}: {} tons, sealed by {:?}", load.tons, load.seals);
    }
    for mut other in others {
        other.wait()?;
    }
    Ok(())
}

/// The second process's work: another port, other goods.
fn trade<'a>(voyage: &mut Voyage<'a>, arena: Arena<'a>) -> Result<(), NoRoom> {
    voyage.days.insert(13, arena.text("Candia")?)?;
    if let Some(cloth) = voyage.cargo.get_mut("cloth") {
        cloth.tons -= 15;
    }
    load(voyage, arena, "wine", 12)
}

/// The third process's work: seals, and what may not enter.
fn inspect<'a>(voyage: &mut Voyage<'a>, arena: Arena<'a>) -> Result<(), NoRoom> {
    voyage.cargo.remove("timber");
    for (_, load) in voyage.cargo.iter_mut() {
        load.seals.push(arena.text("customs")?)?;
    }
    if let Some(port) = voyage.days.get_mut(&17) {
        port.push_str(" (quarantine)")?;
    }
    Ok(())
}

fn load<'a>(
    voyage: &mut Voyage<'a>,
    arena: Arena<'a>,
    goods: &str,
    tons: u32,
) -> Result<(), NoRoom> {
    let seals = arena.list();
    voyage
        .cargo
        .insert(arena.text(goods)?, Load { tons, seals })?;
    Ok(())
}

/// Receives the voyage, changes it where it lies, and sends the same memory on.
fn pass_on(
    domain: &str,
    own: &str,
    next: &str,
    change: impl for<'a> FnOnce(&mut Voyage<'a>, Arena<'a>) -> Result<(), NoRoom>,
) -> Outcome {
    let domain = Domain::join(domain)?;
    let mut port = domain.bind(PortOptions::named(own))?;
    let next = domain.connect(next, SOON)?;
    let mut message: Message = port.receive(Access::Now, SOON)?;
    message.edit::<Voyage, _>(change)??;
    next.send(message, Deadline::after(SOON))?;
    Ok(())
}

fn process(name: &str, domain: &str) -> std::io::Result<Child> {
    Command::new(std::env::current_exe()?)
        .args([name, domain])
        .spawn()
}
