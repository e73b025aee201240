//! node.toml: what a node is to do. Errors name the file, the line, the key, and what is allowed.

use std::fmt;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use portolan_abi::limits::{MAX_DOMAIN_NAME, MAX_NAME, MAX_NODE_NAME};
use portolan_abi::name::is_name;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::rates::{PeerRates, Rate, rate};
use crate::token::is_address;
use crate::up::LogFormat;

/// Where a node listens if node.toml does not say.
pub const LISTEN: &str = "0.0.0.0:7411";

/// What node.toml says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The node's name, for people.
    pub name: String,
    /// Where it listens.
    pub listen: SocketAddr,
    /// Where other nodes can reach it, if that is another address.
    pub advertise: Option<String>,
    /// Nodes that it connects to: hosts with ports.
    pub peers: Vec<String>,
    /// Who knows where names are.
    pub directory: Directory,
    /// After how much silence a peer is unreachable.
    pub silent_after: Duration,
    /// After how much silence it is given up; `None` for never.
    pub dead_after: Option<Duration>,
    /// Where its counters are asked for; `None` for nowhere.
    pub metrics: Option<SocketAddr>,
    /// How its log's lines are written.
    pub log: LogFormat,
    /// Bytes a second to each peer, and from it.
    pub rates: PeerRates,
    /// Domains that are spanned.
    pub spans: Vec<Span>,
}

/// Who knows where names are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Directory {
    /// The peers, and whom they know.
    Static,
    /// The directories of all members, which tell one another over Zenoh (feature `zenoh`).
    Zenoh,
}

impl Directory {
    /// What a new node has: Zenoh where it is built in, which needs nothing else.
    pub const DEFAULT: Self = match cfg!(feature = "zenoh") {
        true => Self::Zenoh,
        false => Self::Static,
    };

    /// As node.toml calls it.
    pub fn in_words(self) -> &'static str {
        match self {
            Self::Static => "static",
            Self::Zenoh => "zenoh",
        }
    }
}

/// A domain that several nodes share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// The name that all of them call it.
    pub domain: String,
    /// This machine's name for it.
    pub local: String,
    /// Nodes whose members come in, by name or id; `*` for all.
    pub nodes: Vec<String>,
    /// Names of ports that are reachable from other nodes; none unless said.
    pub ports: Vec<String>,
}

/// What is wrong with node.toml. Its writer's fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The file.
    pub path: PathBuf,
    /// The line, from 1.
    pub line: usize,
    /// What is wrong.
    pub what: ConfigWrong,
}

/// What is wrong with a line of node.toml.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConfigWrong {
    /// It is no TOML.
    Syntax {
        /// What the parser says.
        reason: String,
    },
    /// There is no such key.
    UnknownKey {
        /// The key.
        key: String,
        /// Those that there are.
        allowed: &'static str,
    },
    /// A key that must be there is not.
    MissingKey {
        /// The key.
        key: &'static str,
        /// What it may be.
        allowed: &'static str,
    },
    /// A key has a value that this program was built without.
    NotBuilt {
        /// The key.
        key: &'static str,
        /// The value.
        value: &'static str,
        /// What to say instead.
        instead: &'static str,
        /// How it is built in.
        build: &'static str,
    },
    /// A key has a value that it may not have.
    BadValue {
        /// The key.
        key: String,
        /// The value.
        value: String,
        /// What is allowed.
        allowed: &'static str,
    },
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path.display(), self.line, self.what)
    }
}

impl fmt::Display for ConfigWrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConfigWrong::Syntax { reason } => write!(f, "this is not TOML: {reason}"),
            ConfigWrong::UnknownKey { key, allowed } => {
                write!(f, "there is no key `{key}`; there are {allowed}")
            }
            ConfigWrong::MissingKey { key, allowed } => {
                write!(f, "the key `{key}` is missing; it is {allowed}")
            }
            ConfigWrong::NotBuilt {
                key,
                value,
                instead,
                build,
            } => write!(
                f,
                "`{key}` is \"{value}\", which this portolan-node was built without; it must be {instead}, or a portolan-node that was built with it: {build}"
            ),
            ConfigWrong::BadValue {
                key,
                value,
                allowed,
            } => write!(f, "`{key}` is {value}; it must be {allowed}"),
        }
    }
}

