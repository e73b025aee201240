//! What a worker does last in a pause, while all others hold still: it dies in the midst of it.
//!
//! Beside others that are at work many a loss does not last. The next allocation that fails closes
//! a ring of ports, the next taker of a chunk fills its hole, the next message wakes a sleeper. In a
//! pause the host alone mends what the dead have left, so the audit sees whether it does.

/// The last thing that a worker does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum LastAct {
    /// It holds what it holds, and is killed.
    Hold = 1,
    /// It holds a listener whose handler is called by signals.
    Listen,
    /// It puts two ports into one another's queues.
    TieRing,
    /// It sends a receive right.
    SendPort,
    /// It sends a message to everybody.
    SendMessages,
    /// It writes a letter to everybody.
    WriteLetters,
    /// It asks to be told of a port's death.
    Watch,
    /// It gives memory that nobody uses to the kernel.
    Trim,
}

impl LastAct {
    pub(crate) const ALL: [Self; 8] = [
        Self::Hold,
        Self::Listen,
        Self::TieRing,
        Self::SendPort,
        Self::SendMessages,
        Self::WriteLetters,
        Self::Watch,
        Self::Trim,
    ];

    /// What the worker has done all of its last act, and is about to be killed.
    pub(crate) const DONE: u64 = u64::MAX;

    pub(crate) fn of(word: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|act| *act as u64 == word)
    }

    /// The worker dies at one of these marks; if there are none, behind the act.
    pub(crate) fn marks(self) -> &'static [&'static str] {
        match self {
            Self::Hold | Self::Listen | Self::TieRing => &[],
            Self::SendPort => &[
                "right.receive_leaves",
                "send.claimed",
                "send.before_publish",
            ],
            Self::SendMessages => &["send.claimed", "send.before_publish", "send.before_wake"],
            Self::WriteLetters => &["channel.claimed", "channel.filled", "channel.before_wake"],
            Self::Watch => &["watch.taken"],
            Self::Trim => &["chunk.punched"],
        }
    }
}
