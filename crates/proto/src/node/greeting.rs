//! Peers come and go: connections are opened, crossed and cut, associations begin, resume and end.

use super::asking::Questions;
use super::association::Association;
use super::association::Context;
use super::clock::{ClockOffset, Exchange};
use super::connection::{Connection, agreed, own_part};
use super::machine::{Node, Peer, context};
use super::rate::{Intake, Pace};
use super::types::{Authenticated, ConnectionId, Event, Home, Wall};
use super::violation::{Over, Violation};
use crate::Time;
use core::time::Duration;
use portolan_abi::node::{
    ANSWERS, ByeReason, CONTROL, FEATURE_MOVES, FEATURE_RIGHTS, FEATURE_WHERE, Hello, HelloBody,
    MAX_CERTIFICATE, MAX_FLOWS, MAX_INSPECTED, MAX_KNOWN, MAX_QUESTION, MAX_STATEMENT,
    MAX_TRANSFERS, NodeId, Record, RecordFlags, RecordKind, WIRE,
};

impl<P: Clone> Node<P> {
    /// A connection to an authenticated peer is open, in either direction.
    pub fn connected(&mut self, now: Time, id: ConnectionId, with: Authenticated) {
        let node = with.node;
        let known: Vec<NodeId> = self.peers.keys().copied().take(MAX_KNOWN).collect();
        let settings = self.settings;
        let proposal = &mut self.last_proposal;
        let peer = self.peers.entry(node).or_insert_with(|| {
            *proposal += 1;
            Peer {
                incarnation: 0,
                run: [0; 16],
                name: String::new(),
                round_trip: None,
                clock: None,
                proposal: *proposal,
                association: None,
                connection: None,
                heard: now,
                is_unreachable: false,
                questions: Questions::default(),
                pace: Pace::default(),
                intake: Intake::default(),
            }
        });
        let count = |most: usize| u32::try_from(most).unwrap_or(u32::MAX);
        let body = HelloBody {
            versions: WIRE,
            features: match with.proven {
                true if settings.moves => FEATURE_RIGHTS | FEATURE_MOVES | FEATURE_WHERE,
                true => FEATURE_RIGHTS,
                false => 0,
            },
            cluster: settings.cluster,
            node: settings.node,
            incarnation: settings.incarnation,
            run: settings.run,
            // The encoder counts it.
            name: 0,
            known: known.len(),
            association: peer.association.as_ref().map(|it| it.id),
            proposal: peer.proposal,
            flows: count(MAX_FLOWS),
            transfers: count(MAX_TRANSFERS),
            requests: count(settings.open_requests),
        };
        let name = self.name.clone();
        let connection = Connection::new(now, with, Hello { body, name, known });
        self.connections.insert(id, connection);
        if self.forgotten.contains(&node) {
            self.hang_up(now, id, ByeReason::Forgotten, None);
        } else if self.is_expired(now, with) {
            self.hang_up(now, id, ByeReason::Expired, None);
        }
    }

    /// A connection has ended: it was cut, or closed by either side.
    pub fn disconnected(&mut self, now: Time, id: ConnectionId) {
        self.let_go(now, id);
        self.connections.remove(&id);
        self.settle(now);
    }

    /// The connection carries its association no more.
    fn let_go(&mut self, now: Time, id: ConnectionId) {
        let Some(connection) = self.connections.get(&id) else {
            return;
        };
        let Some(peer) = self.peers.get_mut(&connection.with.node) else {
            return;
        };
        if peer.connection == Some(id) {
            peer.connection = None;
            peer.pace.cut();
            let mut cx = context!(self, now);
            if let Some(association) = &mut peer.association {
                association.cut(&mut cx);
            }
            let node = connection.with.node;
            self.ask_again(node);
        }
    }

    /// Says why, and closes a connection.
    pub(super) fn hang_up(
        &mut self,
        now: Time,
        id: ConnectionId,
        reason: ByeReason,
        violation: Option<Violation>,
    ) {
        self.let_go(now, id);
        if let Some(connection) = self.connections.get_mut(&id)
            && connection.bye.is_none()
        {
            connection.bye = Some(reason);
            self.events.push_back(Event::Close {
                connection: id,
                reason,
                violation,
            });
        }
    }

