//! Measures gRPC over a Unix socket, by tonic.
//!
//! What its generator would write for one method is written by hand, so that a build needs
//! no compiler of schemas:
//!
//! ```proto
//! service Work { rpc Call (Bytes) returns (Bytes); }
//! message Bytes { bytes bytes = 1; }
//! ```
//!
//! The bytes are counted references on both sides; they are copied into a frame of HTTP/2,
//! through the socket, and out of it. There is no checksum.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::hint::black_box;
use std::io;
use std::os::unix::net::UnixStream;
use std::task::{Context, Poll};

use hyper_util::rt::TokioIo;
use prost::bytes;
use tokio::runtime::Runtime;
use tonic::body::Body;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::codegen::http::{self, Uri};
use tonic::codegen::tokio_stream::{self, StreamExt as _};
use tonic::codegen::{BoxFuture, Service};
use tonic::server::UnaryService;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

use super::answer::Exchange;
use super::over_socket::{self, Calls, Library};
use crate::case::Case;
use crate::error::{MeasureError, Result};

#[derive(Clone, PartialEq, prost::Message)]
struct Bytes {
    #[prost(bytes = "bytes", tag = "1")]
    bytes: bytes::Bytes,
}

const METHOD: &str = "/portolan.Work/Call";

/// A client.
pub(crate) struct Tonic {
    exchange: Exchange,
    bytes: bytes::Bytes,
    grpc: Grpc<Channel>,
    /// Last: the connection's tasks end on it.
    runtime: Runtime,
}

/// Connects once, by a stream that is connected.
struct Connector(Option<TokioIo<tokio::net::UnixStream>>);

impl Service<Uri> for Connector {
    type Response = TokioIo<tokio::net::UnixStream>;
    type Error = io::Error;
    type Future = Ready<io::Result<Self::Response>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let gone = || io::Error::from(io::ErrorKind::NotConnected);
        ready(self.0.take().ok_or_else(gone))
    }
}

#[derive(Clone)]
struct Answering {
    exchange: Exchange,
    calls: Calls,
}

impl UnaryService<Bytes> for Answering {
    type Response = Bytes;
    type Future = Ready<std::result::Result<Response<Bytes>, Status>>;

    fn call(&mut self, request: Request<Bytes>) -> Self::Future {
        self.calls.one();
        let Bytes { bytes } = black_box(request.into_inner());
        let answered = self.exchange.answered;
        let bytes = if answered { bytes } else { bytes::Bytes::new() };
        ready(Ok(Response::new(Bytes { bytes })))
    }
}

impl Service<http::Request<Body>> for Answering {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<std::result::Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        if request.uri().path() != METHOD {
            let unknown = Status::unimplemented("there is one method").into_http();
            return Box::pin(ready(Ok(unknown)));
        }
        let method = self.clone();
        Box::pin(async move {
            let codec = ProstCodec::<Bytes, Bytes>::default();
            let mut server = tonic::server::Grpc::new(codec);
            Ok(server.unary(method, request).await)
        })
    }
}

impl Library for Tonic {
    fn connect(case: &Case, stream: UnixStream) -> Result<Self> {
        let runtime = over_socket::calling(case)?;
        let channel = runtime.block_on(async {
            let stream = over_socket::registered(stream)
                .map_err(MeasureError::system("making a client of tonic"))?;
            // The name goes with each call; nobody has it.
            Endpoint::from_static("http://portolan")
                .connect_with_connector(Connector(Some(TokioIo::new(stream))))
                .await
                .map_err(MeasureError::library("connecting through tonic"))
        })?;
        let exchange = Exchange::new(case);
        Ok(Self {
            bytes: exchange.bytes.clone().into(),
            exchange,
            grpc: Grpc::new(channel),
            runtime,
        })
    }

    #[inline(always)]
    fn call(&mut self) -> Result<()> {
        let doing = "calling through tonic";
        let bytes = self.bytes.clone();
        let called = async {
            let ready = self.grpc.ready().await;
            ready.map_err(MeasureError::library(doing))?;
            let method = PathAndQuery::from_static(METHOD);
            let codec = ProstCodec::<Bytes, Bytes>::default();
            let called = self
                .grpc
                .unary(Request::new(Bytes { bytes }), method, codec);
            let answer = called.await.map_err(MeasureError::library(doing))?;
            self.exchange.check("gRPC", &answer.get_ref().bytes)
        };
        self.runtime.block_on(called)
    }

    fn serve(case: &Case, stream: UnixStream) -> Result<()> {
        let exchange = Exchange::new(case);
        over_socket::serving(case, move |runtime, calls| {
            let served = async {
                let only = tokio_stream::once(over_socket::registered(stream));
                // No more come, and waiting for more never ends.
                let incoming = only.chain(tokio_stream::pending());
                let method = Answering { exchange, calls };
                let served = Server::builder().serve_with_incoming(method, incoming);
                if let Err(error) = served.await {
                    eprintln!("a server of tonic has ended: {error}");
                }
            };
            runtime.block_on(served);
        })
    }
}
