//! The commands.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs as _, UdpSocket};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::sync::Arc;

use portolan_abi::node::Stated;
use portolan_node::audit::{self, Event};
use portolan_node::authority::{self, Authority, End};
use portolan_node::config::{Config, Directory, Span, is_node_name};
use portolan_node::directory::DirectoryStatus;
use portolan_node::join;
use portolan_node::output::tell;
use portolan_node::span_table;
use portolan_node::state::{State, read_key_at};
use portolan_node::token::Token;
use portolan_node::up::{self, Ask, PeerState, PeerStatus, SpanState, SpanStatus, Start, Status};
use portolan_node::{NodeError, Result, invitations, lab};
use portolan_transport::clock::{Clock, SystemClock};
use portolan_transport::{Address, Moment, NodeId};
use sd_notify::NotifyState;
use serde::Serialize;

use crate::args::{
    Args, AuthorityArgs, Command, ForgetArgs, InitArgs, InviteArgs, JoinArgs, NewArgs, SpanArgs,
    StatusArgs, UnspanArgs,
};
use crate::pages;

pub(crate) fn run(args: &Args) -> Result<()> {
    let path = match &args.state {
        Some(path) => path.clone(),
        None => default_state()?,
    };
    let state = State::of(&path);
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    let now = Moment {
        seconds: clock.of_day().as_secs(),
    };
    match &args.command {
        Command::Init(args) => init(&state, args, now),
        Command::Invite(args) => invite(&state, args, now),
        Command::Join(args) => join(&state, args, clock),
        Command::Forget(args) => forget(&state, args, now),
        Command::Span(args) => span(&state, args),
        Command::Unspan(args) => unspan(&state, args),
        Command::Authority(args) => keep_authority(&state, args, now),
        Command::Up(args) => {
            let start = match args.replace {
                true => Start::Replace,
                false => Start::Alone,
            };
            up::run(&state, clock, start, |status| {
                tell(&format!(
                    "{} ({}) listens at {}",
                    status.name, status.node, status.listen
                ));
                tell_system(&NotifyState::Ready);
            })
        }
        Command::Leave => up::ask(&state, Ask::Leave).map(|_| ()),
        Command::Reload => reload_all(&state),
        Command::Status(args) => status(&state, args),
        Command::Lab(args) => lab::run(&args.plan()),
        Command::Man(args) => pages::man(args),
    }
}

/// Tells systemd, if that has started this process.
fn tell_system(state: &NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(std::slice::from_ref(state)) {
        tell(&format!("cannot tell systemd {state}: {error}"));
    }
}

/// Where a node's state lies unless it is said.
fn default_state() -> Result<PathBuf> {
    portolan::proxy::state_directory().ok_or_else(|| NodeError::Wrong {
        what: "PORTOLAN_NODE_STATE is no absolute path, or there is no home directory: name a state directory (--state)".to_owned(),
    })
}

/// The name of a new node.
fn name_of(args: &NewArgs) -> Result<String> {
    if let Some(name) = &args.name {
        return Ok(name.clone());
    }
    let machine = rustix::system::uname();
    let name = machine.nodename().to_string_lossy().into_owned();
    match is_node_name(&name) {
        true => Ok(name),
        false => Err(NodeError::Wrong {
            what: format!("{name:?}, this machine's name, is no name of a node: say --name"),
        }),
    }
}

/// The node.toml of a new node.
fn first_config(state: &State, name: &str, args: &NewArgs, peers: &[String]) -> Result<()> {
    let peers: Vec<_> = peers.iter().map(|peer| format!("{peer:?}")).collect();
    // What needs no line has none.
    let directory = match Directory::DEFAULT {
        Directory::Static => String::new(),
        other => format!("directory = {:?}\n", other.in_words()),
    };
    let text = format!(
        "# What this node is to do; all else has defaults.\nname = {name:?}\nlisten = \"{}\"\npeers = [{}]\n{directory}",
        args.listen,
        peers.join(", "),
    );
    // What cannot be read is not written.
    Config::read(&text, &state.file("node.toml"))?;
    state.write("node.toml", &text)
}

