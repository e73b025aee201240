//! Makes calls of any library over a Unix socket: tokio, with one thread on each side.
//!
//! The client's runtime runs within a call; the server has a thread of its own. Both sleep
//! in `epoll_wait` as tokio does. Where a row polls, a task that always yields makes it
//! return at once: the client's while it calls; the server's until no call has come for a
//! pause that no round makes, since a server that polled for ever would take the processor
//! from the rows that are measured in turn with this one.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Runtime};
use tokio::sync::Notify;
use tokio::task::yield_now;

use super::Endpoint;
use crate::case::{Case, Mode, Placement};
use crate::error::{MeasureError, Result};

/// How long a server that polls looks for the next call.
const PAUSE: Duration = Duration::from_micros(500);

/// A runtime for the thread that calls.
pub(super) fn calling(case: &Case) -> Result<Runtime> {
    let runtime = runtime()?;
    if polls(case) {
        runtime.spawn(async {
            loop {
                yield_now().await;
            }
        });
    }
    Ok(runtime)
}

/// A thread that serves until its client has gone, and what its server tells of calls.
pub(super) fn serving(
    case: &Case,
    serve: impl FnOnce(&Runtime, Calls) + Send + 'static,
) -> Result<()> {
    let runtime = runtime()?;
    let calls = Calls(polls(case).then(Arc::default));
    if let Some(came) = calls.0.clone() {
        runtime.spawn(stay_awake(came));
    }
    thread::Builder::new()
        .name("server".to_owned())
        .spawn(move || serve(&runtime, calls))
        .map_err(MeasureError::system("starting a server's thread"))?;
    Ok(())
}

fn runtime() -> Result<Runtime> {
    Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(MeasureError::system("starting tokio"))
}

/// Whether a side that waits is to stay awake. Both on one processor would take it from
/// each other.
fn polls(case: &Case) -> bool {
    case.mode == Mode::Poll && case.placement == Placement::TwoCpus
}

/// Where a server says that a call has come; where rows do not poll, nobody listens.
#[derive(Clone)]
pub(super) struct Calls(Option<Arc<Came>>);

#[derive(Default)]
struct Came {
    count: AtomicU64,
    any: Notify,
}

impl Calls {
    /// A call has come.
    #[inline(always)]
    pub(super) fn one(&self) {
        if let Some(came) = &self.0 {
            came.count.fetch_add(1, Ordering::Relaxed);
            came.any.notify_one();
        }
    }
}

/// Keeps the runtime from sleeping while calls come.
async fn stay_awake(came: Arc<Came>) {
    loop {
        came.any.notified().await;
        let (mut seen, mut since) = (0, Instant::now());
        while since.elapsed() < PAUSE {
            yield_now().await;
            let count = came.count.load(Ordering::Relaxed);
            if count != seen {
                (seen, since) = (count, Instant::now());
            }
        }
    }
}

/// An end for tokio. To be called within its runtime.
pub(super) fn registered(stream: UnixStream) -> io::Result<tokio::net::UnixStream> {
    stream.set_nonblocking(true)?;
    tokio::net::UnixStream::from_std(stream)
}

/// A library that calls through a connected socket.
pub(crate) trait Library: Sized {
    /// A client.
    fn connect(case: &Case, stream: UnixStream) -> Result<Self>;

    /// One call, and its answer.
    fn call(&mut self) -> Result<()>;

    /// Serves it, in a thread of its own ([`serving`]).
    fn serve(case: &Case, stream: UnixStream) -> Result<()>;
}

/// One side of a row. The server's has nothing to do in a round.
pub(crate) struct OverSocket<L> {
    /// None where the server is.
    client: Option<L>,
}

impl<L: Library> Endpoint for OverSocket<L> {
    fn create(case: &Case) -> Result<(Self, Vec<OwnedFd>)> {
        let (ours, theirs) =
            UnixStream::pair().map_err(MeasureError::system("making a pair of sockets"))?;
        let client = Some(L::connect(case, ours)?);
        Ok((Self { client }, vec![theirs.into()]))
    }

    fn attach(case: &Case, _seat: u32, descriptors: Vec<OwnedFd>) -> Result<Self> {
        let connection = descriptors.into_iter().next().ok_or(MeasureError::Gone)?;
        L::serve(case, connection.into())?;
        Ok(Self { client: None })
    }

    /// The call, if this is its client.
    #[inline(always)]
    fn send(&mut self) -> Result<()> {
        self.client.as_mut().map_or(Ok(()), L::call)
    }

    /// Nothing: a call has its answer.
    #[inline(always)]
    fn receive(&mut self) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::{Shape, System};
    use crate::systems::{Capnp, Tonic};

    /// Calls of several sizes, answered and not; what comes back is compared in the call.
    fn calls_come_back<L: Library>(system: System) {
        for mode in [Mode::Block, Mode::Poll] {
            for (bytes, shape) in [
                (0, Shape::Plain),
                (32, Shape::Answered),
                (1 << 10, Shape::Plain),
                (64 << 10, Shape::Answered),
                (1 << 20, Shape::Answered),
            ] {
                let case = Case {
                    mode,
                    shape,
                    ..Case::new(system, bytes)
                };
                let (mut client, descriptors) = OverSocket::<L>::create(&case).unwrap();
                let mut server = OverSocket::<L>::attach(&case, 0, descriptors).unwrap();
                for _ in 0..20 {
                    client.round_trip().unwrap();
                    server.echo().unwrap();
                }
            }
        }
    }

    #[test]
    fn capnp_answers() {
        calls_come_back::<Capnp>(System::Capnp);
    }

    #[test]
    fn tonic_answers() {
        calls_come_back::<Tonic>(System::Tonic);
    }

    /// A server that answers with what was not asked for is found out.
    fn wrong_answers_are_noticed<L: Library>(system: System) {
        let answered = Case {
            mode: Mode::Block,
            shape: Shape::Answered,
            ..Case::new(system, 32)
        };
        let silent = Case {
            shape: Shape::Plain,
            ..answered.clone()
        };
        let (mut client, descriptors) = OverSocket::<L>::create(&answered).unwrap();
        let _server = OverSocket::<L>::attach(&silent, 0, descriptors).unwrap();
        let error = client.round_trip().unwrap_err();
        assert!(
            matches!(error, MeasureError::WrongAnswer { came: 0, .. }),
            "{error}"
        );
    }

    #[test]
    fn a_wrong_answer_of_capnp_is_noticed() {
        wrong_answers_are_noticed::<Capnp>(System::Capnp);
    }

    #[test]
    fn a_wrong_answer_of_tonic_is_noticed() {
        wrong_answers_are_noticed::<Tonic>(System::Tonic);
    }

    /// A client whose server has gone hears of it.
    fn no_server_is_an_error<L: Library>(system: System) {
        let case = Case {
            mode: Mode::Block,
            ..Case::new(system, 32)
        };
        let (mut client, descriptors) = OverSocket::<L>::create(&case).unwrap();
        drop(descriptors);
        client.round_trip().unwrap_err();
    }

    #[test]
    fn capnp_without_a_server() {
        no_server_is_an_error::<Capnp>(System::Capnp);
    }

    #[test]
    fn tonic_without_a_server() {
        no_server_is_an_error::<Tonic>(System::Tonic);
    }
}
