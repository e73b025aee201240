//! Counts the same operations of iceoryx2: a publisher and a subscriber of one process.

use std::fmt::Debug;
use std::io;

use iceoryx2::prelude::*;

use super::Scene;
use super::rounds::{Rounds, must};
use crate::error::{MeasureError, Result};
use crate::stepped::part;

/// A sample that fits a line.
type Small = [u64; 6];

pub(super) fn scenes() -> Vec<Scene> {
    let iceoryx = |parts, bytes, run| Scene {
        system: "iceoryx2",
        ..Scene::ours(parts, bytes, run)
    };
    vec![
        iceoryx(
            &["publish, null", "receive, null", "one look in vain"],
            0,
            samples::<()>,
        ),
        iceoryx(
            &[
                "publish, 48 B",
                "receive, 48 B",
                "one look in vain, after 48 B",
            ],
            48,
            samples::<Small>,
        ),
    ]
}

/// Its many error types say the most in their debug form.
fn refused(error: impl Debug) -> MeasureError {
    MeasureError::System {
        doing: "using iceoryx2",
        source: io::Error::other(format!("{error:?}")),
    }
}

/// Lent, written and sent; received and let go of again.
fn samples<T>(_: usize, _: usize, rounds: &Rounds<'_>) -> Result<()>
where
    T: Debug + Default + Copy + ZeroCopySend + 'static,
{
    set_log_level(LogLevel::Fatal);
    let node = NodeBuilder::new()
        // Control-C is to end us, not to be noticed by a library at its leisure.
        .signal_handling_mode(SignalHandlingMode::Disabled)
        .create::<ipc::Service>()
        .map_err(refused)?;
    let name = format!("portolan-bench/counted/{}", std::process::id());
    let name: ServiceName = name.as_str().try_into().map_err(refused)?;
    let service = node
        .service_builder(&name)
        .publish_subscribe::<T>()
        .max_publishers(1)
        .max_subscribers(1)
        .open_or_create()
        .map_err(refused)?;
    let publisher = service.publisher_builder().create().map_err(refused)?;
    let subscriber = service.subscriber_builder().create().map_err(refused)?;
    let value = T::default();
    rounds.go(|| {
        let sent = part(|| -> Result<_> {
            let sample = publisher.loan_uninit().map_err(refused)?;
            sample.write_payload(value).send().map_err(refused)
        });
        must(sent? == 1)?;
        let received = part(|| subscriber.receive().map(|sample| sample.is_some()));
        must(received.map_err(refused)?)?;
        let received = part(|| subscriber.receive().map(|sample| sample.is_some()));
        must(!received.map_err(refused)?)
    })
}
