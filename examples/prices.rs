//! A topic of structures: a market publishes what it knows, as maps and texts, and a shop in
//! another process looks things up in it, where it lies.
//!
//! Run it with `cargo run --example prices`.

use portolan::channel::TopicOptions;
use portolan::structure::{Map, NoRoom, Structure, Text, Tree};
use portolan::{Deadline, Domain, Handover};
use std::process::Command;
use std::time::Duration;

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// What is published: all of it lies in one piece of memory, and points only there.
#[derive(Handover)]
struct Market<'a> {
    day: u32,
    prices: Map<'a, Text<'a>, u64>,
    by_price: Tree<'a, u64, Text<'a>>,
}

fn main() -> Outcome {
    match std::env::args().nth(1) {
        Some(domain) => market(&Domain::join(&domain)?),
        None => shop(),
    }
}

/// Reads in place: nothing is copied, however much there is.
fn shop() -> Outcome {
    let name = format!("prices-{}", std::process::id());
    let domain = Domain::join(&name)?;
    let options = TopicOptions::default();
    let mut markets = domain.subscriber::<Structure<Market>>("market", options)?;
    let mut market = Command::new(std::env::current_exe()?).arg(&name).spawn()?;
    let mut kept = vec![];
    for _ in 0..2 {
        let sample = markets.receive(soon())?;
        let market = sample.root()?;
        let saffron = market.prices.get("saffron").copied().unwrap_or(0);
        let cheapest = market.by_price.first().map(|(_, name)| name.as_str());
        println!(
            "day {}: {} things, saffron for {saffron}, the cheapest is {}",
            market.day,
            market.prices.len(),
            cheapest.unwrap_or("nothing"),
        );
        kept.push(sample);
    }
    let mut stop = domain.publisher::<u8>("stop", options)?;
    stop.publish(&1)?;
    market.wait()?;
    // The market has gone; a subscriber that keeps a sample has it still.
    println!("of day {}: kept", kept[0].root()?.day);
    Ok(())
}

/// Builds each day's prices where they will be read.
fn market(domain: &Domain) -> Outcome {
    let options = TopicOptions::default();
    let mut stop = domain.subscriber::<u8>("stop", options)?;
    let mut markets = domain.publisher::<Structure<Market>>("market", options.history(2))?;
    for day in 1..=2 {
        let mut loan = markets.loan(|arena| {
            let (prices, by_price) = (arena.map(), arena.tree());
            Ok(Market {
                day,
                prices,
                by_price,
            })
        })?;
        loan.edit(|market, arena| {
            for (name, price) in [("saffron", 900), ("pepper", 70), ("salt", 3)] {
                let price = price + u64::from(day);
                market.prices.insert(arena.text(name)?, price)?;
                market.by_price.insert(price, arena.text(name)?)?;
            }
            // It grows as it is filled.
            for thing in 0..1000 * u64::from(day) {
                market
                    .prices
                    .insert(arena.text(&format!("thing {thing}"))?, 10)?;
            }
            Ok::<_, NoRoom>(())
        })??;
        loan.publish()?;
    }
    stop.receive(soon())?;
    Ok(())
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(30))
}
