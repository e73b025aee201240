//! Who may not join, and is told why.

use crate::child::{Child, PATIENCE, unique};
use crate::takeover::half_join;
use portolan::{Domain, JoinError};
use portolan_abi::hello::{Answer, Hello, Reason, socket_name};
use portolan_abi::region::{BASE_HIGHEST, BASE_LOWEST};
use portolan_sys::socket::{self, Address};
use std::time::{Duration, Instant};

/// Users that no other test is.
const STRANGER: u32 = 54_321;
const FRIEND: u32 = 54_322;

fn is_root() -> bool {
    portolan_sys::process::user() == 0
}

#[test]
fn names_that_are_none() {
    for name in ["", "a/b", "a\0b", &"x".repeat(81)] {
        let refused = Domain::join(name).unwrap_err();
        assert!(matches!(refused, JoinError::BadName { .. }), "{refused}");
    }
    assert!(matches!(
        Domain::builder("x").size(0).join(),
        Err(JoinError::BadSize { size: 0 })
    ));
}

#[test]
fn another_user_needs_permission() {
    if !is_root() {
        return;
    }
    let name = unique("users");
    let mut host = Child::new();
    assert_eq!(host.ask(&format!("join {name} allow={FRIEND}")), "space 1");
    let mut friend = Child::of_user(FRIEND);
    assert_eq!(friend.ask(&format!("join {name} of=0")), "space 2");
    let mut stranger = Child::of_user(STRANGER);
    let answer = stranger.ask(&format!("join {name} of=0"));
    let expected = format!("NotPermitted {{ user: {STRANGER}, owner: 0 }}");
    assert!(answer.starts_with(&expected), "{answer}");
    // A domain of the same name is another one for another user.
    assert_eq!(stranger.ask(&format!("join {name}")), "space 1");
    // The friend hosts now, and the rules are the creator's still.
    host.kill();
    let mut second = Child::of_user(STRANGER);
    assert!(
        second
            .ask(&format!("join {name} of=0"))
            .starts_with("NotPermitted")
    );
    let mut owner = Child::joined(&name);
    assert_eq!(owner.space(), 1);
}