impl std::error::Error for ConfigError {}

const KEYS: &str = "name, listen, advertise, peers, directory, silent_after, dead_after, metrics, log, send_rate, take_rate, [[rate]], [[span]]";
const SPAN_KEYS: &str = "domain, local, nodes, ports";
const RATE_KEYS: &str = "node, send_rate, take_rate";

const NODE_NAME: &str = "a name of 1 to 32 letters, digits, '-', '.' and '_'";
const ADDRESS: &str = "an IP address with a port, such as \"0.0.0.0:7411\" or \"[::]:7411\"";
const HOST: &str = "a host with a port, such as \"roof.example:7411\" or \"[2001:db8::1]:7411\"";
const HOSTS: &str = "a list of hosts with ports, such as [\"roof.example:7411\"]";
const DIRECTORY: &str = "\"static\" or \"zenoh\"";
const STATIC: &str = "\"static\"";
const BUILD: &str = "cargo install --path crates/node --features zenoh";
const TIME: &str = "a time from \"1ms\" to \"30d\", such as \"3s\" (units: ms, s, m, h, d)";
const DEAD: &str = "\"never\", or a time that is longer than silent_after, such as \"30s\" (units: ms, s, m, h, d)";
const METRICS: &str =
    "a port on this machine's loopback from 1 to 65535, such as 9411, or an IP address with a port";
const LOG: &str = "\"text\" or \"json\"";
const DOMAIN: &str = "a domain's name of 1 to 80 bytes without '/', '@' and control characters";
const NODES: &str = "a list of names or ids of nodes, or [\"*\"]";
const PORTS: &str = "a list of names of ports, without '@' and zero bytes";
const NODE: &str = "a node's name or id, which has no other [[rate]]";
const RATE: &str = "\"unlimited\", or bytes a second from \"1kB/s\" to \"1TB/s\", such as \"50MB/s\" (units: B/s, kB/s, MB/s, GB/s, TB/s, KiB/s, MiB/s, GiB/s)";
const RATES: &str = "tables that begin with [[rate]]";
const SPANS: &str = "tables that begin with [[span]], each domain and each local name once";

/// Whether a text can be a node's name.
pub fn is_node_name(text: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    (1..=MAX_NODE_NAME).contains(&text.len()) && text.chars().all(allowed)
}

/// Whether a text can be the name of a domain that is spanned.
fn is_domain_name(text: &str) -> bool {
    is_name(text, MAX_DOMAIN_NAME) && !text.contains(|c: char| c == '/' || c.is_control())
}

/// A node.toml that is being read.
struct Reading<'a> {
    path: &'a Path,
    text: &'a str,
}

type Value<'i> = Spanned<DeValue<'i>>;
type Outcome<T> = Result<T, ConfigError>;

impl Config {
    /// What a new node has.
    pub fn new(name: &str, listen: SocketAddr) -> Self {
        Self {
            name: name.to_owned(),
            listen,
            advertise: None,
            peers: Vec::new(),
            directory: Directory::Static,
            silent_after: Duration::from_secs(3),
            dead_after: Some(Duration::from_secs(30)),
            metrics: None,
            log: LogFormat::Text,
            rates: PeerRates::default(),
            spans: Vec::new(),
        }
    }

