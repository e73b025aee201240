//! Publishes a survey through the `metrics` facade, for the program's exporter.

use super::{PortKind, Survey};
use metrics::{Label, Unit, counter, describe_counter, describe_gauge, gauge};

/// What is counted, never to go down again: name, unit, meaning.
const COUNTERS: [(&str, Unit, &str); 11] = [
    (
        "portolan_host_takeovers_total",
        Unit::Count,
        "Times that another space took the host's place",
    ),
    (
        "portolan_messages_sent_total",
        Unit::Count,
        "Messages sent, by space",
    ),
    (
        "portolan_bytes_sent_total",
        Unit::Bytes,
        "Bytes in extents of messages sent, by space",
    ),
    (
        "portolan_sends_found_full_total",
        Unit::Count,
        "Sends that found the queue full, by space",
    ),
    (
        "portolan_messages_dropped_total",
        Unit::Count,
        "Messages dropped because the queue was full, by space",
    ),
    (
        "portolan_port_messages_taken_total",
        Unit::Count,
        "Messages taken, by port",
    ),
    (
        "portolan_port_bytes_taken_total",
        Unit::Bytes,
        "Bytes in extents of messages taken, by port",
    ),
    (
        "portolan_port_voids_total",
        Unit::Count,
        "Slots whose senders died before publishing, by port",
    ),
    (
        "portolan_port_dropped_total",
        Unit::Count,
        "Messages dropped because it was full, by port",
    ),
    (
        "portolan_port_found_full_total",
        Unit::Count,
        "Sends that found it full, by port",
    ),
    (
        "portolan_surveys_total",
        Unit::Count,
        "Surveys recorded by this process, by domain",
    ),
];

/// What goes up and down.
const GAUGES: [(&str, Unit, &str); 13] = [
    ("portolan_spaces", Unit::Count, "Processes in the domain"),
    (
        "portolan_ports",
        Unit::Count,
        "Ports in the domain, reply ports included",
    ),
    (
        "portolan_memory_limit_bytes",
        Unit::Bytes,
        "What extents may take at one time",
    ),
    (
        "portolan_memory_taken_bytes",
        Unit::Bytes,
        "What was taken from the kernel for extents",
    ),
    (
        "portolan_memory_used_bytes",
        Unit::Bytes,
        "What is in extents",
    ),
    (
        "portolan_memory_free_bytes",
        Unit::Bytes,
        "What can still be handed out",
    ),
    (
        "portolan_memory_queued_bytes",
        Unit::Bytes,
        "What is in messages that wait",
    ),
    (
        "portolan_extents",
        Unit::Count,
        "Extents that it owns, by space",
    ),
    (
        "portolan_owned_bytes",
        Unit::Bytes,
        "Bytes in extents that it owns, by space",
    ),
    (
        "portolan_port_depth",
        Unit::Count,
        "Messages that wait, by port",
    ),
    (
        "portolan_port_slots",
        Unit::Count,
        "Slots of the queue, by port",
    ),
    (
        "portolan_port_senders",
        Unit::Count,
        "Send rights that somebody holds, by port",
    ),
    (
        "portolan_port_sleeping",
        Unit::Count,
        "Threads that sleep until a message comes, by port",
    ),
];

impl Survey {
    /// Hands what the survey found to the process's `metrics` recorder: absolute counters
    /// and gauges with the label `domain`, and `space`, `process` and `name` or `port` and
    /// `name`. Without a recorder nothing happens. To be called now and then, as often as
    /// the numbers are wanted; nothing is counted in between.
    ///
    /// Clients' reply ports are many and short-lived, and have no series of their own.
    ///
    /// ```
    /// let domain = portolan::Domain::private()?;
    /// domain.survey()?.record_metrics();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn record_metrics(&self) {
        for (name, unit, meaning) in COUNTERS {
            describe_counter!(name, unit, meaning);
        }
        for (name, unit, meaning) in GAUGES {
            describe_gauge!(name, unit, meaning);
        }
        let domain = Label::new("domain", self.domain.clone());
        let only = vec![domain.clone()];
        counter!("portolan_surveys_total", only.clone()).increment(1);
        counter!("portolan_host_takeovers_total", only.clone()).absolute(self.takeovers);
        let memory = &self.memory;
        for (name, value) in [
            ("portolan_spaces", self.spaces.len() as u64),
            ("portolan_ports", self.ports.len() as u64),
            ("portolan_memory_limit_bytes", memory.limit),
            ("portolan_memory_taken_bytes", memory.taken),
            ("portolan_memory_used_bytes", memory.used),
            ("portolan_memory_free_bytes", memory.free),
            ("portolan_memory_queued_bytes", memory.queued),
        ] {
            gauge!(name, only.clone()).set(value as f64);
        }
        self.record_spaces(&domain);
        self.record_ports(&domain);
    }

    fn record_spaces(&self, domain: &Label) {
        for space in &self.spaces {
            let labels = vec![
                domain.clone(),
                Label::new("space", space.id.to_string()),
                // Numbers of spaces are used again, and a counter never goes down.
                Label::new("process", space.pid.to_string()),
                Label::new("name", space.name.clone()),
            ];
            for (name, value) in [
                ("portolan_messages_sent_total", space.sent),
                ("portolan_bytes_sent_total", space.sent_bytes),
                ("portolan_sends_found_full_total", space.full),
                ("portolan_messages_dropped_total", space.dropped),
            ] {
                counter!(name, labels.clone()).absolute(value);
            }
            gauge!("portolan_extents", labels.clone()).set(space.extents as f64);
            gauge!("portolan_owned_bytes", labels).set(space.owned as f64);
        }
    }

    fn record_ports(&self, domain: &Label) {
        for port in self.ports.iter().filter(|p| p.kind != PortKind::Replies) {
            let labels = vec![
                domain.clone(),
                Label::new("port", port.index.to_string()),
                Label::new("name", port.name.clone().unwrap_or_default()),
            ];
            for (name, value) in [
                ("portolan_port_messages_taken_total", port.taken),
                ("portolan_port_bytes_taken_total", port.taken_bytes),
                ("portolan_port_voids_total", port.voids),
                ("portolan_port_dropped_total", port.dropped),
                ("portolan_port_found_full_total", port.full),
            ] {
                counter!(name, labels.clone()).absolute(value);
            }
            for (name, value) in [
                ("portolan_port_depth", port.depth as f64),
                ("portolan_port_slots", port.slots as f64),
                ("portolan_port_senders", f64::from(port.senders)),
                ("portolan_port_sleeping", f64::from(port.sleeping)),
            ] {
                gauge!(name, labels.clone()).set(value);
            }
        }
    }
}
