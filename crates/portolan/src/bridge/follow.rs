//! Follows a channel of another domain: the channel's *ingress* writes the messages that come
//! into a channel of this domain.

use super::carrier::{self, Context, Running, Stop, Word};
use super::codec;
use super::connect::{Sought, agree, cap, connect_until, memory_of};
use super::control_socket::ControlSocket;
use super::error::{ConnectToError, Over, ViolationKind};
use super::options::ConnectOptions;
use super::side::{Connection, Side, crossing};
use super::wire::Agreed;
use crate::channel::{Channel, ChannelError, ChannelOptions, WriteError, Writer};
use crate::directory::{AcceptedConnection, OfferKind};
use crate::space::Builder;
use crate::space::public::Shown;
use crate::{Deadline, Domain, EventKind, Protection};
use portolan_abi::bridge::{Ask, Form, FrameKind};
use portolan_abi::public::PublicKind;
use portolan_sys::socket::SocketError;
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Records of skipped units that are kept until the program takes them; of more, the last ones.
const MOST_SKIPPED: usize = 1024;

/// A channel of another domain, as one of this domain's own, until dropped.
///
/// Dropping it ends the connection; its readers are told that the writer has gone.
#[must_use = "a dropped `Followed` ends its connection"]
pub struct Followed {
    channel: Channel,
    counters: Arc<Mutex<Counters>>,
    stop: Arc<Stop>,
}

/// Units of a followed channel that were not sent, because this side was too slow, or because
/// their writer ended before it had ended a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// The position, in the domain's own channel, of the message that comes after it.
    pub before: u64,
    /// Units of the offered channel that were missed.
    pub units: u64,
}

/// What the program reads beside the messages.
#[derive(Default)]
struct Counters {
    missed: u64,
    skipped: VecDeque<Skipped>,
    over: bool,
}

impl Domain {
    /// Makes a channel of this domain that gets each message that is written from now on to the
    /// channel that another domain offers by this name ([`Channel::offer`]), in order. Waits until
    /// it is offered.
    ///
    /// The channel is like the offered one: reliable if that is, with as many and as large
    /// units. It is read as any other, passed on within the domain, and written by the carrier, a
    /// thread of this process. What it could not follow it has not: [`Followed::missed`] counts, and
    /// [`Followed::take_skipped`] says where. When the writer there leaves, the writer here has
    /// gone, until the next one writes; and for good when the connection has ended
    /// ([`Followed::is_live`]).
    ///
    /// `other` names the domain, as for [`Domain::connect_to`]. Of the options, the most bytes
    /// are those of the channel here, and a queue is not needed.
    ///
    /// # Errors
    ///
    /// [`ConnectToError`], at the deadline of the options at the latest.
    ///
    /// # Examples
    ///
    /// ```
    /// use portolan::channel::{ChannelOptions, ReaderOptions};
    /// use portolan::{ConnectOptions, Deadline, Domain, OfferOptions, Permissions};
    /// # let unique = std::process::id();
    /// # let (robot, console) = (&format!("robot-{unique}"), &format!("console-{unique}"));
    /// let robot_domain = Domain::join(robot)?;
    /// let channel = robot_domain.make_channel(&ChannelOptions::named("temperature"))?;
    /// let mut writer = channel.bind_writer()?;
    /// let own_user = Permissions::own_user();
    /// let _offered = channel.offer("temperature", &own_user, OfferOptions::default())?;
    ///
    /// // In another process, of another domain:
    /// let domain = Domain::join(console)?;
    /// let options = ConnectOptions::default();
    /// let followed = domain.follow(&Domain::builder(robot), "temperature", options)?;
    /// let mut reader = followed.channel().bind_reader(ReaderOptions::default())?;
    ///
    /// writer.write(b"21.5", Deadline::NOW)?;
    /// assert_eq!(*reader.receive(Deadline::NEVER)?, *b"21.5");
    /// assert_eq!(followed.missed(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn follow(
        &self,
        other: &Builder,
        name: &str,
        options: ConnectOptions,
    ) -> Result<Followed, ConnectToError> {
        if options.protection != Protection::Copied {
            return Err(ConnectToError::Protection {
                asked: options.protection,
            });
        }
        let options = options.begun();
        let sought = Sought::of(other, name);
        connect_until(other, OfferKind::Channel, name, &options, |accepted| {
            follow_over(self, accepted, &sought, &options)
        })
    }
}

