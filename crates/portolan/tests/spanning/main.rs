//! Tests domains that span nodes, from the programs' side and the node's: a node of the test's own
//! is asked for names, and answers, or does not.

mod across;
mod answers;
mod deaths;
mod lent;
mod programs;

use portolan::proxy::{ProxyPort, Span};
use portolan::{ConnectError, Deadline, Domain, PortOptions, SendRight};
use portolan_testkit::{PATIENCE, unique};
use std::thread::JoinHandle;
use std::time::Duration;

/// A domain that a node spans, all in this process.
struct Spanned {
    domain: Domain,
    span: Span,
}

/// What a program gets that connects in a thread of its own.
type Connecting = JoinHandle<Result<SendRight, ConnectError>>;

impl Spanned {
    fn new(test: &str) -> Self {
        let domain = Domain::join(&unique(test)).unwrap();
        let span = Span::begin(&domain, "here").unwrap();
        Self { domain, span }
    }

    /// A program that connects to a port.
    fn connect(&self, name: &str) -> Connecting {
        self.connect_by(name, PATIENCE.into())
    }

    fn connect_by(&self, name: &str, deadline: Deadline) -> Connecting {
        let domain = Domain::join(self.domain.name()).unwrap();
        let name = name.to_owned();
        std::thread::spawn(move || domain.connect(&name, deadline))
    }

    /// The proxy of a port on another node.
    fn proxy(&self, name: &str, node: &str) -> ProxyPort {
        let options = PortOptions::unnamed().synchronous();
        self.span.bind(name, node, options).unwrap()
    }

    /// Makes sure that nothing is asked for a while.
    fn nothing_is_asked(&mut self) {
        let asked = self.span.take(Duration::from_millis(200));
        assert!(asked.is_err(), "{asked:?}");
    }
}

#[track_caller]
fn joined(program: Connecting) -> Result<SendRight, ConnectError> {
    program.join().expect("the program ends")
}
