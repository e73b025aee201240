//! A running node takes over what node.toml says by now, and whom it is to refuse.
//!
//! Spans, peers, rates, `advertise` and the log's format hold at once; what a link has agreed on, and where the
//! node listens, holds from its next start on.

use super::Node;
use super::dial::Dial;
use crate::config::Config;

/// Keys whose new values hold from the next start on, for a node that listens there.
fn are_for_later(old: &Config, new: &Config, listens: &str) -> Vec<&'static str> {
    let changed = [
        ("name", old.name != new.name),
        (
            "listen",
            old.listen != new.listen && new.listen.to_string() != listens,
        ),
        ("directory", old.directory != new.directory),
        ("silent_after", old.silent_after != new.silent_after),
        ("dead_after", old.dead_after != new.dead_after),
        ("metrics", old.metrics != new.metrics),
    ];
    let changed = changed.into_iter().filter(|(_, changed)| *changed);
    changed.map(|(key, _)| key).collect()
}

impl Node {
    /// Looks again at whom it refuses, whose links end, and at node.toml; the answer names the keys
    /// whose new values do not hold yet.
    pub(super) fn reload(&mut self) -> String {
        let later = match self.state.forgotten() {
            Err(error) => {
                self.log(&format!("cannot read whom to refuse: {error}"));
                Vec::new()
            }
            Ok(_) => {
                self.refuse_forgotten();
                self.looks_at = self.clock.now();
                self.read_config()
            }
        };
        serde_json::json!({ "later": later }).to_string()
    }

    fn read_config(&mut self) -> Vec<&'static str> {
        match self.state.config() {
            Ok(config) => {
                self.spans.want(&config.spans, self.clock.now());
                let listens = self.listener.address().to_string();
                let later = are_for_later(&self.config, &config, &listens);
                self.want_peers(&config.peers);
                if self.config.rates != config.rates {
                    self.config.rates = config.rates;
                    let rates = self.config.rates.clone();
                    self.engine.set_rates(self.clock.now(), rates);
                }
                self.config.spans = config.spans;
                self.config.peers = config.peers;
                self.config.log = config.log;
                if self.config.advertise != config.advertise {
                    self.config.advertise = config.advertise;
                    self.tell_members();
                }
                later
            }
            Err(error) => {
                self.log(&format!("cannot read node.toml again: {error}"));
                Vec::new()
            }
        }
    }

    /// Connects to these, and no more to others that node.toml has named. Links stay.
    fn want_peers(&mut self, peers: &[String]) {
        let now = self.clock.now();
        let is_wanted = |dial: &Dial| dial.configured().is_none_or(|it| peers.contains(&it));
        self.dials.retain(is_wanted);
        for peer in peers {
            let is_it = |dial: &Dial| dial.configured().as_ref() == Some(peer);
            if !self.dials.iter().any(is_it) {
                self.dials.push(Dial::new(peer.clone(), now));
            }
        }
    }
}