    /// Reads the text of the file at `path`, which is for errors.
    ///
    /// # Errors
    ///
    /// [`ConfigError`], of the first line that is wrong.
    ///
    /// # Examples
    ///
    /// ```
    /// use portolan_node::config::Config;
    /// let path = "node.toml".as_ref();
    /// let config = Config::read("name = \"hall\"\nsilent_after = \"2s\"", path)?;
    /// assert_eq!(config.silent_after.as_secs(), 2);
    /// let wrong = Config::read("name = \"hall\"\nsilent_after = 2", path).unwrap_err();
    /// assert!(wrong.to_string().starts_with("node.toml:2: `silent_after` is 2; it must be a time"));
    /// # Ok::<(), portolan_node::config::ConfigError>(())
    /// ```
    pub fn read(text: &str, path: &Path) -> Outcome<Self> {
        let reading = Reading { path, text };
        let table = DeTable::parse(text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            let reason = error.message().to_owned();
            reading.error(at, ConfigWrong::Syntax { reason })
        })?;
        reading.config(table.get_ref())
    }
}

impl Reading<'_> {
    fn error(&self, at: usize, what: ConfigWrong) -> ConfigError {
        let before = self.text.get(..at).unwrap_or(self.text);
        ConfigError {
            path: self.path.to_owned(),
            line: before.matches('\n').count() + 1,
            what,
        }
    }

    fn bad(&self, key: &str, span: Range<usize>, allowed: &'static str) -> ConfigError {
        let value = self.text.get(span.clone()).unwrap_or_default();
        let short: String = value.chars().take(80).collect();
        self.error(
            span.start,
            ConfigWrong::BadValue {
                key: key.to_owned(),
                value: short,
                allowed,
            },
        )
    }

    fn config(&self, table: &DeTable<'_>) -> Outcome<Config> {
        let mut name = None;
        // A constant that is an address.
        let any = SocketAddr::from(([0, 0, 0, 0], 7411));
        let mut config = Config::new("", any);
        let mut dead = None;
        for (key, value) in table {
            let key_at = key.span().start;
            let key: &str = key.get_ref();
            match key {
                "name" => name = Some(self.text_of(key, value, NODE_NAME, is_node_name)?),
                "listen" => {
                    let is_ip = |text: &str| text.parse::<SocketAddr>().is_ok();
                    let text = self.text_of(key, value, ADDRESS, is_ip)?;
                    config.listen = text.parse().unwrap_or(any);
                }
                "advertise" => {
                    config.advertise = Some(self.text_of(key, value, HOST, is_address)?);
                }
                "peers" => config.peers = self.list_of(key, value, HOSTS, is_address)?,
                "directory" => {
                    let known = |text: &str| ["static", "zenoh"].contains(&text);
                    config.directory = match self.text_of(key, value, DIRECTORY, known)?.as_str() {
                        "zenoh" => Directory::Zenoh,
                        _ => Directory::Static,
                    };
                    if config.directory == Directory::Zenoh && !cfg!(feature = "zenoh") {
                        let what = ConfigWrong::NotBuilt {
                            key: "directory",
                            value: "zenoh",
                            instead: STATIC,
                            build: BUILD,
                        };
                        return Err(self.error(value.span().start, what));
                    }
                }
                "silent_after" => {
                    let text = self.text_of(key, value, TIME, |text| time(text).is_some())?;
                    config.silent_after = time(&text).unwrap_or_default();
                }
                "dead_after" => {
                    let known = |text: &str| text == "never" || time(text).is_some();
                    let text = self.text_of(key, value, DEAD, known)?;
                    config.dead_after = time(&text);
                    dead = Some(value.span());
                }
                "metrics" => config.metrics = Some(self.metrics(value)?),
                "log" => {
                    let known = |text: &str| ["text", "json"].contains(&text);
                    config.log = match self.text_of(key, value, LOG, known)?.as_str() {
                        "json" => LogFormat::Json,
                        _ => LogFormat::Text,
                    };
                }
                "send_rate" => config.rates.each.send = self.rate(key, value)?,
                "take_rate" => config.rates.each.take = self.rate(key, value)?,
                "rate" => config.rates.of = self.rates(value)?,
                "span" => config.spans = self.spans(value)?,
                other => return Err(self.unknown(key_at, other, KEYS)),
            }
        }
        // Which of the two is wrong is the later one's matter.
        if config
            .dead_after
            .is_some_and(|dead| dead <= config.silent_after)
        {
            let span = dead.unwrap_or(0..0);
            return Err(self.bad("dead_after", span, DEAD));
        }
        config.name = name.ok_or_else(|| {
            let what = ConfigWrong::MissingKey {
                key: "name",
                allowed: NODE_NAME,
            };
            self.error(0, what)
        })?;
        Ok(config)
    }

    /// A port is one of the loopback: counters are nobody else's, unless that is said.
    fn metrics(&self, value: &Value<'_>) -> Outcome<SocketAddr> {
        let found = match value.get_ref() {
            DeValue::Integer(port) => {
                let port = u16::from_str_radix(port.as_str(), port.radix()).ok();
                let port = port.filter(|port| *port > 0);
                port.map(|port| SocketAddr::from(([127, 0, 0, 1], port)))
            }
            DeValue::String(text) => text.parse().ok(),
            _ => None,
        };
        found.ok_or_else(|| self.bad("metrics", value.span(), METRICS))
    }

    fn unknown(&self, at: usize, key: &str, allowed: &'static str) -> ConfigError {
        let key = key.chars().take(80).collect();
        self.error(at, ConfigWrong::UnknownKey { key, allowed })
    }

    fn text_of(
        &self,
        key: &str,
        value: &Value<'_>,
        allowed: &'static str,
        is_good: impl Fn(&str) -> bool,
    ) -> Outcome<String> {
        match value.get_ref() {
            DeValue::String(text) if is_good(text) => Ok(text.to_string()),
            _ => Err(self.bad(key, value.span(), allowed)),
        }
    }

    fn list_of(
        &self,
        key: &str,
        value: &Value<'_>,
        allowed: &'static str,
        is_good: impl Fn(&str) -> bool,
    ) -> Outcome<Vec<String>> {
        let DeValue::Array(values) = value.get_ref() else {
            return Err(self.bad(key, value.span(), allowed));
        };
        let texts = values
            .iter()
            .map(|value| self.text_of(key, value, allowed, &is_good));
        texts.collect()
    }

    fn rate(&self, key: &str, value: &Value<'_>) -> Outcome<Option<u64>> {
        let text = self.text_of(key, value, RATE, |text| rate(text).is_some())?;
        Ok(rate(&text).flatten())
    }

    fn rates(&self, value: &Value<'_>) -> Outcome<Vec<Rate>> {
        let DeValue::Array(tables) = value.get_ref() else {
            return Err(self.bad("rate", value.span(), RATES));
        };
        let mut rates: Vec<Rate> = Vec::new();
        for table in tables {
            let DeValue::Table(keys) = table.get_ref() else {
                return Err(self.bad("rate", table.span(), RATES));
            };
            let (mut node, mut send, mut take) = (None, None, None);
            for (key, value) in keys {
                let key_at = key.span().start;
                let key: &str = key.get_ref();
                match key {
                    "node" => {
                        let is_new = |text: &str| rates.iter().all(|it| it.node != text);
                        let is_good = |text: &str| is_node_name(text) && is_new(text);
                        node = Some(self.text_of(key, value, NODE, is_good)?);
                    }
                    "send_rate" => send = Some(self.rate(key, value)?),
                    "take_rate" => take = Some(self.rate(key, value)?),
                    other => return Err(self.unknown(key_at, other, RATE_KEYS)),
                }
            }
            let node = node.ok_or_else(|| {
                let what = ConfigWrong::MissingKey {
                    key: "node",
                    allowed: NODE,
                };
                self.error(table.span().start, what)
            })?;
            rates.push(Rate { node, send, take });
        }
        Ok(rates)
    }

    fn spans(&self, value: &Value<'_>) -> Outcome<Vec<Span>> {
        let DeValue::Array(tables) = value.get_ref() else {
            return Err(self.bad("span", value.span(), SPANS));
        };
        let mut spans: Vec<Span> = Vec::new();
        for table in tables {
            let span = self.span(table)?;
            let same = |other: &Span| other.domain == span.domain || other.local == span.local;
            if spans.iter().any(same) {
                return Err(self.bad("span", table.span(), SPANS));
            }
            spans.push(span);
        }
        Ok(spans)
    }

    fn span(&self, value: &Value<'_>) -> Outcome<Span> {
        let DeValue::Table(table) = value.get_ref() else {
            return Err(self.bad("span", value.span(), SPANS));
        };
        let is_node = |text: &str| text == "*" || is_node_name(text);
        let (mut domain, mut local) = (None, None);
        let (mut nodes, mut ports) = (vec!["*".to_owned()], Vec::new());
        for (key, value) in table {
            let key_at = key.span().start;
            let key: &str = key.get_ref();
            match key {
                "domain" => domain = Some(self.text_of(key, value, DOMAIN, is_domain_name)?),
                "local" => local = Some(self.text_of(key, value, DOMAIN, is_domain_name)?),
                "nodes" => nodes = self.list_of(key, value, NODES, is_node)?,
                "ports" => {
                    ports = self.list_of(key, value, PORTS, |text| is_name(text, MAX_NAME))?;
                }
                other => return Err(self.unknown(key_at, other, SPAN_KEYS)),
            }
        }
        let domain = domain.ok_or_else(|| {
            let what = ConfigWrong::MissingKey {
                key: "domain",
                allowed: DOMAIN,
            };
            self.error(value.span().start, what)
        })?;
        Ok(Span {
            local: local.unwrap_or_else(|| domain.clone()),
            domain,
            nodes,
            ports,
        })
    }
}

