//! The domains that a node is to span: joined beside its thread, because that may take long, and
//! joined again when they are lost.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::Duration;

use portolan::Domain;
use portolan_sys::process::EventFd;

use super::replace::{Asked, Offered};
use super::status::{SpanState, SpanStatus};
use crate::config;
use crate::engine::{Engine, SpanReport};

/// The first pause between attempts to join a domain, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));
/// Domains that are spanned at once, at most: each has a thread of the library's.
pub(super) const MOST: usize = 64;

#[derive(Debug)]
enum Phase {
    Waiting(Duration),
    Joining(Receiver<Result<Domain, String>>),
    Up,
}

/// Where a domain is met, if node.toml does not say: a program has said it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) owner: u32,
    pub(super) directory: Option<PathBuf>,
}

#[derive(Debug)]
struct Wanted {
    settings: config::Span,
    place: Option<Place>,
    phase: Phase,
    pause: Duration,
    failure: Option<String>,
}

/// The domains that are to be spanned.
#[derive(Debug)]
pub(super) struct Spans {
    all: Vec<Wanted>,
    /// Those that are not wanted any more, and are spanned still.
    gone: Vec<String>,
}

impl Spans {
    pub(super) fn new(wanted: &[config::Span]) -> Self {
        let mut spans = Self {
            all: Vec::new(),
            gone: Vec::new(),
        };
        spans.want(wanted, Duration::ZERO);
        spans
    }

    /// These are to be spanned from now on, besides those that programs have asked for.
    pub(super) fn want(&mut self, wanted: &[config::Span], now: Duration) {
        let gone = &mut self.gone;
        self.all.retain(|have| {
            let stays = have.place.is_some() || wanted.contains(&have.settings);
            if !stays {
                gone.push(have.settings.domain.clone());
            }
            stays
        });
        for settings in wanted {
            if !self.all.iter().any(|have| have.settings == *settings) {
                self.add(settings.clone(), None, now);
            }
        }
    }

    fn add(&mut self, settings: config::Span, place: Option<Place>, now: Duration) {
        // node.toml comes before what a program has asked for.
        self.all
            .retain(|have| have.settings.domain != settings.domain);
        self.all.push(Wanted {
            settings,
            place,
            phase: Phase::Waiting(now),
            pause: PAUSES.0,
            failure: None,
        });
    }

    /// A program wants its domain spanned. Whether it is by now: `Err` says why it cannot be, as far
    /// as is known.
    pub(super) fn asked(
        &mut self,
        domain: &str,
        place: &Place,
        now: Duration,
    ) -> Result<bool, String> {
        let mut all = self.all.iter();
        let have = all.find(|have| have.settings.local == domain);
        match have {
            Some(have) if !have.is_at(place) => {
                Err("it spans another domain of this name".to_owned())
            }
            Some(have) => match (&have.phase, &have.failure) {
                (Phase::Up, _) => Ok(true),
                (_, Some(failure)) => Err(failure.clone()),
                _ => Ok(false),
            },
            None if self.all.len() >= MOST => Err(format!("it spans {MOST} domains already")),
            None => {
                self.add(settings_of(domain), Some(place.clone()), now);
                Ok(false)
            }
        }
    }

    /// The domains that programs have asked for, and that are spanned.
    pub(super) fn all_asked(&self) -> Vec<Asked> {
        let all = self.all.iter();
        let asked = all.filter_map(|have| {
            let place = have.place.as_ref()?;
            let is_up = matches!(have.phase, Phase::Up);
            is_up.then(|| Asked::new(&have.settings.local, place))
        });
        asked.collect()
    }

    /// All domains that are spanned.
    pub(super) fn all_up(&self) -> Vec<Offered> {
        let up = self.all.iter().filter(|it| matches!(it.phase, Phase::Up));
        let up = up.map(|have| Offered {
            domain: have.settings.domain.clone(),
            local: have.settings.local.clone(),
            asked: have
                .place
                .as_ref()
                .map(|place| Asked::new(&have.settings.local, place)),
        });
        up.collect()
    }

    /// A domain is spanned already.
    pub(super) fn is_up(&mut self, domain: &str) {
        let mut all = self.all.iter_mut();
        if let Some(it) = all.find(|it| it.settings.domain == domain) {
            it.phase = Phase::Up;
        }
    }

    /// What a program has asked for has come to nothing: it is not tried again.
    pub(super) fn drop_asked(&mut self, domain: &str) {
        self.all.retain(|have| {
            let is_it = have.place.is_some() && have.settings.local == domain;
            !is_it || matches!(have.phase, Phase::Up)
        });
    }

    /// A domain is lost: it is joined again.
    pub(super) fn lost(&mut self, domain: &str, why: &str, now: Duration) {
        let its = self.all.iter_mut();
        for wanted in its.filter(|it| it.settings.domain == domain) {
            wanted.phase = Phase::Waiting(now + wanted.pause);
            wanted.failure = Some(why.to_owned());
        }
    }

