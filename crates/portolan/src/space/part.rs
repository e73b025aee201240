//! Rooms above this one keep parts with a membership: each one part, of a type of its own.
//!
//! A part is made at its first use, and goes with the membership. Parts are told
//! that the process wants to leave, and are dropped, in the order in which they were made.

use super::member::Member;
use std::any::{Any, TypeId};
use std::sync::OnceLock;

/// Something that a membership has one of.
pub(crate) trait Part: Any + Default + Send + Sync {
    /// The process wants to leave, and waits for threads that are ending: ends what no other thread
    /// needs any more. May be called again and again.
    fn leaving(&self, member: &Member) {
        let _ = member;
    }
}

/// The parts of a membership.
#[derive(Default)]
pub(crate) struct Parts {
    first: OnceLock<Box<Held>>,
}

/// One of them, and those that were made later.
struct Held {
    kind: TypeId,
    part: Box<dyn Any + Send + Sync>,
    leaving: fn(&(dyn Any + Send + Sync), &Member),
    next: Parts,
}

impl Parts {
    /// The part of this type, which is made if there is none. Not in a signal handler.
    // Out of line: code on the way of a message asks for a part in rare cases only.
    #[cold]
    #[inline(never)]
    pub(crate) fn part<P: Part>(&self) -> &P {
        let mut place = self;
        loop {
            // Another thread may be first, with its own: then the next place is looked at.
            let held = place.first.get_or_init(|| Held::new::<P>());
            if let Some(part) = held.part::<P>() {
                return part;
            }
            place = &held.next;
        }
    }

    /// The part of this type, if it was made. Async-signal-safe.
    pub(crate) fn made<P: Part>(&self) -> Option<&P> {
        self.all().find_map(Held::part)
    }

    /// Tells all of them that the process wants to leave.
    pub(super) fn leaving(&self, member: &Member) {
        for held in self.all() {
            (held.leaving)(&*held.part, member);
        }
    }

    fn all(&self) -> impl Iterator<Item = &Held> {
        let first = self.first.get();
        std::iter::successors(first, |held| held.next.first.get()).map(|held| &**held)
    }
}

impl Held {
    fn new<P: Part>() -> Box<Self> {
        Box::new(Self {
            kind: TypeId::of::<P>(),
            part: Box::new(P::default()),
            leaving: |part, member| {
                if let Some(part) = part.downcast_ref::<P>() {
                    part.leaving(member);
                }
            },
            next: Parts::default(),
        })
    }

    fn part<P: Part>(&self) -> Option<&P> {
        // Asked first, so that nothing is called for those of other types.
        if self.kind == TypeId::of::<P>() {
            self.part.downcast_ref()
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Domain;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[derive(Default)]
    struct Counter(AtomicUsize);

    impl Part for Counter {
        fn leaving(&self, _: &Member) {
            self.0.fetch_add(100, Ordering::Relaxed);
        }
    }

    #[derive(Default)]
    struct Other;

    impl Part for Other {}

    #[test]
    fn threads_that_ask_at_once_get_the_same_part() {
        let parts = Parts::default();
        let all = Barrier::new(8);
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let (parts, all) = (&parts, &all);
                scope.spawn(move || {
                    all.wait();
                    if thread % 2 == 0 {
                        let _: &Other = parts.part();
                    }
                    let counter: &Counter = parts.part();
                    counter.0.fetch_add(1, Ordering::Relaxed);
                });
            }
        });
        let counter: Option<&Counter> = parts.made();
        assert_eq!(counter.unwrap().0.load(Ordering::Relaxed), 8);
        assert_eq!(parts.all().count(), 2);
    }

    #[test]
    fn parts_are_told_of_leaving_and_what_was_not_asked_for_is_not_made() {
        let domain = Domain::private().unwrap();
        let parts = Parts::default();
        assert!(parts.made::<Counter>().is_none());
        let counter: &Counter = parts.part();
        parts.leaving(domain.member());
        assert_eq!(counter.0.load(Ordering::Relaxed), 100);
        assert!(parts.made::<Other>().is_none());
    }
}
