//! The receiver of a proxy port is killed or stopped; its senders are told, or wait.

use portolan::proxy::ProxyPort;
use portolan::{Access, Domain, Message, PortOptions, RequestError, SendError, WhenFull};
use portolan_testkit::{Answer, Child, PATIENCE, obey, unique, until};
use std::time::Instant;

/// The process that receives at the proxy port.
#[test]
fn takes_orders() {
    let mut node = None;
    obey(|order| -> Answer {
        let (order, word) = order.split_once(' ').unwrap_or((order, ""));
        match order {
            "join" => {
                let domain = Domain::join(word)?;
                let port = domain.bind(PortOptions::named("upper").synchronous())?;
                let proxy = ProxyPort::new(port, "hall").map_err(|refused| refused.why)?;
                node = Some((domain, proxy));
            }
            "silent" => {
                let (_, proxy) = node.as_mut().ok_or("join first")?;
                proxy.set_unreachable(Instant::now());
            }
            // It stops in the middle of telling that the other node is silent.
            #[cfg(feature = "marks")]
            "stop" => {
                let (_, proxy) = node.as_mut().ok_or("join first")?;
                portolan_testkit::stop_once_at("proxy.changing", portolan_shm::mark::install);
                proxy.set_unreachable(Instant::now());
            }
            _ => return Err(format!("no such order: {order}").into()),
        }
        Ok("done".to_owned())
    });
}

fn node(name: &str) -> Child {
    let mut child = Child::running("deaths::takes_orders", |_| {});
    assert_eq!(child.ask(&format!("join {name}")), "done");
    child
}

#[test]
fn rights_on_a_killed_nodes_proxies_are_dead_names_and_its_entry_serves_again() {
    let name = unique("proxy-killed");
    let domain = Domain::join(&name).unwrap();
    let mut child = node(&name);
    let right = domain.connect("upper", PATIENCE).unwrap();
    let mut open = right
        .begin_request(Message::new(b"open").unwrap(), WhenFull::Fail)
        .unwrap();
    child.ask("silent");
    let ask = || {
        right
            .begin_request(Message::default(), WhenFull::Fail)
            .err()
    };
    let Some(RequestError::Unsent(unsent)) = ask() else {
        panic!("it is silent");
    };
    assert!(matches!(unsent.why, SendError::Unreachable { .. }));
    child.kill();
    let answer = open.wait(Access::Later, PATIENCE);
    assert!(
        matches!(answer, Err(RequestError::ServerDead)),
        "{answer:?}"
    );
    until("it is a dead name", || !right.is_live());
    let Some(RequestError::Unsent(unsent)) = ask() else {
        panic!("it is dead");
    };
    assert!(matches!(unsent.why, SendError::DeadName), "{}", unsent.why);
    // Ports of all entries, that of the proxy among them, are none.
    let ports: Vec<_> = (0..1100)
        .map(|_| domain.bind(PortOptions::unnamed().queue(1)).unwrap())
        .collect();
    let survey = domain.survey().unwrap();
    assert!(
        survey
            .ports
            .iter()
            .all(|p| p.node.is_none() && !p.unreachable)
    );
    drop(ports);
}

/// Stopped between saying that the other node is there and that it is silent, it delays no sender.
#[cfg(feature = "marks")]
#[test]
fn a_node_that_is_stopped_while_it_tells_of_silence_stops_no_sender() {
    let name = unique("proxy-stopped");
    let domain = Domain::join(&name).unwrap();
    let mut child = node(&name);
    let right = domain.connect("upper", PATIENCE).unwrap();
    child.ask("silent");
    child.tell("stop");
    child.stopped();
    let mut pending = right
        .begin_request(Message::new(b"it").unwrap(), WhenFull::Fail)
        .unwrap();
    let nothing = pending.wait(Access::Later, std::time::Duration::from_millis(10));
    assert!(matches!(nothing, Err(RequestError::TimedOut)));
    child.resume();
    assert_eq!(child.answer(), "done");
    let refused = right.begin_request(Message::default(), WhenFull::Fail);
    let Err(RequestError::Unsent(unsent)) = refused else {
        panic!("it is silent");
    };
    assert!(matches!(unsent.why, SendError::Unreachable { node, .. } if node == "hall"));
}
