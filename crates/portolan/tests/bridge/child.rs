//! A child process of a test reads commands, one a line, and answers each.

use crate::numbered::{is_message, long, message};
use portolan::channel::{ChannelOptions, ReadError, Reader, ReaderOptions, Writer};
use portolan::{
    Access, ConnectOptions, Domain, Followed, OfferOptions, OfferedChannel, OfferedPort,
    Permissions, PortOptions, Protection, ReceiveRight, Right, SendRight, WhenFull,
};
use portolan_testkit::{Answer, PATIENCE, is_pattern, obey, pattern};
use std::ops::{Deref, DerefMut};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// A process that takes orders. Killed when dropped.
pub(crate) struct Child(portolan_testkit::Child);

impl Child {
    pub(crate) fn new() -> Self {
        Self::with(|_| {})
    }

    fn with(prepare: impl FnOnce(&mut Command)) -> Self {
        Self(portolan_testkit::Child::running(
            "child::takes_orders",
            prepare,
        ))
    }

    /// As another user, which only root can do.
    pub(crate) fn of_user(uid: u32) -> Self {
        Self::with(|command| {
            command.uid(uid).gid(uid);
        })
    }

    /// A process of a domain of its own that has connected to what `theirs` offers.
    pub(crate) fn connected(theirs: &str) -> Self {
        let mut child = Self::new();
        let ours = portolan_testkit::unique("client");
        let answer = child.ask(&format!("connect {ours} {theirs} frames"));
        assert_eq!(answer, "connected");
        child
    }
}

impl Deref for Child {
    type Target = portolan_testkit::Child;

    fn deref(&self) -> &portolan_testkit::Child {
        &self.0
    }
}

