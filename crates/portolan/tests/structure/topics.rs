//! Structures in topics, between programs that were built in different ways: each reads in place
//! what the other one has published.

use super::programs::Twin;
use super::steps::{Chart, STEPS, begin, check, model, step};
use super::{PATIENCE, unique};
use portolan::channel::{Sample, TopicOptions};
use portolan::structure::{NoRoom, Structure};
use portolan::{Domain, PortOptions, Protection};

type Charts = Structure<Chart<'static>>;

fn both_publish_and_read(name: &str, protection: Protection) {
    let domain = Domain::builder(name).protection(protection).join().unwrap();
    let options = TopicOptions::default().history(u64::from(STEPS) + 1);
    let mut seen = domain.subscriber::<u64>("seen", options).unwrap();
    let mut theirs = domain.subscriber::<Charts>("twin", options).unwrap();
    let mut ours = domain.publisher::<Charts>("test", options).unwrap();
    let mut twin = Twin::run(&[name, "topics"]);
    let there = *seen.receive(PATIENCE).unwrap();
    let here = (step as *const ()).addr();
    assert_ne!(
        here as u64, there,
        "the two programs' code lies at different addresses"
    );
    let mut kept: Vec<Sample<Charts>> = Vec::new();
    for number in 0..=STEPS {
        let sample = theirs.receive(PATIENCE).unwrap();
        check(sample.root().unwrap(), &model(number));
        kept.push(sample);
        let mut loan = ours.loan(|arena| Ok(begin(arena))).unwrap();
        let built = loan.edit(|chart, arena| {
            (0..number).try_for_each(|taken| step(chart, arena, taken))?;
            Ok::<_, NoRoom>(())
        });
        built.unwrap().unwrap();
        loan.publish().unwrap();
        assert_eq!(*seen.receive(PATIENCE).unwrap(), u64::from(number));
    }
    let _done = domain.bind(PortOptions::named("done")).unwrap();
    twin.ends();
    // Its published samples outlive it, in order, for subscribers that hold them; the rest goes.
    for (number, sample) in (0..).zip(&kept) {
        check(sample.root().unwrap(), &model(number));
    }
    drop((kept, theirs, ours, seen));
    let used = domain.survey().unwrap().memory.used;
    assert_eq!(used, 0);
}

#[test]
fn each_reads_in_place_what_the_other_has_published() {
    both_publish_and_read(&unique("topics"), Protection::Trusted);
}

#[test]
fn each_reads_in_place_what_the_other_has_published_in_a_guarded_domain() {
    both_publish_and_read(&unique("guarded-topics"), Protection::Guarded);
}
