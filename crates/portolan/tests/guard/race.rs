//! No receive returns before the sender's access has ended, in every thread of it.

use crate::child::{Child, unique};

#[test]
fn nothing_changes_after_a_receive_with_0_1_and_7_busy_siblings() {
    for siblings in [0, 1, 7] {
        let domain = unique("race");
        let mut receiver = Child::joined(&domain);
        receiver.ask("bind frames");
        let mut sender = Child::new();
        // So that the sender lives on: its siblings end in this handler.
        sender.ask("strays park");
        sender.ask(&format!("join {domain}"));
        sender.ask("connect frames");
        sender.tell(&format!("race {siblings} 20"));
        assert_eq!(receiver.ask("watch 20"), "20 rounds", "{siblings} siblings");
        assert_eq!(sender.answer(), "done");
    }
}

#[test]
fn siblings_that_write_on_are_reported_and_die() {
    for siblings in [1, 7] {
        let domain = unique("siblings");
        let mut receiver = Child::joined(&domain);
        receiver.ask("bind frames");
        receiver.tell("watch 1");
        let mut sender = Child::joined(&domain);
        sender.ask("connect frames");
        // Its siblings may be the death of it before the message is out.
        sender.tell(&format!("race {siblings} 1"));
        let end = sender.end();
        end.expect(libc::SIGBUS, &["stray write to ", "(4096 bytes)"]);
        drop(sender);
        receiver.tell("space");
        receiver.kill();
    }
}
