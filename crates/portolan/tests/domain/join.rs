//! Tests joining, and what is left when all members have gone.

use crate::child::{Child, is_bound, unique, until};
use portolan::{Domain, JoinError, LeaveError};
use portolan_abi::hello::reserved_range;
use portolan_abi::region::{BASE_HIGHEST, BASE_LOWEST, Geometry};
use portolan_sys::process::user;
use std::ops::Range;

/// Whether any process maps the domain's memory.
fn is_mapped(name: &str) -> bool {
    let processes = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    processes.into_iter().any(|p| {
        std::fs::read_to_string(p.path().join("maps"))
            .is_ok_and(|m| m.contains(&format!("portolan:{name}")))
    })
}

#[test]
fn the_first_hosts_and_others_get_the_next_spaces() {
    let name = unique("join");
    let mut host = Child::joined(&name);
    let mut second = Child::joined(&name);
    let mut third = Child::joined(&name);
    assert_eq!((host.space(), second.space(), third.space()), (1, 2, 3));
    assert!(host.is_host() && !second.is_host() && !third.is_host());
}

#[test]
fn a_directory_that_is_not_there_is_the_callers_affair() {
    let directory = std::env::temp_dir().join(unique("directory"));
    let refused = Domain::builder("x").path(&directory).join();
    let said = matches!(&refused, Err(JoinError::Directory { directory: d, .. })
        if *d == directory.display().to_string());
    assert!(said, "{refused:?}");
}

#[test]
fn messages_cross_between_processes() {
    let name = unique("messages");
    let mut receiver = Child::joined(&name);
    assert_eq!(receiver.ask("bind inbox"), "done");
    let mut sender = Child::joined(&name);
    assert_eq!(sender.ask("connect inbox"), "done");
    assert_eq!(sender.ask("send 10000"), "done");
    assert_eq!(receiver.ask("receive"), "10000 bytes");
}

/// What is reserved of the addresses around `address`.
fn reserved_at(address: u64) -> Option<Range<u64>> {
    let names = portolan_sys::socket::abstract_names().unwrap();
    let mut ranges = names.iter().filter_map(|name| reserved_range(name));
    ranges.find(|range| range.contains(&address))
}

/// An address in the region of this process's domain.
fn inside(domain: &Domain) -> u64 {
    domain.allocate(4096).unwrap().address() as u64
}

#[test]
fn domains_of_one_machine_do_not_overlap_so_a_process_can_join_them_all() {
    // The size that a domain has if nobody asks for another: of 500 names one lies there by chance.
    let size = 16 << 30;
    let creating = |name: &str| {
        let mut creator = Child::new();
        let answer = creator.ask(&format!("join {name} size={size}"));
        assert_eq!(answer, "space 1");
        creator
    };
    let first = unique("beside");
    let mut creator = creating(&first);
    let joined = Domain::join(&first).unwrap();
    let range = reserved_at(inside(&joined)).expect("its addresses are reserved");
    let geometry = Geometry::new(size).unwrap();
    let by_chance = |name: &str| geometry.range(geometry.base(user(), name.as_bytes(), 0));
    let second = (0..100_000)
        .map(|number| format!("{first}-{number}"))
        .find(|name| by_chance(name).contains(&range.start))
        .expect("one in 500 names lies there");
    // Every member keeps the reservation, not the creator alone.
    creator.kill();
    let mut other = creating(&second);
    let both = Domain::join(&second).unwrap();
    assert!(!range.contains(&inside(&both)));
    assert_eq!(reserved_at(range.start), Some(range.clone()));
    drop((joined, both));
    assert_eq!(other.ask("leave"), "Ok(())");
    let is_free = || reserved_at(range.start).as_ref() != Some(&range);
    until("the addresses are free", is_free);
}

#[test]
fn a_private_domain_takes_none_of_the_addresses_that_domains_share() {
    let private = Domain::private().unwrap();
    let address = inside(&private);
    assert!(
        !(BASE_LOWEST..BASE_HIGHEST).contains(&address),
        "{address:#x}"
    );
    // No name of a socket reserves it, wherever it is.
    assert_eq!(reserved_at(address), None);
}

