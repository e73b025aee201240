//! `portolan port`: bytes and files through ports, by scripts.
//!
//! | file | what it looks at |
//! |---|---|
//! | `messages` | what is sent and received, called and answered |
//! | `serve` | a command that answers requests |
//! | `places` | domains and ports that are found or made, and what is told while one waits |
//! | `scene` | the command at work beside a test |

mod messages;
mod places;
mod scene;
mod serve;
#[path = "../support/mod.rs"]
mod support;
