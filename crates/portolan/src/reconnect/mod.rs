//! Senders and subscribers that outlive the process at the other end.
//!
//! A [`SendRight`](crate::SendRight) is a right on one port. When the port's process dies the right
//! is a dead name, and a program that wants to go on looks the name up again. A
//! [`ReconnectingSender`] does that in each send: it sends to the port that has the name now, and
//! waits for one where there is none. A [`Subscriber`](crate::channel::Subscriber) follows each
//! publisher that comes by itself, and tells nothing of those that went. A
//! [`ReconnectingSubscriber`] tells of each that left or died, in its place among the samples.
//!
//! And a process that takes a dead one's place binds its name by [`bind_when_free`](crate::Domain::bind_when_free), because
//! the dead one has it for another moment.
//!
//! Neither sender nor subscriber hides a loss. What may be lost with a dead process is a value that the next call
//! returns: [`Sent::lost`], [`Update::Gone`].
//!
//! | at the other end's death | what is lost | what tells of it |
//! |---|---|---|
//! | a receiver dies | what waited in its queue, and what it had received and not worked off | [`Lost`]: how many were sent to it, and how many of these it cannot have received at most |
//! | a publisher dies | the sample that it was writing; long samples that no subscriber holds | [`PublisherGone::missed`]; what it had published and the ring still has comes before |
//! | this process dies | its own things, which the next one of its name makes again | the other end's values, as above |
//!
//! A receiver that dies may have received a message and not have worked it off. No library can tell:
//! where that matters, ask ([`SendRight::request_reply`](crate::SendRight::request_reply), by
//! [`ReconnectingSender::right`]), because a request ends in its answer or in an error.
//!
//! ```
//! use portolan::{Access, Deadline, Domain, Message, PortOptions, WhenFull};
//!
//! let domain = Domain::private()?; // Domain::join("name")? among processes
//! let mut sender = domain.reconnecting_sender("frames");
//! let first = domain.bind(PortOptions::named("frames"))?;
//! for number in 0..3 {
//!     let sent = sender.send(Message::new(&[number])?, WhenFull::Fail)?;
//!     assert_eq!(sent.lost, None);
//! }
//! drop(first); // Or its process is killed.
//!
//! let mut second = domain.bind(PortOptions::named("frames"))?;
//! let sent = sender.send(Message::new(&[3])?, WhenFull::Fail)?;
//! let lost = sent.lost.expect("three were in the queue of the first");
//! assert_eq!((lost.receiver, lost.sent, lost.at_most), (1, 3, 3));
//! assert_eq!(second.receive(Access::Later, Deadline::NOW)?.header(), [3]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! All wait without polling, until a deadline, in a [`WaitSet`](crate::WaitSet), or as futures
//! under tokio. None joins its domain again: a process stays a member whatever others do.

mod receiver;
mod sender;
mod subscriber;

pub use crate::channel::PublisherGone;
pub use sender::{Lost, ReconnectingSender, Sent};
pub use subscriber::{ReconnectingSubscriber, Update};
