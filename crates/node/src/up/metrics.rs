//! Counters for Prometheus: an HTTP listener, if node.toml has `metrics`. `GET /metrics` answers in
//! the text format 0.0.4; the connection ends with the answer.
//!
//! | metric | labels | is |
//! |---|---|---|
//! | `portolan_node_info` | `name`, `node`, `version` | 1 |
//! | `portolan_node_incarnation` | | how often the node was started |
//! | `portolan_node_certificate_expires_seconds` | | when its certificate ends, in seconds since 1970 |
//! | `portolan_node_peers` | `state` | peers that are up, unreachable, connecting, waiting |
//! | `portolan_node_peer_round_trip_seconds` | `peer` | the last round trip |
//! | `portolan_node_peer_in_flight_bytes` | `peer` | bytes that the peer has not acknowledged |
//! | `portolan_node_peer_sent_bytes_total`, `.._received_bytes_total` | `peer` | bytes on the connections that there are: from 0 again with the next ones |
//! | `portolan_node_peer_send_rate_bytes`, `.._take_rate_bytes` | `peer` | bytes a second, at most, to the peer and from it; not there if there is no limit |
//! | `portolan_node_peer_held_total` | `peer`, `way` | how often something waited for that before it was sent, or read |
//! | `portolan_node_spans` | `state` | domains that are spanned, and that are being joined |
//! | `portolan_node_requests` | `way` | requests that programs here have made, and those of peers with servers here |
//! | `portolan_node_waiting_messages` | | messages in proxy ports that were not sent on |
//! | `portolan_node_messages_sent_total`, `.._delivered_total` | | messages to other nodes, and into ports here |
//! | `portolan_node_left_behind_total` | | messages that could not travel |
//! | `portolan_node_rights_given_total` | | rights in messages to other nodes |
//! | `portolan_node_rights_come_total` | | rights in messages of other nodes |
//! | `portolan_node_ports_left_total`, `.._ports_arrived_total` | | ports whose receive rights other nodes have taken; those that have come from them |
//! | `portolan_node_ports_sought_total` | | ports of nodes that were given up, of which others were asked where they are |
//! | `portolan_node_senders_asked_total` | | ports whose borrowers were asked for their senders |
//! | `portolan_node_links_total`, `.._links_lost_total` | | associations that have begun, links that were lost |
//! | `portolan_node_joined_total`, `.._refused_total` | | newcomers that were let in; newcomers, connections and peers that were refused |
//! | `portolan_node_forgotten` | | nodes that are refused |

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::Duration;

use metrics::{Unit, counter, describe_counter, describe_gauge, gauge};
use metrics_exporter_prometheus::PrometheusBuilder;

use super::clients::{Clients, Heard};
use super::status::{PeerState, SpanState, Status};
use crate::{NodeError, Result};

/// Clients at once, at most.
const MOST: usize = 8;
/// Bytes of a request, at most.
const LONGEST: usize = 8192;

/// What a node counts itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) links: u64,
    pub(super) links_lost: u64,
    pub(super) joined: u64,
    pub(super) refused: u64,
    pub(super) sent: u64,
    pub(super) delivered: u64,
    /// When the certificate ends, in seconds since 1970.
    pub(super) expires: u64,
}

/// The listener.
#[derive(Debug)]
pub(super) struct Metrics {
    listener: TcpListener,
    clients: Clients<TcpStream>,
}

impl Metrics {
    /// Listens at this address.
    ///
    /// # Errors
    ///
    /// [`NodeError::Metrics`].
    pub(super) fn new(address: SocketAddr) -> Result<Self> {
        let failed = |source| NodeError::Metrics { address, source };
        let listener = TcpListener::bind(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        Ok(Self {
            listener,
            clients: Clients::new(MOST),
        })
    }

    /// Where it listens.
    pub(super) fn address(&self) -> Option<SocketAddr> {
        self.listener.local_addr().ok()
    }

    pub(super) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.clients.descriptors(self.listener.as_fd())
    }

    pub(super) fn wake_at(&self, now: Duration) -> Option<Duration> {
        self.clients.wake_at(now)
    }

    /// Takes what came, and answers it with what `page` says.
    pub(super) fn step(&mut self, now: Duration, mut page: impl FnMut() -> String) {
        let accept = || {
            let (socket, _) = self.listener.accept()?;
            socket.set_nonblocking(true)?;
            Ok(socket)
        };
        let hear = |came: &[u8]| {
            let is_whole = came.windows(4).any(|end| end == b"\r\n\r\n");
            match is_whole || came.len() > LONGEST {
                true => Heard::Answer(answer(came, &mut page)),
                false => Heard::Part,
            }
        };
        self.clients.step(now, accept, hear);
    }
}

