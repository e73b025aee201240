//! Faults that a simulation plants, to see that it would find them.

/// A rule that a node breaks on purpose. Without the feature `faults` no node breaks any.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// What has arrived is not said over the next connection, and what comes again is delivered
    /// again.
    DeliversTwice,
    /// A number above the next one is delivered at once.
    DeliversAhead,
    /// What was thrown away is acknowledged.
    AcknowledgesRefused,
    /// What was not acknowledged is not sent again over the next connection.
    ForgetsToResend,
    /// What is not whole when the connection ends is not freed.
    KeepsPartial,
    /// Slots are promised that the port does not have.
    PromisesTwice,
    /// More is sent than the link may have in flight.
    IgnoresWindow,
    /// All that is announced is granted.
    GrantsAll,
    /// The flow that came last is served first.
    ServesLast,
    /// Requests that are open when an association ends are not ended.
    ForgetsRequests,
    /// A flow that nobody was lent leads to some port.
    BelievesFlows,
    /// An answer is kept although it was acknowledged.
    KeepsAnswers,
    /// A flow that runs empty does not say so.
    KeepsCredit,
    /// Transfers of one flow take turns.
    MixesTransfers,
    /// The giver of a right is told that the receiver has a loan before it has one.
    ForgetsKeep,
    /// A right whose claim is under way when the connection ends is told dead.
    GivesUpClaims,
    /// A claim is believed without its secret, and by the port's number alone.
    LendsAnyPort,
    /// The end of a port is not told.
    HidesDeath,
    /// Borrowers are asked for their senders though no port wants to know.
    CountsUnasked,
    /// A right in an answer that nobody waits for is not given back.
    LosesRights,
    /// An acknowledgement that goes with the next record is said in no other way.
    WithholdsAcknowledgements,
    /// What a borrower had not sent when its port moved is lost.
    LosesUnsent,
    /// The old home of a port loses what is in the port's queue.
    LosesBacklog,
    /// The old home says that the backlog has ended before it has.
    EndsBacklogEarly,
    /// The new home serves others before the backlog is there.
    ServesBeforeBacklog,
    /// The old home says that it has put less into the port than it has.
    ForgetsDelivered,
    /// The old home receives for a port that has moved.
    KeepsHome,
    /// Borrowers are not told that a port has moved.
    HidesMove,
    /// The old home does not wait for those who follow the port.
    ForgetsFollowers,
    /// A port whose home has gone is taken for dead, and nobody is asked.
    ForgetsToAsk,
    /// A node that asks where a port is is told nothing.
    HidesPorts,
    /// A node is told where a port is that it was not lent.
    TellsAnyone,
    /// A node is believed that a port is there, whatever it was.
    BelievesAnyone,
    /// What the old home may have put into the port is sent to the new one, too.
    SendsTwice,
}

impl Fault {
    /// All of them.
    pub const ALL: [Self; 34] = [
        Self::DeliversTwice,
        Self::DeliversAhead,
        Self::AcknowledgesRefused,
        Self::ForgetsToResend,
        Self::KeepsPartial,
        Self::PromisesTwice,
        Self::IgnoresWindow,
        Self::GrantsAll,
        Self::ServesLast,
        Self::ForgetsRequests,
        Self::BelievesFlows,
        Self::KeepsAnswers,
        Self::KeepsCredit,
        Self::MixesTransfers,
        Self::ForgetsKeep,
        Self::GivesUpClaims,
        Self::LendsAnyPort,
        Self::HidesDeath,
        Self::CountsUnasked,
        Self::LosesRights,
        Self::WithholdsAcknowledgements,
        Self::LosesUnsent,
        Self::LosesBacklog,
        Self::EndsBacklogEarly,
        Self::ServesBeforeBacklog,
        Self::ForgetsDelivered,
        Self::KeepsHome,
        Self::HidesMove,
        Self::ForgetsFollowers,
        Self::ForgetsToAsk,
        Self::HidesPorts,
        Self::TellsAnyone,
        Self::BelievesAnyone,
        Self::SendsTwice,
    ];
}

/// The fault of a node, if it has one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Planted {
    #[cfg(feature = "faults")]
    pub(super) fault: Option<Fault>,
}

impl Planted {
    /// Whether the node breaks this rule.
    #[inline]
    pub(super) fn is(self, fault: Fault) -> bool {
        #[cfg(feature = "faults")]
        return self.fault == Some(fault);
        #[cfg(not(feature = "faults"))]
        {
            let _ = fault;
            false
        }
    }
}