#[test]
fn another_user_joins_at_a_socket_in_a_directory() {
    if !is_root() {
        return;
    }
    let name = unique("users-path");
    let directory = std::env::temp_dir().join(&name);
    std::fs::create_dir(&directory).unwrap();
    let path = directory.display();
    let mut host = Child::new();
    let order = format!("join {name} path={path} allow={FRIEND}");
    assert_eq!(host.ask(&order), "space 1");
    let order = format!("join {name} path={path} of=0");
    assert_eq!(Child::of_user(FRIEND).ask(&order), "space 2");
    let answer = Child::of_user(STRANGER).ask(&order);
    assert!(answer.starts_with("NotPermitted"), "{answer}");
    assert_eq!(host.ask("leave"), "Ok(())");
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn a_group_may_be_permitted() {
    if !is_root() {
        return;
    }
    let name = unique("groups");
    let mut host = Child::new();
    assert_eq!(
        host.ask(&format!("join {name} allow-group={FRIEND}")),
        "space 1"
    );
    assert_eq!(
        Child::of_user(FRIEND).ask(&format!("join {name} of=0")),
        "space 2"
    );
}

#[test]
fn the_overflow_user_matches_no_permission() {
    if !is_root() {
        return;
    }
    let name = unique("nobody");
    let mut host = Child::new();
    assert_eq!(host.ask(&format!("join {name} allow=65534")), "space 1");
    let answer = Child::of_user(65_534).ask(&format!("join {name} of=0"));
    assert!(answer.starts_with("NotPermitted"), "{answer}");
}

#[test]
fn a_domain_that_is_to_be_found_is_not_created() {
    let name = unique("found");
    let directory = std::env::temp_dir().join(&name);
    std::fs::create_dir(&directory).unwrap();
    let at = |path: bool| match path {
        true => Domain::builder(&name).path(&directory),
        false => Domain::builder(&name),
    };
    for path in [false, true] {
        // However short its deadline is; and twice, since the first has left nothing.
        for deadline in [PATIENCE, Duration::ZERO] {
            let refused = at(path).create(false).deadline(deadline).join();
            let refused = refused.unwrap_err();
            assert!(matches!(refused, JoinError::NotRunning { .. }), "{refused}");
            assert!(refused.to_string().contains(&name), "{refused}");
        }
        let mut host = Child::new();
        let order = match path {
            true => format!("join {name} path={}", directory.display()),
            false => format!("join {name}"),
        };
        assert_eq!(host.ask(&order), "space 1");
        let found = at(path).create(false).deadline(PATIENCE).join().unwrap();
        assert_eq!(found.space(), 2);
    }
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn another_users_domain_is_not_created_for_it() {
    let name = unique("absent");
    let absent = Domain::builder(&name)
        .of_user(STRANGER)
        .deadline(std::time::Duration::from_millis(50))
        .join();
    assert!(
        matches!(
            absent,
            Err(JoinError::Absent {
                owner: STRANGER,
                ..
            })
        ),
        "{absent:?}"
    );
}

#[test]
fn a_socket_of_somebody_elses_is_not_believed() {
    let name = unique("impostor");
    let address = socket_name(STRANGER, &name).unwrap();
    let _listener = socket::listen(&Address::Abstract(address.into_bytes()), 8).unwrap();
    let refused = Domain::builder(&name).of_user(STRANGER).join().unwrap_err();
    let us = portolan_sys::process::user();
    assert!(
        matches!(refused, JoinError::Impostor { owner: STRANGER, found, .. } if found == us),
        "{refused}"
    );
}

#[test]
fn another_format_is_refused_by_number() {
    let name = unique("version");
    let _host = Child::joined(&name);
    let address = socket_name(portolan_sys::process::user(), &name).unwrap();
    let connection = socket::connect(&Address::Abstract(address.into_bytes())).unwrap();
    let mut hello = Hello { name: [0; 64] }.encode();
    hello[4..8].copy_from_slice(&99_u32.to_le_bytes());
    // A later version's record may be longer or shorter; its first eight bytes are these.
    socket::send(&connection, &hello[..20], &[]).unwrap();
    let mut buffer = [0; 64];
    let received =
        socket::receive_by(&connection, &mut buffer, 0, Some(Instant::now() + PATIENCE)).unwrap();
    let answer = Answer::decode(&buffer[..received.len]);
    assert!(
        matches!(answer, Ok(Answer::Refused(r)) if r.why == Reason::Version && r.value == 99 && r.version == portolan_abi::FORMAT_VERSION),
        "{answer:?}"
    );
}

#[test]
fn garbage_is_refused_and_does_no_harm() {
    let name = unique("garbage");
    let _host = Child::joined(&name);
    let address = Address::Abstract(
        socket_name(portolan_sys::process::user(), &name)
            .unwrap()
            .into_bytes(),
    );
    for length in [1, 3, 8, 15, 16, 17, 72, 200] {
        let connection = socket::connect(&address).unwrap();
        socket::send(&connection, &vec![0xee; length], &[]).unwrap();
        let mut buffer = [0; 64];
        let received =
            socket::receive_by(&connection, &mut buffer, 0, Some(Instant::now() + PATIENCE))
                .unwrap();
        let answer = Answer::decode(&buffer[..received.len]);
        assert!(
            matches!(answer, Ok(Answer::Refused(r)) if r.why == Reason::Garbled),
            "{answer:?}"
        );
    }
    // A member of another domain, or of an earlier life, wants back in.
    let back = portolan_abi::hello::Return {
        space: 77,
        incarnation: 5,
    };
    let connection = socket::connect(&address).unwrap();
    socket::send(&connection, &back.encode(), &[]).unwrap();
    let mut buffer = [0; 64];
    let received =
        socket::receive_by(&connection, &mut buffer, 0, Some(Instant::now() + PATIENCE)).unwrap();
    let answer = Answer::decode(&buffer[..received.len]);
    assert!(
        matches!(answer, Ok(Answer::Refused(r)) if r.why == Reason::Stranger),
        "{answer:?}"
    );
    assert_eq!(Child::joined(&name).space(), 2);
}

#[test]
fn a_range_that_is_taken_is_named() {
    let name = unique("range");
    let _host = Child::joined(&name);
    let (_connection, welcome, _fds) = half_join(&name);
    let mut child = Child::new();
    assert_eq!(
        child.ask(&format!("map {} {}", welcome.base + 4096, 1 << 20)),
        "true"
    );
    let answer = child.ask(&format!("join {name}"));
    let occupant = format!(
        "{:x}-{:x} ---p",
        welcome.base + 4096,
        welcome.base + 4096 + (1 << 20)
    );
    assert!(
        answer.starts_with("AddressTaken") && answer.contains(&occupant),
        "{answer}"
    );
    assert!(answer.contains("join before that is mapped"), "{answer}");
    // Nothing is left of the attempt: the next newcomer gets the space.
    assert_eq!(Child::joined(&name).space(), 3);
}

#[test]
fn the_creator_finds_another_range_itself() {
    let name = unique("elsewhere");
    let (base, len) = {
        let _host = Child::joined(&name);
        let (_connection, welcome, _fds) = half_join(&name);
        (welcome.base, welcome.len)
    };
    let mut child = Child::new();
    assert_eq!(child.ask(&format!("map {base} {len}")), "true");
    assert_eq!(child.ask(&format!("join {name}")), "space 1");
    let (_connection, welcome, _fds) = half_join(&name);
    assert_ne!(welcome.base, base);
}

#[test]
fn a_creator_without_free_addresses_is_told_what_to_do() {
    let mut child = Child::new();
    let all = format!("map {BASE_LOWEST} {}", BASE_HIGHEST - BASE_LOWEST);
    assert_eq!(child.ask(&all), "true");
    let answer = child.ask(&format!("join {}", unique("nowhere")));
    assert!(answer.starts_with("NoAddresses"), "{answer}");
    assert!(
        answer.contains("smaller ones (`Builder::size`)"),
        "{answer}"
    );
    // A private one needs none of them.
    assert_eq!(child.ask("private"), "space 1");
}

#[test]
fn protections_must_agree_if_asked_for() {
    let name = unique("protection");
    let _host = Child::joined(&name);
    let answer = Child::new().ask(&format!("join {name} guarded=1"));
    assert!(answer.starts_with("ProtectionMismatch"), "{answer}");
    assert_eq!(Child::joined(&name).space(), 2);
}

#[test]
fn the_two_hundred_and_fifty_sixth_process_is_refused() {
    let name = unique("full");
    let _host = Child::joined(&name);
    let half: Vec<_> = (2..=255).map(|_| Another::join(&name)).collect();
    let answer = Child::new().ask(&format!("join {name}"));
    assert!(answer.starts_with("Full { spaces: 255 }"), "{answer}");
    drop(half);
    assert!(Child::joined(&name).space() >= 2);
}

/// A process that is about to join and never does; far cheaper than one that does.
struct Another(std::process::Child);

impl Another {
    fn join(domain: &str) -> Self {
        let mut command = portolan_testkit::again("refused::stands_in_the_door");
        command.env("PORTOLAN_TEST_DOOR", domain);
        let mut child = command
            .stdout(std::process::Stdio::piped())
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines =
            std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
        assert!(lines.any(|l| l.unwrap().contains("in the door")));
        Self(child)
    }
}

impl Drop for Another {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Not a test: see [`Another`].
#[test]
fn stands_in_the_door() {
    let Ok(domain) = std::env::var("PORTOLAN_TEST_DOOR") else {
        return;
    };
    let _welcome = half_join(&domain);
    println!("in the door");
    let _ = std::io::stdin().lines().next();
}
