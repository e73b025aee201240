//! A member of the cluster that says of every port which another node asks for that it has it, and asks for
//! the same ports itself. Nobody has lent it any.

use crate::chance::Chance;
use crate::oracle::Finding;
use crate::world::{HOSTILE, SimNode, World};
use crate::{Plan, Report};
use portolan_abi::node::{
    Asked, Hello, HelloBody, Located, NodeId, Ping, Record, RecordFlags, Sent, WIRE,
};
use portolan_proto::Time;
use portolan_proto::node::{Authenticated, ConnectionId};
use std::time::Duration;

const ID: NodeId = NodeId([0xdd; 16]);
/// Steps of the others between two of its looks.
const PAUSE: u64 = 4;

/// Runs a plan in which receive rights move, with the liar linked to all nodes, for so many of its looks.
///
/// # Errors
///
/// The first invariant that does not hold; N4 if it is believed, N12 if it is told.
pub fn run_with_liar(plan: Plan, looks: u64) -> Result<Report, Finding> {
    let mut world = World::new(plan);
    let mut liar = Liar {
        chance: Chance::new(plan.seed.wrapping_mul(37)),
        greeted: vec![0; plan.nodes],
        proposal: 0,
        overheard: Vec::new(),
        pinged: Time::ZERO,
    };
    for it in &mut world.nodes {
        it.machine.hostile.insert(ID);
    }
    for _ in 0..looks {
        for _ in 0..PAUSE {
            world.step()?;
        }
        for node in 0..plan.nodes {
            liar.greet(&mut world, node);
            liar.talk(&mut world, node);
            world.settle(node);
        }
        liar.pings(&mut world);
        world.judge()?;
    }
    world.check_all();
    world.judge()?;
    Ok(world.report.clone())
}

struct Liar {
    chance: Chance,
    /// The incarnations of the nodes that it has greeted.
    greeted: Vec<u64>,
    proposal: u64,
    /// What nodes have asked for.
    overheard: Vec<Asked>,
    pinged: Time,
}

impl Liar {
    fn say(&self, world: &mut World, node: usize, record: &Record<'_>) {
        let sent = Sent {
            flags: match record {
                Record::WhereIs { .. } | Record::IsAt { .. } => RecordFlags::OPTIONAL,
                _ => RecordFlags::default(),
            },
            ..Sent::default()
        };
        let (now, id) = (world.now, self.wire(node));
        let bytes = record.with(sent);
        let SimNode { node, machine, .. } = &mut world.nodes[node];
        node.receive(now, id, &bytes, machine);
    }

    fn wire(&self, node: usize) -> ConnectionId {
        ConnectionId(HOSTILE + 1000 * self.greeted[node] + node as u64)
    }

    fn greet(&mut self, world: &mut World, node: usize) {
        let incarnation = world.nodes[node].incarnation;
        if self.greeted[node] == incarnation {
            return;
        }
        self.greeted[node] = incarnation;
        self.proposal += 1;
        let with = Authenticated {
            node: ID,
            expires: None,
            dialed: false,
            proven: true,
        };
        let (now, id) = (world.now, self.wire(node));
        world.nodes[node].node.connected(now, id, with);
        let body = HelloBody {
            versions: WIRE,
            features: u64::MAX,
            cluster: [7; 16],
            node: ID,
            incarnation: 1,
            run: [1; 16],
            name: 0,
            known: 0,
            association: None,
            proposal: self.proposal,
            flows: 4,
            transfers: 4,
            requests: 4,
        };
        let (name, known) = ("liar".to_owned(), Vec::new());
        self.say(world, node, &Record::Hello(Hello { body, name, known }));
        self.say(world, node, &Record::Resumed);
    }

    /// It is there, and has no clock.
    fn pings(&mut self, world: &mut World) {
        if world.now.since(self.pinged) < Duration::from_millis(500) {
            return;
        }
        self.pinged = world.now;
        let ping = Ping {
            clock: 1,
            echo: None,
            held: 0,
        };
        for node in 0..self.greeted.len() {
            self.say(world, node, &Record::Ping(ping));
        }
    }

    /// Hears what a node says, and lies.
    fn talk(&mut self, world: &mut World, node: usize) {
        let (now, id) = (world.now, self.wire(node));
        let mut questions = Vec::new();
        while let Some(said) = world.nodes[node].node.poll_record(now, id) {
            let found = match Record::decode(&said.bytes) {
                Ok((_, Some(Record::WhereIs { number, asked }))) => {
                    questions.push((number, asked));
                    None
                }
                Ok((_, Some(Record::Claim(claim)))) => Some((
                    "N4",
                    format!("node {node} shows the liar a secret: {claim:?}"),
                )),
                Ok((_, Some(Record::IsAt { located, .. }))) if !located.is_empty() => {
                    Some(("N12", format!("node {node} tells the liar: {located:?}")))
                }
                _ => None,
            };
            if let Some((invariant, what)) = found {
                world.oracle.borrow_mut().found(invariant, what);
            }
        }
        for (number, asked) in questions {
            let lie = |it: &Asked| Located {
                port: it.port,
                home: ID,
                incarnation: 1,
                proof: match self.chance.below(2) {
                    0 => it.proof,
                    _ => [0; 16],
                },
            };
            let located = asked.iter().map(lie).collect();
            self.say(world, node, &Record::IsAt { number, located });
            self.overheard.extend(asked);
        }
        let least = self.overheard.len().saturating_sub(64);
        self.overheard.drain(..least);
        if self.chance.happens(20_000) && !self.overheard.is_empty() {
            let (number, asked) = (1, self.overheard.clone());
            self.say(world, node, &Record::WhereIs { number, asked });
        }
    }
}
