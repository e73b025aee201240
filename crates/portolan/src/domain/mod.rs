//! Domains (being written).
/// The thread that watches the host, or hosts.
pub(crate) struct Link;
