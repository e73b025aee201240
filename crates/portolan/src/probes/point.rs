//! Lists the points, in the order in which a message passes them.

/// What the paper on DASH calls the parts of moving a page, A to I, in today's terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Letter {
    /// The descriptor of an extent is checked.
    A,
    /// Its owner word is looked up.
    B,
    /// It is closed in the sender.
    C,
    /// The rest: its owner words are written.
    D,
    /// What makes sure that the sender's access has ended.
    E,
    /// A touch of a closed page, up to the handler's own work.
    F,
    /// The owner word is looked up in the handler.
    G,
    /// The pages are opened.
    H,
    /// Back to the touch, which is made again.
    I,
}

impl Letter {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::A,
        Self::B,
        Self::C,
        Self::D,
        Self::E,
        Self::F,
        Self::G,
        Self::H,
        Self::I,
    ];
}

macro_rules! points {
    ($($(#[$doc:meta])* $point:ident = $name:literal $(is $letter:ident)?,)*) => {
        /// A point that a message passes on its way, which ends a segment.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Point {
            $($(#[$doc])* $point,)*
        }

        impl Point {
            /// All of them, in the order in which a message passes them.
            pub const ALL: &[Self] = &[$(Self::$point),*];

            /// Its name, for people.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$point => $name,)*
                }
            }

            /// The letter of the paper that the segment which ends here is part of.
            pub fn letter(self) -> Option<Letter> {
                match self {
                    $($(Self::$point => Some(Letter::$letter),)?)*
                    _ => None,
                }
            }
        }
    };
}

points! {
    /// The library has been called, the port's handle found usable.
    SendCalled = "send.called",
    /// An extent's descriptor was checked by the sender.
    SendDescriptor = "send.descriptor" is A,
    /// Its owner word says that it is ours.
    SendOwner = "send.owner" is B,
    /// The rest of the message was checked.
    SendChecked = "send.checked",
    /// How it will stand in a slot is decided.
    SendPlanned = "send.planned",
    /// Guarded: the extents are on their way out.
    GuardLeaving = "guard.leaving" is D,
    /// Guarded: no handler that looked before is still opening something.
    GuardWaited = "guard.waited" is E,
    /// Guarded: no thread of this process can reach the pages.
    GuardClosed = "guard.closed" is C,
    /// The port lives and takes such messages.
    SendAdmitted = "send.admitted",
    /// A slot is ours.
    SendClaimed = "send.claimed",
    /// The extents are noted as *sending*.
    SendNoted = "send.noted" is D,
    /// Header and descriptors stand in the slot.
    SendWritten = "send.written",
    /// The message is the receiver's: the commit point.
    SendPublished = "send.published",
    /// Our owner words are cleared.
    SendCleared = "send.cleared" is D,
    /// Our handles are forgotten, the message counted.
    SendGiven = "send.given",
    /// Who has to be woken is known.
    WakeFound = "wake.found",
    /// The system call that wakes has returned.
    WakeCalled = "wake.called",
    /// The caller has control again.
    SendReturned = "send.returned",
    /// A first look found nothing; what was read before is retired.
    ReceiveLooked = "receive.looked",
    /// Every sender can see that we are about to sleep.
    SleepArmed = "sleep.armed",
    /// The system call that sleeps has returned.
    SleepWoken = "sleep.woken",
    /// Awake, and no sender makes a system call for us any more.
    SleepDisarmed = "sleep.disarmed",
    /// A published message was seen.
    ReceiveSeen = "receive.seen",
    /// An extent's descriptor was checked by the receiver.
    ReceiveDescriptor = "receive.descriptor" is A,
    /// It is noted as ours.
    ReceiveHeld = "receive.held" is D,
    /// The header was read.
    ReceiveRead = "receive.read",
    /// The message is taken: the commit point.
    ReceiveTaken = "receive.taken",
    /// Its pages are open, if they were asked for at once.
    ReceiveOpened = "receive.opened",
    /// The caller has control again.
    ReceiveReturned = "receive.returned",
    /// The caller knows the address of the data.
    AccessFound = "access.found",
    /// Guarded: our handler has a touch of a closed page before it.
    FaultEntered = "fault.entered" is F,
    /// Guarded: the page is ours, and what is to be opened is known.
    FaultLooked = "fault.looked" is G,
    /// Guarded: it is open.
    FaultMapped = "fault.mapped" is H,
    /// The touch is done.
    AccessDone = "access.done" is I,
    /// Nothing lies before it but another point: a probe's own price.
    Empty = "empty",
}

/// A set of points.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Points(pub(super) u64);

impl Points {
    /// Every point.
    pub const ALL: Self = Self((1 << Point::ALL.len()) - 1);

    /// Whether `point` is one of them.
    #[inline]
    pub fn has(self, point: Point) -> bool {
        self.0 & (1 << point as u64) != 0
    }
}

impl FromIterator<Point> for Points {
    fn from_iter<I: IntoIterator<Item = Point>>(points: I) -> Self {
        let bits = points.into_iter().map(|point| 1 << point as u64);
        Self(bits.fold(0, |all, bit: u64| all | bit))
    }
}

const _: () = assert!(Point::ALL.len() < 64, "a set of points is a word");