/// Follows over a connection that leads to the offering process.
pub(super) fn follow_over(
    domain: &Domain,
    accepted: AcceptedConnection,
    sought: &Sought<'_>,
    options: &ConnectOptions,
) -> Result<Followed, ConnectToError> {
    let ask = Ask {
        sealed: false,
        most: 0,
        there: options.ring_bytes,
        named: Default::default(),
    };
    let socket = accepted.connection;
    let (granted, fds) = agree(&socket, &ask, options.answer_by())?;
    let (memory, process) = memory_of(&granted, fds)?;
    let pid = process.id();
    let control = ControlSocket::new(socket, Some(process), false);
    let mut connection = Connection::new(memory, control);
    let mut form = [0; Form::BYTES];
    let read = connection.read_by(&mut form, options.answer_by());
    read.map_err(|over| match over {
        Over::Io(error) => error.into(),
        Over::Violation(_) => ConnectToError::Garbled,
        Over::Gone | Over::Stopped => ConnectToError::Over,
    })?
    .ok_or(ConnectToError::Unanswered(SocketError::TimedOut))?;
    let form = Form::decode(&form).map_err(|_| ConnectToError::Garbled)?;
    let bytes = form.unit.saturating_mul(form.units);
    let most = cap(domain.member(), options.most);
    if bytes > most {
        return Err(ConnectToError::TooLarge { bytes, most });
    }
    let channel = make_like(domain, &form)?;
    portolan_shm::mark!("bridge.followed");
    if granted.most > channel.longest() as u64 {
        return Err(ConnectToError::Garbled);
    }
    let counters = Arc::<Mutex<Counters>>::default();
    let begins = Begins {
        // So that the channel has a writer when its readers look.
        writer: channel.bind_writer().map_err(io::Error::other)?,
        shown: {
            let port = channel.segment().right().to.port.index;
            sought.show(domain.member(), PublicKind::Following, port, pid)
        },
        channel: channel.clone(),
        connection,
        most: granted.most,
        counters: Arc::clone(&counters),
    };
    let (of, name) = (domain.member().domain.clone(), sought.name.to_owned());
    let stop = Arc::<Stop>::default();
    let (stops, running) = (Arc::clone(&stop), stop.begin());
    carrier::launch(domain.member(), move |context| {
        begins.run(context, of, name, stops, running)
    })?;
    Ok(Followed {
        channel,
        counters,
        stop,
    })
}

/// Makes a channel like the offered one.
fn make_like(domain: &Domain, form: &Form) -> Result<Channel, ConnectToError> {
    let unit = usize::try_from(form.unit).map_err(|_| ConnectToError::Garbled)?;
    let mut options = ChannelOptions::unnamed()
        .unit(unit)
        .units(form.units)
        .content(form.content);
    if form.reliable {
        options = options.reliable();
    }
    domain.make_channel(&options).map_err(|error| match error {
        ChannelError::Shape(_)
        | ChannelError::Signal { .. }
        | ChannelError::ManyReliable
        | ChannelError::RawReliable => ConnectToError::Garbled,
        other => other.into(),
    })
}

impl Followed {
    /// The channel: of this domain, and like any other, but that its writer is bound.
    pub fn channel(&self) -> &Channel {
        &self.channel
    }

    /// Units of the offered channel that were missed before the last message of this one.
    pub fn missed(&self) -> u64 {
        lock(&self.counters).missed
    }

    /// The units that are missing, and where: the last 1,024 places since the last call. A place
    /// is recorded before the message after it can be read.
    pub fn take_skipped(&self) -> Vec<Skipped> {
        lock(&self.counters).skipped.drain(..).collect()
    }

    /// Whether the connection lasts.
    pub fn is_live(&self) -> bool {
        !lock(&self.counters).over
    }
}

impl Drop for Followed {
    fn drop(&mut self) {
        if portolan_sys::fork::in_child() {
            return;
        }
        self.stop.end(self.channel.member());
    }
}

impl std::fmt::Debug for Followed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Followed")
            .field("channel", &self.channel)
            .field("missed", &self.missed())
            .field("is_live", &self.is_live())
            .finish_non_exhaustive()
    }
}

fn lock(counters: &Mutex<Counters>) -> MutexGuard<'_, Counters> {
    // Nothing that is done under the lock panics.
    counters.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An ingress that is to begin.
