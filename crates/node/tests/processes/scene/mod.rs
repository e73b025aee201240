//! Machines: state directories of their own, and nodes that run with them.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use portolan_sys::process::dies_with_us;
use portolan_testkit::{unique, until};
use serde_json::Value;

pub(crate) fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// A state directory, and a node that may run with it.
pub(crate) struct Machine {
    pub(crate) name: String,
    pub(crate) state: PathBuf,
    node: Option<Child>,
}

impl Machine {
    pub(crate) fn new(name: &str) -> Self {
        let state = std::env::temp_dir().join(unique(name));
        // Of a test that was killed, whose process had this one's number.
        let _ = std::fs::remove_dir_all(&state);
        Self {
            name: name.to_owned(),
            state,
            node: None,
        }
    }

    /// The command with a state directory.
    pub(crate) fn command_in(state: &Path, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_portolan-node"));
        command.args(args).env("PORTOLAN_NODE_STATE", state);
        command
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        Self::command_in(&self.state, args)
    }

    fn output(&self, args: &[&str]) -> Output {
        self.command(args).output().expect("the binary starts")
    }

    #[track_caller]
    pub(crate) fn succeeds(&self, args: &[&str]) -> String {
        let output = self.output(args);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{args:?}: {error}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// What it says on standard error though it succeeds.
    #[track_caller]
    pub(crate) fn says(&self, args: &[&str]) -> String {
        let output = self.output(args);
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{args:?}: {error}");
        error
    }

    /// What it says on standard error; the exit code is as expected.
    #[track_caller]
    pub(crate) fn fails(&self, args: &[&str], code: i32) -> String {
        self.fails_with(args, &[], code)
    }

    /// The same with these variables of the environment.
    #[track_caller]
    pub(crate) fn fails_with(&self, args: &[&str], with: &[(&str, &str)], code: i32) -> String {
        let mut command = self.command(args);
        let output = command.envs(with.iter().copied()).output();
        let output = output.expect("the binary starts");
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{args:?}: {error}");
        let has_remedy = error.contains("to do: ") || error.contains("For more information");
        assert!(has_remedy, "{error}");
        error
    }

    pub(crate) fn init(&self) {
        self.succeeds(&["init", "--name", &self.name, "--listen", "127.0.0.1:0"]);
    }

    #[track_caller]
    pub(crate) fn join(&self, token: &str) {
        self.succeeds(&[
            "join",
            token,
            "--name",
            &self.name,
            "--listen",
            "127.0.0.1:0",
        ]);
    }

    /// One line, with the address of the node that runs here.
    pub(crate) fn invite(&self) -> String {
        self.succeeds(&["invite"]).trim().to_owned()
    }

    /// Adds lines to node.toml, in place of those with the same key.
    pub(crate) fn configure(&self, lines: &str) {
        let path = self.state.join("node.toml");
        let text = std::fs::read_to_string(&path).unwrap();
        let key = |line: &str| line.split('=').next().unwrap_or_default().trim().to_owned();
        let keys: Vec<_> = lines.lines().map(key).collect();
        let kept = text.lines().filter(|line| !keys.contains(&key(line)));
        let text: Vec<_> = kept.chain(lines.lines()).collect();
        std::fs::write(path, text.join("\n")).unwrap();
    }

    /// Starts the node, and waits until it answers. One that listened before does so there again.
    #[track_caller]
    pub(crate) fn up(&mut self) {
        self.up_with(&[]);
    }

    /// Starts it with these variables of the environment.
    pub(crate) fn up_with(&mut self, variables: &[(&str, &str)]) {
        let mut command = self.command(&["up"]);
        command.envs(variables.iter().copied());
        self.up_by(command);
    }

    /// Starts it by these words.
    pub(crate) fn up_with_args(&mut self, args: &[&str]) {
        let command = self.command(args);
        self.up_by(command);
    }

    /// Starts it with its log there.
    pub(crate) fn up_with_log(&mut self, log: Stdio) {
        self.up_by_with_log(self.command(&["up"]), log);
    }

    /// Starts it by this command.
    fn up_by(&mut self, command: Command) {
        self.up_by_with_log(command, self.log_file());
    }

    fn up_by_with_log(&mut self, mut command: Command, log: Stdio) {
        let node = dies_with_us(command.stderr(log).stdin(Stdio::null()))
            .spawn()
            .expect("the binary starts");
        self.node = Some(node);
        until("the node answers", || {
            self.output(&["status"]).status.success()
        });
        let listens = self.status()["listen"].as_str().unwrap().to_owned();
        self.configure(&format!("listen = {listens:?}"));
    }

    /// Starts it where the names of hosts are looked up in this file.
    pub(crate) fn up_with_hosts(&mut self, hosts: &Path) {
        let script = "mount --bind \"$HOSTS\" /etc/hosts && exec \"$NODE\" up";
        let mut command = Command::new("unshare");
        command
            .args(["--map-root-user", "--user", "--mount", "sh", "-c", script])
            .env("PORTOLAN_NODE_STATE", &self.state)
            .env("HOSTS", hosts)
            .env("NODE", env!("CARGO_BIN_EXE_portolan-node"));
        self.up_by(command);
    }

    /// Another process takes over from the one that runs, which ends in good order.
    pub(crate) fn replace(&mut self) {
        let mut command = self.command(&["up", "--replace"]);
        let new = dies_with_us(command.stderr(self.log_file()).stdin(Stdio::null()));
        let new = new.spawn().expect("the binary starts");
        self.has_ended();
        self.node = Some(new);
        // It listens there already.
        self.status();
    }

    /// What its processes have said on standard error.
    fn log_file(&self) -> Stdio {
        let mut options = std::fs::OpenOptions::new();
        let file = options.create(true).append(true);
        file.open(self.state.join("stderr")).unwrap().into()
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.state.join("stderr")).unwrap_or_default()
    }