/// The answer to a request, whose first line says what is wanted.
fn answer(request: &[u8], page: &mut impl FnMut() -> String) -> Vec<u8> {
    let first = request.split(|byte| *byte == b'\r').next();
    let mut words = first.unwrap_or_default().split(|byte| *byte == b' ');
    let (method, path) = (words.next(), words.next());
    let path = path.and_then(|path| path.split(|byte| *byte == b'?').next());
    let (status, body) = match (method, path) {
        (Some(b"GET"), Some(b"/metrics")) => ("200 OK", page()),
        (Some(b"GET"), Some(path)) if path.starts_with(b"/") => {
            ("404 Not Found", "there is /metrics\n".to_owned())
        }
        (Some(b"GET"), _) => ("400 Bad Request", String::new()),
        _ => ("405 Method Not Allowed", "there is GET\n".to_owned()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    (head + &body).into_bytes()
}

/// The page: what a node's status and counts say, by the `metrics` facade. It is made anew each time,
/// so that nothing is left of a peer that is gone.
pub(super) fn page(status: &Status, counts: &Counts) -> String {
    let recorder = PrometheusBuilder::new().build_recorder();
    metrics::with_local_recorder(&recorder, || record(status, counts));
    recorder.handle().render()
}

#[expect(
    clippy::cast_precision_loss,
    reason = "gauges are floating-point numbers"
)]
fn record(status: &Status, counts: &Counts) {
    let set = |name: &'static str, says: &'static str, value: f64| {
        describe_gauge!(name, says);
        gauge!(name).set(value);
    };
    let count = |name: &'static str, says: &'static str, value: u64| {
        describe_counter!(name, says);
        counter!(name).absolute(value);
    };
    describe_gauge!("portolan_node_info", "who this is");
    let (name, node) = (status.name.clone(), status.node.clone());
    let version = env!("CARGO_PKG_VERSION");
    gauge!("portolan_node_info", "name" => name, "node" => node, "version" => version).set(1.0);
    let incarnation = status.incarnation as f64;
    set(
        "portolan_node_incarnation",
        "how often it was started",
        incarnation,
    );
    set(
        "portolan_node_certificate_expires_seconds",
        "when its certificate ends, since 1970",
        counts.expires as f64,
    );
    let forgotten = status.forgotten.len() as f64;
    set(
        "portolan_node_forgotten",
        "nodes that are refused",
        forgotten,
    );
    record_peers(status);
    record_spans(status);
    let all = [
        (
            "portolan_node_messages_sent_total",
            "messages to other nodes",
            counts.sent,
        ),
        (
            "portolan_node_messages_delivered_total",
            "messages into ports here",
            counts.delivered,
        ),
        (
            "portolan_node_left_behind_total",
            "messages that could not travel",
            status.left_behind,
        ),
        (
            "portolan_node_rights_given_total",
            "rights in messages to other nodes",
            status.rights.given,
        ),
        (
            "portolan_node_rights_come_total",
            "rights in messages of other nodes",
            status.rights.come,
        ),
        (
            "portolan_node_ports_left_total",
            "ports whose receive rights other nodes have taken",
            status.rights.ports_left,
        ),
        (
            "portolan_node_ports_arrived_total",
            "ports whose receive rights have come from other nodes",
            status.rights.ports_arrived,
        ),
        (
            "portolan_node_ports_sought_total",
            "ports of nodes that were given up, of which others were asked where they are",
            status.rights.ports_sought,
        ),
        (
            "portolan_node_senders_asked_total",
            "ports whose borrowers were asked for their senders",
            status.rights.senders_asked,
        ),
        (
            "portolan_node_links_total",
            "associations that have begun",
            counts.links,
        ),
        (
            "portolan_node_links_lost_total",
            "links that were lost",
            counts.links_lost,
        ),
        (
            "portolan_node_joined_total",
            "newcomers that were let in",
            counts.joined,
        ),
        (
            "portolan_node_refused_total",
            "newcomers, connections, peers that were refused",
            counts.refused,
        ),
    ];
    for (name, says, value) in all {
        count(name, says, value);
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "gauges are floating-point numbers"
)]
fn record_peers(status: &Status) {
    describe_gauge!("portolan_node_peers", "peers, by how their links are");
    let states = [
        PeerState::Up,
        PeerState::Unreachable,
        PeerState::Connecting,
        PeerState::Waiting,
    ];
    for state in states {
        let its = status.peers.iter().filter(|peer| peer.state == state);
        gauge!("portolan_node_peers", "state" => state.in_words()).set(its.count() as f64);
    }
    let (trip, flight) = (
        "portolan_node_peer_round_trip_seconds",
        "portolan_node_peer_in_flight_bytes",
    );
    describe_gauge!(trip, Unit::Seconds, "the last round trip");
    describe_gauge!(
        flight,
        Unit::Bytes,
        "bytes that the peer has not acknowledged"
    );
    let (sent, received) = (
        "portolan_node_peer_sent_bytes_total",
        "portolan_node_peer_received_bytes_total",
    );
    describe_counter!(
        sent,
        Unit::Bytes,
        "bytes written on the connections that there are"
    );
    describe_counter!(
        received,
        Unit::Bytes,
        "bytes read on the connections that there are"
    );
    for peer in &status.peers {
        let Some(node) = peer.node.clone().filter(|_| is_linked(peer.state)) else {
            continue;
        };
        if let Some(micros) = peer.round_trip_us {
            gauge!(trip, "peer" => node.clone()).set(micros as f64 / 1e6);
        }
        gauge!(flight, "peer" => node.clone()).set(peer.in_flight_bytes as f64);
        counter!(sent, "peer" => node.clone()).absolute(peer.sent_bytes);
        counter!(received, "peer" => node).absolute(peer.received_bytes);
    }
    record_rates(status);
}

