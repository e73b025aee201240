//! The service of these tests.

use portolan::rpc::{ClientOptions, Context, Large, Schema};
use portolan::{Deadline, Domain, Segment};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

pub(crate) use portolan_testkit::{PATIENCE, until};

#[derive(Clone, Debug, PartialEq, Eq, Schema, Serialize, Deserialize)]
pub(crate) enum Fault {
    Overflow { a: u64, b: u64 },
    Named(String),
}

#[derive(Clone, Debug, Default, PartialEq, Schema, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) name: String,
    pub(crate) values: Vec<f64>,
    pub(crate) tags: BTreeMap<String, Option<u8>>,
}

#[portolan::service]
pub(crate) trait Test {
    fn null(&self);
    fn add(&self, a: u64, b: u64) -> Result<u64, Fault>;
    fn same(&self, record: Record, bytes: &[u8], text: &str) -> (Record, Vec<u8>, String);
    fn fill(&self, len: usize, byte: u8) -> Large;
    /// Whether a client waits for it or not.
    fn late(&self, millis: u64, len: usize) -> Large;
    fn total(&self, pieces: Vec<Large>, refuse: bool) -> Result<u64, Fault>;
    /// How many bytes both are.
    fn store(&self, bytes: &[u8], piece: Large) -> usize;
    fn panic(&self, how: String);
    /// Until the client gives up, or for so many milliseconds.
    fn wait(&self, millis: u64) -> bool;
    #[rpc(one_way)]
    fn count(&self, by: u64);
    fn counted(&self) -> u64;
    /// How often it was told that its client waits no more.
    fn given_up(&self) -> u64;
    #[rpc(best_effort)]
    fn hint(&self) -> u64;
    #[rpc(no_checksum)]
    fn raw(&self, bytes: &[u8]) -> usize;
    /// How often this number was seen before.
    fn once(&self, number: u64) -> u64;
    fn pid(&self) -> u32;
}

pub(crate) struct Tested {
    pub(crate) domain: Domain,
    pub(crate) counted: AtomicU64,
    pub(crate) given_up: AtomicU64,
    /// How often a call has begun to wait.
    pub(crate) waits: Arc<AtomicU64>,
    pub(crate) seen: Mutex<BTreeMap<u64, u64>>,
}

impl Tested {
    pub(crate) fn service(domain: &Domain) -> TestService<Self> {
        TestService(Self {
            domain: domain.clone(),
            counted: AtomicU64::new(0),
            given_up: AtomicU64::new(0),
            waits: Arc::default(),
            seen: Mutex::default(),
        })
    }
}

/// The segment in which servers of several processes keep count together, if there is one.
pub(crate) const LEDGER: &str = "ledger";

impl Tested {
    fn ledger(&self) -> Option<Segment> {
        self.domain.find_segment(LEDGER, Deadline::NOW).ok()
    }
}

impl Test for Tested {
    fn null(&self) {}

    fn add(&self, a: u64, b: u64) -> Result<u64, Fault> {
        a.checked_add(b).ok_or(Fault::Overflow { a, b })
    }

    fn same(&self, record: Record, bytes: &[u8], text: &str) -> (Record, Vec<u8>, String) {
        (record, bytes.to_vec(), text.to_owned())
    }

    fn fill(&self, len: usize, byte: u8) -> Large {
        let mut extent = self.domain.allocate(len).unwrap();
        extent.fill(byte);
        extent.into()
    }

    fn late(&self, millis: u64, len: usize) -> Large {
        std::thread::sleep(Duration::from_millis(millis));
        self.counted.fetch_add(1, Ordering::Relaxed);
        self.fill(len, 1)
    }

    fn total(&self, pieces: Vec<Large>, refuse: bool) -> Result<u64, Fault> {
        if refuse {
            return Err(Fault::Named("refused".to_owned()));
        }
        let extents = pieces.into_iter().map(|p| p.into_extent().unwrap());
        Ok(extents
            .map(|e| e.iter().map(|&b| u64::from(b)).sum::<u64>())
            .sum())
    }

    fn store(&self, bytes: &[u8], piece: Large) -> usize {
        bytes.len() + piece.into_extent().map_or(0, |extent| extent.len())
    }

    fn panic(&self, how: String) {
        panic!("{how}");
    }

    fn wait(&self, millis: u64) -> bool {
        let context = Context::current().unwrap();
        self.waits.fetch_add(1, Ordering::Relaxed);
        let end = Instant::now() + Duration::from_millis(millis);
        while Instant::now() < end {
            if context.is_given_up() {
                self.given_up.fetch_add(1, Ordering::Relaxed);
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    }

    fn count(&self, by: u64) {
        self.counted.fetch_add(by, Ordering::Relaxed);
        if let Some(ledger) = self.ledger() {
            ledger.words()[0].fetch_add(by, Ordering::Relaxed);
        }
    }

    fn counted(&self) -> u64 {
        self.counted.load(Ordering::Relaxed)
    }

    fn given_up(&self) -> u64 {
        self.given_up.load(Ordering::Relaxed)
    }

    fn hint(&self) -> u64 {
        7
    }

    fn raw(&self, bytes: &[u8]) -> usize {
        bytes.len()
    }

    fn once(&self, number: u64) -> u64 {
        if let Some(ledger) = self.ledger() {
            let word = usize::try_from(number).unwrap();
            return ledger.words()[word].fetch_add(1, Ordering::Relaxed);
        }
        let mut seen = self.seen.lock().unwrap();
        let times = seen.entry(number).or_default();
        *times += 1;
        *times - 1
    }

    fn pid(&self) -> u32 {
        std::process::id()
    }
}

/// A client of the service that shares channels.
pub(crate) fn share(domain: &Domain) -> TestClient {
    let options = ClientOptions::default().limit(PATIENCE).sharing();
    TestClient::connect_with(domain, "test", &options, Deadline::after(PATIENCE)).unwrap()
}

/// Many calls within a moment, which count nothing: none waits for an answer, so that the client is
/// a busy one on a busy machine too. Afterwards none is open.
pub(crate) fn hurry(client: &TestClient) {
    (0..100).for_each(|_| client.count(0).unwrap());
    assert_eq!(client.stub().flush(PATIENCE).unwrap(), 0);
}
