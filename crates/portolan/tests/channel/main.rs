//! Channels between spaces: streams with and without flow control, and who is told of what.

#[cfg(feature = "tokio")]
mod awaited;
#[cfg(feature = "marks")]
mod deaths;
mod hostile;
mod lagging;
mod messages;
mod parcel;
mod parcel_lags;
#[cfg(feature = "tokio")]
mod parcel_waits;
mod polled;
mod signalled;
#[cfg(feature = "marks")]
mod signalled_deaths;
mod straight;
mod stream;
mod waiting;

use portolan::channel::{Channel, Reader, ReaderOptions};
use portolan::{Domain, PortKind};
use portolan_testkit::PATIENCE;

fn bound(channel: &Channel) -> Reader {
    channel.bind_reader(ReaderOptions::default()).unwrap()
}

fn message(i: u64) -> Vec<u8> {
    let len = usize::try_from(i * 37 % 500).unwrap();
    let byte = u8::try_from(i % 251).unwrap();
    let mut bytes = vec![byte; len + 8];
    bytes[..8].copy_from_slice(&i.to_le_bytes());
    bytes
}

/// Its number; every byte is checked.
fn number(bytes: &[u8]) -> u64 {
    let i = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    assert_eq!(bytes, message(i));
    i
}

/// Bytes of extents in use, and segments.
fn used(domain: &Domain) -> (u64, usize) {
    let survey = domain.survey().unwrap();
    let segments = survey.ports.iter().filter(|p| p.kind == PortKind::Segment);
    (survey.memory.used, segments.count())
}
