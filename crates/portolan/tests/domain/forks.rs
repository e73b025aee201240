//! `fork` without `exec`, in host and member, and then the parent is killed; and `exec`
//! without `fork`.

use crate::child::{Child, is_bound, unique, until};

/// The forked process's id, and what it said.
fn fork(child: &mut Child) -> (u32, String) {
    let answer = child.ask("fork");
    let (pid, said) = answer.split_once(' ').unwrap();
    (pid.parse().unwrap(), said.to_owned())
}

fn end(pid: u32) {
    let pidfd = portolan_sys::process::PidFd::open(pid).unwrap();
    portolan_sys::process::signal(&pidfd, portolan_sys::process::Signal::KILL).unwrap();
}

#[test]
fn a_forked_child_is_no_member_and_says_so() {
    let name = unique("fork");
    let mut host = Child::joined(&name);
    let (pid, said) = fork(&mut host);
    assert_eq!(
        said,
        concat!(
            r#"Some("Disowned(Forked)") Some("Forked") Some("Disowned(Forked)") "#,
            "(Some(Forked), Some(Forked), Some(Forked))",
        )
    );
    // The parent is what it was.
    assert_eq!(host.ask("allocate 4096"), "done");
    assert_eq!(Child::joined(&name).space(), 2);
    end(pid);
}

#[test]
fn a_forked_child_of_a_killed_host_keeps_no_name_and_hides_no_death() {
    let name = unique("fork-host");
    let mut host = Child::joined(&name);
    let mut second = Child::joined(&name);
    let (pid, _) = fork(&mut host);
    host.kill();
    until("the second hosts", || second.is_host());
    assert_eq!(Child::joined(&name).space(), 1);
    second.kill();
    until("the name is gone", || !is_bound(&name));
    assert_eq!(Child::joined(&name).space(), 1);
    end(pid);
}

#[test]
fn a_forked_child_of_a_killed_member_hides_no_death() {
    let name = unique("fork-member");
    let _host = Child::joined(&name);
    let mut second = Child::joined(&name);
    let (pid, _) = fork(&mut second);
    second.kill();
    until("its space is free", || {
        let mut child = Child::joined(&name);
        let space = child.space();
        child.ask("leave");
        space == 2
    });
    end(pid);
}

#[test]
fn a_host_that_becomes_another_program_is_succeeded() {
    let name = unique("exec-host");
    let mut host = Child::joined(&name);
    let mut second = Child::joined(&name);
    host.tell("exec");
    until("the second hosts", || second.is_host());
    assert_eq!(Child::joined(&name).space(), 1);
}

#[test]
fn what_a_member_held_comes_back_when_it_becomes_another_program() {
    let name = unique("exec-member");
    let mut host = Child::joined(&name);
    let mut second = Child::joined(&name);
    assert_eq!(second.ask("bind inbox"), "done");
    second.tell("exec");
    until("its name is free", || host.ask("bind inbox") == "done");
    assert_eq!(Child::joined(&name).space(), 2);
}
