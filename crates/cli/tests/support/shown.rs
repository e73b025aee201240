//! `portolan top` on a terminal of 80x24.
#![allow(dead_code, reason = "each test file uses a part of it")]

pub(crate) use portolan_testkit::PATIENCE;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// `portolan top` on a terminal of its own.
pub(crate) struct Shown {
    pub(crate) process: Child,
    keys: File,
    pub(crate) slave: File,
    pub(crate) screen: Arc<Mutex<vt100::Parser>>,
}

impl Shown {
    pub(crate) fn start(args: &[&str]) -> Self {
        let master =
            openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let path = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
        let slave = File::options().read(true).write(true).open(path).unwrap();
        let size = Winsize {
            ws_row: 24,
            ws_col: 80,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&slave, size).unwrap();
        let end = || slave.try_clone().unwrap();
        let process = Command::new(env!("CARGO_BIN_EXE_portolan"))
            .arg("top")
            .args(args)
            .env("TERM", "xterm-256color")
            .stdin(end())
            .stdout(end())
            .stderr(end())
            .spawn()
            .unwrap();
        let screen = Arc::new(Mutex::new(vt100::Parser::new(24, 80, 0)));
        let keys = File::from(master);
        let mut output = keys.try_clone().unwrap();
        let sink = Arc::clone(&screen);
        // Ends with the last descriptor of the other side.
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(read @ 1..) = output.read(&mut bytes) {
                sink.lock().unwrap().process(&bytes[..read]);
            }
        });
        Self {
            process,
            keys,
            slave,
            screen,
        }
    }

    pub(crate) fn text(&self) -> String {
        self.screen.lock().unwrap().screen().contents()
    }

    pub(crate) fn until(&self, what: &str) -> String {
        let end = Instant::now() + PATIENCE;
        loop {
            let text = self.text();
            if text.contains(what) {
                return text;
            }
            assert!(Instant::now() < end, "no {what:?} in\n{text}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits until all of these are shown at one time.
    pub(crate) fn until_all(&self, what: &[&str]) -> String {
        let end = Instant::now() + PATIENCE;
        loop {
            let text = self.text();
            let Some(missing) = what.iter().find(|what| !text.contains(**what)) else {
                return text;
            };
            assert!(Instant::now() < end, "no {missing:?} in\n{text}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Whether what is shown goes away in time.
    pub(crate) fn changes(&self, what: &str) -> bool {
        let end = Instant::now() + PATIENCE;
        while self.text().contains(what) {
            if Instant::now() > end {
                return false;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        true
    }

    pub(crate) fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    pub(crate) fn is_raw(&self) -> bool {
        let modes = tcgetattr(&self.slave).unwrap().local_modes;
        !modes.contains(LocalModes::ICANON)
    }

    pub(crate) fn is_full_screen(&self) -> bool {
        self.screen.lock().unwrap().screen().alternate_screen()
    }

    /// Waits for its end; the terminal must be as it was.
    pub(crate) fn ends_well(&mut self) {
        let end = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.process.try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < end, "it goes on:\n{}", self.text());
            std::thread::sleep(Duration::from_millis(10));
        };
        assert!(status.success(), "{status}: {}", self.text());
        assert!(!self.is_raw());
        while self.is_full_screen() {
            assert!(Instant::now() < end, "its screen stays");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
