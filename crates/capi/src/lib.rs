//! The C ABI of Portolan: the same things under the same names, for C, C++ and what can call C.
//!
//! A function is called after the type and the method that it stands for: `SendRight::send` is
//! `portolan_send_right_send`. The header, `include/portolan.h`, is written from these sources by
//! cbindgen, so what a function promises stands here once; a test fails while the two differ.
//!
//! | file | holds |
//! |---|---|
//! | `handles` | the tables that handles are looked up in |
//! | `kinds` | the kinds of handles, and how many there may be of each |
//! | `pointers` | what C points at becomes slices, texts and places for results |
//! | `status` | codes, the thread's text of an error, and what catches panics |
//! | `causes` | which code an error of the library has |
//! | `deadline` | deadlines as words |
//! | `loan` | a publisher, and the room that it has lent to C |
//! | `domain`, `extent`, `message`, `port`, `request`, `right`, `segment`, `channel`, `topic`, `reconnect`, `signal`, `source`, `export`, `log`, `bridge`, `wait_set` | the functions |
//!
//! # Invariants
//!
//! - **C1** A handle that is wrong, null, freed, or of another kind is answered with
//!   `PORTOLAN_BAD_HANDLE`, and nothing is touched.
//! - **C2** What a handle stands for is dropped only while no other call uses it; a call that would
//!   use what another call uses alone is answered with `PORTOLAN_BUSY`, and does not wait.
//! - **C3** A call that fails has taken nothing: handles that it was given are the caller's still.
//! - **C4** No panic leaves a function: it is answered with `PORTOLAN_PANICKED`.
//! - **C5** A place for a result is written only by a call that is answered with `PORTOLAN_OK`, but
//!   where a function says for which other answer.

#![allow(
    non_camel_case_types,
    reason = "the types are named as C has them, so that each is found by its one name"
)]
#![allow(
    clippy::missing_safety_doc,
    reason = "the header's first lines say once what every pointer must be"
)]

mod causes;
mod handles;
mod kinds;
mod loan;
mod pointers;
mod status;

// In the order in which the header has them.
mod deadline;
mod domain;
mod extent;
mod message;
mod port;
mod right;

mod request;
mod segment;

mod channel;
mod topic;

mod reconnect;
mod signal;
mod source;

mod export;
mod log;

mod bridge;
mod wait_set;

pub use bridge::*;
pub use channel::*;
pub use deadline::*;
pub use domain::*;
pub use export::*;
pub use extent::*;
pub use kinds::*;
pub use log::*;
pub use message::*;
pub use port::*;
pub use reconnect::*;
pub use request::*;
pub use right::*;
pub use segment::*;
pub use signal::*;
pub use source::*;
pub use status::{portolan_error_text, portolan_status, portolan_version};
pub use topic::*;
pub use wait_set::*;