#[test]
fn nothing_is_left_when_the_last_has_gone() {
    let name = unique("nothing");
    let mut host = Child::joined(&name);
    let mut second = Child::joined(&name);
    assert!(is_bound(&name) && is_mapped(&name));
    assert_eq!(host.ask("leave"), "Ok(())");
    assert!(is_bound(&name), "the second still is there");
    assert_eq!(second.ask("leave"), "Ok(())");
    // Both processes live on, and nothing of the domain with them.
    assert!(!is_mapped(&name));
    until("the name is gone", || !is_bound(&name));
}

#[test]
fn nothing_is_left_when_all_are_killed() {
    let name = unique("killed");
    let mut all = [
        Child::joined(&name),
        Child::joined(&name),
        Child::joined(&name),
    ];
    all.iter_mut().for_each(|child| child.kill());
    until("the name is gone", || !is_bound(&name));
    assert!(!is_mapped(&name));
    let mut anew = Child::joined(&name);
    assert_eq!(anew.space(), 1);
}

#[test]
fn who_leaves_makes_room_at_once() {
    let name = unique("leave");
    let _host = Child::joined(&name);
    let mut second = Child::joined(&name);
    for _ in 0..20 {
        assert_eq!(second.ask("leave"), "Ok(())");
        // D3: all was returned before `leave` came back, so the entry is free.
        assert_eq!(second.ask(&format!("join {name}")), "space 2");
    }
}

#[test]
fn a_host_that_leaves_is_succeeded() {
    let name = unique("hands-over");
    let mut host = Child::joined(&name);
    let mut second = Child::joined(&name);
    assert_eq!(host.ask("leave"), "Ok(())");
    until("the second hosts", || second.is_host());
    assert_eq!(host.ask(&format!("join {name}")), "space 1");
    assert!(!host.is_host());
}

#[test]
fn a_process_has_one_membership() {
    let name = unique("one");
    let first = Domain::builder(&name).size(1 << 20).join().unwrap();
    let second = Domain::join(&name).unwrap();
    assert_eq!((first.space(), second.space()), (1, 1));
    assert!(matches!(first.leave(), Err(LeaveError::StillHeld { .. })));
    second.leave().unwrap();
    let again = Domain::join(&name).unwrap();
    assert!(again.is_host());
}

#[test]
fn many_join_at_the_same_instant() {
    let name = unique("crowd");
    let mut crowd: Vec<Child> = (0..12).map(|_| Child::new()).collect();
    crowd
        .iter_mut()
        .for_each(|c| c.tell(&format!("join {name}")));
    let mut spaces: Vec<String> = crowd.iter_mut().map(|child| child.answer()).collect();
    spaces.sort();
    spaces.dedup();
    assert_eq!(spaces.len(), 12, "{spaces:?}");
    let hosts = crowd
        .iter_mut()
        .filter_map(|c| c.is_host().then_some(()))
        .count();
    assert_eq!(hosts, 1);
}

#[test]
fn threads_of_one_process_join_at_the_same_instant() {
    let name = unique("threads");
    let threads: Vec<_> = (0..8)
        .map(|_| {
            let name = name.clone();
            std::thread::spawn(move || {
                (0..20).for_each(|_| drop(Domain::builder(&name).size(1 << 20).join().unwrap()))
            })
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
}

#[test]
fn a_socket_in_a_directory_serves_as_well_and_is_replaced_or_removed() {
    let name = unique("path");
    let directory = std::env::temp_dir().join(&name);
    std::fs::create_dir(&directory).unwrap();
    let join = format!("join {name} path={}", directory.display());
    let entries = || std::fs::read_dir(&directory).unwrap().count();
    let mut host = Child::new();
    let mut second = Child::new();
    assert_eq!(host.ask(&join), "space 1");
    assert_eq!(second.ask(&join), "space 2");
    host.kill();
    second.kill();
    assert_eq!(entries(), 2, "the sockets' files outlive the killed");
    let mut third = Child::new();
    let mut fourth = Child::new();
    assert_eq!(third.ask(&join), "space 1");
    assert_eq!(fourth.ask(&join), "space 2");
    assert_eq!(third.ask("leave"), "Ok(())");
    assert_eq!(fourth.ask("leave"), "Ok(())");
    assert_eq!(entries(), 0);
    std::fs::remove_dir(&directory).unwrap();
}
