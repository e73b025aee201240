//! Whatever arrives from outside, as a fuzzer writes it.
//!
//! Each target takes a fuzzer's bytes as the deeds of a hostile or broken peer. It asserts
//! what must hold whatever that peer does; a panic, an access out of bounds (with the
//! sanitizer) or a hang is a finding. `cargo xtask fuzz` runs them; without a fuzzer they
//! are functions, and `tests/replay.rs` calls them with noise and with what was found
//! before.
//!
//! | target | whose bytes | what must hold |
//! |---|---|---|
//! | `words` | any word and record that crosses a process | it is read as something, and that survives its own writing |
//! | `calls` | packets of a client and of a server, well sealed, garbled or repeated | numbers are handed out once, in order; a typed error closes the connection |
//! | `frozen` | the state of a server that moved | it is refused, or works |
//! | `channel` | a channel's memory, rewritten between any two steps | typed errors; nothing is touched beside it |
//! | `arena` | the head of a structure | no root, or one within the message; nothing is handed out beside it |
//! | `export` | all of an importer, and of one for which the host copies | as `bridge`; an export ends when its exporter wants, and is then nobody else's; the host copies within the exporter's delegation |
//! | `import` | all of an exporter, and of the host that leads to it | typed errors, at once; what is mapped is within the limits |
//! | `byte_ring` | a byte ring's counts and bytes, rewritten between any two steps; what the sides of a connection say | typed errors; nothing is read or written beside it |
//! | `follow` | all of a client that follows an offered channel, and of a process that offers one | as `bridge`: others are told all, writers wait for nobody who has gone, nothing is left |
//! | `bridge` | all of a client at an offered port, and of a process that offers one | its own connection ends; others are served; what comes is within the limits |
//! | `rendezvous` | a newcomer's words at a host's socket | the host goes on |
//! | `records` | records of another node, of each kind | whole or refused; a node that gets them promises no slot twice, and says a bounded number of records |
//! | `fragments` | fragments of another node, announcements, and what opens transfers | nothing is received beside a transfer's bytes; as `records` |
//! | `join` | a newcomer's request to a node, damaged | nothing but the whole, true one is let in, once |
//! | `names` | what programs and their machine's node say to one another | refused, or read whole |
//! | `topic` | what publishers write, and where they announce themselves | samples that can be read, or typed errors; other publishers are heard; nothing is left |
//!
//! What comes from the other side of a connection between domains, and which target says it:
//!
//! | read by | what | target |
//! |---|---|---|
//! | a host | a connect request | `rendezvous`, `words` |
//! | a client | a host's answers | `words` |
//! | who offers a port | what a client asks, its byte ring, its packets with descriptors | `bridge`, `byte_ring` |
//! | who connects to one | the answer with its descriptors, the byte ring back, packets | `bridge`, `byte_ring` |
//! | who offers a channel | what a follower asks, how far it says it has read, packets | `follow`, `byte_ring` |
//! | who follows one | the answer, what the channel is like, messages and what was missed before them | `follow` |
//! | an exporter | what an importer asks, what it posts and how far it says it has come, packets | `export`, `words` |
//! | an importer | the answer with its descriptors, the status page, how far its notes were taken, packets | `import`, `words` |
//! | a host that copies for importers | requests, and what they put into its memory | `export`, `words` |
//! | an importer for which a host copies | the host's memory and replies | `import`, `words` |
//!
//! Not here: memory that is exported and what stands in messages, which nobody but the caller
//! looks at; ordinary memory, where importer and exporter are of one user.

mod memory;
mod stranger;
mod targets;

pub use targets::TARGETS;

/// What is called with a fuzzer's bytes.
pub type Target = fn(&[u8]);

/// The environment variable that names the target that the fuzzer runs.
pub const CHOICE: &str = "PORTOLAN_FUZZ";