    pub(crate) fn status(&self) -> Value {
        json(&self.succeeds(&["status", "--json"]))
    }

    /// Where the node listens.
    pub(crate) fn address(&self) -> String {
        self.status()["listen"].as_str().unwrap().to_owned()
    }

    pub(crate) fn audit(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.state.join("audit.log")).unwrap_or_default();
        text.lines().map(json).collect()
    }

    pub(crate) fn signal(&self, signal: &str) {
        let pid = self.node.as_ref().unwrap().id().to_string();
        let sent = Command::new("kill")
            .args([format!("-{signal}"), pid])
            .status();
        assert!(sent.unwrap().success());
    }

    pub(crate) fn kill(&mut self) {
        let mut node = self.node.take().unwrap();
        node.kill().unwrap();
        node.wait().unwrap();
    }

    /// The node ends by itself, in good order.
    pub(crate) fn has_ended(&mut self) {
        let mut node = self.node.take().unwrap();
        assert!(node.wait().unwrap().success());
    }

    /// Has the files of another machine.
    pub(crate) fn copy_of(&self, other: &Self, files: &[&str]) {
        std::fs::create_dir_all(&self.state).unwrap();
        let alone = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        std::fs::set_permissions(&self.state, alone).unwrap();
        for file in files {
            std::fs::copy(other.state.join(file), self.state.join(file)).unwrap();
        }
        // Where the other one listens this one cannot.
        self.configure("listen = \"127.0.0.1:0\"");
    }

    /// What a shell says that runs this script on a small disk, which is the node's state directory.
    pub(crate) fn on_small_disk(name: &str, script: &str) -> Option<String> {
        let machine = Self::new(name);
        std::fs::create_dir_all(&machine.state).unwrap();
        let mount = r#"
            set -u
            mount -t tmpfs -o size=256k,mode=700 tmpfs "$PORTOLAN_NODE_STATE" || exit 77
            fill() {
                dd if=/dev/zero of="$PORTOLAN_NODE_STATE/fill" bs=1k count=1024 2>/dev/null
            }
        "#;
        let script = format!("{mount}{script}");
        let output = Command::new("unshare")
            .args(["--map-root-user", "--user", "--mount", "sh", "-c", &script])
            .env("PORTOLAN_NODE_STATE", &machine.state)
            .env("NODE", env!("CARGO_BIN_EXE_portolan-node"))
            .output()
            .ok()?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        // It could not be set up.
        (said.contains("first: ")).then_some(said)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // Its test fails: what has happened here.
        if std::thread::panicking() {
            let audit = std::fs::read_to_string(self.state.join("audit.log")).unwrap_or_default();
            eprintln!("{} has said:\n{}and noted:\n{audit}", self.name, self.log());
        }
        if let Some(mut node) = self.node.take() {
            // It may have ended already; a stopped one ends too.
            let _ = node.kill();
            let _ = node.wait();
        }
        let _ = std::fs::remove_dir_all(&self.state);
    }
}
