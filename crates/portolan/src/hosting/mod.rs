//! Processes join a domain, one member hosts it, and the host reclaims what the dead held.
//!
//! ```text
//!                 bind and listen first                     leave: all returned
//! a process ----------------------------> space 1, host ----------------------> gone
//!     |                                        | dies: its pidfd is readable
//!     | hello, welcome, arrived                v
//!     +-----------------------> a space --- takes the host word over
//! ```
//!
//! | file | what it does |
//! |---|---|
//! | `place` | keeps this process's memberships |
//! | `rendezvous` | finds the host, or makes this process the first |
//! | `create` | makes a region |
//! | `addresses` | picks addresses for a region where no other domain of this machine lies |
//! | `membership_thread` | this process's thread, which watches the host, or hosts |
//! | `watch` | a member's role: waits for the host's death, and succeeds it; admits newcomers while the host is stopped |
//! | `host` | the host's role: handles newcomers, connections, offers, deaths |
//! | `admit` | admits one newcomer, by the host or by another member |
//! | `handoff` | the table of offers; hands clients to the members that offer |
//! | `copy_broker` | the host's threads that copy to and from delegated memory |
//! | `reclaim` | returns what a dead space held |
//!
//! # Invariants
//!
//! - **D1** At most one living space has the host word, and only it writes the entries of other
//!   spaces that are live or dead. For free entries and those of newcomers see D7.
//! - **D2** A member takes the host word when no space has it, or from a space whose pidfd is
//!   readable, or which has executed another program and so cannot touch the region any more. Or it is
//!   given the word (D9).
//! - **D3** A space's entry is handed out again only after its reclaim has finished; its
//!   incarnation then goes up.
//! - **D4** The two listening sockets, the host's and the fallback one, are made once and shared by
//!   every member: the domain's name lives exactly as long as a member does, and is never bound a
//!   second time meanwhile.
//! - **D5** Every step of a reclaim may be repeated, by another host, after the one that began
//!   it was killed.
//! - **D6** The host watches every live space, or the space's connection waits in the backlog of the
//!   host's socket. A newcomer that another member admits connects there before it is live. So a
//!   host that was stopped wakes for that newcomer when it goes on. It then watches every entry
//!   of the region that is in use, and reclaims the spaces that have died meanwhile.
//! - **D7** The host and any other member admit at the same time. Each claims a free entry by
//!   compare-exchange, and no admission undoes what another one has claimed (A1 to A4 of
//!   `portolan_shm::space`).
//! - **D8** A member that does not answer is not taken for dead, the host neither: a stopped host
//!   stays host, and no other member reclaims, hands off or hosts meanwhile.
//! - **D9** A host hands the host word to a member that has asked for it, unless it prefers to host
//!   itself. From that one exchange on the member hosts: if it dies, stops or leaves, that is a host's
//!   death, stop or leave. The former host has ended all its copies before, and touches no other
//!   space's entry after.

mod addresses;
mod admit;
mod copy_broker;
mod create;
mod handoff;
mod host;
mod membership_thread;
mod place;
mod reclaim;
mod rendezvous;
mod watch;

/// What this process's membership thread does.
enum Role {
    /// It watches the host.
    Member(watch::Control),
    /// It hosts.
    Host(Box<host::Host>),
}