fn init(state: &State, args: &InitArgs, now: Moment) -> Result<()> {
    let name = name_of(&args.new)?;
    authority::check_new(state, &name)?;
    first_config(state, &name, &args.new, &[])?;
    let node = authority::make_first(state, &name, now)?;
    say(&format!(
        "{name} is node {node}; its state lies in {}",
        state.path().display()
    ))
}

fn invite(state: &State, args: &InviteArgs, now: Moment) -> Result<()> {
    let config = state.config()?;
    let authority = Authority::load(state)?;
    let address = match (&args.address, &config.advertise) {
        (Some(address), _) | (None, Some(address)) => address.clone(),
        (None, None) => reachable(state, &config)?,
    };
    let token = invitations::invite(state, &address, authority.key()?, now)?;
    let line = token.to_string();
    if line.parse::<Token>().as_ref() != Ok(&token) {
        return Err(NodeError::Wrong {
            what: format!("{address:?} is not HOST:PORT"),
        });
    }
    let number = invitations::in_words(invitations::number(&token.secret));
    audit::note(state, now, &Event::Invited { invitation: number })?;
    say(&line)
}

/// Where others reach this node, if it says nothing else.
fn reachable(state: &State, config: &Config) -> Result<String> {
    // The port that the kernel has chosen, where it was to.
    let listens = match up::status(state) {
        Ok(status) => status.listen.parse().unwrap_or(config.listen),
        Err(error @ NodeError::Wrong { .. }) => return Err(error),
        Err(_) => config.listen,
    };
    let unknown = || {
        NodeError::Wrong {
        what: "the address of this node is not known: say --address HOST:PORT, or `advertise` in node.toml".to_owned(),
    }
    };
    if listens.port() == 0 {
        return Err(unknown());
    }
    if !listens.ip().is_unspecified() {
        return Ok(listens.to_string());
    }
    let machine = rustix::system::uname();
    let name = machine.nodename().to_string_lossy().into_owned();
    if let Some(address) = outward(&name, listens.port()) {
        tell(&format!(
            "{name:?} is found at this machine alone, so others are told {address}; if they cannot reach that, say --address HOST:PORT"
        ));
        return Ok(address.to_string());
    }
    match is_node_name(&name) {
        true => {
            tell(&format!(
                "others must be able to look up {name:?}; if they cannot, say --address HOST:PORT"
            ));
            Ok(format!("{name}:{}", listens.port()))
        }
        false => Err(unknown()),
    }
}

/// Where this machine's packets to other networks come from, if its name leads nowhere but back here, as
/// it does where `/etc/hosts` gives it 127.0.1.1.
fn outward(name: &str, port: u16) -> Option<SocketAddr> {
    let mut found = (name, port).to_socket_addrs().ok()?;
    if !found.all(|address| address.ip().is_loopback()) {
        return None;
    }
    // Sends nothing: the kernel looks for a route. The address is one that no machine has (RFC 5737).
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    socket.connect((Ipv4Addr::new(203, 0, 113, 1), 9)).ok()?;
    let from = socket.local_addr().ok()?.ip();
    (!from.is_loopback() && !from.is_unspecified()).then(|| SocketAddr::new(from, port))
}

fn join(state: &State, args: &JoinArgs, clock: Arc<dyn Clock>) -> Result<()> {
    let token: Token = args.token.parse()?;
    let name = name_of(&args.new)?;
    authority::check_new(state, &name)?;
    let unknown = |error: std::io::Error| NodeError::Wrong {
        what: format!("cannot look up {}: {error}", token.address),
    };
    let addresses = token.address.to_socket_addrs().map_err(unknown)?;
    let addresses: Vec<_> = addresses.map(Address::Internet).collect();
    // Before the token is used up: what can fail here must not cost it.
    first_config(
        state,
        &name,
        &args.new,
        std::slice::from_ref(&token.address),
    )?;
    let node = join::join(state, &token, &name, &addresses, clock)?;
    say(&format!(
        "{name} is node {node}; its state lies in {}",
        state.path().display()
    ))
}