    /// The association with a peer is over.
    pub(super) fn over(&mut self, now: Time, node: NodeId, why: Over) {
        let Some(peer) = self.peers.get_mut(&node) else {
            return;
        };
        peer.is_unreachable = false;
        let connection = peer.connection.take();
        peer.pace.cut();
        let mut cx = context!(self, now);
        if let Some(association) = peer.association.take() {
            let serial = association.serial;
            let ended = association.end(&mut cx, why);
            self.parted(node, serial);
            self.ended(now, (node, serial), why, ended);
        }
        if let Some(id) = connection {
            let reason = match why {
                Over::Here => ByeReason::Leaving,
                Over::Violation(_) => ByeReason::Violation,
                _ => ByeReason::Other,
            };
            self.hang_up(now, id, reason, None);
        }
    }

    /// Ends the association with a peer, and refuses it from now on.
    pub fn forget(&mut self, now: Time, node: NodeId) {
        self.forgotten.insert(node);
        let its = self.connections.iter();
        let its = its.filter(|(_, connection)| connection.with.node == node);
        let its: Vec<ConnectionId> = its.map(|(id, _)| *id).collect();
        for id in its {
            self.hang_up(now, id, ByeReason::Forgotten, None);
        }
        self.over(now, node, Over::Here);
        self.settle(now);
    }

    /// Says `Bye` to all peers: this node ends.
    pub fn leave(&mut self, now: Time) {
        let peers: Vec<NodeId> = self.peers.keys().copied().collect();
        for node in peers {
            self.over(now, node, Over::Here);
        }
        self.settle(now);
    }

    /// Reads one record.
    pub(super) fn record(
        &mut self,
        now: Time,
        id: ConnectionId,
        bytes: &[u8],
        home: &mut dyn Home<P>,
    ) -> Result<(), Violation> {
        let Some(connection) = self.connections.get(&id) else {
            return Ok(());
        };
        if connection.bye.is_some() {
            return Ok(());
        }
        let met = connection.met;
        self.heard_on(now, id);
        let (head, record) = Record::decode(bytes)?;
        let is_hello = head.kind == RecordKind::Hello as u16;
        let is_bye = head.kind == RecordKind::Bye as u16;
        if is_hello == met && !is_bye {
            return Err(Violation::Greeting);
        }
        match record {
            None => Ok(()),
            Some(Record::Hello(hello)) => self.greeted(now, id, &hello),
            Some(Record::Bye(bye)) => {
                self.farewell(now, id, bye.reason);
                Ok(())
            }
            Some(Record::Ping(ping)) => {
                let most = self.settings.window_at_most;
                if let Some(connection) = self.connections.get_mut(&id) {
                    connection.ping |= ping.echo.is_none();
                    connection.echo = Some((ping.clock, now));
                }
                let clock = self.settings.clock(now);
                let sent = ping.echo.and_then(|sent| clock.checked_sub(sent));
                let away = sent.and_then(|away| away.checked_sub(ping.held));
                let offset = ping.echo.and_then(|sent| {
                    let exchange = Exchange {
                        sent,
                        said: ping.clock,
                        held: ping.held,
                        now: clock,
                    };
                    ClockOffset::measure(exchange, now)
                });
                if let Some(nanos) = away
                    && let Some(connection) = self.connections.get(&id)
                    && let Some(peer) = self.peers.get_mut(&connection.with.node)
                {
                    peer.round_trip = Some(Duration::from_nanos(nanos));
                    let before = peer.clock;
                    peer.clock = offset.map(|new| new.better(before, now)).or(before);
                }
                self.carried(now, id, |association, _| {
                    if let Some(nanos) = away {
                        let round_trip = Duration::from_nanos(nanos);
                        association.window.measured(now, round_trip, most);
                    }
                });
                Ok(())
            }
            Some(Record::Renew(request)) => {
                let request = request.to_vec();
                if let Some(peer) = self.carries_for(id) {
                    self.events.push_back(Event::Renew { peer, request });
                }
                Ok(())
            }
            Some(Record::Renewed(certificate)) => {
                let certificate = certificate.to_vec();
                if let Some(peer) = self.carries_for(id) {
                    self.events.push_back(Event::Renewed { peer, certificate });
                }
                Ok(())
            }
            Some(Record::Statement(statement)) => {
                let statement = statement.to_vec();
                if let Some(peer) = self.carries_for(id) {
                    self.events.push_back(Event::Stated { peer, statement });
                }
                Ok(())
            }
            Some(Record::Members(members)) => {
                let members = members.iter();
                let members = members.map(|it| (it.node, it.address.to_owned())).collect();
                if let Some(peer) = self.carries_for(id) {
                    self.events.push_back(Event::Members { peer, members });
                }
                Ok(())
            }
            Some(Record::Inspect(question)) => {
                let question = question.to_vec();
                let proven = |it: &Connection| it.with.proven;
                if self.connections.get(&id).is_some_and(proven)
                    && let Some(peer) = self.carries_for(id)
                {
                    self.events.push_back(Event::Inspect { peer, question });
                }
                Ok(())
            }
            Some(Record::Inspected(answer)) => {
                let answer = answer.to_vec();
                if let Some(peer) = self.carries_for(id) {
                    self.events.push_back(Event::Inspected { peer, answer });
                }
                Ok(())
            }
            Some(Record::Rate { bytes }) => {
                if let Some(peer) = self.carries_for(id) {
                    self.takes_said(now, peer, bytes);
                }
                Ok(())
            }
            Some(Record::WhereIs { number, asked }) => {
                let proven = |it: &Connection| it.with.proven;
                if self.connections.get(&id).is_some_and(proven)
                    && let Some(peer) = self.carries_for(id)
                {
                    self.where_is(peer, id, number, &asked);
                }
                Ok(())
            }
            Some(Record::IsAt { number, located }) => {
                if let Some(peer) = self.carries_for(id) {
                    self.located(now, peer, number, &located);
                }
                Ok(())
            }
            Some(Record::Resumed) => {
                self.carried(now, id, |association, _| association.resumed());
                let node = self.connections.get_mut(&id).map(|connection| {
                    connection.resumed = true;
                    connection.with.node
                });
                let peer = node.and_then(|node| self.peers.get_mut(&node));
                if let Some(peer) = peer
                    && peer.connection == Some(id)
                    && std::mem::take(&mut peer.is_unreachable)
                    && let Some(node) = node
                {
                    self.events.push_back(Event::Reachable { peer: node });
                }
                Ok(())
            }
            Some(record) => {
                let handled = self.carried(now, id, |association, cx| {
                    carried_record(association, cx, home, head.flow, &head, record)
                });
                handled.unwrap_or(Ok(()))
            }
        }
    }

