//! Senders and subscribers go on when the process at the other end is killed, and say what may be
//! lost with it.

mod awaited;
mod publishers;
mod receivers;

use portolan::{Deadline, Domain, PortOptions};
use portolan_testkit::{PATIENCE, in_role, role};
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Stdio};
use std::time::Duration;

/// A deadline that no test reaches.
fn soon() -> Deadline {
    Deadline::after(PATIENCE)
}

/// The other process; nothing, when it is run as a test.
#[test]
fn other() {
    let Some([what, name]) = role() else {
        return;
    };
    let domain = Domain::join(&name).unwrap();
    match what.as_str() {
        "receives" => receivers::receive(&domain),
        "sleeps" => {
            let options = PortOptions::named("numbers").queue(7);
            let _port = domain.bind_when_free(options, soon()).unwrap();
            println!("told bound");
            std::thread::sleep(PATIENCE);
        }
        "publishes" => publishers::publish(&domain),
        other => panic!("{other}"),
    }
}

/// A process of the test that is killed with SIGKILL, and what it has told.
struct Other {
    process: Child,
    output: BufReader<ChildStdout>,
}

impl Other {
    fn start(what: &str, domain: &str) -> Self {
        let mut command = in_role("other", &[what, domain]);
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        Self { process, output }
    }

    /// The next thing that it tells; nothing once it is dead and all was read.
    fn told(&mut self) -> Option<String> {
        loop {
            let mut line = String::new();
            if self.output.read_line(&mut line).unwrap() == 0 {
                return None;
            }
            // The harness of tests prints lines of its own; a killed process half a line.
            if let Some((_, told)) = line.split_once("told ")
                && told.ends_with('\n')
            {
                return Some(told.trim_end().to_owned());
            }
        }
    }

    /// Kills it; all that it has told since.
    fn kill(mut self) -> Vec<String> {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        std::iter::from_fn(|| self.told()).collect()
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        // Fails only if it is gone already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Processor time of this thread so far.
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(
        time.tv_sec.cast_unsigned(),
        u32::try_from(time.tv_nsec).unwrap(),
    )
}
