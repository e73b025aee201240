//! What a survey hands to a recorder of the `metrics` facade.
#![cfg(feature = "metrics")]

use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, Key, KeyName, Metadata, Recorder, SharedString,
    Unit,
};
use portolan::{Access, Deadline, Domain, Message, PortOptions, SendError, WhenFull};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// Keeps the last value of each series, and what each name means.
#[derive(Default)]
struct Ledger {
    values: Arc<Mutex<BTreeMap<String, f64>>>,
    units: Mutex<BTreeMap<String, Unit>>,
}

/// One series of a ledger.
struct Series {
    name: String,
    values: Arc<Mutex<BTreeMap<String, f64>>>,
}

impl Series {
    fn put(&self, change: impl FnOnce(&mut f64)) {
        change(
            self.values
                .lock()
                .unwrap()
                .entry(self.name.clone())
                .or_default(),
        );
    }
}

impl CounterFn for Series {
    fn increment(&self, by: u64) {
        self.put(|value| *value += by as f64);
    }

    fn absolute(&self, to: u64) {
        // As recorders do: a counter never goes down.
        self.put(|value| *value = value.max(to as f64));
    }
}

impl GaugeFn for Series {
    fn increment(&self, by: f64) {
        self.put(|value| *value += by);
    }

    fn decrement(&self, by: f64) {
        self.put(|value| *value -= by);
    }

    fn set(&self, to: f64) {
        self.put(|value| *value = to);
    }
}

impl Ledger {
    fn series(&self, key: &Key) -> Arc<Series> {
        let labels: Vec<_> = key
            .labels()
            .map(|l| format!("{}={}", l.key(), l.value()))
            .collect();
        Arc::new(Series {
            name: format!("{}{{{}}}", key.name(), labels.join(",")),
            values: Arc::clone(&self.values),
        })
    }

    fn value(&self, series: &str) -> Option<f64> {
        self.values.lock().unwrap().get(series).copied()
    }

    fn describe(&self, name: &KeyName, unit: Option<Unit>) {
        self.units
            .lock()
            .unwrap()
            .insert(name.as_str().to_owned(), unit.unwrap());
    }
}

impl Recorder for Ledger {
    fn describe_counter(&self, name: KeyName, unit: Option<Unit>, _: SharedString) {
        self.describe(&name, unit);
    }

    fn describe_gauge(&self, name: KeyName, unit: Option<Unit>, _: SharedString) {
        self.describe(&name, unit);
    }

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.series(key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.series(key))
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

#[test]
fn a_survey_becomes_counters_and_gauges_with_names_and_units() {
    let ledger = Ledger::default();
    let builder = Domain::builder("measured").size(64 << 20).limit(16 << 20);
    let domain = builder.space_name("tester").private().unwrap();
    let mut port = domain.bind(PortOptions::named("frames").queue(1)).unwrap();
    let right = port.make_send();
    let record =
        || metrics::with_local_recorder(&ledger, || domain.survey().unwrap().record_metrics());

    let message = |bytes| {
        let mut message = Message::default();
        message.push(domain.allocate(bytes).unwrap()).unwrap();
        message
    };
    right.send(message(5000), WhenFull::Fail).unwrap();
    drop(port.receive(Access::Later, Deadline::NOW).unwrap());
    right.send(message(100), WhenFull::Fail).unwrap();
    while right.send(Message::default(), WhenFull::Fail).is_ok() {}
    let full = right.send(Message::default(), WhenFull::Fail).unwrap_err();
    assert!(matches!(full.why, SendError::Full { .. }));
    record();

    let pid = std::process::id();
    let of_domain = |name: &str| ledger.value(&format!("{name}{{domain=measured}}"));
    let of_space = |name: &str| {
        ledger.value(&format!(
            "{name}{{domain=measured,space=1,process={pid},name=tester}}"
        ))
    };
    let of_port =
        |name: &str| ledger.value(&format!("{name}{{domain=measured,port=0,name=frames}}"));
    let survey = domain.survey().unwrap();
    assert_eq!(of_domain("portolan_spaces"), Some(1.0));
    assert_eq!(
        of_domain("portolan_memory_limit_bytes"),
        Some((16 << 20) as f64)
    );
    assert_eq!(of_domain("portolan_memory_queued_bytes"), Some(4096.0));
    assert_eq!(
        of_space("portolan_messages_sent_total"),
        Some(survey.spaces[0].sent as f64)
    );
    assert_eq!(of_space("portolan_bytes_sent_total"), Some(5100.0));
    assert!(of_space("portolan_sends_found_full_total").unwrap() >= 2.0);
    assert_eq!(of_port("portolan_port_messages_taken_total"), Some(1.0));
    assert_eq!(of_port("portolan_port_bytes_taken_total"), Some(5000.0));
    let depth = survey.ports[0].depth as f64;
    assert_eq!(of_port("portolan_port_depth"), Some(depth));
    assert!(depth >= 1.0);

    // The next survey: counters go on, gauges follow.
    while let Ok(message) = port.receive(Access::Later, Deadline::NOW) {
        drop(message);
    }
    let held = domain.allocate(8192).unwrap();
    record();
    assert_eq!(of_domain("portolan_surveys_total"), Some(2.0));
    assert_eq!(
        of_port("portolan_port_messages_taken_total"),
        Some(1.0 + depth)
    );
    assert_eq!(of_port("portolan_port_depth"), Some(0.0));
    assert_eq!(of_domain("portolan_memory_queued_bytes"), Some(0.0));
    assert_eq!(
        of_space("portolan_owned_bytes"),
        Some(held.capacity() as f64)
    );

    // Every series is described, and what counts bytes says so.
    let units = ledger.units.lock().unwrap();
    let values = ledger.values.lock().unwrap();
    let names = values
        .keys()
        .map(|series| series.split('{').next().unwrap());
    for name in names {
        let unit = units
            .get(name)
            .unwrap_or_else(|| panic!("{name} is not described"));
        assert_eq!(*unit == Unit::Bytes, name.contains("bytes"), "{name}");
    }
    assert_eq!(units.len(), 24);
}
