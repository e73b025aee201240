//! A thread's stop watch notes the points that it passes, and how long each segment took.

use super::point::{Point, Points};
use portolan_sys::ticks;
use std::cell::Cell;

const POINTS: usize = Point::ALL.len();

/// One for each thread: nothing is shared, nothing allocated, nothing is set up at first
/// use, so the fault handler may use it too (T2).
struct Watch {
    on: Cell<u64>,
    /// When the last point that is on was passed.
    last: Cell<u64>,
    begun: Cell<u64>,
    segments: [Cell<u64>; POINTS],
    at: [Cell<u64>; POINTS],
    passes: [Cell<u32>; POINTS],
}

thread_local! {
    static WATCH: Watch = const {
        Watch {
            on: Cell::new(0),
            last: Cell::new(0),
            begun: Cell::new(0),
            segments: [const { Cell::new(0) }; POINTS],
            at: [const { Cell::new(0) }; POINTS],
            passes: [const { Cell::new(0) }; POINTS],
        }
    };
}

/// What a thread has passed since [`begin`]. Times are ticks of [`portolan_sys::ticks`],
/// with the probes' own price ([`price`]) still in them.
#[derive(Clone, Copy, Debug)]
pub struct Collected {
    segments: [u64; POINTS],
    at: [u64; POINTS],
    passes: [u32; POINTS],
    /// When it began.
    pub begun: u64,
    /// When the last point was passed.
    pub ended: u64,
}

impl Collected {
    /// Ticks spent in the segments that end at `point`, all together.
    #[inline]
    pub fn ticks(&self, point: Point) -> u64 {
        self.segments[point as usize]
    }

    /// When `point` was passed last, on the counter that all processors share; an old time
    /// if it was not.
    #[inline]
    pub fn at(&self, point: Point) -> u64 {
        self.at[point as usize]
    }

    /// How often `point` was passed.
    #[inline]
    pub fn passes(&self, point: Point) -> u32 {
        self.passes[point as usize]
    }
}

/// Turns points on in this thread, and all others off. What was collected is forgotten.
pub fn turn_on(points: Points) {
    WATCH.with(|watch| watch.on.set(points.0));
    begin();
}

/// Turns all points of this thread off.
pub fn turn_off() {
    turn_on(Points::default());
}

/// Begins anew: the next point ends a segment that begins here.
pub fn begin() {
    WATCH.with(|watch| {
        watch.segments.iter().for_each(|segment| segment.set(0));
        watch.passes.iter().for_each(|passes| passes.set(0));
        let now = ticks::now();
        watch.begun.set(now);
        watch.last.set(now);
    });
}

/// Passes a point: the library at its own, the caller at what lies around a call
/// ([`Point::SendReturned`] and others). Async-signal-safe.
#[inline(always)]
pub fn pass(point: Point) {
    WATCH.with(|watch| {
        if watch.on.get() & (1 << point as u64) != 0 {
            watch.pass(point);
        }
    });
}

impl Watch {
    #[inline(never)]
    fn pass(&self, point: Point) {
        let now = ticks::now();
        let (segment, passes) = (&self.segments[point as usize], &self.passes[point as usize]);
        // Another processor's counter may lie behind, by less than a segment is worth.
        segment.set(segment.get() + now.saturating_sub(self.last.get()));
        passes.set(passes.get() + 1);
        self.at[point as usize].set(now);
        self.last.set(now);
    }
}

/// What this thread has passed since [`begin`], which is left as it is.
#[inline]
pub fn collect() -> Collected {
    WATCH.with(|watch| Collected {
        segments: std::array::from_fn(|i| watch.segments[i].get()),
        at: std::array::from_fn(|i| watch.at[i].get()),
        passes: std::array::from_fn(|i| watch.passes[i].get()),
        begun: watch.begun.get(),
        ended: watch.last.get(),
    })
}

/// What a probe adds to the segment that it ends: the mean, in ticks, over `rounds` of a
/// segment with nothing in it. Turns all other points off.
pub fn price(rounds: u32) -> f64 {
    turn_on([Point::Empty].into_iter().collect());
    for _ in 0..rounds {
        pass(Point::Empty);
    }
    let collected = collect();
    turn_off();
    collected.ticks(Point::Empty) as f64 / f64::from(collected.passes(Point::Empty).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_add_up_to_the_whole() {
        turn_on(Points::ALL);
        for point in [Point::SendCalled, Point::SendOwner, Point::SendOwner] {
            pass(point);
        }
        pass(Point::AccessDone);
        let collected = collect();
        let sum: u64 = Point::ALL.iter().map(|point| collected.ticks(*point)).sum();
        assert_eq!(sum, collected.ended - collected.begun);
        assert_eq!(collected.at(Point::AccessDone), collected.ended);
        assert_eq!(collected.passes(Point::SendOwner), 2);
        assert_eq!(collected.passes(Point::SendClaimed), 0);
        turn_off();
    }

    #[test]
    fn points_are_off_until_the_thread_turns_them_on() {
        pass(Point::SendCalled);
        assert_eq!(collect().passes(Point::SendCalled), 0);
        turn_on([Point::SendOwner].into_iter().collect());
        pass(Point::SendCalled);
        pass(Point::SendOwner);
        std::thread::spawn(|| pass(Point::SendOwner))
            .join()
            .unwrap();
        let collected = collect();
        assert_eq!(collected.passes(Point::SendCalled), 0);
        assert_eq!(collected.passes(Point::SendOwner), 1);
        turn_off();
        assert_eq!(collect().passes(Point::SendOwner), 0);
    }

    #[test]
    fn a_probe_has_a_price() {
        assert!(price(10_000) > 0.0);
    }
}