    /// Something has come on a connection. If it carries the association with its peer, the peer is heard
    /// no earlier than the connection: so who is unreachable has no connection that goes on, and
    /// the next one's *Resumed* says that it is back (N15).
    pub(super) fn heard_on(&mut self, now: Time, id: ConnectionId) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        connection.heard = now;
        if connection.carries()
            && let Some(peer) = self.peers.get_mut(&connection.with.node)
            && peer.connection == Some(id)
        {
            peer.heard = now;
        }
    }

    /// The peer whose association a connection carries.
    pub(super) fn carries_for(&self, id: ConnectionId) -> Option<NodeId> {
        let connection = self.connections.get(&id)?;
        let node = connection.with.node;
        let peer = self.peers.get(&node)?;
        (connection.carries() && peer.connection == Some(id)).then_some(node)
    }

    fn carrying(&mut self, node: NodeId) -> Option<&mut Connection> {
        let id = self.peers.get(&node)?.connection?;
        self.connections.get_mut(&id)
    }

    /// Asks a peer to sign the key of this node again, if it is connected.
    pub fn ask_renewal(&mut self, peer: NodeId, request: &[u8]) {
        if request.len() <= MAX_CERTIFICATE
            && let Some(connection) = self.carrying(peer)
        {
            connection.renew = Some(request.to_vec());
        }
    }

    /// Gives a peer its certificate, if it is connected.
    pub fn renewed(&mut self, peer: NodeId, certificate: &[u8]) {
        if certificate.len() <= MAX_CERTIFICATE
            && let Some(connection) = self.carrying(peer)
        {
            connection.renewed = Some(certificate.to_vec());
        }
    }

    /// Asks a peer what happens there, in place of what it was asked before and has not been told yet;
    /// whether it is connected. [`Event::Inspected`] tells, unless the connection ends first.
    pub fn inspect(&mut self, peer: NodeId, question: &[u8]) -> bool {
        match self.carrying(peer) {
            Some(connection) if (1..=MAX_QUESTION).contains(&question.len()) => {
                connection.inspect = Some(question.to_vec());
                true
            }
            _ => false,
        }
    }

    /// Has how far a peer's clock is ahead measured soon, if the peer is connected: by a ping that it echoes.
    pub fn measure_clock(&mut self, peer: NodeId) {
        if let Some(connection) = self.carrying(peer) {
            connection.ping = true;
        }
    }

    /// Answers [`Event::Inspect`], if the peer is connected.
    pub fn inspected(&mut self, peer: NodeId, answer: &[u8]) {
        if (1..=MAX_INSPECTED).contains(&answer.len())
            && let Some(connection) = self.carrying(peer)
        {
            connection.inspected = Some(answer.to_vec());
        }
    }

    /// Says this to each peer, on each connection that there is or will be, behind what was said
    /// before: [`super::Event::Stated`] there. This node checks no signature.
    pub fn state(&mut self, statement: &[u8]) {
        if statement.len() <= MAX_STATEMENT {
            self.statements.push(statement.to_vec());
        }
    }

    /// Tells all peers, and all that come, which members there are and where they are reached: this
    /// node too. [`Event::Members`] says the same of a peer.
    pub fn set_members(&mut self, members: Vec<(NodeId, String)>) {
        if self.members != members {
            self.members = members;
            let all = self.connections.values_mut();
            all.for_each(|connection| connection.tell = true);
        }
    }

    /// The peer's greeting.
    fn greeted(&mut self, now: Time, id: ConnectionId, theirs: &Hello) -> Result<(), Violation> {
        let Some(connection) = self.connections.get_mut(&id) else {
            return Ok(());
        };
        let node = connection.with.node;
        let said = theirs.body.node;
        if said != node || said == self.settings.node {
            let authenticated = node;
            return Err(Violation::Identity {
                authenticated,
                said,
            });
        }
        let Some(peer) = self.peers.get_mut(&node) else {
            return Ok(());
        };
        let refusal = if theirs.body.cluster != self.settings.cluster {
            Some(ByeReason::Cluster)
        } else if WIRE.common(theirs.body.versions).is_none() {
            Some(ByeReason::Version)
        } else if theirs.body.incarnation < peer.incarnation
            || (theirs.body.incarnation == peer.incarnation && theirs.body.run != peer.run)
        {
            // Of an old copy of its state, or one of two nodes with the same identity.
            Some(ByeReason::Incarnation)
        } else {
            None
        };
        if let Some(reason) = refusal {
            self.hang_up(now, id, reason, None);
            return Ok(());
        }
        let agreed = agreed(&connection.hello, theirs);
        let current = peer.association.as_ref().map(|it| it.id);
        let is_new = current != Some(agreed);
        let features = connection.hello.body.features & theirs.body.features;
        if let Some(association) = peer.association.as_ref().filter(|_| !is_new)
            && association.features & !features != 0
        {
            // It has secrets to say, and this connection is not one to say them on.
            self.hang_up(now, id, ByeReason::Crossed, None);
            return Ok(());
        }
        if is_new && own_part(agreed, self.settings.node, node) != peer.proposal {
            // Both greetings were said before what another connection has agreed on since.
            self.hang_up(now, id, ByeReason::Crossed, None);
            return Ok(());
        }
        // Of two connections that the nodes have opened to one another, that of the smaller id
        // stays; of two of one node the later one.
        let preferred = |dialed: bool| dialed == (self.settings.node < node);
        if let Some(other) = peer.connection
            && !is_new
            && let Some(there) = self.connections.get(&other)
        {
            let ours = self.connections.get(&id).is_some_and(|it| it.with.dialed);
            if preferred(there.with.dialed) && !preferred(ours) {
                self.hang_up(now, id, ByeReason::Crossed, None);
                return Ok(());
            }
        }
        if is_new {
            let restarted = peer.incarnation < theirs.body.incarnation;
            let why = if restarted {
                Over::Restarted
            } else {
                Over::Forgotten
            };
            self.over(now, node, why);
            self.begin(now, node, agreed, theirs, features);
        } else if let Some(other) = self.peers.get(&node).and_then(|peer| peer.connection) {
            self.hang_up(now, other, ByeReason::Crossed, None);
        }
        let Some(peer) = self.peers.get_mut(&node) else {
            return Ok(());
        };
        peer.connection = Some(id);
        peer.heard = now;
        theirs.name.clone_into(&mut peer.name);
        let takes = peer.intake.said();
        if let Some(association) = &mut peer.association {
            association.resume();
        }
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.met = true;
            connection.resuming = true;
            connection.takes = takes;
            connection.tell = !self.members.is_empty();
        }
        Ok(())
    }

    /// An association begins.
    fn begin(
        &mut self,
        now: Time,
        node: NodeId,
        id: portolan_abi::node::AssociationId,
        theirs: &Hello,
        features: u64,
    ) {
        self.last_proposal += 1;
        self.last_association += 1;
        let Some(peer) = self.peers.get_mut(&node) else {
            return;
        };
        peer.proposal = self.last_proposal;
        if peer.run != theirs.body.run {
            // Its machine may have been started anew, too.
            peer.clock = None;
        }
        peer.incarnation = theirs.body.incarnation;
        peer.run = theirs.body.run;
        let cx = context!(self, now);
        let serial = self.last_association;
        let incarnation = theirs.body.incarnation;
        let mut association = Association::new(&cx, node, id, serial, incarnation);
        let count = |most: u32| usize::try_from(most).unwrap_or(usize::MAX);
        association.most_flows = count(theirs.body.flows).min(MAX_FLOWS);
        association.most_transfers = count(theirs.body.transfers).min(MAX_TRANSFERS);
        association.most_requests = count(theirs.body.requests);
        association.features = features;
        peer.association = Some(association);
        self.events.push_back(Event::Up {
            peer: node,
            association: serial,
            incarnation,
            name: theirs.name.clone(),
            known: theirs.known.clone(),
        });
        self.claim_of(now, node);
        self.ask_too(node);
    }

    /// The peer ends a connection, and mostly the association.
    fn farewell(&mut self, now: Time, id: ConnectionId, reason: ByeReason) {
        let node = self.connections.get(&id).map(|it| it.with.node);
        let is_current = node
            .and_then(|node| self.peers.get(&node))
            .is_some_and(|peer| peer.connection == Some(id));
        let is_of_connection = matches!(reason, ByeReason::Crossed | ByeReason::Expired);
        if let Some(node) = node
            && is_current
            && !is_of_connection
        {
            self.over(now, node, Over::Bye(reason));
        }
        self.hang_up(now, id, ByeReason::Other, None);
    }

    // Time.

    /// The wall clock says this. Certificates end by it, and nothing else does; it may jump.
    pub fn set_wall(&mut self, now: Time, wall: Wall) {
        self.wall = Some((wall, now));
        self.expire(now);
        self.settle(now);
    }

    fn is_expired(&self, now: Time, with: Authenticated) -> bool {
        with.expires
            .is_some_and(|expires| self.wall_at(now) >= Some(expires))
    }

    fn wall_at(&self, now: Time) -> Option<Wall> {
        let (wall, read) = self.wall?;
        Some(Wall(wall.0.saturating_add(now.since(read).as_secs())))
    }

    fn expire(&mut self, now: Time) {
        let of = |it: &Connection| it.bye.is_none() && self.is_expired(now, it.with);
        let expired = self.connections.iter().filter(|(_, it)| of(it));
        let expired: Vec<ConnectionId> = expired.map(|(id, _)| *id).collect();
        for id in expired {
            self.hang_up(now, id, ByeReason::Expired, None);
        }
    }

    /// When [`Node::timeout`] is due next.
    pub fn next_timeout(&self) -> Option<Time> {
        let settings = &self.settings;
        let connections = self.connections.values().filter(|it| it.bye.is_none());
        let of_connection = |it: &Connection| {
            let silent = it.heard.after(settings.silent_after);
            let ping = it.met && !it.ping;
            let ping = ping.then(|| it.ping_at(settings.ping_after));
            let expiry = it
                .with
                .expires
                .zip(self.wall)
                .map(|(expires, (wall, read))| {
                    read.after(Duration::from_secs(expires.0.saturating_sub(wall.0)))
                });
            [Some(silent), ping, expiry].into_iter().flatten().min()
        };
        let of_peer = |peer: &Peer<P>| {
            let association = peer.association.as_ref()?;
            let silent = peer.heard.after(settings.silent_after);
            let silent = (!peer.is_unreachable).then_some(silent);
            let dead = settings.dead_after.map(|after| peer.heard.after(after));
            let waits = peer.pace.wake_at();
            [silent, dead, waits, association.next_timeout()]
                .into_iter()
                .flatten()
                .min()
        };
        connections
            .filter_map(of_connection)
            .chain(self.peers.values().filter_map(of_peer))
            .chain(self.next_review())
            .chain(self.next_borrow())
            .min()
    }

    /// Does what is due by now.
    pub fn timeout(&mut self, now: Time) {
        self.expire(now);
        let settings = self.settings;
        let mut silent = Vec::new();
        for (id, connection) in &mut self.connections {
            if connection.bye.is_some() {
                continue;
            }
            if connection.heard.after(settings.silent_after) <= now {
                silent.push(*id);
            } else if connection.met && connection.ping_at(settings.ping_after) <= now {
                connection.ping = true;
            }
        }
        for id in silent {
            self.hang_up(now, id, ByeReason::Crossed, None);
        }
        let mut dead = Vec::new();
        for (node, peer) in &mut self.peers {
            let Some(association) = &mut peer.association else {
                continue;
            };
            peer.pace.timeout(now);
            let mut cx = context!(self, now);
            association.timeout(&mut cx);
            if settings
                .dead_after
                .is_some_and(|after| peer.heard.after(after) <= now)
            {
                dead.push(*node);
            } else if !peer.is_unreachable && peer.heard.after(settings.silent_after) <= now {
                peer.is_unreachable = true;
                let (peer, since) = (*node, peer.heard);
                self.events.push_back(Event::Unreachable { peer, since });
            }
        }
        for node in dead {
            self.over(now, node, Over::GivenUp);
        }
        self.review_credit(now);
        self.give_borrows_up(now);
        self.settle(now);
    }
}

