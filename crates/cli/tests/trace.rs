//! `portolan trace`: what it writes is whole and true, however it ends.

mod support;

use portolan::{Access, Deadline, Domain, Message, PortOptions, ReceiveRight, SendRight, WhenFull};
use portolan_testkit::{PATIENCE, unique, until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use support::{portolan, succeeds};

/// A domain of this process with a port, and a place for files.
struct Scene {
    name: String,
    directory: PathBuf,
    domain: Domain,
    port: ReceiveRight,
    right: SendRight,
}

impl Scene {
    fn new(test: &str) -> Self {
        let name = unique(&format!("cli-trace-{test}"));
        let directory = std::env::temp_dir().join(&name);
        std::fs::create_dir_all(&directory).unwrap();
        let builder = Domain::builder(&name).size(64 << 20).deadline(PATIENCE);
        let domain = builder.space_name("the scene").join().unwrap();
        let port = domain.bind(PortOptions::named("frames").queue(64)).unwrap();
        let right = port.make_send();
        Self {
            name,
            directory,
            domain,
            port,
            right,
        }
    }

    fn file(&self) -> PathBuf {
        self.directory.join("trace.json")
    }

    /// Starts a trace, and waits until it is on.
    fn trace(&self, options: &[&str]) -> Child {
        let child = Command::new(env!("CARGO_BIN_EXE_portolan"))
            .args(["trace", &self.name, "--json", "--output"])
            .arg(self.file())
            .args(options)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        until("the trace is on", || self.domain.tracer().is_some());
        child
    }

    /// Sends and receives messages of 1 to `count` bytes.
    fn work(&mut self, count: usize) {
        for bytes in 1..=count {
            let mut message = Message::default();
            message.push(self.domain.allocate(bytes).unwrap()).unwrap();
            self.right.send(message, WhenFull::Fail).unwrap();
            assert_eq!(self.receive().len(), bytes);
        }
    }

    fn receive(&mut self) -> Message {
        let deadline = Deadline::after(PATIENCE);
        self.port.receive(Access::Now, deadline).unwrap()
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

fn signal(child: &Child, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

/// Waits for a good end; the summary, and what was said beside it.
fn ended(child: Child) -> (Value, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = child.wait_with_output().unwrap();
    let said = String::from_utf8(stderr).unwrap();
    assert!(status.success(), "{status}\n{said}");
    (serde_json::from_slice(&stdout).unwrap(), said)
}

/// The events of a file, checked for what every reader of the format needs.
fn events(path: &Path) -> Vec<Value> {
    checked(&std::fs::read_to_string(path).unwrap())
}

fn checked(text: &str) -> Vec<Value> {
    let all: Vec<Value> = serde_json::from_str(text).unwrap();
    for event in &all {
        for key in ["pid", "tid", "ts"] {
            assert!(
                event[key].as_f64().is_some_and(|n| n >= 0.0),
                "{key}: {event}"
            );
        }
        assert!(
            event["name"].as_str().is_some_and(|n| !n.is_empty()),
            "{event}"
        );
        match event["ph"].as_str().unwrap() {
            "X" => assert!(event["dur"].as_f64().is_some_and(|n| n >= 0.0), "{event}"),
            "s" => assert!(event["id"].is_u64(), "{event}"),
            "f" => assert_eq!(event["bp"], "e"),
            "i" => assert_eq!(event["s"], "g"),
            "M" => assert!(event["args"].is_object(), "{event}"),
            other => panic!("{other}"),
        }
    }
    all
}

fn of<'a>(all: &'a [Value], category: &str, phase: &str) -> Vec<&'a Value> {
    let wanted = |e: &&Value| e["cat"] == category && e["ph"] == phase;
    all.iter().filter(wanted).collect()
}

/// Whether a point lies on a slice of its thread.
fn lies_on(point: &Value, slice: &Value) -> bool {
    let at = point["ts"].as_f64().unwrap();
    let from = slice["ts"].as_f64().unwrap();
    let to = from + slice["dur"].as_f64().unwrap();
    point["pid"] == slice["pid"] && point["tid"] == slice["tid"] && (from..=to).contains(&at)
}

/// Each arrow leads from a send forward to the receive of the same message; how many.
fn check_arrows(all: &[Value]) -> usize {
    let by_id = |phase| {
        let points = of(all, "message", phase);
        let count = points.len();
        let by_id: HashMap<u64, &Value> = points
            .into_iter()
            .map(|e| (e["id"].as_u64().unwrap(), e))
            .collect();
        assert_eq!(by_id.len(), count, "an arrow twice");
        by_id
    };
    let (starts, ends) = (by_id("s"), by_id("f"));
    let ids = |points: &HashMap<u64, &Value>| points.keys().copied().collect::<HashSet<_>>();
    assert_eq!(ids(&starts), ids(&ends));
    let (sends, receives) = (of(all, "send", "X"), of(all, "receive", "X"));
    for (id, start) in &starts {
        let end = ends[id];
        assert!(start["ts"].as_f64() <= end["ts"].as_f64(), "{start} {end}");
        let on = |point: &Value, slices: &[&Value]| {
            let found = slices.iter().find(|slice| lies_on(point, slice));
            let args = &found.unwrap_or_else(|| panic!("{point} lies on nothing"))["args"];
            (
                args["port"].clone(),
                args["position"].clone(),
                args["bytes"].clone(),
            )
        };
        assert_eq!(on(start, &sends), on(end, &receives));
    }
    starts.len()
}

#[test]
fn messages_between_processes_are_arrows_between_named_tracks() {
    let mut scene = Scene::new("arrows");
    let trace = scene.trace(&[]);
    for text in ["one", "two", "three"] {
        succeeds(&[
            "port",
            "send",
            "frames",
            "--domain",
            &scene.name,
            "--header",
            text,
        ]);
        assert_eq!(scene.receive().header(), text.as_bytes());
    }
    scene.work(20);
    signal(&trace, Signal::INT);
    let (summary, said) = ended(trace);
    assert_eq!(summary["ended_by"], "signal");
    assert_eq!(
        (&summary["lost"], &summary["arrows"]),
        (&0.into(), &23.into())
    );
    assert!(
        said.contains("Perfetto") && !said.contains("has ended"),
        "{said}"
    );
    assert!(scene.domain.tracer().is_none(), "switched off");

    let all = events(&scene.file());
    assert_eq!(check_arrows(&all), 23);
    assert_eq!(summary["kinds"]["send"], 23);
    assert_eq!(summary["kinds"]["receive"], 23);
    let slices = ["send", "receive", "map", "wake", "sleep", "reclaim"];
    let count: usize = slices.iter().map(|kind| of(&all, kind, "X").len()).sum();
    let deaths = of(&all, "death", "i").len();
    assert_eq!(summary["events"], count + deaths);
    assert!(
        of(&all, "send", "X")
            .iter()
            .all(|e| e["name"] == "send frames")
    );
    assert_eq!(of(&all, "map", "X").len(), 20);

    let metadata = |name: &str| {
        let named = all.iter().filter(|e| e["ph"] == "M" && e["name"] == name);
        named.cloned().collect::<Vec<_>>()
    };
    let processes: HashMap<u64, String> = metadata("process_name")
        .iter()
        .map(|e| {
            let name = e["args"]["name"].as_str().unwrap();
            (e["pid"].as_u64().unwrap(), name.to_owned())
        })
        .collect();
    let us = u64::from(std::process::id());
    assert_eq!(processes[&us], "the scene (space 1)");
    assert!(!metadata("thread_name").is_empty());
    let senders: HashSet<u64> = of(&all, "send", "X")
        .iter()
        .map(|e| e["pid"].as_u64().unwrap())
        .collect();
    // Three more, of which some may have come and gone unseen: those share a track.
    assert!(senders.contains(&us) && (2..=4).contains(&senders.len()));
    for sender in senders {
        assert!(processes[&sender].contains(" (space "), "{processes:?}");
    }
    // Our receives, in the order of their positions, follow one another in time.
    let receives = of(&all, "receive", "X");
    let by = |key: fn(&Value) -> f64| {
        let mut sorted = receives.clone();
        sorted.sort_by(|a, b| key(a).total_cmp(&key(b)));
        sorted
            .iter()
            .map(|e| e["args"]["position"].clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        by(|e| e["ts"].as_f64().unwrap()),
        by(|e| e["args"]["position"].as_f64().unwrap())
    );
}

#[test]
fn a_trace_ends_by_itself_when_its_time_is_up() {
    let mut scene = Scene::new("time");
    let trace = scene.trace(&["--seconds", "0.3", "--events", "receive"]);
    scene.work(5);
    let (summary, _) = ended(trace);
    assert_eq!(summary["ended_by"], "time");
    let all = events(&scene.file());
    assert_eq!(of(&all, "receive", "X").len(), 5);
    assert!(of(&all, "send", "X").is_empty() && of(&all, "map", "X").is_empty());
}

#[test]
fn events_go_to_standard_output_and_the_summary_beside_them() {
    let mut scene = Scene::new("stdout");
    let trace = Command::new(env!("CARGO_BIN_EXE_portolan"))
        .args(["trace", &scene.name, "--json", "-o", "-"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .current_dir(&scene.directory)
        .spawn()
        .unwrap();
    until("the trace is on", || scene.domain.tracer().is_some());
    scene.work(5);
    signal(&trace, Signal::INT);
    let output = trace.wait_with_output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    let all = checked(std::str::from_utf8(&output.stdout).unwrap());
    assert_eq!(of(&all, "receive", "X").len(), 5);
    let summary = said.lines().last().unwrap();
    let summary: Value = serde_json::from_str(summary).unwrap();
    assert_eq!(
        (&summary["file"], &summary["ended_by"]),
        (&"-".into(), &"signal".into())
    );
    assert!(
        std::fs::read_dir(&scene.directory)
            .unwrap()
            .next()
            .is_none(),
        "no file is made"
    );
}

#[test]
fn the_file_is_whole_when_the_domain_ends_meanwhile() {
    let mut scene = Scene::new("ends");
    let mut sleeper = Command::new(env!("CARGO_BIN_EXE_portolan"))
        .args(["port", "receive", "other", "--domain", &scene.name])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    scene.domain.connect("other", PATIENCE).unwrap();
    let trace = scene.trace(&[]);
    scene.work(10);
    // One process is killed, then the host leaves: the tracer is alone.
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
    let (name, file) = (scene.name.clone(), scene.directory.join("kept.json"));
    until("the death is dealt with", || {
        scene.domain.survey().unwrap().spaces.len() == 2
    });
    let from = scene.file();
    leave(scene, || {
        let (summary, said) = ended(trace);
        assert_eq!(summary["ended_by"], "domain");
        assert!(
            said.contains(&format!("the domain {name:?} has ended")),
            "{said}"
        );
        let all = events(&from);
        assert_eq!(check_arrows(&all), 10);
        let deaths = of(&all, "death", "i");
        assert_eq!(deaths.len(), 1);
        assert_eq!(deaths[0]["args"]["process"], sleeper.id());
        assert_eq!(deaths[0]["pid"], std::process::id(), "on the host's track");
        // The dead one's, and ours, which the tracer or we ourselves returned.
        assert!(of(&all, "reclaim", "X").len() >= 2);
    });
    assert!(!file.exists());
    // With its last process the domain is gone.
    assert_eq!(portolan(&["trace", &name]).status.code(), Some(2));
}

/// Leaves the scene's domain, but keeps its directory until `then` is done.
fn leave(scene: Scene, then: impl FnOnce()) {
    let mut scene = std::mem::ManuallyDrop::new(scene);
    let directory = scene.directory.clone();
    let elsewhere = Domain::private().unwrap();
    let port = elsewhere.bind(PortOptions::unnamed()).unwrap();
    drop(std::mem::replace(&mut scene.right, port.make_send()));
    drop(std::mem::replace(&mut scene.port, port));
    std::mem::replace(&mut scene.domain, elsewhere)
        .leave()
        .unwrap();
    then();
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn what_a_small_ring_cannot_keep_is_counted_and_the_newest_is_there() {
    let mut scene = Scene::new("overflow");
    let trace = scene.trace(&["--ring", "16", "--events", "send"]);
    // It does not look meanwhile.
    signal(&trace, Signal::STOP);
    let stat = format!("/proc/{}/stat", trace.id());
    until("the tracer has stopped", || {
        std::fs::read_to_string(&stat).unwrap().contains(") T ")
    });
    scene.work(1000);
    signal(&trace, Signal::CONT);
    signal(&trace, Signal::TERM);
    let (summary, said) = ended(trace);
    assert_eq!(
        (&summary["events"], &summary["lost"]),
        (&16.into(), &984.into())
    );
    assert!(said.contains("984 events were lost"), "{said}");
    let all = events(&scene.file());
    let mut bytes: Vec<u64> = of(&all, "send", "X")
        .iter()
        .map(|e| e["args"]["bytes"].as_u64().unwrap())
        .collect();
    bytes.sort_unstable();
    assert_eq!(bytes, (985..=1000).collect::<Vec<u64>>());
}

#[test]
fn a_tracer_that_is_killed_leaves_nothing_on_and_a_file_that_loads() {
    let mut scene = Scene::new("killed");
    let mut trace = scene.trace(&[]);
    scene.work(10);
    let file = scene.file();
    until("the events are in the file", || {
        // The tracer may not have made it yet.
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        text.matches("\"receive frames\"").count() == 10
    });
    trace.kill().unwrap();
    trace.wait().unwrap();
    until("the trace is off", || scene.domain.tracer().is_none());
    // Readers of the format take an array without its end.
    let text = std::fs::read_to_string(&file).unwrap();
    let whole = text.rfind("},\n").map_or(&*text, |at| &text[..=at]);
    let all: Vec<Value> = serde_json::from_str(&format!("{whole}]"))
        .or_else(|_| serde_json::from_str(&format!("{text}]")))
        .unwrap();
    assert!(all.len() >= 19, "{}", all.len());
    // And there can be another.
    let path = file.to_str().unwrap();
    succeeds(&["trace", &scene.name, "--seconds", "0", "--output", path]);
    let names = events(&file);
    assert!(
        names.iter().all(|e| e["name"] != "send frames"),
        "{names:?}"
    );
}

#[test]
fn a_second_tracer_is_told_who_the_first_is() {
    let scene = Scene::new("second");
    let trace = scene.domain.trace().unwrap();
    let file = scene.file();
    std::fs::write(&file, "the first tracer's").unwrap();
    let second = portolan(&["trace", &scene.name, "--output", file.to_str().unwrap()]);
    assert_eq!(second.status.code(), Some(1));
    let complaint = String::from_utf8(second.stderr).unwrap();
    let us = format!("space 1 (process {}, \"the scene\")", std::process::id());
    assert!(
        complaint.contains(&us) && complaint.contains("to do:"),
        "{complaint}"
    );
    assert_eq!(scene.domain.tracer(), Some(1), "ours goes on");
    let kept = std::fs::read_to_string(&file).unwrap();
    assert_eq!(kept, "the first tracer's");
    drop(trace);
}

#[test]
fn a_domain_that_is_not_there_is_not_made() {
    for _ in 0..2 {
        let output = portolan(&["trace", "cli-trace-nowhere", "--seconds", "1"]);
        assert_eq!(output.status.code(), Some(2));
        let complaint = String::from_utf8(output.stderr).unwrap();
        assert!(
            complaint.contains("no domain named \"cli-trace-nowhere\""),
            "{complaint}"
        );
    }
    let scene = Scene::new("unwritable");
    let output = portolan(&["trace", &scene.name, "--output", "/no/such/directory/file"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(scene.domain.tracer().is_none());
}
