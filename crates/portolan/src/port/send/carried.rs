//! What changes owner with a message, and what our row says of it at each step of the send.

use crate::Extent;
use crate::port::Right;
use crate::port::message::Message;
use crate::space::Member;
use portolan_abi::owner::{Descriptor, Destination};
use portolan_shm::mark;
use portolan_shm::owner::{Held, OwnerRow};

/// What changes owner with a message. One type for each kind of message, so that the usual ones
/// pay for nothing that they do not carry.
pub(super) trait Carried: Copy {
    /// Notes, before the message is published, that it goes `to` a slot that we have claimed.
    fn leave(self, member: &Member, to: Destination);
    /// Notes that it is no longer ours: it was published there.
    fn has_left(self, to: Destination);
    /// Notes that it is ours after all: it was not published.
    fn stay(self, member: &Member);
}

/// A header carries nothing.
impl Carried for () {
    #[inline(always)]
    fn leave(self, _: &Member, _: Destination) {}

    #[inline(always)]
    fn has_left(self, _: Destination) {}

    fn stay(self, _: &Member) {}
}

/// One extent, which was found to be ours.
impl Carried for Held<'_> {
    #[inline(always)]
    fn leave(self, _: &Member, to: Destination) {
        self.sending(to);
        mark!("send.noted");
    }

    #[inline(always)]
    fn has_left(self, to: Destination) {
        self.sent(to);
    }

    fn stay(self, _: &Member) {
        self.hold();
    }
}

/// Anything.
#[derive(Clone, Copy)]
pub(super) struct Any<'m> {
    /// Our owner words, if there is anything.
    row: Option<OwnerRow<'m>>,
    extents: &'m [Extent],
    /// The extent in which a long header lies.
    page: Option<&'m Extent>,
    rights: &'m [Right],
}

impl<'m> Any<'m> {
    pub(super) fn of(member: &'m Member, message: &'m Message) -> Self {
        let (page, rights) = (message.page(), message.rights());
        let anything = !message.extents.is_empty() || page.is_some() || !rights.is_empty();
        Self {
            row: anything.then(|| member.row()),
            extents: &message.extents,
            page,
            rights,
        }
    }

    /// Notes of each extent what happens to it.
    // Loops and no iterator's methods, which the compiler leaves out of line.
    #[inline(always)]
    fn note(&self, mut note: impl FnMut(&OwnerRow<'_>, &Descriptor)) {
        let Some(row) = &self.row else { return };
        for extent in self.extents {
            note(row, &extent.descriptor());
        }
        if let Some(page) = self.page {
            note(row, &page.descriptor());
        }
    }
}

impl Carried for Any<'_> {
    #[inline(always)]
    fn leave(self, member: &Member, to: Destination) {
        if self.row.is_some() {
            self.note(|row, d| row.sending(d.page, d.generation, to));
            mark!("send.noted");
            if !self.rights.is_empty() {
                Right::leave(member, self.rights, to);
            }
        }
    }

    #[inline(always)]
    fn has_left(self, to: Destination) {
        self.note(|row, d| row.sent(d.page, d.generation, to));
    }

    fn stay(self, member: &Member) {
        self.note(|row, d| {
            let _ = row.hold(d.page, d.generation);
        });
        Right::stay(member, self.rights);
    }
}
