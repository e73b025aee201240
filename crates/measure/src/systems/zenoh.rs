//! Measures Zenoh: a publisher and a subscriber each way, between two peers over a Unix socket.
//!
//! Scouting is off, so nothing but the two processes takes part. Samples are *express*, that is not
//! batched, and a full queue makes the publisher wait. Those of 4 KiB and more lie in its shared
//! memory, written where they are allocated and read where they lie; shorter ones are copied through
//! the socket, as Zenoh advises.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::hint::black_box;
use std::io;
use std::os::fd::OwnedFd;
use std::thread;
use std::time::{Duration, Instant};

use zenoh::bytes::ZBytes;
use zenoh::handlers::{FifoChannel, FifoChannelHandler};
use zenoh::pubsub::{Publisher, Subscriber};
use zenoh::qos::CongestionControl;
use zenoh::sample::Sample;
use zenoh::shm::{
    BlockOn, GarbageCollect, PosixShmProviderBackend, ShmProvider, ShmProviderBuilder,
};
use zenoh::{Config, Session, Wait};

use super::Endpoint;
use super::memory::Spin;
use super::portolan::parent;
use crate::case::{Case, Mode, Payload};
use crate::error::{MeasureError, Result};

/// Bytes from which a sample lies in shared memory.
const SHARED: usize = 4 << 10;
/// Samples of one direction that may be under way.
const DEPTH: usize = 8;
/// How long the sides may take to find each other.
const PATIENCE: Duration = Duration::from_secs(10);

type Memory = ShmProvider<PosixShmProviderBackend>;

pub(crate) struct Zenoh {
    publisher: Publisher<'static>,
    subscriber: Subscriber<FifoChannelHandler<Sample>>,
    memory: Option<Memory>,
    /// What is sent where nobody writes or reads it, if it is not allocated.
    untouched: Option<ZBytes>,
    bytes: usize,
    touched: bool,
    polls: bool,
    count: u64,
    spin: Spin,
    /// Last: it ends the connection.
    _session: Session,
}

/// The two ends: one listens, and the other one connects.
enum End {
    Listens,
    Connects,
}

impl Zenoh {
    fn new(case: &Case, coordinator: u32, end: End) -> Result<Self> {
        let socket = socket(case, coordinator)?;
        let (ours, theirs) = match end {
            End::Listens => ("there", "back"),
            End::Connects => ("back", "there"),
        };
        let session = zenoh::open(config(&socket, &end)?).wait();
        let session = session.map_err(refused("opening a session of Zenoh"))?;
        let key = |way: &str| format!("portolan-bench/{way}");
        let subscriber = session
            .declare_subscriber(key(theirs))
            .with(FifoChannel::new(DEPTH))
            .wait()
            .map_err(refused("subscribing with Zenoh"))?;
        let publisher = session
            .declare_publisher(key(ours))
            .congestion_control(CongestionControl::Block)
            .express(true)
            .wait()
            .map_err(refused("making a publisher of Zenoh"))?;
        let bytes = usize::try_from(case.bytes).expect("64-bit only");
        let touched = case.payload == Payload::Touched;
        let memory = (bytes >= SHARED).then(|| memory(bytes)).transpose()?;
        Ok(Self {
            publisher,
            subscriber,
            untouched: (!touched && memory.is_none()).then(|| vec![0_u8; bytes].into()),
            memory,
            bytes,
            touched,
            polls: case.mode == Mode::Poll,
            count: 0,
            spin: Spin::new(case),
            _session: session,
        })
    }

