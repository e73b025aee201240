//! Probes cut a message's way into segments, to time each.
//!
//! With the feature `probes` the library notes the time at named points of a send, a
//! receive, a wake, and the answer to a fault; without it the macro is nothing at all.
//! A *segment* is what lies between two points that are on and passed one after the
//! other, and it is named after the one that ends it.
//!
//! ```text
//!   begin()      SendCalled   SendDescriptor   SendOwner      ...     collect()
//! -----+--------------+-------------+--------------+---------------------+----
//!      |  SendCalled  | SendDescr.  |  SendOwner   |                     |
//! ```
//!
//! This is a way of its own beside the marks of the torture run. A mark stands where a
//! death makes a difference, and has a name that is looked up; a probe stands where time
//! is worth telling apart, in a signal handler too, and may cost no more than reading the
//! clock. Where both are called for, both stand.
//!
//! Compiled in, every point is off, for every thread, until that thread says
//! `turn_on`: two instructions each.
//!
//! # Invariants
//!
//! - **T1** The times of the segments between `begin` and the last point passed add up to
//!   what lies between these two, whichever points are on and however often each is passed.
//! - **T2** A point passed in a signal handler counts for the thread that was interrupted;
//!   no point is passed while the same thread is at work on another.

#[cfg(feature = "probes")]
mod clock;
#[cfg(feature = "probes")]
mod point;

#[cfg(feature = "probes")]
pub use clock::{Collected, begin, collect, pass, price, turn_off, turn_on};
#[cfg(feature = "probes")]
pub use point::{Letter, Point, Points};

/// Whether this build has probes in it.
pub const COMPILED: bool = cfg!(feature = "probes");

/// Passes a point, if probes are compiled in and this one is on.
macro_rules! probe {
    ($point:ident) => {{
        #[cfg(feature = "probes")]
        $crate::probes::pass($crate::probes::Point::$point);
    }};
}

#[cfg(all(test, not(feature = "probes")))]
mod tests {
    /// Only what does nothing at run time may stand here.
    const NOTHING: () = probe!(SendCalled);

    #[test]
    fn without_the_feature_a_probe_is_nothing() {
        const { assert!(!super::COMPILED) };
        let () = NOTHING;
    }
}
