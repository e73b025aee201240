//! Measures Cap'n Proto RPC over a Unix socket.
//!
//! The bytes are copied into a message, through the socket, and read where they lie in
//! what was received. There is no checksum.

use std::hint::black_box;
use std::os::unix::net::UnixStream;
use std::rc::Rc;

use capnp_rpc::rpc_twoparty_capnp::Side;
use capnp_rpc::twoparty::{VatId, VatNetwork};
use capnp_rpc::{RpcSystem, new_client};
use tokio::io::{BufReader, BufWriter};
use tokio::runtime::Runtime;
use tokio::task::LocalSet;
use tokio_util::compat::{TokioAsyncReadCompatExt as _, TokioAsyncWriteCompatExt as _};

use self::work_capnp::work;
use super::answer::Exchange;
use super::over_socket::{self, Calls, Library};
use crate::case::Case;
use crate::error::{MeasureError, Result};

#[rustfmt::skip]
#[path = "capnp/work_capnp.rs"]
#[allow(
    clippy::all,
    clippy::undocumented_unsafe_blocks,
    dead_code,
    missing_docs,
    unreachable_pub,
    reason = "it is generated"
)]
mod work_capnp;

/// A client.
pub(crate) struct Capnp {
    exchange: Exchange,
    work: work::Client,
    /// Where the connection's task lives.
    tasks: LocalSet,
    /// Last: the tasks end on it.
    runtime: Runtime,
}

struct Answering {
    exchange: Exchange,
    calls: Calls,
}

impl work::Server for Answering {
    async fn call(
        self: Rc<Self>,
        params: work::CallParams,
        mut results: work::CallResults,
    ) -> capnp::Result<()> {
        self.calls.one();
        let bytes = black_box(params.get()?.get_bytes()?);
        results.get().set_bytes(self.exchange.answer(bytes));
        Ok(())
    }
}

/// A connection. To be made within a runtime.
fn connection(
    stream: UnixStream,
    side: Side,
    served: Option<work::Client>,
) -> std::io::Result<RpcSystem<VatId>> {
    let (read, write) = over_socket::registered(stream)?.into_split();
    let network = VatNetwork::new(
        BufReader::new(read).compat(),
        BufWriter::new(write).compat_write(),
        side,
        capnp::message::ReaderOptions::new(),
    );
    let served = served.map(|served| served.client);
    Ok(RpcSystem::new(Box::new(network), served))
}

impl Library for Capnp {
    fn connect(case: &Case, stream: UnixStream) -> Result<Self> {
        let runtime = over_socket::calling(case)?;
        let entered = runtime.enter();
        let mut system = connection(stream, Side::Client, None)
            .map_err(MeasureError::system("making a client of Cap'n Proto"))?;
        drop(entered);
        let work = system.bootstrap(Side::Server);
        let tasks = LocalSet::new();
        tasks.spawn_local(system);
        Ok(Self {
            exchange: Exchange::new(case),
            work,
            tasks,
            runtime,
        })
    }

    #[inline(always)]
    fn call(&mut self) -> Result<()> {
        let called = async {
            let mut request = self.work.call_request();
            request.get().set_bytes(&self.exchange.bytes);
            let response = request.send().promise.await.map_err(failed)?;
            let bytes = response.get().and_then(|answer| answer.get_bytes());
            self.exchange
                .check("Cap'n Proto RPC", bytes.map_err(failed)?)
        };
        self.tasks.block_on(&self.runtime, called)
    }

    fn serve(case: &Case, stream: UnixStream) -> Result<()> {
        let exchange = Exchange::new(case);
        over_socket::serving(case, move |runtime, calls| {
            let served = async {
                let work = new_client(Answering { exchange, calls });
                match connection(stream, Side::Server, Some(work)) {
                    // Until the client has gone.
                    Ok(system) => drop(system.await),
                    Err(error) => eprintln!("a server of Cap'n Proto has no connection: {error}"),
                }
            };
            LocalSet::new().block_on(runtime, served);
        })
    }
}

fn failed(error: capnp::Error) -> MeasureError {
    MeasureError::library("calling through Cap'n Proto")(error)
}
