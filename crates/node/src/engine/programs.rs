//! What programs of a domain ask of its node, and which ports they let out.

use std::fmt;
use std::time::Duration;

use portolan::{Deadline, Domain, SendRight, Token, WaitSet};

use super::spans::Outlet;

/// The programs of a domain, as its node sees them.
pub trait Programs: fmt::Debug {
    /// Stands in the domain's wait set from now on, if there is something to wait for.
    fn enter(&mut self, set: &mut WaitSet) -> Option<Token>;

    /// The next question, if there is one.
    fn take(&mut self, set: &mut WaitSet) -> Option<Query>;

    /// The port of this name, if it may be let out. `listed`: node.toml says that it may.
    fn find(&mut self, set: &mut WaitSet, name: &str, listed: bool) -> Option<Outlet>;

    /// These nodes are there.
    fn set_nodes(&mut self, set: &mut WaitSet, names: &[String]);
}

/// A program asks for a port by its name.
pub struct Query {
    /// The port's.
    pub name: String,
    /// The node that it must be on, if that was said.
    pub node: Option<String>,
    /// How long the program waits.
    pub time_left: Duration,
    /// What is told of the answer.
    pub answer: Box<dyn FnOnce(Found)>,
}

impl fmt::Debug for Query {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Query")
            .field("name", &self.name)
            .field("node", &self.node)
            .finish_non_exhaustive()
    }
}

/// The answer to a [`Query`].
#[derive(Debug)]
pub enum Found {
    /// A right on the port.
    Port(SendRight),
    /// Several nodes have it.
    Ambiguous(Vec<String>),
    /// There is no such node.
    NoSuchNode,
    /// It was not found in time.
    TimedOut,
}

/// Ports that node.toml lists, found by their names; nobody asks.
#[derive(Debug)]
pub struct Listed(pub Domain);

impl Programs for Listed {
    fn enter(&mut self, _: &mut WaitSet) -> Option<Token> {
        None
    }

    fn take(&mut self, _: &mut WaitSet) -> Option<Query> {
        None
    }

    fn find(&mut self, _: &mut WaitSet, name: &str, listed: bool) -> Option<Outlet> {
        if !listed {
            return None;
        }
        let right = self.0.connect(name, Deadline::NOW).ok()?;
        let survey = self.0.survey().ok()?;
        let mut ports = survey.ports.iter();
        let port = ports.find(|port| port.name.as_deref() == Some(name))?;
        Some(Outlet {
            right,
            synchronous: port.kind == portolan::PortKind::Synchronous,
            slots: u32::try_from(port.slots).unwrap_or(u32::MAX),
        })
    }

    fn set_nodes(&mut self, _: &mut WaitSet, _: &[String]) {}
}
