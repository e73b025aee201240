//! `portolan port`: bytes and files through ports, by scripts.
//!
//! | file | what it looks at |
//! |---|---|
//! | `messages` | what is sent and received, called and answered |
//! | `serve` | a command that answers requests |
//! | `spanned` | ports of other machines, found through a node, and ports that are let out to it |
//! | `places` | domains and ports that are found or made, and what is told while one waits |
//! | `scene` | the command at work beside a test |

mod messages;
mod places;
mod scene;
mod serve;
mod spanned;
#[path = "../support/mod.rs"]
mod support;
