//! Memory that nobody uses goes back to the system: a node may be a domain's only member for a long time,
//! and no program is there that calls [`Domain::trim`](portolan::Domain::trim).
//!
//! An engine that has carried nothing for a minute looks at the domains that its process hosts, once a
//! minute. Where nothing has changed since the last look, a turn trims a bounded amount, and the next
//! turn goes on.

use std::time::Duration;

use super::Engine;
use super::spans::Span;

/// Between two looks.
const LOOK: Duration = Duration::from_secs(60);
/// Between two turns that trim: the engine does what else there is.
const PAUSE: Duration = Duration::from_millis(10);
/// Bytes that one turn trims in one domain, at most: some milliseconds.
const TURN: u64 = 16 << 20;

/// What is compared with the last look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    /// Messages to and from other nodes.
    carried: u64,
    /// Bytes that the domain has taken from the system, and those that are in use: an engine that is busy
    /// does not ask.
    memory: Option<(u64, u64)>,
}

impl Engine {
    /// Trims, if it is time for it.
    pub(super) fn trim(&mut self) {
        let now = self.machine.now;
        if now < self.trims_at {
            return;
        }
        let carried = self.machine.sent + self.machine.delivered;
        let spans = self.machine.spans.values_mut();
        // Each of them, and not the first that has more.
        let more = spans.filter(|span| span.domain.is_host());
        let more = more.map(|span| span.trim(carried)).filter(|more| *more);
        let goes_on = more.count() > 0;
        self.trims_at = now + if goes_on { PAUSE } else { LOOK };
    }

    /// When it is time to trim, if there is a domain.
    pub(super) fn trims_at(&self) -> Option<Duration> {
        (!self.machine.spans.is_empty()).then_some(self.trims_at)
    }
}

impl Span {
    /// Trims, if nothing has changed since this was called last; whether there may be more.
    fn trim(&mut self, carried: u64) -> bool {
        let look = || {
            let memory = self.domain.survey().ok()?.memory;
            Some((memory.taken, memory.used))
        };
        let before = self.seen;
        let is_busy = before.is_none_or(|before| before.carried != carried);
        let memory = if is_busy { None } else { look() };
        let is_idle = memory.is_some() && before.is_some_and(|before| before.memory == memory);
        let given = match is_idle {
            true => self.domain.trim_at_most(TURN).unwrap_or(0),
            false => 0,
        };
        let memory = if given > 0 { look() } else { memory };
        self.seen = Some(Seen { carried, memory });
        given >= TURN
    }
}

#[cfg(test)]
mod tests {
    use portolan::Domain;
    use portolan_abi::node::NodeId;
    use portolan_proto::node::Settings;
    use portolan_testkit::{unique, until};

    use super::*;
    use crate::config;

    /// More than two turns' worth.
    const MUCH: usize = 40 << 20;

    #[test]
    fn an_idle_node_gives_back_the_memory_of_the_domains_that_it_hosts_bit_by_bit() {
        let settings = Settings::new(NodeId([1; 16]), 1, [7; 16]);
        let mut engine = Engine::new(settings, "hall").unwrap();
        let local = unique("trims");
        let span = config::Span {
            domain: "all".to_owned(),
            local: local.clone(),
            nodes: vec!["*".to_owned()],
            ports: Vec::new(),
        };
        let domain = Domain::builder(&local).always_open().join().unwrap();
        engine.span(span, domain.clone()).unwrap();
        until("the node hosts it", || domain.is_host());
        let taken = || domain.survey().unwrap().memory.taken;
        let mut now = LOOK;
        let mut kept = domain.allocate(4096).unwrap();
        kept.fill(7);
        drop(domain.allocate(MUCH).unwrap());
        assert!(taken() >= MUCH as u64);
        // The first looks know nothing of the time before; and then somebody has used some.
        engine.step(now);
        now += LOOK;
        engine.step(now);
        drop(domain.allocate(2 * MUCH).unwrap());
        let before_all = taken();
        now += LOOK;
        engine.step(now);
        assert_eq!(taken(), before_all);
        now += LOOK;
        let mut last = before_all;
        while last > MUCH as u64 {
            engine.step(now);
            assert_eq!(taken(), last - TURN, "one turn's worth");
            last = taken();
            engine.step(now);
            assert_eq!(taken(), last, "no more than that at once");
            assert!(engine.wake_at().is_some_and(|at| at <= now + PAUSE));
            now += PAUSE;
        }
        // What is used again is left alone.
        let again = domain.allocate(4 << 20).unwrap();
        let with = taken();
        engine.step(now);
        assert_eq!(taken(), with);
        drop(again);
        for _ in 0..10 {
            now += LOOK;
            engine.step(now);
        }
        assert!(taken() <= 4 << 20, "{}", taken());
        assert!(kept.iter().all(|byte| *byte == 7));
    }
}
