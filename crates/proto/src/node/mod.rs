//! Nodes.
mod association;
mod connection;
mod fair_queue;
mod fault;
mod flow;
mod greeting;
mod machine;
mod port;
mod types;
mod violation;

pub use association::{AssociationView, ReceivingView, SendingView};
pub use fair_queue::FairQueue;
#[doc(hidden)]
pub use fault::Fault;
pub use machine::Node;
pub use types::{
    Answer, Authenticated, ConnectionId, Delivery, Destination, DomainKey, Event, FlowKey, Home,
    Message, OutFragment, OutRecord, Outcome, Place, PortKey, PortSettings, RequestKey, Settings,
    Wall,
};
pub use violation::{Over, Refused, Unsent, Violation};