#[expect(
    clippy::cast_precision_loss,
    reason = "gauges are floating-point numbers"
)]
fn record_rates(status: &Status) {
    let (send, take, held) = (
        "portolan_node_peer_send_rate_bytes",
        "portolan_node_peer_take_rate_bytes",
        "portolan_node_peer_held_total",
    );
    describe_gauge!(send, Unit::Bytes, "most that is sent to the peer");
    describe_gauge!(take, Unit::Bytes, "most that is taken from it");
    describe_counter!(held, "waits for the rate");
    for peer in &status.peers {
        let Some(node) = peer.node.clone().filter(|_| is_linked(peer.state)) else {
            continue;
        };
        let rates = peer.rates;
        // The peer may take less than is allowed here.
        if let Some(rate) = rates.send.into_iter().chain(rates.peer_takes).min() {
            gauge!(send, "peer" => node.clone()).set(rate as f64);
        }
        if let Some(rate) = rates.take {
            gauge!(take, "peer" => node.clone()).set(rate as f64);
        }
        for (way, times) in [("send", rates.sends_held), ("take", rates.takes_held)] {
            counter!(held, "peer" => node.clone(), "way" => way).absolute(times);
        }
    }
}

fn is_linked(state: PeerState) -> bool {
    matches!(state, PeerState::Up | PeerState::Unreachable)
}

#[expect(
    clippy::cast_precision_loss,
    reason = "gauges are floating-point numbers"
)]
fn record_spans(status: &Status) {
    describe_gauge!(
        "portolan_node_spans",
        "domains, by how far they are spanned"
    );
    for state in [SpanState::Up, SpanState::Joining] {
        let its = status.spans.iter().filter(|span| span.state == state);
        gauge!("portolan_node_spans", "state" => state.in_words()).set(its.count() as f64);
    }
    let reports = status.spans.iter().map(|span| &span.report);
    let asking: usize = reports.clone().map(|report| report.asking).sum();
    let serving: usize = reports.clone().map(|report| report.serving).sum();
    describe_gauge!("portolan_node_requests", "requests that are not answered");
    for (way, open) in [("asking", asking), ("serving", serving)] {
        gauge!("portolan_node_requests", "way" => way).set(open as f64);
    }
    let proxies = reports.flat_map(|report| &report.proxies);
    let waiting: usize = proxies.map(|proxy| proxy.depth).sum();
    describe_gauge!("portolan_node_waiting_messages", "messages in proxy ports");
    gauge!("portolan_node_waiting_messages").set(waiting as f64);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(request: &[u8]) -> String {
        String::from_utf8(answer(request, &mut || "page".to_owned())).unwrap()
    }

    #[test]
    fn requests_are_answered_by_their_first_line() {
        for (request, status) in [
            (&b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"[..], "200 OK"),
            (b"GET /metrics?x=1 HTTP/1.0\r\n\r\n", "200 OK"),
            (b"GET / HTTP/1.1\r\n\r\n", "404 Not Found"),
            (b"POST /metrics HTTP/1.1\r\n\r\n", "405 Method Not Allowed"),
            (b"GET\r\n\r\n", "400 Bad Request"),
            (b"\xff\xfe\r\n\r\n", "405 Method Not Allowed"),
            (b"\r\n\r\n", "405 Method Not Allowed"),
        ] {
            let said = said(request);
            assert!(
                said.starts_with(&format!("HTTP/1.1 {status}\r\n")),
                "{said}"
            );
            assert_eq!(said.ends_with("\r\n\r\npage"), status == "200 OK");
        }
    }
}
