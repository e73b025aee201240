//! Ports that roam: their receive rights go from program to program in messages, and so do rights on them.
//!
//! A message to a port that roams may be received by any program, one after another: at most once, and in
//! its stream's order (T1, T2). What waits in the port is lost with its home, which may be any
//! node, so whatever dies excuses what is missing.

use super::super::super::Doing;
use super::super::content::{self, Size};
use super::super::ledger::{Count, End, Kind, now};
use super::{KEPT, Program, Sends, Sent};
use portolan::{
    Access, Deadline, Message, PortOptions, ReceiveError, ReceiveRight, Right, SendRight, WhenFull,
};

/// Rights on ports that roam, to be given to others.
const GIVEN: usize = 4;
/// What has died so long before a right came may be why it is dead.
const BEFORE: u64 = 30_000_000_000;

/// What a program has of ports that roam.
#[derive(Default)]
pub(super) struct Roams {
    /// Those that are here.
    ports: Vec<ReceiveRight>,
    /// Rights to be given to others.
    gives: Vec<SendRight>,
    /// What it sends itself.
    pub(super) sends: Vec<Sends>,
    /// It has made one.
    has_made: bool,
}

impl Program {
    /// Gives another program a port that roams, or a right on one, with a message.
    pub(super) fn give(&mut self) {
        self.doing(Doing::Sending);
        self.make();
        let Some(mut sends) = self.sends.pop() else {
            return self.connect();
        };
        let number = sends.number + 1;
        let name = (sends.stream, number);
        let message = content::compose(&self.domain, name, false, Size::Any);
        let right = self.something_to_give();
        let (Some(mut message), Some(right)) = (message, right) else {
            return self.sends.insert(0, sends);
        };
        if let Err(refused) = message.attach(right) {
            self.found(super::super::LOST, &format!("a right: {}", refused.why));
        }
        self.ledger.sending(sends.stream, number);
        match sends.right.send(message, WhenFull::Fail) {
            Ok(()) => {
                self.ledger.sent(sends.stream, number);
                sends.number = number;
                self.ledger.add(self.at, Count::Sent, 1);
            }
            Err(mut refused) => {
                for right in refused.item.take_rights() {
                    match right {
                        Right::Receive(port) => self.roams.ports.push(port),
                        Right::Send(right) => self.roams.gives.push(right),
                        _ => {}
                    }
                }
                if self.refused(&refused.why) == Sent::Dead {
                    return self.ledger.end(sends.stream, End::Dead);
                }
            }
        }
        self.sends.insert(0, sends);
    }

    fn make(&mut self) {
        if self.roams.has_made {
            return;
        }
        // If there is no room, later.
        if let Ok(port) = self.domain.bind(PortOptions::unnamed().queue(7)) {
            self.roams.has_made = true;
            self.has_right(port.make_send());
            self.roams.ports.push(port);
        }
    }

    fn something_to_give(&mut self) -> Option<Right> {
        let roams = &mut self.roams;
        if self.random.once_in(2) && !roams.ports.is_empty() {
            let at = self.random.below(roams.ports.len());
            return Some(roams.ports.swap_remove(at).into());
        }
        roams.gives.retain(SendRight::is_live);
        match roams.gives.len() {
            0 => None,
            count => Some(roams.gives[self.random.below(count)].clone().into()),
        }
    }

    /// A right has come with a message of the program in this place.
    pub(super) fn right_came(&mut self, right: Right, from: usize) {
        let is_far = self.shape.node_of(from) != self.shape.node_of(self.at);
        let count = match right {
            Right::Receive(port) => {
                self.roams.ports.push(port);
                Count::Moves
            }
            Right::Send(right) => {
                self.has_right(right);
                Count::Handoffs
            }
            _ => return,
        };
        self.ledger.add(self.at, count, u64::from(is_far));
    }

    /// Sends by a right from now on, and gives it to others.
    fn has_right(&mut self, right: SendRight) {
        let opened = now().saturating_sub(BEFORE);
        let roams = &mut self.roams;
        roams.gives.push(right.clone());
        if roams.gives.len() > GIVEN {
            roams.gives.remove(0);
        }
        roams.sends.push(Sends {
            stream: self.ledger.begin(self.at, self.at, Kind::Roams, opened),
            to: self.at,
            right,
            number: 0,
        });
        if roams.sends.len() > KEPT {
            let oldest = roams.sends.remove(0);
            self.ledger.end(oldest.stream, End::Dropped);
        }
    }

    /// Sends to a port that roams.
    pub(super) fn send_after(&mut self) {
        self.doing(Doing::Sending);
        if self.roams.sends.is_empty() {
            return;
        }
        let at = self.random.below(self.roams.sends.len());
        for _ in 0..=self.random.below(8) {
            let mut sends = self.roams.sends.swap_remove(at);
            match self.send_one(&mut sends, WhenFull::Fail, Size::Any) {
                Sent::Dead => return self.ledger.end(sends.stream, End::Dead),
                Sent::Full | Sent::Refused => return self.roams.sends.push(sends),
                Sent::Yes => {
                    self.roams.sends.push(sends);
                    let last = self.roams.sends.len() - 1;
                    self.roams.sends.swap(at, last);
                }
            }
        }
    }

    /// Receives at the ports that are here; whether there was something.
    pub(super) fn receive_roaming(&mut self) -> bool {
        self.doing(Doing::Receiving);
        let mut any = false;
        for at in 0..self.roams.ports.len() {
            for _ in 0..8 {
                let port = &mut self.roams.ports[at];
                match port.receive(Access::Later, Deadline::NOW) {
                    Ok(mut message) => {
                        self.came(&mut message);
                        any = true;
                    }
                    Err(ReceiveError::TimedOut) => break,
                    Err(why) => {
                        self.found(super::super::LOST, &format!("a port that roams: {why}"));
                        break;
                    }
                }
            }
        }
        any
    }

    /// While it pauses it keeps no right on a port that is dead; whether something has come.
    pub(super) fn rest_roaming(&mut self) -> bool {
        self.roams.gives.retain(SendRight::is_live);
        self.receive_roaming()
    }

    /// Takes the rights that came with a message of the program in this place.
    pub(super) fn take_rights(&mut self, message: &mut Message, from: usize) {
        for right in message.take_rights() {
            self.right_came(right, from);
        }
    }
}
