//! Engines of several machines in one process, over memory and over TLS, and what becomes of the
//! messages between their programs.

mod asking;
#[path = "../../../transport/tests/support/certificates.rs"]
#[allow(dead_code)]
mod certificates;
mod faults;
mod hostile;
mod machine;
mod messages;
mod moves;
mod names;
mod places;
mod rates;
mod rights;
mod room;
mod scale;
mod traced;
mod turns;

/// Each scene over each network.
macro_rules! scenes {
    ($($scene:ident),* $(,)?) => {
        mod over_memory {
            $(#[test] fn $scene() { super::$scene(&crate::machine::Network::memory()); })*
        }
        mod over_tls {
            $(#[test] fn $scene() { super::$scene(&crate::machine::Network::tls()); })*
        }
    };
}
pub(crate) use scenes;