/// A time with its unit, such as `3s`, of at most 30 days.
pub fn time(text: &str) -> Option<Duration> {
    const LONGEST: Duration = Duration::from_secs(30 * 86_400);
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().ok()?;
    let millis = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    };
    let time = Duration::from_millis(number.checked_mul(millis)?);
    (time > Duration::ZERO && time <= LONGEST).then_some(time)
}

#[cfg(test)]
mod tests {
    use portolan_abi::node::NodeId;

    use super::*;

    const WHOLE: &str = r#"
name = "hall"                          # all else has defaults
listen = "[::]:7411"
advertise = "hall.example:7411"
peers = ["roof.example:7411", "[2001:db8::1]:7411", "192.0.2.10:1"]
directory = "static"
silent_after = "500ms"
dead_after = "never"
metrics = 9411
log = "json"
send_rate = "50MB/s"
take_rate = "unlimited"
[[rate]]
node = "roof"
send_rate = "10MiB/s"
[[rate]]
node = "0123456789abcdef0123456789abcdef"
take_rate = "1kB/s"
[[span]]
domain = "cameras"
local = "cameras.1"
nodes = ["roof", "*"]
ports = ["upper", "frames/left"]
[[span]]
domain = "prices"
"#;

    fn read(text: &str) -> Outcome<Config> {
        Config::read(text, "node.toml".as_ref())
    }

