//! Lists mutants of entries of spaces, names, watches and events: A1 to A4 of `shm/space`, N1 and N3
//! of `shm/names`, N1 of `shm/watch`, L1 to L3 of `shm/lent`, E1 of `shm/queue/events`, U1 and U2 of `shm/queue_memory`, and of the
//! addresses of domains.

use super::{Mutant, Test, library, model};

const SPACE: &str = "crates/shm/src/space.rs";
const NAMES: &str = "crates/shm/src/names.rs";
const EVENTS: &str = "crates/shm/src/queue/events.rs";
const QUEUE_MEMORY: &str = "crates/shm/src/queue_memory.rs";
const ADDRESSES: &str = "crates/portolan/src/hosting/addresses.rs";
const LENT: &str = "crates/shm/src/lent.rs";
const LOOK: &str = "crates/portolan/src/port/receive/look.rs";

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "space-any-incarnation",
        breaks: "A3: a step of an earlier admission changes a later space",
        file: SPACE,
        find: ".filter(|s| s.incarnation == incarnation)",
        replace: ".filter(|_| incarnation != u32::MAX)",
        found_by: Test::Beside {
            folder: "shm",
            file: "src/space.rs",
            name: "space::tests::a_step_of_an_earlier_admission_fails",
        },
    },
    Mutant {
        name: "space-any-claimer",
        breaks: "A2: what a living space has claimed is freed",
        file: SPACE,
        find: "(s.phase == SpacePhase::Claimed && s.claimer == claimer).then_some(SpaceStatus {
            phase: SpacePhase::Free,",
        replace: "(s.phase == SpacePhase::Claimed).then_some(SpaceStatus {
            phase: SpacePhase::Free,",
        found_by: Test::Beside {
            folder: "shm",
            file: "src/space.rs",
            name: "space::tests::only_what_the_dead_space_has_claimed_is_freed",
        },
    },
    Mutant {
        name: "names-won-unasked",
        breaks: "N1: a candidate whose candidacy was taken away wins",
        file: NAMES,
        find: "won.map(drop).map_err(|_| Lost::Again)",
        replace: "won.map(drop).or(Ok(()))",
        found_by: model("loom_names", "of_two_one_gets_the_name"),
    },
    Mutant {
        name: "names-both-stronger",
        breaks: "N1: of two candidates each takes the other one's candidacy away and wins",
        file: NAMES,
        find: "if taken_away.is_ok() {
        None
    } else {
        Some(false)
    }",
        replace: "let _ = taken_away;
    None",
        found_by: model("loom_names", "of_two_one_gets_the_name"),
    },
    Mutant {
        name: "watch-any-taking",
        breaks: "N1: who was about to fire a watch fires a later one of its entry",
        file: "crates/shm/src/watch.rs",
        find: "takes: was.takes.wrapping_add(1) & (u64::MAX >> 16),",
        replace: "takes: was.takes,",
        found_by: model("loom_rights", "a_watch_is_not_fired_for_an_earlier_one"),
    },
    Mutant {
        name: "lent-looked-at-before",
        breaks: "L1: of a node that lends and a space that closes neither sees the other",
        file: LENT,
        find: "        let (leaf, bit) = place(index);
        store_load_barrier();
        self.lent[leaf].load(Ordering::SeqCst) & bit != 0",
        replace: "        let (leaf, bit) = place(index);
        self.lent[leaf].load(Ordering::SeqCst) & bit != 0",
        found_by: model(
            "loom_lent",
            "a_port_that_closes_while_it_is_lent_is_told_of",
        ),
    },
    Mutant {
        name: "lent-any-generation",
        breaks: "L2: the close of a port is hidden by the next one of its entry",
        file: LENT,
        find: "if !lives || status.generation != port.generation {",
        replace: "if !lives {",
        found_by: model(
            "loom_lent",
            "the_next_port_of_an_entry_is_not_taken_for_the_closed_one",
        ),
    },
    Mutant {
        name: "lent-from-above",
        breaks: "L3: a change that is told while the node takes others is lost",
        file: LENT,
        find: "        self.changed[leaf].fetch_or(bit, Ordering::AcqRel);
        crate::mark!(\"lent.changing\");
        self.summary[leaf / 64].fetch_or(1 << (leaf % 64), Ordering::SeqCst);
",
        replace: "        self.summary[leaf / 64].fetch_or(1 << (leaf % 64), Ordering::SeqCst);
        crate::mark!(\"lent.changing\");
        self.changed[leaf].fetch_or(bit, Ordering::AcqRel);
",
        found_by: model(
            "loom_lent",
            "changes_beside_a_look_are_found_by_it_or_by_the_next",
        ),
    },
    Mutant {
        name: "lent-untold-at-a-close",
        breaks: "a node is not told of a lent port that closes",
        file: "crates/portolan/src/port/close.rs",
        find: "    lent::tell(member, index);
",
        replace: "",
        found_by: library(
            "spanning",
            "lent::a_node_is_told_of_the_ports_that_change_and_of_no_others",
        ),
    },
    Mutant {
        name: "events-any-generation",
        breaks: "E1: a port is told of what an earlier one of its entry was told of",
        file: EVENTS,
        find: "while event::is_of(was, generation) {",
        replace: "while event::is_of(was, generation) || event != 0 {",
        found_by: model("loom_rights", "an_event_is_told_to_its_port_or_to_none"),
    },
    Mutant {
        name: "events-not-looked-at-again",
        breaks: "a receiver is told that no sender is left, and there is one again",
        file: LOOK,
        find: "if !asked || !senders::is_unused(member, port) {",
        replace: "if !asked {",
        found_by: library(
            "rights",
            "a_notice_does_not_come_if_there_is_a_sender_again",
        ),
    },
    Mutant {
        name: "cycle-held-beyond-closed",
        breaks: "Y2: a port that a process beyond the domain may receive from is closed",
        file: "crates/portolan/src/port/unreachable.rs",
        find: "    status & BEYOND != 0",
        replace: "    status & BEYOND == u64::MAX",
        found_by: Test::Beside {
            folder: "portolan",
            file: "src/port/unreachable.rs",
            name: "port::unreachable::tests::what_a_process_beyond_the_domain_may_receive_from_is_not_closed",
        },
    },
    Mutant {
        name: "raw-any-membership",
        breaks: "memory of one domain is adopted in another one",
        file: "crates/portolan/src/space/extent/mod.rs",
        find: "if raw.membership != member.number || ",
        replace: "if ",
        found_by: library(
            "raw",
            "a_raw_handle_of_the_same_place_in_another_domain_is_refused",
        ),
    },
    Mutant {
        name: "supply-noted-behind",
        breaks: "C4: a space that dies while it gives memory back leaves a hole under what is said to have memory",
        file: "crates/portolan/src/space/extent/supply.rs",
        find: "sabotage::holds(\"holes\").then(|| chunks.note_empty(index));",
        replace: "sabotage::holds(\"no rule\").then(|| chunks.read(index)).filter(|_| false);",
        found_by: library(
            "supply",
            "who_dies_while_memory_is_given_back_leaves_no_hole",
        ),
    },
    Mutant {
        name: "wakes-given-up-receive-armed",
        breaks: "a sender's wake goes to an async receive that was given up",
        file: "crates/portolan/src/port/receive/mod.rs",
        find: "    pub(crate) fn hush(&mut self) {
        #[cfg(feature = \"tokio\")]
        if let Some(bell) = &mut self.bell {
            bell.disarm();",
        replace: "    pub(crate) fn hush(&mut self) {
        #[cfg(feature = \"tokio\")]
        if let Some(bell) = &mut self.bell {
            let _ = bell;",
        found_by: library(
            "wakes",
            "given_up::a_blocking_receive_after_an_async_one_that_was_given_up",
        ),
    },
    Mutant {
        name: "banks-taken-by-store",
        breaks: "U1: two ports have one bank of queue memory",
        file: QUEUE_MEMORY,
        find: "word.compare_exchange(0, owner.0, Ordering::AcqRel, Ordering::Relaxed)
                    .is_ok()",
        replace: "let was = word.load(Ordering::Acquire);
                word.store(owner.0, Ordering::Release);
                was == 0",
        found_by: model("loom_queue_memory", "no_bank_has_two_owners"),
    },
    Mutant {
        name: "banks-named-behind",
        breaks: "U2: who dies between taking a bank and naming it leaves it taken for ever",
        file: QUEUE_MEMORY,
        find: "            name(bank);
            mark!(\"banks.named\");
            if self.claim(owner, first, count) {",
        replace: "            mark!(\"banks.named\");
            if self.claim(owner, first, count) {
                name(bank);",
        found_by: model("loom_queue_memory", "a_binder_dies"),
    },
    Mutant {
        name: "addresses-unreserved",
        breaks: "a domain is created where another domain of the machine lies",
        file: ADDRESSES,
        find: "names.iter().filter_map(|name| reserved_range(name))",
        replace: "names.iter().take(0).filter_map(|name| reserved_range(name))",
        found_by: library(
            "domain",
            "join::domains_of_one_machine_do_not_overlap_so_a_process_can_join_them_all",
        ),
    },
    Mutant {
        name: "addresses-with-the-creator",
        breaks: "a reservation ends with the domain's creator",
        file: "crates/portolan/src/hosting/rendezvous.rs",
        find: "Ok(Region::new(fd, mapping, geometry, reservation))",
        replace: "drop(reservation);
    Ok(Region::new(fd, mapping, geometry, socket::unbound().map_err(JoinError::socket)?))",
        found_by: library(
            "domain",
            "join::domains_of_one_machine_do_not_overlap_so_a_process_can_join_them_all",
        ),
    },
];
