//! Converts deadlines into the forms that system calls take.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, Timespec, clock_gettime};

/// `deadline` on the monotonic clock, for calls that take an absolute time.
///
/// An [`Instant`] is a monotonic time but does not show its value, so we add what is
/// left of it to the clock. A deadline too far away to express never comes.
pub(crate) fn absolute(deadline: Instant) -> Option<Timespec> {
    let now = clock_gettime(ClockId::Monotonic);
    let left = Timespec::try_from(remaining(deadline)).ok()?;
    now.checked_add(left)
}

/// What is left until `deadline`; zero once it has passed.
pub(crate) fn remaining(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

/// The timeout of a call that takes a relative time; `None` waits for ever.
pub(crate) fn relative(deadline: Option<Instant>) -> Option<Timespec> {
    deadline.and_then(|deadline| Timespec::try_from(remaining(deadline)).ok())
}
