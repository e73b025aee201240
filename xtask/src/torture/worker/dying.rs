//! What a worker does before it dies in a pause: see [`LastAct`].

use super::super::board::{Entry, MAX_WORKERS};
use super::super::last_acts::LastAct;
use super::{LARGEST, Worker, channels, messages, wake_up};
use portolan::{Domain, Message, PortOptions, WhenFull};

impl Worker {
    /// Does what it is told to do last, if it is told something.
    pub(super) fn heed_last_act(&mut self) {
        let Some(act) = LastAct::of(self.board.get(self.at, Entry::LastAct)) else {
            return;
        };
        if let Some(domain) = self.domain.clone() {
            self.do_last(act, &domain);
        }
        self.board.set(self.at, Entry::LastAct, LastAct::DONE);
    }

    /// What fails here, for want of memory or room, leaves a death like others.
    fn do_last(&mut self, act: LastAct, domain: &Domain) {
        let others = (0..MAX_WORKERS).filter(|other| *other != self.at);
        match act {
            LastAct::Hold => {}
            LastAct::Listen => self.hang_bell(domain),
            LastAct::TieRing => drop(messages::tie(domain)),
            LastAct::SendPort => drop(send_port(domain)),
            LastAct::SendMessages => others.for_each(|other| drop(wake_up(domain, other))),
            LastAct::WriteLetters => {
                let who = self.random.next();
                others.for_each(|other| drop(channels::post(domain, other, who)));
            }
            LastAct::Watch => drop(watch(domain)),
            LastAct::Trim => {
                let all = (0..).map_while(|_| domain.allocate(LARGEST).ok());
                drop(all.collect::<Vec<_>>());
                // Fails in a forked child only.
                let _ = domain.trim();
            }
        }
    }
}

/// Watches a port.
fn watch(domain: &Domain) -> Option<()> {
    let bind = || domain.bind(PortOptions::unnamed()).ok();
    let (told, watched) = bind().zip(bind())?;
    watched.make_send().watch(&told, 1).ok()
}

/// Sends a receive right where there is room for it.
fn send_port(domain: &Domain) -> Option<()> {
    let bind = || domain.bind(PortOptions::unnamed()).ok();
    let (to, port) = bind().zip(bind())?;
    let mut message = Message::default();
    message.attach(port).ok()?;
    to.make_send().send(message, WhenFull::Fail).ok()
}