fn forget(state: &State, args: &ForgetArgs, now: Moment) -> Result<()> {
    if args.node == authority::own_id(state)? {
        return Err(NodeError::Wrong {
            what: "that is this node itself".to_owned(),
        });
    }
    match Authority::load(state) {
        Ok(authority) => {
            let statement = authority.state(Stated::Forget(args.node), now)?;
            up::state_in(state, &statement, now)
        }
        Err(NodeError::NoAuthority | NodeError::Superseded { .. }) => {
            state.forget(args.node)?;
            let event = Event::Forgotten {
                node: audit::id(args.node),
                from: "a command".to_owned(),
            };
            audit::note(state, now, &event)?;
            tell(&format!(
                "this node does not have the authority's key: it refuses {} for itself alone",
                args.node
            ));
            reload(state)
        }
        Err(error) => Err(error),
    }
}

/// Has the running node look at its files again, if one runs.
fn reload(state: &State) -> Result<()> {
    match up::ask(state, Ask::Reload) {
        Ok(_) | Err(NodeError::NotRunning { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Has the running node take over what node.toml says.
fn reload_all(state: &State) -> Result<()> {
    // Its errors are shown here, and not in the node's log alone.
    state.config()?;
    let answer = up::ask(state, Ask::Reload)?;
    let answer: serde_json::Value = serde_json::from_str(&answer).unwrap_or_default();
    let later = answer["later"].as_array().into_iter().flatten();
    let later: Vec<_> = later.filter_map(|key| key.as_str()).collect();
    if !later.is_empty() {
        let keys = later.join(", ");
        tell(&format!(
            "what has changed of {keys} holds from the node's next start on (`portolan node up --replace`)"
        ));
    }
    Ok(())
}

/// node.toml's text.
fn config_text(state: &State) -> Result<String> {
    state
        .read("node.toml")?
        .ok_or_else(|| match state.config() {
            Err(error) => error,
            // It has come meanwhile.
            Ok(_) => NodeError::NotMade {
                path: state.path().to_owned(),
            },
        })
}

fn span(state: &State, args: &SpanArgs) -> Result<()> {
    let span = Span {
        domain: args.domain.clone(),
        local: args.local.clone().unwrap_or_else(|| args.domain.clone()),
        nodes: match args.nodes.is_empty() {
            true => vec!["*".to_owned()],
            false => args.nodes.clone(),
        },
        ports: args.ports.clone(),
    };
    let text = config_text(state)?;
    let path = state.file("node.toml");
    let new = span_table::with(&text, &path, &span).map_err(|error| {
        // What the file says already is its writer's fault, the rest the command line's.
        match Config::read(&text, &path) {
            Ok(_) => NodeError::Wrong {
                what: error.what.to_string(),
            },
            Err(error) => error.into(),
        }
    })?;
    state.write("node.toml", &new)?;
    reload(state)
}

fn unspan(state: &State, args: &UnspanArgs) -> Result<()> {
    let text = config_text(state)?;
    let new = span_table::without(&text, &state.file("node.toml"), &args.domain)?;
    if new == text {
        let spans = Config::read(&text, &state.file("node.toml"))?.spans;
        let spans: Vec<_> = spans.iter().map(|it| format!("{:?}", it.domain)).collect();
        let spans = match spans.is_empty() {
            true => "none at all".to_owned(),
            false => spans.join(", "),
        };
        return Err(NodeError::Wrong {
            what: format!(
                "node.toml does not span the domain {:?}; it spans {spans}",
                args.domain
            ),
        });
    }
    state.write("node.toml", &new)?;
    reload(state)
}

fn keep_authority(state: &State, args: &AuthorityArgs, now: Moment) -> Result<()> {
    if let Some(path) = &args.copy {
        let text = authority::copy(state)?;
        let failed = || NodeError::file("cannot write", path);
        let mut options = OpenOptions::new();
        // One that is there may be readable, or somebody's link.
        let options = options.write(true).create_new(true).mode(0o600);
        let mut file = options.open(path).map_err(failed())?;
        let written = file.write_all(text.as_bytes());
        if let Err(error) = written.and_then(|()| file.sync_all()) {
            // Half of one is of no use, and would be in the way.
            let _ = std::fs::remove_file(path);
            return Err(failed()(error));
        }
    }
    if let Some(path) = &args.install {
        let text = read_key_at(path)?;
        authority::install(state, &text, now)?;
        // It may renew its own certificate now, and those of its peers.
        return reload(state);
    }
    if args.rotate {
        return rotate(state, End::After(args.keep_old), now);
    }
    if args.revoke {
        return rotate(state, End::Now, now);
    }
    Ok(())
}

fn rotate(state: &State, end: End, now: Moment) -> Result<()> {
    for statement in authority::rotate(state, end, now)? {
        up::state_in(state, &statement, now)?;
    }
    authority::finish_rotation(state)?;
    match up::ask(state, Ask::Reload) {
        Ok(_) => {}
        // A running one does it itself.
        Err(NodeError::NotRunning { .. }) => drop(authority::renew_own(state, now)?),
        Err(error) => return Err(error),
    }
    let key = NodeId(Authority::load(state)?.key()?);
    let old = match end {
        End::After(time) => format!("the old one is believed for {} s more", time.as_secs()),
        End::Now => "those of before are believed no more".to_owned(),
    };
    say(&format!(
        "the authority's key is {key} now; {old}\nback it up again: portolan node authority --copy FILE"
    ))
}

/// A value, and the version of the command that says so.
#[derive(Serialize)]
struct Versioned<T> {
    version: &'static str,
    #[serde(flatten)]
    value: T,
}

fn status(state: &State, args: &StatusArgs) -> Result<()> {
    let status = up::status(state)?;
    if args.check {
        return check(&status);
    }
    if args.json {
        let value = Versioned {
            version: env!("CARGO_PKG_VERSION"),
            value: &status,
        };
        let text = serde_json::to_string_pretty(&value);
        return say(&text.map_err(|error| NodeError::Wrong {
            what: error.to_string(),
        })?);
    }
    let mut text = format!(
        "node         {}\nname         {}\nincarnation  {}\nlistens at   {}\ncertificate  until {}, renewed from {} on\nlets in      {}\n",
        status.node,
        status.name,
        status.incarnation,
        status.listen,
        status.certificate_until,
        status.renews_at,
        if status.authority {
            "yes: it has the authority's key"
        } else {
            "no"
        },
    );
    text += &directory(&status.directory);
    for authority in &status.authorities {
        let until = authority.until.as_ref();
        let until = until.map_or_else(String::new, |until| format!(", until {until}"));
        text += &format!("believes     the authority {}{until}\n", authority.key);
    }
    for node in &status.forgotten {
        text += &format!("forgotten    {node}\n");
    }
    text += &peers(&status.peers);
    text += &spans(&status.spans);
    for lost in &status.lost {
        text += &format!(
            "\nlost         {} messages to {} ({}), which was given up, or whose port ended\n",
            lost.messages, lost.name, lost.node
        );
    }
    let rights = &status.rights;
    if rights.given + rights.come > 0 {
        text += &format!(
            "\nrights       {} given in messages, {} come; {} kept until they are borrowed, {} being borrowed\n",
            rights.given, rights.come, rights.kept, rights.borrowing
        );
    }
    if rights.ports_left + rights.ports_arrived > 0 {
        text += &format!(
            "\nports moved  {} to other nodes, {} came from them\n",
            rights.ports_left, rights.ports_arrived
        );
    }
    if rights.ports_sought > 0 {
        text += &format!(
            "\nports sought {} whose nodes were given up, and may have passed them on\n",
            rights.ports_sought
        );
    }
    if status.left_behind > 0 {
        text += &format!(
            "\nleft behind  {} messages that could not travel\n",
            status.left_behind
        );
    }
    say(text.trim_end())
}

/// Which directory it has, and how that is.
fn directory(status: &DirectoryStatus) -> String {
    let Some(state) = status.state else {
        return format!("directory    {}\n", status.kind);
    };
    let failure = status.failure.as_ref();
    let failure = failure.map_or_else(String::new, |why| format!("\n             {why}"));
    format!(
        "directory    {}: {}, connected with {}; names {} members, {} names of ports{failure}\n",
        status.kind,
        state.in_words(),
        status.connected.len(),
        status.members.len(),
        status.names,
    )
}

/// Says what is not as it should be.
fn check(status: &Status) -> Result<()> {
    let mut wrong = Vec::new();
    for peer in &status.peers {
        let is_to_be = peer.address.is_some() || peer.state == PeerState::Unreachable;
        if is_to_be && peer.state != PeerState::Up {
            let who = peer.name.as_ref().or(peer.address.as_ref());
            let who = who.or(peer.node.as_ref()).cloned().unwrap_or_default();
            wrong.push(format!("{who} is {}", peer.state.in_words()));
        }
    }
    for span in &status.spans {
        if span.state != SpanState::Up {
            let domain = &span.report.domain;
            wrong.push(format!("{domain} is {}", span.state.in_words()));
        }
    }
    match wrong.is_empty() {
        true => say("ok"),
        false => Err(NodeError::NotWell {
            what: wrong.join("; "),
        }),
    }
}

fn spans(spans: &[SpanStatus]) -> String {
    let mut text = String::new();
    for span in spans {
        let report = &span.report;
        text += &format!(
            "\nspan {} ({})  {}, requests without an answer yet: {} made, {} to serve\n",
            report.domain,
            report.local,
            span.state.in_words(),
            report.asking,
            report.serving,
        );
        for proxy in &report.proxies {
            text += &format!(
                "  {} -> {}  sent {}, unacknowledged {}, waiting {}{}\n",
                proxy.name,
                proxy.node,
                proxy.sent,
                proxy.unacknowledged,
                proxy.depth,
                if proxy.waits { ", held up" } else { "" },
            );
        }
        for lent in &report.lent {
            text += &format!("  {} <- others  delivered {}", lent.name, lent.delivered);
            if !lent.waiting.is_empty() {
                text += &format!(", waiting for room: {}", lent.waiting.join(", "));
            }
            text += "\n";
        }
        if let Some(failure) = &span.failure {
            text += &format!("  {failure}\n");
        }
    }
    text
}

/// How far its clock is ahead, and by how much that may be wrong.
fn clock(peer: &PeerStatus) -> String {
    let (Some(ahead), Some(error)) = (peer.clock_offset_ns, peer.clock_error_ns) else {
        return "-".to_owned();
    };
    let seconds = ahead as f64 / 1e9;
    format!("{seconds:+.6} s, +-{} us", error.div_ceil(1000))
}

fn peers(peers: &[PeerStatus]) -> String {
    let head = [
        "NAME",
        "NODE",
        "STATE",
        "FOR",
        "ROUND TRIP",
        "CLOCK",
        "ADDRESS",
    ]
    .map(str::to_owned);
    let mut rows = vec![head];
    for peer in peers {
        let or_none = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
        let seconds = peer.for_ms / 1_000;
        rows.push([
            or_none(&peer.name),
            or_none(&peer.node),
            peer.state.in_words().to_owned(),
            format!("{seconds} s"),
            peer.round_trip_us
                .map_or("-".to_owned(), |us| format!("{us} us")),
            clock(peer),
            or_none(&peer.address.clone().or_else(|| peer.heard_at.clone())),
        ]);
    }
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let widths: Vec<_> = (0..7).map(width).collect();
    let mut text = String::from("\n");
    for (at, row) in rows.iter().enumerate() {
        let cells = row
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:width$}"));
        text += cells.collect::<Vec<_>>().join("  ").trim_end();
        text += "\n";
        let failure = at.checked_sub(1).and_then(|at| peers[at].failure.as_ref());
        if let Some(failure) = failure {
            text += &format!("  {failure}\n");
        }
        if let Some(rates) = at.checked_sub(1).and_then(|at| peers[at].rates.in_words()) {
            text += &format!("  {rates}\n");
        }
    }
    if peers.is_empty() {
        text += "no peers\n";
    }
    text
}

/// Prints a line; a reader that has left is no error.
fn say(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    match writeln!(out, "{text}") {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(NodeError::System {
            doing: "cannot print",
            source: error,
        }),
        _ => Ok(()),
    }
}
