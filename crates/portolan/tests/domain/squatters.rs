//! Another process has the names of a domain's sockets: members learn which, and do without them.

use crate::child::{Child, unique, until};
use portolan::{Domain, JoinError};
use portolan_abi::hello::{fallback_name, socket_name};
use portolan_sys::socket::{self, Address, SocketError};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, socket_with};
use std::os::fd::OwnedFd;
use std::process::Command;
use std::time::Duration;

/// A user that no other test is.
const STRANGER: u32 = 54_323;

fn user() -> u32 {
    portolan_sys::process::user()
}

/// The names of the domain's two sockets.
fn names(user: u32, domain: &str) -> [String; 2] {
    [socket_name, fallback_name].map(|name| name(user, domain).unwrap())
}

/// A socket that has a name, and does not listen.
fn bound(name: &str) -> OwnedFd {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let socket = socket_with(family, kind, SocketFlags::CLOEXEC, None).unwrap();
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
    bind(&socket, &address).unwrap();
    socket
}

/// The name may have been bound before: a process that another test's thread is starting has a
/// copy of the socket until it runs its program.
fn listening(name: &str) -> OwnedFd {
    let address = Address::Abstract(name.as_bytes().to_vec());
    let mut listener = None;
    until("the name is free", || {
        listener = match socket::listen(&address, 8) {
            Err(SocketError::AddressInUse { .. }) => None,
            listening => Some(listening.unwrap()),
        };
        listener.is_some()
    });
    listener.unwrap()
}

fn refused(domain: &str, deadline: Duration) -> JoinError {
    Domain::builder(domain)
        .deadline(deadline)
        .join()
        .unwrap_err()
}

/// How an error names this process.
fn us() -> String {
    format!("process {}, ", std::process::id())
}

#[test]
fn who_binds_a_name_and_does_not_listen_is_named() {
    let domain = unique("bound");
    let [name, fallback] = names(user(), &domain);
    for taken in [name, fallback] {
        let _squatter = bound(&taken);
        let error = refused(&domain, Duration::from_millis(300));
        let JoinError::Occupied { socket, holder } = &error else {
            panic!("{error:?}")
        };
        assert_eq!(*socket, format!("@{taken}"));
        let holder = holder.as_ref().unwrap();
        assert_eq!(
            (holder.pid, holder.user),
            (std::process::id(), Some(user()))
        );
        let said = error.to_string();
        let by = format!(", of user {}", user());
        assert!(said.contains(&us()) && said.contains(&by), "{said}");
        assert!(said.contains("private directory"), "{said}");
    }
    assert_eq!(Domain::join(&domain).unwrap().space(), 1);
}

#[test]
fn who_listens_and_does_not_accept_is_named() {
    let domain = unique("mute");
    let [name, fallback] = names(user(), &domain);
    let squatter = listening(&name);
    // The second is longer than the host may take before others are asked, who are not there.
    for deadline in [300, 1500] {
        let error = refused(&domain, Duration::from_millis(deadline));
        assert!(matches!(error, JoinError::TimedOut { .. }), "{error:?}");
        let said = error.to_string();
        assert!(
            said.contains(&us()) && said.contains("does not answer"),
            "{said}"
        );
    }
    drop(squatter);
    let _squatter = listening(&fallback);
    let error = refused(&domain, Duration::from_millis(300));
    assert!(matches!(error, JoinError::Occupied { .. }), "{error:?}");
    assert!(error.to_string().contains(&us()), "{error}");
}

#[test]
fn a_host_that_is_stopped_is_said_to_be() {
    let domain = unique("said");
    let host = Child::joined(&domain);
    host.stop();
    let said = refused(&domain, Duration::from_millis(300)).to_string();
    let remedy = format!("is stopped; `kill -CONT {}`", host.pid());
    assert!(said.contains(&remedy), "{said}");
}

#[test]
fn a_stranger_that_may_not_be_looked_into_is_told_of_as_far_as_the_kernel_goes() {
    if user() != 0 {
        return;
    }
    let domain = unique("hidden");
    let [name, _] = names(STRANGER, &domain);
    let join = format!("join {domain} deadline-ms=300");
    let squatter = bound(&name);
    let said = Child::of_user(STRANGER).ask(&join);
    assert!(said.starts_with("Occupied"), "{said}");
    assert!(said.contains("may not look into"), "{said}");
    drop(squatter);
    // A process that connects is told which one listens.
    let _squatter = listening(&name);
    let said = Child::of_user(STRANGER).ask(&join);
    assert!(
        said.starts_with("Impostor") && said.contains(&us()),
        "{said}"
    );
}

#[test]
fn in_a_private_directory_nobody_is_in_the_way() {
    let domain = unique("private");
    let _squatters = names(user(), &domain).map(|name| bound(&name));
    let directory = std::env::temp_dir().join(&domain);
    std::fs::create_dir(&directory).unwrap();
    let join = format!("join {domain} path={}", directory.display());
    let mut all = [Child::new(), Child::new()];
    for (child, space) in all.iter_mut().zip(1..) {
        assert_eq!(child.ask(&join), format!("space {space}"));
    }
    drop(all);
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn a_host_that_cannot_read_proc_says_so() {
    let mut apart = Command::new("unshare");
    apart.arg("--mount");
    let made = Command::new("unshare").args(["--mount", "true"]).status();
    if !made.is_ok_and(|status| status.success()) {
        eprintln!("skipped: no mount namespace can be made here");
        return;
    }
    let domain = unique("proc");
    let mut host = Child::through(apart);
    assert_eq!(host.ask(&format!("join {domain}")), "space 1");
    let mut second = Child::joined(&domain);
    assert_eq!(host.ask("lose /proc"), "0");
    let said = Child::new().ask(&format!("join {domain}"));
    assert!(said.starts_with("HostProc"), "{said}");
    assert!(said.contains("cannot read /proc"), "{said}");
    // Otherwise it hosts as before.
    assert!(host.is_host());
    assert_eq!(second.ask("bind inbox"), "done");
    second.kill();
    until("the dead are reclaimed", || {
        host.ask("bind inbox") == "done"
    });
}