    pub(super) fn wake_at(&self) -> Option<Duration> {
        if !self.gone.is_empty() {
            return Some(Duration::ZERO);
        }
        let at = |wanted: &Wanted| match wanted.phase {
            Phase::Waiting(at) => Some(at),
            Phase::Joining(_) | Phase::Up => None,
        };
        self.all.iter().filter_map(at).min()
    }

    /// Goes on; what there is to log.
    pub(super) fn step(
        &mut self,
        engine: &mut Engine,
        wakes: &Arc<EventFd>,
        now: Duration,
    ) -> Vec<String> {
        let mut said = Vec::new();
        for domain in std::mem::take(&mut self.gone) {
            engine.unspan(&domain);
            said.push(format!("spans {domain} no more"));
        }
        for wanted in &mut self.all {
            wanted.step(engine, wakes, now, &mut said);
        }
        said
    }

    pub(super) fn status(&self, reports: Vec<SpanReport>) -> Vec<SpanStatus> {
        let mut reports: Vec<Option<SpanReport>> = reports.into_iter().map(Some).collect();
        let all = self.all.iter().map(|wanted| {
            let config::Span {
                domain,
                local,
                nodes,
                ..
            } = wanted.settings.clone();
            let report = reports.iter_mut().find_map(|report| {
                let is_it = report.as_ref().is_some_and(|it| it.domain == domain);
                is_it.then(|| report.take()).flatten()
            });
            SpanStatus {
                state: match report {
                    Some(_) => SpanState::Up,
                    None => SpanState::Joining,
                },
                failure: wanted.failure.clone(),
                report: report.unwrap_or_else(|| SpanReport::empty(domain, local, nodes)),
            }
        });
        all.collect()
    }
}

impl Wanted {
    /// Whether it is the domain that is met there.
    fn is_at(&self, place: &Place) -> bool {
        match &self.place {
            Some(own) => own == place,
            None => place.owner == portolan_sys::process::user() && place.directory.is_none(),
        }
    }

    fn step(
        &mut self,
        engine: &mut Engine,
        wakes: &Arc<EventFd>,
        now: Duration,
        said: &mut Vec<String>,
    ) {
        match &self.phase {
            Phase::Waiting(at) if now >= *at => self.join(wakes, now),
            Phase::Waiting(_) | Phase::Up => {}
            Phase::Joining(joined) => match joined.try_recv() {
                Ok(Ok(domain)) => match engine.span(self.settings.clone(), domain) {
                    Ok(()) => {
                        said.push(format!("spans {}", self.settings.domain));
                        self.phase = Phase::Up;
                        self.pause = PAUSES.0;
                        self.failure = None;
                    }
                    Err(why) => self.fail(why, now, said),
                },
                Ok(Err(why)) => self.fail(why, now, said),
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => {
                    self.fail("it could not be joined".to_owned(), now, said);
                }
            },
        }
    }

    fn fail(&mut self, why: String, now: Duration, said: &mut Vec<String>) {
        if self.failure.as_ref() != Some(&why) {
            said.push(format!("cannot span {}: {why}", self.settings.domain));
        }
        self.failure = Some(why);
        self.phase = Phase::Waiting(now + self.pause);
        self.pause = (2 * self.pause).min(PAUSES.1);
    }

    fn join(&mut self, wakes: &Arc<EventFd>, now: Duration) {
        let wakes = Arc::clone(wakes);
        let joins = join(&self.settings, self.place.as_ref(), move || {
            // The node may have ended.
            let _ = wakes.notify();
        });
        self.phase = match joins {
            Ok(hears) => Phase::Joining(hears),
            Err(error) => {
                self.failure = Some(error.to_string());
                Phase::Waiting(now + self.pause)
            }
        };
    }
}

/// Joins a domain in a thread of its own, which says so, and then calls `then`.
pub(super) fn join(
    settings: &config::Span,
    place: Option<&Place>,
    then: impl FnOnce() + Send + 'static,
) -> std::io::Result<Receiver<Result<Domain, String>>> {
    let (says, hears) = channel();
    let mut builder = Domain::builder(&settings.local);
    if let Some(place) = place {
        // Its program is a member of it.
        builder = builder.create(false);
        if place.owner != portolan_sys::process::user() {
            builder = builder.of_user(place.owner);
        }
        if let Some(directory) = &place.directory {
            builder = builder.path(directory);
        }
    }
    let builder = builder.always_open().space_name("portolan-node");
    let joins = std::thread::Builder::new().name("node-spans".to_owned());
    joins.spawn(move || {
        // The node may have ended.
        let _ = says.send(builder.join().map_err(|error| error.to_string()));
        then();
    })?;
    Ok(hears)
}

/// What is spanned when a program asks for its domain.
pub(super) fn settings_of(domain: &str) -> config::Span {
    config::Span {
        domain: domain.to_owned(),
        local: domain.to_owned(),
        nodes: vec!["*".to_owned()],
        ports: Vec::new(),
    }
}