    #[test]
    fn a_whole_file_is_read_and_a_short_one_has_defaults() {
        let config = read(WHOLE).unwrap();
        assert_eq!(config.listen.to_string(), "[::]:7411");
        assert_eq!((config.peers.len(), config.dead_after), (3, None));
        let metrics = config.metrics.unwrap().to_string();
        assert_eq!(
            (metrics.as_str(), config.log),
            ("127.0.0.1:9411", LogFormat::Json)
        );
        let said = read("name = \"a\"\nmetrics = \"[::]:1\"").unwrap();
        assert_eq!(said.metrics.unwrap().to_string(), "[::]:1");
        let [cameras, prices] = &config.spans[..] else {
            panic!("{config:?}");
        };
        assert_eq!(
            (cameras.local.as_str(), cameras.ports.len()),
            ("cameras.1", 2)
        );
        assert_eq!((prices.local.as_str(), prices.ports.len()), ("prices", 0));
        let limits = |node: [u8; 16], name: &str| {
            let rates = config.rates.of(NodeId(node), name);
            (rates.send, rates.take)
        };
        assert_eq!(limits([1; 16], "shed"), (Some(50_000_000), None));
        assert_eq!(limits([1; 16], "roof"), (Some(10 << 20), None));
        // What is said of an id holds whatever its node calls itself.
        let id = 0x0123_4567_89ab_cdef_0123_4567_89ab_cdef_u128.to_be_bytes();
        assert_eq!(limits(id, "roof"), (Some(50_000_000), Some(1_000)));
        let short = read("name = \"hall\"").unwrap();
        assert_eq!(short, Config::new("hall", LISTEN.parse().unwrap()));
    }