/// A record that belongs to the association.
fn carried_record<P: Clone>(
    association: &mut Association<P>,
    cx: &mut Context<'_, P>,
    home: &mut dyn Home<P>,
    flow: u32,
    head: &portolan_abi::node::RecordHead,
    record: Record<'_>,
) -> Result<(), Violation> {
    let flags: RecordFlags = head.flags;
    match record {
        Record::Message(message) => {
            let number = head.near(association.expected(flow));
            association.message(cx, home, (flow, number, flags), &message)
        }
        Record::Announce(announce) => {
            let number = match flow {
                ANSWERS => 0,
                _ => head.near(association.expected(flow)),
            };
            association.announced(cx, (flow, number, flags), announce)
        }
        Record::Answer(answer) => association.answer_arrived(cx, home, &answer),
        Record::AckAnswer { request } => {
            association.answer_acknowledged(request);
            Ok(())
        }
        Record::Ack | Record::Credit | Record::Wait => {
            let number = head.near(association.known(flow));
            association.said(cx, flow, number, &record)
        }
        Record::Empty { credit } => {
            let number = head.near(association.expected(flow));
            association.emptied(cx, flow, number, credit)
        }
        Record::Grant { transfer } => association.granted(transfer),
        Record::Resolve(_)
        | Record::Resolved { .. }
        | Record::Dead(_)
        | Record::Close { .. }
        | Record::Claim(_)
        | Record::Recall { .. }
        | Record::WantSenders { .. }
        | Record::MoveRight(_)
        | Record::Backlog(_)
        | Record::Moved(_) => {
            let number = head.near(association.control_expected());
            match flow {
                CONTROL => association.handle_control(cx, number, record),
                _ => Err(Violation::Flow { flow }),
            }
        }
        // The connection has handled these.
        Record::Hello(_)
        | Record::Resumed
        | Record::Ping(_)
        | Record::Bye(_)
        | Record::Renew(_)
        | Record::Renewed(_)
        | Record::Statement(_)
        | Record::Inspect(_)
        | Record::Inspected(_)
        | Record::Rate { .. }
        | Record::WhereIs { .. }
        | Record::IsAt { .. }
        | Record::Members(_) => Ok(()),
    }
}
