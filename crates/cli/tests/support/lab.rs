//! Nodes on this machine, side by side, while a test looks at them.

use portolan_testkit::PATIENCE;
use rustix::process::{Pid, Signal, kill_process};
use std::io::BufReader;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// `portolan-node lab`, whose nodes are linked.
pub(crate) struct Lab {
    process: Child,
    pub(crate) places: Vec<Place>,
}

/// A node of it.
pub(crate) struct Place {
    pub(crate) name: String,
    pub(crate) state: PathBuf,
    /// The spanned domain's name at this node.
    pub(crate) domain: String,
    pid: Pid,
}

impl Place {
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid, signal).unwrap();
    }

    /// The command, beside this node.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_portolan"));
        command.args(args).env("PORTOLAN_NODE_STATE", &self.state);
        command
    }

    /// What it says, after checking that it succeeds.
    #[allow(dead_code, reason = "not every test asks it")]
    #[track_caller]
    pub(crate) fn says(&self, args: &[&str]) -> String {
        let output = self.command(args).output().unwrap();
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{args:?}: {complaint}");
        String::from_utf8(output.stdout).unwrap()
    }
}

impl Lab {
    pub(crate) fn start(nodes: usize) -> Self {
        crate::support::needs_the_node_program();
        let program =
            std::path::Path::new(env!("CARGO_BIN_EXE_portolan")).with_file_name("portolan-node");
        let script = "echo $PORTOLAN_LAB_NODE $PORTOLAN_LAB_PID $PORTOLAN_LAB_DOMAIN $PORTOLAN_NODE_STATE; exec sleep 100000";
        let process = Command::new(program)
            .args(["lab", &nodes.to_string(), "--names", "--silent-after", "1s"])
            .args(["--dead-after", "never", "--", "sh", "-c", script])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            // It complains that it is told to end.
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let places = Vec::new();
        // Made first: it ends the nodes also if one of them says something else.
        let mut lab = Self { process, places };
        let mut said = BufReader::new(lab.process.stdout.take().unwrap());
        lab.places = (0..nodes).map(|_| place(&mut said)).collect();
        lab.places.sort_by(|a, b| a.name.cmp(&b.name));
        lab
    }
}

/// A line such as `[lab1] 1 4711 lab.4700.1 /tmp/portolan-lab-4700/1`.
fn place(said: &mut impl std::io::BufRead) -> Place {
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    let words: Vec<&str> = line.split_whitespace().collect();
    let [name, _number, pid, domain, state] = words[..] else {
        panic!("the lab says {line:?}");
    };
    Place {
        name: name.trim_matches(['[', ']']).to_owned(),
        state: state.into(),
        domain: domain.to_owned(),
        pid: Pid::from_raw(pid.parse().unwrap()).unwrap(),
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        // It ends its nodes, and removes their files.
        let pid = Pid::from_child(&self.process);
        let _ = kill_process(pid, Signal::TERM);
        let end = std::time::Instant::now() + PATIENCE;
        while let Ok(None) = self.process.try_wait() {
            if std::time::Instant::now() > end {
                let _ = self.process.kill();
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}