    /// Waits until what we publish has a subscriber.
    fn find_subscriber(&self) -> Result<()> {
        let doing = "looking for a subscriber with Zenoh";
        let deadline = Instant::now() + PATIENCE;
        loop {
            let status = self.publisher.matching_status().wait();
            if status.map_err(refused(doing))?.matching() {
                return Ok(());
            }
            if Instant::now() > deadline {
                let source = io::ErrorKind::TimedOut.into();
                return Err(MeasureError::System { doing, source });
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// The next sample's bytes, written if the case says so.
    #[inline(always)]
    fn sample(&self) -> Result<ZBytes> {
        if let Some(untouched) = &self.untouched {
            return Ok(untouched.clone());
        }
        let seed = self.count;
        let Some(memory) = &self.memory else {
            let words = self.bytes / size_of::<u64>();
            let words = (0..words as u64).flat_map(|word| (seed + word).to_le_bytes());
            return Ok(words.collect::<Vec<u8>>().into());
        };
        let block = memory.alloc(self.bytes);
        let block = block.with_policy::<BlockOn<GarbageCollect>>().wait();
        let mut block = block.map_err(refused("allocating with Zenoh"))?;
        if self.touched {
            let words = block.chunks_exact_mut(size_of::<u64>());
            for (index, word) in words.enumerate() {
                word.copy_from_slice(&(seed + index as u64).to_le_bytes());
            }
        }
        Ok(block.into())
    }
}

/// Where the two processes of a row meet.
fn socket(case: &Case, coordinator: u32) -> Result<String> {
    let mut hasher = DefaultHasher::new();
    serde_json::to_string(case)
        .map_err(MeasureError::Garbled)?
        .hash(&mut hasher);
    let name = format!("portolan-bench-{coordinator}-{:x}.sock", hasher.finish());
    Ok(std::env::temp_dir().join(name).display().to_string())
}

fn config(socket: &str, end: &End) -> Result<Config> {
    let endpoints = match end {
        End::Listens => ["listen/endpoints", "connect/endpoints"],
        End::Connects => ["connect/endpoints", "listen/endpoints"],
    };
    let there = format!("[\"unixsock-stream/{socket}\"]");
    let settings = [
        ("mode", "\"peer\""),
        ("scouting/multicast/enabled", "false"),
        ("scouting/gossip/enabled", "false"),
        ("transport/shared_memory/enabled", "true"),
        (endpoints[0], &there),
        (endpoints[1], "[]"),
    ];
    let mut config = Config::default();
    for (key, value) in settings {
        let set = config.insert_json5(key, value);
        set.map_err(refused("configuring Zenoh"))?;
    }
    Ok(config)
}

/// Shared memory for the samples of one direction.
fn memory(bytes: usize) -> Result<Memory> {
    let backend = PosixShmProviderBackend::builder(bytes * 2 * DEPTH).wait();
    let backend = backend.map_err(refused("making shared memory of Zenoh"))?;
    Ok(ShmProviderBuilder::backend(backend).wait())
}

fn refused<E: ToString>(doing: &'static str) -> impl FnOnce(E) -> MeasureError {
    move |error| MeasureError::System {
        doing,
        source: io::Error::other(error.to_string()),
    }
}

impl Endpoint for Zenoh {
    fn create(case: &Case) -> Result<(Self, Vec<OwnedFd>)> {
        Ok((
            Self::new(case, std::process::id(), End::Listens)?,
            Vec::new(),
        ))
    }

    fn attach(case: &Case, _seat: u32, _descriptors: Vec<OwnedFd>) -> Result<Self> {
        let end = Self::new(case, parent()?, End::Connects)?;
        end.find_subscriber()?;
        Ok(end)
    }

    fn meet(&mut self, _case: &Case) -> Result<()> {
        self.find_subscriber()
    }

    #[inline(always)]
    fn send(&mut self) -> Result<()> {
        self.count += 1;
        let sent = self.publisher.put(self.sample()?).wait();
        sent.map_err(refused("publishing with Zenoh"))
    }

    #[inline(always)]
    fn receive(&mut self) -> Result<()> {
        let doing = "receiving with Zenoh";
        let sample = if self.polls {
            let mut found = Ok(None);
            self.spin.until(|| {
                found = self.subscriber.try_recv();
                !matches!(found, Ok(None))
            });
            found.map_err(refused(doing))?.expect("it was waited for")
        } else {
            self.subscriber.recv().map_err(refused(doing))?
        };
        if self.touched {
            let words = sample.payload().slices().flat_map(|slice| {
                let words = slice.chunks_exact(size_of::<u64>());
                words.map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")))
            });
            black_box(words.fold(0_u64, u64::wrapping_add));
        } else {
            black_box(sample.payload().len());
        }
        Ok(())
    }
}
