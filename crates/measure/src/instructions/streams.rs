//! Counts channels and topics, written and read by one process.

use portolan::channel::{
    ChannelOptions, Payload, ReaderOptions, Signalling, Subscriber, TopicOptions,
};
use portolan::{Deadline, Domain, Protection, Waiting};

use super::Scene;
use super::rounds::{Rounds, domain, must, refused};
use crate::error::Result;
use crate::stepped::part;

const LINE: usize = 64;
/// Stamp and meta word.
const UNIT_HEAD: usize = 16;
/// Units of a channel.
const UNITS: u64 = 64;
/// A sample that fits a line.
type Small = [u64; 6];
/// Bytes of a sample that lies in a block of its own.
const BLOCK: usize = 64 << 10;

pub(super) fn scenes() -> Vec<Scene> {
    vec![
        Scene::ours(
            &["write, 32 B, reliable", "read, 32 B, reliable"],
            32,
            reliable,
        ),
        Scene::ours(
            &["write, 1 KiB, reliable", "read, 1 KiB, reliable"],
            1024,
            reliable,
        ),
        Scene::ours(
            &[
                "write, 32 B, message-consistent",
                "read, 32 B, message-consistent",
            ],
            32,
            consistent,
        ),
        Scene::ours(
            &[
                "write, 1 KiB, message-consistent",
                "read, 1 KiB, message-consistent",
            ],
            1024,
            consistent,
        ),
        Scene::ours(&["publish, 48 B", "take, 48 B"], 48, small_samples),
        Scene::ours(
            &["publish, a block, untouched", "take, a block, untouched"],
            0,
            blocks,
        ),
    ]
}

fn reliable(size: usize, bytes: usize, rounds: &Rounds<'_>) -> Result<()> {
    channel(
        ChannelOptions::named("counted").reliable(),
        size,
        bytes,
        rounds,
    )
}

fn consistent(size: usize, bytes: usize, rounds: &Rounds<'_>) -> Result<()> {
    let options = ChannelOptions::named("counted").message_consistent();
    channel(options, size, bytes, rounds)
}

/// Each message fits one unit, whichever of the sizes it has.
fn channel(options: ChannelOptions, size: usize, bytes: usize, rounds: &Rounds<'_>) -> Result<()> {
    let domain = domain(Protection::Trusted)?;
    let unit = (size + UNIT_HEAD).next_multiple_of(LINE);
    let options = options.unit(unit).units(UNITS).signal(Signalling::Message);
    let channel = domain.make_channel(&options).map_err(refused)?;
    let mut reader = channel
        .bind_reader(ReaderOptions::default())
        .map_err(refused)?;
    reader.set_waiting(Waiting::Poll);
    let mut writer = channel.bind_writer().map_err(refused)?;
    let message = vec![7; bytes];
    rounds.go(|| {
        part(|| writer.write(&message, Deadline::NEVER)).map_err(refused)?;
        let read = part(|| reader.receive(Deadline::NEVER).map(|read| read.len()));
        must(read.map_err(refused)? == bytes)
    })
}

fn subscriber<T: Payload + ?Sized>(domain: &Domain) -> Result<Subscriber<T>> {
    let subscriber = domain.subscriber("counted", TopicOptions::default());
    let mut subscriber = subscriber.map_err(refused)?;
    subscriber.set_waiting(Waiting::Poll);
    Ok(subscriber)
}

/// Taken and let go of again.
fn small_samples(_: usize, _: usize, rounds: &Rounds<'_>) -> Result<()> {
    let domain = domain(Protection::Trusted)?;
    let publisher = domain.publisher::<Small>("counted", TopicOptions::default());
    let mut publisher = publisher.map_err(refused)?;
    let mut subscriber = subscriber::<Small>(&domain)?;
    let sample = [7; 6];
    rounds.go(|| {
        part(|| publisher.publish(&sample)).map_err(refused)?;
        let taken = part(|| subscriber.receive(Deadline::NEVER).map(|taken| taken[5]));
        must(taken.map_err(refused)? == sample[5])
    })
}

fn blocks(_: usize, _: usize, rounds: &Rounds<'_>) -> Result<()> {
    let domain = domain(Protection::Trusted)?;
    let publisher = domain.publisher::<[u8]>("counted", TopicOptions::default());
    let mut publisher = publisher.map_err(refused)?;
    let mut subscriber = subscriber::<[u8]>(&domain)?;
    rounds.go(|| {
        part(|| publisher.loan(BLOCK).and_then(|loan| loan.publish())).map_err(refused)?;
        let taken = part(|| subscriber.receive(Deadline::NEVER).map(|taken| taken.len()));
        must(taken.map_err(refused)? == BLOCK)
    })
}