    #[test]
    fn each_error_names_its_line_its_key_and_what_is_allowed() {
        // Each line is put in place of a whole file's line of the same key.
        let cases = [
            ("name = 7", 2, "name"),
            ("name = \"\"", 2, "name"),
            ("name = \"a@b\"", 2, "name"),
            ("listen = \"hall.example:7411\"", 3, "listen"),
            ("listen = 7411", 3, "listen"),
            ("advertise = \"hall.example\"", 4, "advertise"),
            ("peers = \"roof.example:7411\"", 5, "peers"),
            ("peers = [\"roof.example:7411\", \"roof\"]", 5, "peers"),
            ("peers = [7]", 5, "peers"),
            ("directory = \"dns\"", 6, "directory"),
            ("silent_after = 3", 7, "silent_after"),
            ("silent_after = \"3 s\"", 7, "silent_after"),
            ("silent_after = \"0s\"", 7, "silent_after"),
            (
                "silent_after = \"99999999999999999999d\"",
                7,
                "silent_after",
            ),
            ("dead_after = \"500ms\"", 8, "dead_after"),
            ("dead_after = \"soon\"", 8, "dead_after"),
            ("metrics = true", 9, "metrics"),
            ("metrics = 65536", 9, "metrics"),
            ("metrics = 0", 9, "metrics"),
            ("metrics = \"localhost:1\"", 9, "metrics"),
            ("log = \"xml\"", 10, "log"),
            ("send_rate = 50", 11, "send_rate"),
            ("send_rate = \"50\"", 11, "send_rate"),
            ("send_rate = \"50 MB/s\"", 11, "send_rate"),
            ("send_rate = \"50mb/s\"", 11, "send_rate"),
            ("send_rate = \"999B/s\"", 11, "send_rate"),
            ("send_rate = \"1001GB/s\"", 11, "send_rate"),
            ("send_rate = \"99999999999999999999TB/s\"", 11, "send_rate"),
            ("take_rate = \"none\"", 12, "take_rate"),
            ("node = \"a b\"", 14, "node"),
            ("node = \"roof\"", 17, "node"),
            ("take_rate = \"\"", 18, "take_rate"),
            ("domain = \"a@b\"", 20, "domain"),
            ("domain = \"a/b\"", 20, "domain"),
            ("domain = \"a\\nb\"", 20, "domain"),
            ("local = \"\"", 21, "local"),
            ("nodes = \"*\"", 22, "nodes"),
            ("nodes = [\"a b\"]", 22, "nodes"),
            ("ports = [\"up@hall\"]", 23, "ports"),
        ];
        for (line, number, key) in cases {
            let mut lines: Vec<_> = WHOLE.lines().collect();
            lines[number - 1] = line;
            let wrong = read(&lines.join("\n")).unwrap_err();
            let text = wrong.to_string();
            assert_eq!(wrong.line, number, "{line}: {text}");
            let ConfigWrong::BadValue { key: found, .. } = &wrong.what else {
                panic!("{text}");
            };
            assert_eq!(found, key);
            assert!(
                text.starts_with(&format!("node.toml:{number}: `{key}` is ")),
                "{text}"
            );
            assert!(text.contains("; it must be "), "{text}");
        }
    }

