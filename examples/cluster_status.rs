//! Prints what this machine's node sees of its cluster: members, links, spanned domains, counters.
//!
//! Run it with `cargo run -p portolan-node --example cluster_status`, while a node runs here
//! (`portolan node up`). An argument names another state directory than `portolan node` would take.
//! It asks the node where `portolan node status --json` asks it, and is given the same.
//!
//! Without other machines, `portolan node lab` has nodes on this one:
//!
//! ```sh
//! portolan node lab 3 -- sh -c 'target/debug/examples/cluster_status'
//! ```

use portolan_node::state::State;
use portolan_node::up::{self, PeerStatus, SpanStatus, Status};
use std::path::PathBuf;
use std::process::ExitCode;

fn main() -> ExitCode {
    let named = std::env::args_os().nth(1).map(PathBuf::from);
    let Some(path) = named.or_else(portolan::proxy::state_directory) else {
        eprintln!("there is no home directory: name the node's state directory");
        return ExitCode::from(2);
    };
    match up::status(&State::of(&path)) {
        Ok(status) => {
            show(&status);
            ExitCode::SUCCESS
        }
        // No node runs with this directory, for one: it says so, and what to do.
        Err(error) => {
            error.report();
            ExitCode::from(error.exit_code())
        }
    }
}

fn show(status: &Status) {
    println!("{} listens at {}", status.name, status.listen);
    println!("other nodes: {}", status.peers.len());
    status.peers.iter().for_each(link);
    status.spans.iter().for_each(span);
    for lost in &status.lost {
        println!("messages lost with {}: {}", lost.name, lost.messages);
    }
    println!("messages that could not travel: {}", status.left_behind);
    println!(
        "rights given: {}, come: {}",
        status.rights.given, status.rights.come
    );
}

/// A node that this one knows, and the link with it.
fn link(peer: &PeerStatus) {
    let name = peer.name.as_ref().or(peer.address.as_ref());
    print!(
        "  {}: {} for {} s, {} bytes there, {} bytes back, {} under way",
        name.map_or("unknown", String::as_str),
        peer.state.in_words(),
        peer.for_ms / 1000,
        peer.sent_bytes,
        peer.received_bytes,
        peer.in_flight_bytes,
    );
    match (peer.round_trip_us, &peer.failure) {
        (_, Some(failure)) => println!("; {failure}"),
        (Some(round_trip), None) => println!("; {round_trip} us there and back"),
        (None, None) => println!(),
    }
}

/// A domain that this node spans, and what goes over it.
fn span(span: &SpanStatus) {
    let report = &span.report;
    println!(
        "domain {}, {} here: {}, {} requests made, {} served",
        report.domain,
        report.local,
        span.state.in_words(),
        report.asking,
        report.serving,
    );
    for proxy in &report.proxies {
        println!(
            "  {} of {}: {} messages sent, {} not there yet, {} wait here",
            proxy.name, proxy.node, proxy.sent, proxy.unacknowledged, proxy.depth,
        );
    }
    for lent in &report.lent {
        println!("  {}, let out: {} messages came", lent.name, lent.delivered);
    }
}
