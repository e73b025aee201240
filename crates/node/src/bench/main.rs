//! `portolan-node-bench`: what `portolan bench node` measures beside the daemon. Not for users: it is
//! started by that command, says on its standard output how far it is, a line each, and ends with
//! its standard input.
//!
//! | file | holds |
//! |---|---|
//! | `engine` | a node's engine in a process of its own, over TLS or over plain TCP |
//! | `stream` | a bare rustls stream |
//!
//! `portolan-node` links with TLS only, whatever it is told. Plain TCP is here alone: between
//! engines that this program starts, over loopback, for a domain that the benchmark has made.
#![forbid(unsafe_code)]

mod engine;
mod stream;

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand, ValueEnum};
use portolan_node::{NodeError, Result};

/// What `portolan bench node` measures beside the daemon. It starts this program itself.
#[derive(Debug, Parser)]
#[command(name = "portolan-node-bench", version)]
struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// A node's engine
    Engine(EngineArgs),
    /// So many engines in one process, each linked with the engine at an address, over plain TCP
    Spokes(SpokesArgs),
    /// Both ends of a rustls stream: reads how many bytes to send, says how long that took
    Stream(StreamArgs),
}

#[derive(Clone, Debug, clap::Args)]
struct EngineArgs {
    /// What it links by
    #[arg(long, value_enum)]
    over: Over,
    /// The domain that it spans, by its name here
    #[arg(long)]
    local: String,
    /// Its place: the first only listens, and the others connect to those before them
    #[arg(long)]
    number: u8,
    /// Where those before it listen, in their order
    #[arg(long)]
    connect: Vec<SocketAddr>,
    /// How many links it has in all: if it connects to fewer, it listens
    #[arg(long, default_value_t = 1)]
    links: u8,
    /// A directory of all of them, for their keys
    #[arg(long)]
    keys: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
struct SpokesArgs {
    /// How many
    #[arg(long)]
    count: u8,
    /// What the names of their domains begin with; a number follows
    #[arg(long)]
    local: String,
    /// Where the engine listens that they connect to
    #[arg(long)]
    connect: SocketAddr,
}

#[derive(Debug, clap::Args)]
struct StreamArgs {
    /// The processor of who sends
    #[arg(long)]
    from: usize,
    /// The processor of who receives
    #[arg(long)]
    to: usize,
}

/// What engines link by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Over {
    Tcp,
    Tls,
}

fn main() -> ExitCode {
    let done = match Args::parse().what {
        What::Engine(args) => engine::run(&args),
        What::Spokes(args) => engine::spokes(&args),
        What::Stream(args) => stream::run(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            error.report();
            ExitCode::from(error.exit_code())
        }
    }
}

/// Says something to the benchmark.
fn say(line: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    let said = writeln!(out, "{line}").and_then(|()| out.flush());
    said.map_err(system("cannot speak to `portolan bench`"))
}

/// For `map_err`: what the system has refused.
fn system(doing: &'static str) -> impl FnOnce(std::io::Error) -> NodeError {
    move |source| NodeError::System { doing, source }
}

/// For `map_err`: what an engine, a domain or rustls has refused.
fn refused(what: &'static str) -> impl Fn(&dyn std::fmt::Display) -> NodeError {
    move |why| NodeError::NotWell {
        what: format!("{what}: {why}"),
    }
}
