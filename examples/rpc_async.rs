//! Methods that are `async`, as tasks of a runtime, and calls that are awaited.
//!
//! Run it with `cargo run --example rpc_async`.

use portolan::rpc::{self, CallError, RpcError, Schema, ServerOptions};
use portolan::{Deadline, Domain};
use serde::{Deserialize, Serialize};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// A station that knows about the weather, and takes its time.
#[portolan::service]
trait Station {
    /// Half a second of thinking, in which the thread does something else.
    async fn forecast(&self, town: &str) -> Result<String, Unknown>;
    /// Until a storm comes.
    async fn storm(&self) -> String;
    /// How many wait for a storm.
    fn watchers(&self) -> usize;
    #[rpc(one_way)]
    fn thunder(&self);
}

#[derive(Debug, Schema, Serialize, Deserialize, thiserror::Error)]
#[error("nobody has heard of {town:?}")]
struct Unknown {
    town: String,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Outcome {
    match std::env::args().nth(1) {
        Some(domain) => serve(&domain).await,
        None => ask().await,
    }
}

#[derive(Default)]
struct Tower {
    watchers: Arc<AtomicUsize>,
    thunders: AtomicUsize,
}

/// Counts a client that waits, for as long as it waits.
struct Watcher(Arc<AtomicUsize>);

impl Drop for Watcher {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Station for Tower {
    async fn forecast(&self, town: &str) -> Result<String, Unknown> {
        sleep(Duration::from_millis(500)).await;
        if town == "Atlantis" {
            let town = town.to_owned();
            return Err(Unknown { town });
        }
        Ok(format!("fair in {town}"))
    }

    async fn storm(&self) -> String {
        self.watchers.fetch_add(1, Ordering::Relaxed);
        let _watcher = Watcher(Arc::clone(&self.watchers));
        let before = self.thunders.load(Ordering::Relaxed);
        while self.thunders.load(Ordering::Relaxed) == before {
            sleep(Duration::from_millis(1)).await;
        }
        "it thunders".to_owned()
    }

    fn watchers(&self) -> usize {
        self.watchers.load(Ordering::Relaxed)
    }

    fn thunder(&self) {
        self.thunders.fetch_add(1, Ordering::Relaxed);
    }
}

/// All calls of all clients are tasks of this one thread.
async fn serve(domain: &str) -> Outcome {
    let domain = Domain::join(domain)?;
    let runtime = tokio::runtime::Handle::current();
    let options = ServerOptions::default().tasks(move |task| {
        runtime.spawn(task);
    });
    let tower = StationService(Tower::default());
    let _server = rpc::serve(&domain, "station", tower, &options)?;
    std::future::pending().await
}

async fn ask() -> Outcome {
    let name = format!("rpc-async-{}", std::process::id());
    let domain = Domain::join(&name)?;
    let mut server = Command::new(std::env::current_exe()?).arg(&name).spawn()?;
    let soon = Deadline::after(Duration::from_secs(60));
    let station = StationClient::connect(&domain, "station", soon)?;

    // Fifty at once, here as there without a thread for each.
    let towns = (0..50).map(|n| {
        let (station, town) = (station.clone(), format!("town {n}"));
        tokio::spawn(async move { station.forecast_async(&town).await })
    });
    let mut fair = 0;
    for forecast in towns.collect::<Vec<_>>() {
        fair += usize::from(forecast.await??.starts_with("fair"));
    }
    println!("fair in {fair} towns");
    match station.forecast_async("Atlantis").await {
        Err(CallError::Method(unknown)) => println!("{unknown}"),
        other => println!("unexpected: {other:?}"),
    }

    // A call that is dropped is given up, and so is its method, where it waits.
    let storm = timeout(Duration::from_millis(100), station.storm_async()).await;
    println!("a storm within 100 ms: {}", storm.is_ok());
    while station.watchers_async().await? > 0 {
        sleep(Duration::from_millis(1)).await;
    }
    println!("nobody waits for one any more");

    let storm = wait_for_storm(&station).await?;
    station.thunder_async().await?;
    println!("now {}", storm.await??);

    let storm = wait_for_storm(&station).await?;
    server.kill()?;
    match storm.await? {
        Err(RpcError::ServerDied) => println!("the station has closed"),
        other => println!("unexpected: {other:?}"),
    }
    server.wait()?;
    Ok(())
}

/// A call that its method runs for already.
async fn wait_for_storm(
    station: &StationClient,
) -> Result<JoinHandle<Result<String, RpcError>>, RpcError> {
    let waits = station.clone();
    let storm = tokio::spawn(async move { waits.storm_async().await });
    while station.watchers_async().await? == 0 {
        sleep(Duration::from_millis(1)).await;
    }
    Ok(storm)
}
