//! The program beside each node: reads, hashes or writes, by ports and then by plain TCP, and sees
//! a node lost.

use std::fs::File;
use std::io::Write as _;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::super::carrier::Carrier;
use super::super::owned::Owned;
use super::super::stages::{Role, hash, read, write};
use super::super::stream::Stream;
use super::{Said, Way, loss, now};
use crate::args::NodeStageArgs;
use crate::error::{CliError, Result};

/// Bytes of a block.
const BLOCK: usize = 2 << 20;
/// How long a stage looks for the next one.
const MEETING: Duration = Duration::from_secs(60);

/// What the lab says in the environment.
pub(super) struct Place {
    pub(super) role: Role,
    pub(super) domain: String,
    /// The process of the node beside it.
    pub(super) node: i32,
    address: IpAddr,
    /// A directory that all of the lab see.
    shared: PathBuf,
}

impl Place {
    fn new() -> Result<Self> {
        let number: usize = variable("PORTOLAN_LAB_NODE")?;
        let state: PathBuf = variable("PORTOLAN_NODE_STATE")?;
        let role = Role::ALL.get(number.wrapping_sub(1));
        Ok(Self {
            role: *role.ok_or_else(outside)?,
            domain: variable("PORTOLAN_LAB_DOMAIN")?,
            node: variable("PORTOLAN_LAB_PID")?,
            address: variable("PORTOLAN_LAB_ADDRESS")?,
            shared: state.parent().ok_or_else(outside)?.to_owned(),
        })
    }

    /// Where the stage of a role says how it is reached.
    fn file(&self, role: Role) -> PathBuf {
        self.shared.join(format!("tcp.{}", role.name()))
    }

    /// Takes the connection of the stage before.
    fn accept(&self) -> Result<TcpStream> {
        let failed = || CliError::system("cannot listen for the stage before");
        let listener = TcpListener::bind((self.address, 0)).map_err(failed())?;
        let address = listener.local_addr().map_err(failed())?;
        // Whole, or not there.
        let (written, file) = (self.shared.join(self.role.name()), self.file(self.role));
        std::fs::write(&written, address.to_string()).map_err(failed())?;
        std::fs::rename(&written, &file).map_err(failed())?;
        let (connection, _) = listener.accept().map_err(failed())?;
        Ok(connection)
    }

    /// Connects to the stage behind, when it listens.
    fn connect(&self, to: Role) -> Result<TcpStream> {
        let failed = || CliError::system("cannot connect to the next stage");
        let end = Instant::now() + MEETING;
        loop {
            let said = std::fs::read_to_string(self.file(to)).ok();
            if let Some(address) = said.and_then(|said| said.parse::<SocketAddr>().ok()) {
                return TcpStream::connect(address).map_err(failed());
            }
            if Instant::now() > end {
                return Err(failed()(std::io::ErrorKind::TimedOut.into()));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// A variable that the lab has set.
fn variable<T: std::str::FromStr>(name: &str) -> Result<T> {
    let text = std::env::var(name).ok();
    text.and_then(|text| text.parse().ok()).ok_or_else(outside)
}

fn outside() -> CliError {
    CliError::Unfit {
        because: "a stage of the demo runs only beside a node of `portolan node lab`".to_owned(),
    }
}

/// Says something to the demo.
pub(super) fn say(said: &Said) -> Result<()> {
    let line = serde_json::to_string(said).map_err(|error| CliError::Unfit {
        because: error.to_string(),
    })?;
    let mut out = std::io::stdout().lock();
    let written = writeln!(out, "{line}").and_then(|()| out.flush());
    written.map_err(CliError::system("cannot say how far it is"))
}

/// The whole life of a stage.
pub(crate) fn main(args: &NodeStageArgs) -> Result<()> {
    let place = Place::new()?;
    let mut hops = Owned::over_nodes(place.role, &place.domain, BLOCK)?;
    // Bound before the file goes through, so that all are there when it has.
    let asked = loss::Asked::bind(&place, hops.domain())?;
    carry(Way::Portolan, args, &place, &mut hops)?;
    let domain = hops.domain().clone();
    drop(hops);
    let (from, to) = match place.role {
        Role::Reader => (None, Some(place.connect(Role::Hasher)?)),
        // The last first, so that all are connected when the reader is.
        Role::Hasher => {
            let to = place.connect(Role::Writer)?;
            (Some(place.accept()?), Some(to))
        }
        Role::Writer => (Some(place.accept()?), None),
    };
    let (from, to) = (from.map(Into::into), to.map(Into::into));
    let mut stream = Stream::new(place.role.name(), from, to, BLOCK);
    carry(Way::Tcp, args, &place, &mut stream)?;
    loss::watch(&place, &domain, asked)
}

/// Does the stage's work, the file carried one way.
fn carry<C: Carrier>(way: Way, args: &NodeStageArgs, place: &Place, hops: &mut C) -> Result<()> {
    let before = portolan_sys::machine::cpu_time();
    let at = now();
    let (_, digest) = match place.role {
        Role::Reader => {
            say(&Said::Began { way, at })?;
            let file = File::open(&args.input);
            let file = file.map_err(CliError::system("cannot open the input"))?;
            read(file, BLOCK, hops)?
        }
        Role::Hasher => hash(hops)?,
        Role::Writer => {
            let output = match way {
                Way::Portolan => &args.by_ports,
                Way::Tcp => &args.by_tcp,
            };
            let file = File::options().write(true).open(output);
            let file = file.map_err(CliError::system("cannot open the output"))?;
            write(hops, file)?
        }
    };
    say(&Said::Done {
        way,
        at: now(),
        cpu: portolan_sys::machine::cpu_time() - before,
        digest,
    })
}