impl DerefMut for Child {
    fn deref_mut(&mut self) -> &mut portolan_testkit::Child {
        &mut self.0
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
    more: Vec<SendRight>,
    also: Option<(OfferedPort, ReceiveRight)>,
    port: Option<ReceiveRight>,
    offered: Option<OfferedPort>,
    followed: Option<Followed>,
    reader: Option<Reader>,
    writer: Option<Writer>,
    offered_channel: Option<OfferedChannel>,
}

fn number(word: &str) -> usize {
    word.parse().unwrap()
}

impl State {
    fn obey(&mut self, line: &str) -> Answer {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            // Whose domain, and how long a queue.
            ["connect", ours, theirs, name] => {
                self.connect(ours, theirs, name, None, ConnectOptions::default())
            }
            ["connect", ours, theirs, name, of] => {
                self.connect(ours, theirs, name, Some(of), ConnectOptions::default())
            }
            ["connect-sealed", ours, theirs, name] => {
                let options = ConnectOptions::default().protection(Protection::Sealed);
                self.connect(ours, theirs, name, None, options)
            }
            ["ask", n, len] => {
                let (domain, right) = (self.domain.as_ref().unwrap(), self.right.as_ref().unwrap());
                let (n, len) = (number(n) as u64, number(len));
                let asked = message(domain, n, &[len]);
                let answer = right.request_reply(asked, Access::Now, PATIENCE)?;
                is_message(&answer, n, &[len]);
                Ok("answered".to_owned())
            }
            ["send", n, lengths] => {
                let lengths: Vec<usize> = lengths.split(',').map(number).collect();
                let (domain, right) = (self.domain.as_ref().unwrap(), self.right.as_ref().unwrap());
                let sent = right.send(message(domain, number(n) as u64, &lengths), long());
                Ok(sent.map_or_else(|error| format!("{:?}", error.why), |()| "sent".into()))
            }
            ["send-many", from, count, len] => {
                let (domain, right) = (self.domain.as_ref().unwrap(), self.right.as_ref().unwrap());
                for n in number(from)..number(from) + number(count) {
                    right.send(message(domain, n as u64, &[number(len)]), long())?;
                }
                Ok("sent".to_owned())
            }
            // One more connection, beside the others.
            ["connect-more", theirs] => {
                let other = Domain::builder(theirs);
                let ours = self.domain.as_ref().unwrap();
                let right = ours.connect_to(&other, "frames", ConnectOptions::default())?;
                self.more.push(right);
                Ok("connected".to_owned())
            }
            ["connect-also", theirs, name] => {
                let other = Domain::builder(theirs);
                let ours = self.domain.as_ref().unwrap();
                let options = ConnectOptions::default();
                match ours.connect_to(&other, name, options) {
                    Ok(right) => self.more.push(right),
                    Err(error) => return Ok(format!("{error:?}")),
                }
                Ok("connected".to_owned())
            }
            // To the port that was connected to after the first one.
            ["send-also", n, len] => {
                let domain = self.domain.as_ref().unwrap();
                let message = message(domain, number(n) as u64, &[number(len)]);
                let sent = self.more[0].send(message, long());
                Ok(sent.map_or_else(|error| format!("{:?}", error.why), |()| "sent".into()))
            }
            // How many connections it has, as a client or as an offering process.
            ["connections"] => {
                let maps = std::fs::read_to_string("/proc/self/maps")?;
                let lines = maps.lines().filter(|line| line.contains("portolan-bridge"));
                Ok(lines.count().to_string())
            }
            ["offer-also", name] => {
                let port = self.domain.as_ref().unwrap().bind(PortOptions::unnamed())?;
                let permissions = Permissions::own_user();
                let offered = port.offer(name, &permissions, OfferOptions::default())?;
                self.also = Some((offered, port));
                Ok("offered".to_owned())
            }
            // How many threads carry its connections.
            ["carriers"] => Ok(carriers()?.len().to_string()),
            ["drop-right"] => {
                self.more.clear();
                self.right = None;
                Ok("dropped".to_owned())
            }
            // All that was sent has gone over when this returns.
            ["leave"] => {
                self.right = None;
                self.domain.take().unwrap().leave()?;
                Ok("left".to_owned())
            }
            ["offer", name] => self.offer(name, PortOptions::named("inbox").queue(3)),
            ["offer-requests", name] => self.offer(name, PortOptions::unnamed().synchronous()),
            // In a domain where another process has the other name.
            ["offer-in", name] => {
                let domain = Domain::join(name)?;
                let port = domain.bind(PortOptions::unnamed())?;
                let permissions = Permissions::own_user();
                let offered = port.offer("elsewhere", &permissions, OfferOptions::default())?;
                (self.domain, self.port, self.offered) = (Some(domain), Some(port), Some(offered));
                Ok("offered".to_owned())
            }
            ["withdraw"] => {
                self.offered = None;
                Ok("withdrawn".to_owned())
            }
            #[cfg(feature = "marks")]
            ["die-at", mark] => {
                portolan_testkit::die_at(mark, portolan_shm::mark::install);
                Ok("done".to_owned())
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
                Ok(sent.map_or_else(|error| format!("{:?}", error.why), |()| "sent".into()))
            }
            // Never answers.
            ["exec"] => Err(std::process::Command::new("sleep")
                .arg("1000")
                .exec()
                .into()),
            _ => self.obey_of_channels(&words),
        }
    }

    fn offer(&mut self, domain: &str, options: PortOptions) -> Answer {
        let domain = Domain::join(domain)?;
        let port = domain.bind(options)?;
        let offered = port.offer("frames", &Permissions::own_user(), OfferOptions::default())?;
        (self.domain, self.port, self.offered) = (Some(domain), Some(port), Some(offered));
        Ok("offered".to_owned())
    }

    fn connect(
        &mut self,
        ours: &str,
        theirs: &str,
        name: &str,
        of: Option<&str>,
        options: ConnectOptions,
    ) -> Answer {
        let domain = Domain::join(ours)?;
        let mut other = Domain::builder(theirs);
        if let Some(of) = of {
            other = other.of_user(of.parse()?);
        }
        match domain.connect_to(&other, name, options) {
            Ok(right) => self.right = Some(right),
            Err(error) => return Ok(format!("{error:?}")),
        }
        self.domain = Some(domain);
        Ok("connected".to_owned())
    }