    #[test]
    #[cfg(feature = "zenoh")]
    fn a_directory_that_was_built_in_is_taken() {
        let config = read(&WHOLE.replace("\"static\"", "\"zenoh\"")).unwrap();
        assert_eq!(config.directory, Directory::Zenoh);
    }

    #[test]
    #[cfg(not(feature = "zenoh"))]
    fn what_this_program_was_built_without_is_refused_by_its_line() {
        let wrong = read(&WHOLE.replace("\"static\"", "\"zenoh\"")).unwrap_err();
        assert_eq!(wrong.line, 6);
        assert!(matches!(
            wrong.what,
            ConfigWrong::NotBuilt {
                key: "directory",
                ..
            }
        ));
        let text = wrong.to_string();
        assert!(
            text.contains("was built without; it must be \"static\", or")
                && text.contains("cargo install --path crates/node --features zenoh"),
            "{text}"
        );
    }

    #[test]
    fn unknown_missing_and_doubled_keys_are_named() {
        let unknown = read("name = \"hall\"\nlissten = 1")
            .unwrap_err()
            .to_string();
        assert!(
            unknown.contains("node.toml:2: there is no key `lissten`; there are name, listen"),
            "{unknown}"
        );
        let unknown = read("name = \"hall\"\n[[span]]\ndomain = \"a\"\nport = 1").unwrap_err();
        assert!(
            unknown
                .to_string()
                .contains(":4: there is no key `port`; there are domain")
        );
        let unknown =
            read("name = \"hall\"\n[[rate]]\nnode = \"a\"\nsend = \"1kB/s\"").unwrap_err();
        assert!(
            unknown
                .to_string()
                .contains(":4: there is no key `send`; there are node, send_rate")
        );
        let missing = read("name = \"a\"\n\n[[rate]]\nsend_rate = \"1kB/s\"").unwrap_err();
        assert_eq!(missing.line, 3);
        assert!(read("name = \"a\"\nrate = \"1kB/s\"").is_err());
        assert!(read("name = \"a\"\nrate = [3]").is_err());
        let missing = read("listen = \"0.0.0.0:1\"").unwrap_err();
        assert!(matches!(
            missing.what,
            ConfigWrong::MissingKey { key: "name", .. }
        ));
        let missing = read("name = \"a\"\n\n[[span]]\nlocal = \"a\"").unwrap_err();
        assert_eq!(missing.line, 3);
        for text in [
            "name = \"a\"\nname = \"b\"",
            "name = ",
            "\u{0}",
            "name = \"a\"\n[span",
            "=",
        ] {
            let wrong = read(text).unwrap_err();
            assert!(
                matches!(wrong.what, ConfigWrong::Syntax { .. }),
                "{text:?}: {wrong}"
            );
        }
        let twice = "name = \"a\"\n[[span]]\ndomain = \"d\"\n[[span]]\ndomain = \"d\"";
        let twice = read(twice).unwrap_err();
        assert_eq!(twice.line, 4, "{twice}");
        let twice =
            "name = \"a\"\n[[span]]\ndomain = \"d\"\n[[span]]\ndomain = \"e\"\nlocal = \"d\"";
        let twice = read(twice).unwrap_err();
        assert_eq!(twice.line, 4, "{twice}");
        assert!(read("name = \"a\"\nspan = 3").is_err());
        assert!(read("name = \"a\"\nspan = [3]").is_err());
    }
}