struct Begins {
    channel: Channel,
    writer: Writer,
    connection: Connection,
    most: u64,
    counters: Arc<Mutex<Counters>>,
    shown: Shown,
}

/// The state of the ingress, a task of the carrier.
struct ChannelIngress {
    channel: Channel,
    /// The writer of this domain's channel; none while the offered one has no writer.
    writer: Option<Writer>,
    side: Side,
    /// Where readers of our own ring when they have made room.
    word: Word,
    most: u64,
    /// Units that were missed so far, as the other side counts.
    missed: u64,
    counters: Arc<Mutex<Counters>>,
    message: Vec<u8>,
    /// What observers see.
    shown: Shown,
}

impl Begins {
    async fn run(
        self,
        context: Rc<Context>,
        domain: String,
        name: String,
        stop: Arc<Stop>,
        running: Running,
    ) {
        let counters = Arc::clone(&self.counters);
        let over = match Box::new(self.connection).of_task(&context) {
            Ok(wire) => {
                let mut ingress = ChannelIngress {
                    channel: self.channel,
                    writer: Some(self.writer),
                    side: Side::new(wire, &context),
                    word: context.word(),
                    most: self.most,
                    missed: 0,
                    counters: self.counters,
                    message: Vec::new(),
                    shown: self.shown,
                };
                let over = stop.or(ingress.carry_all()).await;
                // Set before readers find that the writer has gone.
                lock(&counters).over = true;
                over
            }
            Err(error) => {
                lock(&counters).over = true;
                drop((self.writer, self.channel, self.shown));
                Over::Io(error)
            }
        };
        match over {
            Over::Stopped => tracing::debug!(domain, name, "followed no more"),
            Over::Gone => tracing::info!(domain, name, "the other side is gone"),
            Over::Violation(error) => {
                tracing::warn!(domain, name, %error, "the other side breaks the rules");
            }
            Over::Io(error) => tracing::warn!(domain, name, %error, "cannot follow any more"),
        }
        // The program waits for this, and may leave the domain then.
        drop(running);
    }
}

impl ChannelIngress {
    /// Carries messages until the connection ends; returns the reason.
    async fn carry_all(&mut self) -> Over {
        loop {
            if let Err(over) = self.carry_next().await {
                return over;
            }
        }
    }

    async fn carry_next(&mut self) -> Result<(), Over> {
        self.side.more(|_| Ok(())).await?;
        let (member, port) = self.shown.whose();
        let read = async {
            let read = codec::read_copy(&self.side, self.most, &mut self.message).await?;
            Ok((read, self.message.len() as u64))
        };
        let frame = crossing(member, EventKind::Arrive, port, read).await?;
        if frame.kind != FrameKind::Dropped {
            self.shown.came(self.message.len() as u64);
        }
        match frame.kind {
            FrameKind::Dropped => {
                self.writer = None;
                Ok(())
            }
            _ => self.write_message(frame.tag).await,
        }
    }

    /// Writes the message that has come, before which so many units in all were missed.
    async fn write_message(&mut self, missed: u64) -> Result<(), Over> {
        let units = missed
            .checked_sub(self.missed)
            .ok_or(ViolationKind::FrameHeader)?;
        self.missed = missed;
        let writer = match &mut self.writer {
            Some(writer) => writer,
            none => none.insert(self.channel.bind_writer().map_err(io::Error::other)?),
        };
        if units > 0 {
            let mut counters = lock(&self.counters);
            counters.missed = missed;
            if counters.skipped.len() >= MOST_SKIPPED {
                counters.skipped.pop_front();
            }
            let before = writer.position();
            counters.skipped.push_back(Skipped { before, units });
            portolan_shm::mark!("bridge.skipped");
        }
        loop {
            let wanted = match writer.write(&self.message, Deadline::NOW) {
                Ok(_) => {
                    portolan_shm::mark!("bridge.written");
                    return Ok(());
                }
                // Our own readers; what has come is theirs, also from who is gone.
                Err(WriteError::Full { wanted, .. }) => wanted,
                Err(error) => return Err(io::Error::other(error).into()),
            };
            let word = &self.word;
            let look = |arms: bool| {
                if !arms {
                    return Ok(writer.has_room(wanted).then_some(()));
                }
                let Some(seen) = writer.announce(wanted) else {
                    return Ok(Some(()));
                };
                word.arm(writer.room(), seen)?;
                Ok(None)
            };
            self.side.context().until(look).await?;
        }
    }
}
