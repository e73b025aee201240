//! One process takes over from another: what the node does, on either side of [`super::replace`].

use std::collections::BTreeMap;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use portolan_proto::node::Settings;
use portolan_sys::process::random;

use super::control::Control;
use super::replace::{self, Asked, KEEPS, Met, Replacing, Unanswered};
use super::{FAREWELL, Node};
use crate::config::Config;
use crate::engine::{Coming, Engine};
use crate::state::{Running, State};
use crate::{NodeError, Result};

/// Begins to run: as the incarnation of the process of before, with what that has handed over, or as the next one.
pub(super) fn begin(
    state: &State,
    config: &Config,
    mut settings: Settings,
    kept: Option<Coming>,
    now: Duration,
    ended: &mut Vec<String>,
) -> Result<(Running, Engine)> {
    if let Some(coming) = kept {
        let (incarnation, _) = coming.saved().incarnation();
        let running = state.run_on(incarnation)?;
        match coming.finish(now, settings, &config.name) {
            Ok(engine) => return Ok((running, engine)),
            Err(why) => ended.push(format!("all remote rights end: {why}")),
        }
    }
    let running = state.run()?;
    settings.incarnation = running.incarnation;
    settings.run = random().map_err(NodeError::system("cannot draw a number"))?;
    let engine = Engine::new(settings, &config.name).map_err(|name| NodeError::Wrong {
        what: format!("{name:?} is no name of a node"),
    })?;
    Ok((running, engine))
}

impl Node {
    /// What this process goes on with is there.
    pub(super) fn goes_on(&mut self, ended: &[String]) {
        let now = self.clock.now();
        for line in ended {
            self.log(&format!("not taken over: {line}"));
        }
        for domain in self.engine.domains() {
            self.spans.is_up(&domain);
        }
        let peers = self.engine.peers_kept();
        if !peers.is_empty() {
            let (count, incarnation) = (peers.len(), self.running.incarnation);
            self.log(&format!(
                "goes on as incarnation {incarnation}, with the rights that it has in common with {count} nodes"
            ));
        }
        // Their links are on their way.
        self.lost.extend(peers.into_iter().map(|peer| (peer, now)));
    }

    /// Whether another process has asked to take over.
    pub(super) fn is_to_go(&self) -> bool {
        self.replacing.is_some() || self.control.as_ref().is_some_and(Control::is_to_go)
    }

    /// Lets another process take over that has asked for it; the node, if it goes on.
    pub(super) fn let_replace(mut self) -> Result<Option<Self>> {
        let now = self.clock.now();
        if let Some(mut replacing) = self.replacing.take() {
            match replacing.step(now) {
                Met::Waits => self.replacing = Some(replacing),
                Met::Gone => {
                    self.others.may_differ();
                    self.log("the process that was to take over is gone");
                }
                Met::Joined(joined) => return self.hand_on(replacing, &joined),
            }
            return Ok(Some(self));
        }
        let asks = self.control.as_mut().and_then(Control::replacing);
        let Some((socket, keeps)) = asks else {
            return Ok(Some(self));
        };
        if keeps != KEEPS {
            self.log("another process takes over, of a version that keeps no rights");
            return self.hand_over(&socket).map(|()| None);
        }
        self.others.may_differ();
        match Replacing::offer(socket, self.spans.all_up(), now) {
            Ok(replacing) => self.replacing = Some(replacing),
            Err(error) => self.log(&format!(
                "the process that was to take over is gone: {error}"
            )),
        }
        Ok(Some(self))
    }

    /// Another process has joined domains, and goes on with the rights that there are.
    fn hand_on(
        mut self,
        replacing: Replacing,
        joined: &BTreeMap<String, u64>,
    ) -> Result<Option<Self>> {
        let now = self.clock.now();
        let (mut ended, asked) = (Vec::new(), self.spans.all_asked());
        for domain in self.engine.domains() {
            if !joined.contains_key(&domain) {
                ended.push(format!(
                    "all remote rights in {domain} end: the new process has not joined it"
                ));
                self.engine.unspan(&domain);
                self.spans.lost(&domain, "another process takes over", now);
            }
        }
        let clock = std::sync::Arc::clone(&self.clock);
        ended.extend(self.engine.settle(&|| clock.now()));
        self.hear_engine();
        let handing = self.engine.save(self.clock.now());
        let (handing, why) = match handing {
            Ok(handing) => (Some(handing), None),
            Err(why) => (None, Some(why)),
        };
        ended.extend(why.map(|why| format!("all remote rights end: {why}")));
        for line in &ended {
            self.log(&format!("not handed over: {line}"));
        }
        let told = replacing.tell(handing.as_ref().map(|it| &it.saved), &ended);
        match (told, handing) {
            (Err(error), _) => {
                self.engine.resume();
                self.others.may_differ();
                self.log(&format!(
                    "the process that was to take over is gone, and this one goes on: {error}"
                ));
                return Ok(Some(self));
            }
            (Ok(Ok(())), Some(handing)) => {
                self.log("another process goes on with all rights");
                self.directory.end();
                let socket = replacing.into_socket();
                let give = |engine: Engine| engine.hand_on(handing, joined);
                self.give_all(&socket, asked, give)?;
            }
            (Ok(refused), _) => {
                if let Err(why) = refused {
                    self.log(&format!("not handed over: all remote rights end: {why}"));
                }
                self.engine.resume();
                self.hand_over(&replacing.into_socket())?;
            }
        }
        Ok(None)
    }

    /// Leaves, and gives the sockets to the process that takes over.
    fn hand_over(mut self, to: &UnixStream) -> Result<()> {
        self.log("another process takes over");
        let asked = self.spans.all_asked();
        self.leave();
        let ends = |engine: Engine| {
            drop(engine);
            Vec::new()
        };
        self.give_all(to, asked, ends)
    }

    /// Ends the engine, lets go of the lock, and gives the sockets to the process that takes over.
    fn give_all(
        mut self,
        to: &UnixStream,
        asked: Vec<Asked>,
        end: impl FnOnce(Engine) -> Vec<String>,
    ) -> Result<()> {
        self.finish_writing();
        let Self {
            clock,
            listener,
            control,
            mut programs,
            engine,
            metrics,
            disk,
            running,
            ..
        } = self;
        // Its domains are left, then the lock is let go of (W1).
        let ended = end(engine);
        drop(metrics);
        // Before the lock (K3).
        drop(disk);
        drop(running);
        let gone = || NodeError::Wrong {
            what: "there is no socket to hand over".to_owned(),
        };
        let mut control = control.ok_or_else(gone)?;
        let socket = listener.socket().ok_or_else(gone)?;
        let unanswered = Unanswered {
            commands: control.unanswered(),
            programs: programs.unanswered(),
        };
        let listening = [socket, control.socket(), programs.socket()];
        replace::give(to, listening, asked, ended, unanswered)?;
        control.leave_file();
        programs.leave_file();
        control.finish(&*clock, FAREWELL);
        Ok(())
    }
}