    fn obey_of_channels(&mut self, words: &[&str]) -> Answer {
        match *words {
            ["follow", ours, theirs, name] => self.follow(ours, theirs, name, None),
            ["follow", ours, theirs, name, of] => self.follow(ours, theirs, name, Some(of)),
            ["hear", n, len] => match self.reader.as_mut().unwrap().receive(long()) {
                Ok(message) => {
                    assert_eq!(message.len(), number(len));
                    is_pattern(&message, number(n) as u64);
                    Ok("heard".to_owned())
                }
                Err(error) => Ok(format!("{error:?}")),
            },
            // Until message `last`; how many came, in order, and how many units were missed: on
            // the way here, or because this reader was too slow.
            ["hear-to", last] => {
                let followed = self.followed.as_ref().unwrap();
                let reader = self.reader.as_mut().unwrap();
                let (mut heard, mut missed, mut before) = (0, 0, None);
                loop {
                    let message = match reader.receive(long()) {
                        Err(ReadError::Missed(units)) => {
                            missed += units.units();
                            continue;
                        }
                        other => other?,
                    };
                    let n = u64::from_le_bytes(message[..8].try_into()?);
                    assert!(before < Some(n), "{n} after {before:?}");
                    (before, heard) = (Some(n), heard + 1);
                    if n == number(last) as u64 {
                        // It is told before the message after it.
                        return Ok(format!("{heard} {}", missed + followed.missed()));
                    }
                }
            }
            ["is-live"] => Ok(self.followed.as_ref().unwrap().is_live().to_string()),
            ["read-no-more"] => {
                self.reader = None;
                Ok("done".to_owned())
            }
            ["unfollow"] => {
                self.followed = None;
                Ok("unfollowed".to_owned())
            }
            ["offer-channel", name] => {
                let domain = Domain::join(name)?;
                let channel = domain.make_channel(&ChannelOptions::unnamed())?;
                let permissions = Permissions::own_user();
                let offered = channel.offer("news", &permissions, OfferOptions::default())?;
                self.writer = Some(channel.bind_writer()?);
                (self.domain, self.offered_channel) = (Some(domain), Some(offered));
                Ok("offered".to_owned())
            }
            ["write", n, len] => {
                let mut bytes = vec![0; number(len)];
                pattern(&mut bytes, number(n) as u64);
                self.writer.as_mut().unwrap().write(&bytes, long())?;
                Ok("written".to_owned())
            }
            // How often the thread of its connections has gone to sleep.
            ["sleeps"] => Ok(sleeps()?.to_string()),
            _ => Err(format!("what is {words:?}?").into()),
        }
    }

    fn follow(&mut self, ours: &str, theirs: &str, name: &str, of: Option<&str>) -> Answer {
        let domain = Domain::join(ours)?;
        let mut other = Domain::builder(theirs);
        if let Some(of) = of {
            other = other.of_user(of.parse()?);
        }
        match domain.follow(&other, name, ConnectOptions::default()) {
            Ok(followed) => {
                let reader = followed.channel().bind_reader(ReaderOptions::default())?;
                (self.followed, self.reader) = (Some(followed), Some(reader));
            }
            Err(error) => return Ok(format!("{error:?}")),
        }
        self.domain = Some(domain);
        Ok("follows".to_owned())
    }
}

/// The threads of this process's connections.
fn carriers() -> std::io::Result<Vec<std::path::PathBuf>> {
    let mut carriers = Vec::new();
    for task in std::fs::read_dir("/proc/self/task")? {
        let task = task?.path();
        // It may have ended since.
        let name = std::fs::read_to_string(task.join("comm")).unwrap_or_default();
        if name.trim() == "portolan-bridge" {
            carriers.push(task);
        }
    }
    Ok(carriers)
}

fn sleeps() -> Result<u64, Box<dyn std::error::Error>> {
    let mut sum = 0;
    for task in carriers()? {
        let status = std::fs::read_to_string(task.join("status"))?;
        let line = status
            .lines()
            .find(|line| line.starts_with("voluntary_ctxt"));
        let count = line.and_then(|line| line.split_whitespace().last());
        sum += count.unwrap_or("0").parse::<u64>()?;
    }
    Ok(sum)
}
