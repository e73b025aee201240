//! Starts this program again, as another process, which runs one test. That test does nothing
//! unless it was started from here.

use portolan_sys::process::{PidFd, Signal, signal};
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};

/// Set in the other process: what it is to do.
const ROLE: &str = "PORTOLAN_TEST_ROLE";
/// Set in a process that runs one test alone: the test's name.
const ALONE: &str = "PORTOLAN_TEST_ALONE";

/// A command that runs the test named `test` of this program, and no other.
///
/// # Panics
///
/// This program's file is gone.
pub fn again(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    one_test(&mut command, test);
    command
}

pub(crate) fn one_test(command: &mut Command, test: &str) {
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]);
}

/// What this process is to do, in so many words, if it is a further process of a test.
///
/// # Panics
///
/// It was told so in more words, or fewer.
pub fn role<const N: usize>() -> Option<[String; N]> {
    let role = std::env::var(ROLE).ok()?;
    let words = role.split(' ').map(str::to_owned).collect::<Vec<_>>();
    Some(words.try_into().unwrap_or_else(|_| panic!("{role}")))
}

/// A command that runs the test named `test` of this program as another process, in this role.
///
/// # Panics
///
/// This program's file is gone.
pub fn in_role(test: &str, role: &[&str]) -> Command {
    let mut command = again(test);
    command.env(ROLE, role.join(" ")).stdout(Stdio::null());
    command
}

/// Runs the test named `test` of this program as another process, in this role.
///
/// # Panics
///
/// No process can be started.
pub fn spawn(test: &str, role: &[&str]) -> Child {
    in_role(test, role).spawn().unwrap()
}

/// Whether this process runs the test named `test` alone. If not, another one does, and has passed it: for
/// a test that changes what all threads of a process share, such as its limits, or a hole in its address
/// space, which another test's memory may fill.
///
/// # Panics
///
/// The test fails there, or there is none of that name.
pub fn is_alone(test: &str) -> bool {
    if std::env::var_os(ALONE).is_some_and(|alone| alone == test) {
        return true;
    }
    let output = again(test).env(ALONE, test).output().unwrap();
    let [said, failure] =
        [output.stdout, output.stderr].map(|it| String::from_utf8_lossy(&it).into_owned());
    let ended = output.status;
    assert!(ended.success(), "{test}, alone: {ended}\n{said}{failure}");
    assert!(
        said.contains("1 passed"),
        "there is no test {test}:\n{said}"
    );
    false
}

/// Lets a process that has stopped go on.
///
/// # Panics
///
/// It is gone.
pub fn resume(process: &Child) {
    let process = PidFd::open(process.id()).unwrap();
    signal(&process, Signal::CONT).unwrap();
}

/// Has a command take the signals that end it, although this program may ignore them: whatever
/// `nohup`, or `&` in a script, has started does, and so does all that it starts.
pub fn ended_by_signals(command: &mut Command) -> &mut Command {
    let take = || {
        for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGTERM] {
            // SAFETY:
            // - No handler of ours is given: the kernel's own action is asked for.
            if unsafe { libc::signal(signal, libc::SIG_DFL) } == libc::SIG_ERR {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    };
    // SAFETY:
    // - Between fork and exec `take` makes system calls only, and allocates nothing.
    unsafe { command.pre_exec(take) }
}
