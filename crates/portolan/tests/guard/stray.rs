//! Tests that a process that touches an extent of another owner is reported, and dies.

use crate::child::{Child, unique};

/// A size of each part, and the signal that guards it.
const SIZES: [(usize, i32); 4] = [
    (4096, libc::SIGBUS),
    (1 << 20, libc::SIGBUS),
    (2 << 20, libc::SIGSEGV),
    (5 << 20, libc::SIGSEGV),
];

/// A receiver with a port, and a sender with a right on it.
fn pair(test: &str) -> (String, Child, Child) {
    let domain = unique(test);
    let mut receiver = Child::joined(&domain);
    receiver.ask("bind frames");
    let mut sender = Child::joined(&domain);
    sender.ask("connect frames");
    (domain, sender, receiver)
}

fn named(child: &mut Child) -> String {
    let space = child.number("space");
    format!("space {space} (process {}, \"victim\")", child.pid())
}

fn bytes(size: usize) -> String {
    let size = if size > 2 << 20 {
        size.next_multiple_of(2 << 20)
    } else {
        size
    };
    format!("({size} bytes)")
}

#[test]
fn of_the_former_sender() {
    for (size, signal) in SIZES {
        for access in ["now", "later"] {
            let (domain, mut sender, mut receiver) = pair("former");
            let address = sender.number(&format!("allocate {size} 7"));
            sender.ask("send 0");
            receiver.ask(&format!("receive {access}"));
            let end = sender.dies_of(&format!("poke {}", address + size - 1));
            let (owner, at) = (named(&mut receiver), format!("{:#x}", address + size - 1));
            end.expect(
                signal,
                &[
                    "stray write to ",
                    &at,
                    "the extent at page ",
                    &bytes(size),
                    &format!("is owned by {owner}; this space last sent it to port 0 (\"frames\") of {owner}"),
                    &domain,
                ],
            );
            // Unharmed.
            assert_eq!(receiver.ask("holds 7 0"), "true");
        }
    }
}

#[test]
fn while_the_message_is_on_its_way() {
    // The second with its descriptors in an extent of their own.
    for header in [0, 1000] {
        for (size, signal) in SIZES {
            let (domain, mut sender, mut receiver) = pair("transit");
            let mut third = Child::joined(&domain);
            let address = sender.number(&format!("allocate {size} 7"));
            sender.ask(&format!("send {header}"));
            let from = named(&mut sender);
            let to = named(&mut receiver);
            let way = format!("is in transit from {from} to port 0 (\"frames\") of {to}");
            for child in [&mut third, &mut sender] {
                let end = child.dies_of(&format!("peek {address}"));
                end.expect(signal, &["stray read of ", &bytes(size), &way]);
            }
            // Once the sender's record is gone, what stands in the slot itself is found.
            let mut late = Child::joined(&domain);
            let end = late.dies_of(&format!("peek {address}"));
            let way = format!("to port 0 (\"frames\") of {to}");
            end.expect(
                signal,
                &["is in transit", if header == 0 { &way } else { "" }],
            );
            // The sender is dead, and its message is not.
            receiver.ask("receive later");
            assert_eq!(receiver.ask(&format!("holds 7 {header}")), "true");
        }
    }
}

#[test]
fn of_third_members_however_early() {
    for (size, signal) in SIZES {
        let domain = unique("third");
        let mut owner = Child::joined(&domain);
        let mut before = Child::joined(&domain);
        let address = owner.number(&format!("allocate {size} 7"));
        let mut after = Child::joined(&domain);
        let owned = format!("is owned by {}\n", named(&mut owner));
        for child in [&mut before, &mut after] {
            let end = child.dies_of(&format!("poke {address}"));
            end.expect(signal, &["stray write to ", &bytes(size), &owned]);
        }
        assert_eq!(owner.number(&format!("peek {address}")), 7);
    }
}

#[test]
fn of_what_was_freed() {
    for (size, signal) in SIZES {
        let domain = unique("freed");
        let mut owner = Child::joined(&domain);
        let address = owner.number(&format!("allocate {size} 7"));
        owner.ask("free");
        let end = owner.dies_of(&format!("poke {address}"));
        end.expect(signal, &[&bytes(size), "is free"]);
    }
}

#[test]
fn where_no_extent_is() {
    let domain = unique("nothing");
    let mut member = Child::joined(&domain);
    let address = member.number("allocate 2097152 7");
    let end = member.dies_of(&format!("peek {}", address + (64 << 20)));
    end.expect(libc::SIGSEGV, &["no extent is there"]);
}

#[test]
fn by_a_system_call_is_an_error_only() {
    let (_domain, mut sender, _receiver) = pair("call");
    let small = sender.number("allocate 4096 7");
    let large = sender.number("allocate 2097152 7");
    for address in [small, large] {
        assert_eq!(sender.ask(&format!("write {address}")), "written");
    }
    sender.ask("send 0");
    let fault = format!("{:?}", Some(libc::EFAULT));
    for address in [small, large] {
        assert_eq!(sender.ask(&format!("write {address}")), fault);
    }
}

#[test]
fn by_a_forked_child_is_its_own_death() {
    let domain = unique("forked");
    let mut owner = Child::joined(&domain);
    for size in [4096, 2 << 20] {
        let address = owner.number(&format!("allocate {size} 7"));
        let signal = owner.number(&format!("fork peek {address}"));
        assert_eq!(i32::try_from(signal), Ok(libc::SIGSEGV));
        assert_eq!(owner.number(&format!("peek {address}")), 7);
    }
}

#[test]
fn may_be_taken_by_the_handler_that_was_there_before() {
    let domain = unique("before");
    let mut owner = Child::joined(&domain);
    let address = owner.number("allocate 4096 7");
    let mut stray = Child::new();
    stray.ask("strays park");
    stray.ask(&format!("join {domain}"));
    stray.tell(&format!("peek {address}"));
    assert!(stray.says().contains("stray read of "));
    // It neither answers nor dies: it is in that handler.
    std::thread::sleep(std::time::Duration::from_millis(50));
    assert!(!stray.ended());
    stray.kill();
}
