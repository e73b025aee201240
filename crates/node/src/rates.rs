//! Rates of peers, as node.toml says them: bytes a second, for each and for those that are named.

use portolan_abi::node::NodeId;
use portolan_proto::node::Rates;

/// Bytes a second to peers, and from them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerRates {
    /// For each peer.
    pub each: Rates,
    /// For those that are named.
    pub of: Vec<Rate>,
}

/// What holds for one peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Its name or id.
    pub node: String,
    /// To it: `None` is as for each, `Some(None)` is as many as go.
    pub send: Option<Option<u64>>,
    /// From it.
    pub take: Option<Option<u64>>,
}

impl PeerRates {
    /// The rates of a peer, which calls itself so. What is said of its id goes before what is said of its
    /// name: a peer may say any name.
    pub fn of(&self, peer: NodeId, name: &str) -> Rates {
        let id = peer.to_string();
        let named = |wanted: &str| self.of.iter().find(|it| it.node == wanted);
        let its = named(&id).or_else(|| named(name));
        Rates {
            send: its.and_then(|it| it.send).unwrap_or(self.each.send),
            take: its.and_then(|it| it.take).unwrap_or(self.each.take),
        }
    }
}

/// Bytes a second with their unit, such as `50MB/s`, from 1 kB/s to 1 TB/s; `Some(None)` of `unlimited`.
pub fn rate(text: &str) -> Option<Option<u64>> {
    if text == "unlimited" {
        return Some(None);
    }
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().ok()?;
    let unit = match unit {
        "B/s" => 1,
        "kB/s" => 1_000,
        "MB/s" => 1_000_000,
        "GB/s" => 1_000_000_000,
        "TB/s" => 1_000_000_000_000,
        "KiB/s" => 1 << 10,
        "MiB/s" => 1 << 20,
        "GiB/s" => 1 << 30,
        _ => return None,
    };
    let rate = number.checked_mul(unit)?;
    (1_000..=1_000_000_000_000)
        .contains(&rate)
        .then_some(Some(rate))
}

/// A rate as people read it, in the largest unit that makes a whole number of it, so that node.toml takes it
/// as it is.
pub(crate) fn in_words(rate: u64) -> String {
    let units = [
        (1_000_000_000_000, "TB/s"),
        (1_000_000_000, "GB/s"),
        (1_000_000, "MB/s"),
        (1_000, "kB/s"),
        (1 << 30, "GiB/s"),
        (1 << 20, "MiB/s"),
        (1 << 10, "KiB/s"),
    ];
    let whole = units
        .iter()
        .find(|(unit, _)| rate.is_multiple_of(*unit) && rate > 0);
    match whole {
        Some((unit, name)) => format!("{}{name}", rate / unit),
        None => format!("{rate}B/s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_as_they_are_said() {
        for (text, bytes) in [
            ("1kB/s", 1_000),
            ("50MB/s", 50_000_000),
            ("3GB/s", 3_000_000_000),
            ("1TB/s", 1_000_000_000_000),
            ("64KiB/s", 64 << 10),
            ("3MiB/s", 3 << 20),
            ("2GiB/s", 2 << 30),
            ("1234567B/s", 1_234_567),
        ] {
            assert_eq!(rate(text), Some(Some(bytes)));
            assert_eq!(in_words(bytes), text);
        }
        assert_eq!(rate("unlimited"), Some(None));
        for wrong in [
            "", "0kB/s", "-1kB/s", "1.5MB/s", "1MB", "MB/s", "1 MB/s", "2TB/s",
        ] {
            assert_eq!(rate(wrong), None, "{wrong}");
        }
    }
}
