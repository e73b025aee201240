//! A domain in which nothing happens uses no processor.

use crate::child::{Child, unique, until};

/// The library's threads of the processes: how many, ticks used, sleeps.
fn used(all: &mut [Child]) -> Vec<String> {
    all.iter_mut().map(|c| c.ask("threads")).collect()
}

#[test]
fn an_idle_domain_sleeps_in_every_process() {
    let name = unique("idle");
    let mut all: Vec<Child> = (0..4).map(|_| Child::joined(&name)).collect();
    // A thread that was just made still has its maker's name.
    until("there is one thread each", || {
        used(&mut all).iter().all(|u| u.starts_with("1 "))
    });
    settles_and_sleeps(&mut all);
    // And so it is after a takeover, once the new host has answered all members.
    all.remove(0).kill();
    until("somebody hosts", || all.iter_mut().any(Child::is_host));
    settles_and_sleeps(&mut all);
}

fn settles_and_sleeps(all: &mut [Child]) {
    // What has just happened may take its time; then nothing happens any more. A thread
    // that polled by the clock would be seen to sleep again and again.
    let mut before = used(all);
    let mut quiet = 0;
    until("the library's threads sleep", || {
        std::thread::sleep(std::time::Duration::from_millis(300));
        let now = used(all);
        quiet = if now == before { quiet + 1 } else { 0 };
        before = now;
        quiet == 3
    });
}
