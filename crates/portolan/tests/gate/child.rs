//! Another process of a test, and what it can be told to do.

use crate::cargo::{is_message, long, message};
pub(crate) use crate::orders::Child;
use crate::orders::{Answer, obey};
use portolan::{
    Access, ConnectOptions, Domain, OfferOptions, OfferedPort, Permissions, PortOptions,
    ReceiveRight, Right, SendRight, WhenFull,
};
use std::os::unix::process::CommandExt;

impl Child {
    pub(crate) fn new() -> Self {
        Self::running("child::takes_orders", |_| {})
    }

    /// As another user, which only root can do.
    pub(crate) fn of_user(uid: u32) -> Self {
        Self::running("child::takes_orders", |command| {
            command.uid(uid).gid(uid);
        })
    }

    /// A process of a domain of its own that has connected to what `theirs` offers.
    pub(crate) fn connected(theirs: &str) -> Self {
        let mut child = Self::new();
        let ours = crate::orders::unique("visitor");
        let answer = child.ask(&format!("connect {ours} {theirs} frames"));
        assert_eq!(answer, "connected");
        child
    }
}

/// Not a test: what the other processes run.
#[test]
fn takes_orders() {
    let mut state = State::default();
    obey(|line| state.obey(line));
}

#[derive(Default)]
struct State {
    domain: Option<Domain>,
    right: Option<SendRight>,
    port: Option<ReceiveRight>,
    offered: Option<OfferedPort>,
}

fn number(word: &str) -> usize {
    word.parse().unwrap()
}

impl State {
    fn obey(&mut self, line: &str) -> Answer {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            // Whose domain, and how long a queue.
            ["connect", ours, theirs, name] => self.connect(ours, theirs, name, None),
            ["connect", ours, theirs, name, of] => self.connect(ours, theirs, name, Some(of)),
            ["send", n, lengths] => {
                let lengths: Vec<usize> = lengths.split(',').map(number).collect();
                let (domain, right) = (self.domain.as_ref().unwrap(), self.right.as_ref().unwrap());
                let sent = right.send(message(domain, number(n) as u64, &lengths), long());
                Ok(sent.map_or_else(|error| format!("{:?}", error.reason), |()| "sent".into()))
            }
            ["send-many", from, count, len] => {
                let (domain, right) = (self.domain.as_ref().unwrap(), self.right.as_ref().unwrap());
                for n in number(from)..number(from) + number(count) {
                    right.send(message(domain, n as u64, &[number(len)]), long())?;
                }
                Ok("sent".to_owned())
            }
            ["drop-right"] => {
                self.right = None;
                Ok("dropped".to_owned())
            }
            ["offer", name] => {
                let domain = Domain::join(name)?;
                let port = domain.bind(PortOptions::named("inbox").queue(3))?;
                let offered =
                    port.offer("frames", &Permissions::own_user(), OfferOptions::default())?;
                (self.domain, self.port, self.offered) = (Some(domain), Some(port), Some(offered));
                Ok("offered".to_owned())
            }
            ["receive", n, lengths] => {
                let lengths: Vec<usize> = lengths.split(',').map(number).collect();
                let came = self.port.as_mut().unwrap().receive(Access::Now, long())?;
                is_message(&came, number(n) as u64, &lengths);
                Ok("received".to_owned())
            }
            ["take-port"] => {
                let mut came = self.port.as_mut().unwrap().receive(Access::Now, long())?;
                match came.take_rights().pop() {
                    Some(Right::Receive(port)) => self.port = Some(port),
                    other => return Err(format!("no port: {other:?}").into()),
                }
                Ok("taken".to_owned())
            }
            ["full", n, len] => {
                let (domain, right) = (self.domain.as_ref().unwrap(), self.right.as_ref().unwrap());
                let message = message(domain, number(n) as u64, &[number(len)]);
                let sent = right.send(message, WhenFull::Fail);
                Ok(sent.map_or_else(|error| format!("{:?}", error.reason), |()| "sent".into()))
            }
            _ => Err(format!("what is {line:?}?").into()),
        }
    }

    fn connect(&mut self, ours: &str, theirs: &str, name: &str, of: Option<&str>) -> Answer {
        let domain = Domain::join(ours)?;
        let mut other = Domain::builder(theirs);
        if let Some(of) = of {
            other = other.of_user(of.parse()?);
        }
        match domain.connect_to(&other, name, ConnectOptions::default()) {
            Ok(right) => self.right = Some(right),
            Err(error) => return Ok(format!("{error:?}")),
        }
        self.domain = Some(domain);
        Ok("connected".to_owned())
    }
}
