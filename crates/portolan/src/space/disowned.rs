//! Says why a process that was a member is none any more.

/// Why this process may not use its membership any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Disowned {
    /// The caller's: this process was forked from a member. It is not a member itself.
    #[error(
        "this process was forked from a member and is not one itself: join the domain, or exec, before using it"
    )]
    Forked,
    /// The caller's: this process closed the descriptors that tie it to its host.
    #[error(
        "this process has lost its connection to the domain's host (did it close all descriptors?): leave and join again"
    )]
    Disconnected,
}
