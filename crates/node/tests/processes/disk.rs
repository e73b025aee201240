//! A disk that stands still: nodes go on, and what must not happen before it is written does not.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use portolan_sys::process::dies_with_us;
use portolan_testkit::until;

use crate::scene::Machine;
use crate::{are_linked, events, forgets, peers};

/// In the place of the C library's: nothing lasts while the file is there.
const STANDS: &str = r#"
    #include <stdlib.h>
    #include <unistd.h>

    static int lasts(void) {
        const char *stands = getenv("STANDS");
        while (stands && access(stands, F_OK) == 0)
            usleep(1000);
        return 0;
    }

    int fsync(int fd) { return lasts(); }
    int fdatasync(int fd) { return lasts(); }
"#;

/// The disk of a machine, for its node alone.
struct Disk {
    library: PathBuf,
    stands: PathBuf,
}

impl Disk {
    /// For a machine that has a state directory.
    fn of(machine: &Machine) -> Self {
        let (source, library) = (machine.state.join("slow.c"), machine.state.join("slow.so"));
        std::fs::write(&source, STANDS).unwrap();
        let mut compiler = Command::new("cc");
        compiler
            .args(["-shared", "-fPIC", "-o"])
            .args([&library, &source]);
        assert!(compiler.status().unwrap().success());
        Self {
            library,
            stands: machine.state.join("stands"),
        }
    }

    fn up(&self, machine: &mut Machine) {
        let path = |path: &PathBuf| path.to_str().unwrap().to_owned();
        let (library, stands) = (path(&self.library), path(&self.stands));
        machine.up_with(&[("LD_PRELOAD", &library), ("STANDS", &stands)]);
    }

    fn stands(&self) {
        std::fs::write(&self.stands, "").unwrap();
    }

    fn goes_on(&self) {
        std::fs::remove_file(&self.stands).unwrap();
    }
}

/// Two machines that are linked, and the disk of the first, which has the authority, or of the second.
/// Their links end after a long silence only: on a busy machine a node may get no processor for a while.
fn linked(is_first: bool) -> (Machine, Machine, Disk) {
    let (mut hall, mut roof) = (Machine::new("hall"), Machine::new("roof"));
    hall.init();
    hall.up();
    roof.join(&hall.invite());
    hall.succeeds(&["leave"]);
    hall.has_ended();
    for machine in [&hall, &roof] {
        machine.configure("silent_after = \"20s\"\ndead_after = \"1m\"");
    }
    let (its, other) = match is_first {
        true => (&mut hall, &mut roof),
        false => (&mut roof, &mut hall),
    };
    let disk = Disk::of(its);
    disk.up(its);
    other.up();
    until("both are linked", || are_linked(&hall, &roof));
    (hall, roof, disk)
}

fn node(digit: char) -> String {
    digit.to_string().repeat(32)
}

fn begin(machine: &Machine, args: &[&str]) -> Child {
    let mut command = machine.command(args);
    dies_with_us(command.stderr(Stdio::null()).stdout(Stdio::null()))
        .spawn()
        .unwrap()
}

#[test]
fn a_node_whose_disk_stands_still_hears_its_peers_and_is_heard() {
    let (hall, roof, disk) = linked(false);
    disk.stands();
    // What it is told it does; that it may write it down is another matter.
    let all = ['a', 'b', 'c'].map(node);
    for one in &all {
        hall.succeeds(&["forget", one]);
        until("it refuses the node", || forgets(&roof, one));
    }
    hall.succeeds(&["authority", "--rotate", "--keep-old", "1h"]);
    let keys = |machine: &Machine| machine.status()["authorities"].as_array().unwrap().len();
    until("it believes the new authority too", || keys(&roof) == 2);
    until("its certificate is signed again", || {
        !events(&hall, "renewed").is_empty()
    });
    assert_eq!(events(&roof, "forgotten").len(), 0);
    assert_eq!(peers(&hall, "up"), ["roof"]);
    disk.goes_on();
    until("it is written down", || {
        events(&roof, "forgotten").len() == all.len() && events(&roof, "believed").len() == 1
    });
    until("it has its certificate", || {
        roof.log().contains("the certificate was renewed")
    });
    for machine in [&hall, &roof] {
        let log = machine.log();
        assert!(!log.contains("lost the link"), "{log}");
    }
}

#[test]
fn nobody_is_let_in_before_it_is_written_down() {
    let (hall, roof, disk) = linked(true);
    let token = hall.invite();
    let tokens = || hall.state.join("invitations").read_dir().unwrap().count();
    let mut attic = Machine::new("attic");
    disk.stands();
    let named = ["--name", "attic", "--listen", "127.0.0.1:0"];
    let mut joins = begin(&attic, &[&["join", &token][..], &named].concat());
    until("its token is used", || tokens() == 0);
    assert!(are_linked(&hall, &roof));
    assert!(joins.try_wait().unwrap().is_none());
    assert_eq!(events(&hall, "joined").len(), 1);
    disk.goes_on();
    assert!(joins.wait().unwrap().success());
    assert_eq!(events(&hall, "joined").len(), 2);
    attic.up();
    until("it is linked", || peers(&hall, "up").len() == 2);
}

#[test]
fn no_command_is_answered_before_what_it_says_is_written_down() {
    let (hall, roof, disk) = linked(true);
    disk.stands();
    let forget = ["forget", &node('a')];
    let mut command = begin(&hall, &forget);
    until("its peer has heard it", || forgets(&roof, &node('a')));
    assert!(are_linked(&hall, &roof));
    // It waits, or has given up.
    let ended = command.try_wait().unwrap();
    assert!(ended.is_none_or(|status| !status.success()));
    disk.goes_on();
    command.wait().unwrap();
    hall.succeeds(&forget);
    assert_eq!(events(&hall, "forgotten").len(), 1);
}
