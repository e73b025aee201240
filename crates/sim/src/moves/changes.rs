//! What nodes tell of receive rights that move, and what must hold.

use super::{FIRST, Item, Proxy, Route, Sought, Stream, group, key_of, place_of};
use crate::home::Payload;
use crate::world::{SimNode, World};
use portolan_abi::node::{DeadReason, NodeId, ResolveFailure};
use portolan_proto::node::{
    Answer, BorrowKey, Delivery, Event, Fault, FlowEnd, FlowKey, Message, Outcome, PortKey,
    PortStay, Returned,
};
use std::collections::VecDeque;
use std::time::Duration;

/// So often in a row a program finds a port that is dead.
const MOST_IN_VAIN: u32 = 50;

impl World {
    /// An event, if it is not one of these.
    pub(crate) fn moves_event(
        &mut self,
        index: usize,
        event: Event<Payload>,
    ) -> Option<Event<Payload>> {
        if self.plan.moves == 0 {
            return Some(event);
        }
        let it = &mut self.nodes[index];
        let proxy_of = |flow: FlowKey| {
            let all = it.moves.proxies.iter();
            all.filter(|(_, it)| it.flow == Some(flow))
                .map(|(id, _)| *id)
                .next()
        };
        match event {
            Event::Resolve { flow, name, .. } if name.starts_with('m') => {
                let which = name[1..].parse().unwrap_or(0);
                let port = key_of(place_of(index, it.incarnation, which));
                it.machine.lent.insert(flow, port);
                let there = it.node.stay(port).map(|_| port);
                let there = there.ok_or(ResolveFailure::NoSuchPort);
                let _ = it.node.lend(self.now, flow, there);
            }
            Event::Resolved { flow, lent } => self.has_resolved(index, flow, lent.is_ok()),
            Event::Moved { flow, borrow, .. } => {
                self.report.followed += 1;
                let proxy = proxy_of(flow);
                if let Some(proxy) = proxy.and_then(|id| it.moves.proxies.get_mut(&id)) {
                    (proxy.flow, proxy.borrow) = (None, Some(borrow));
                }
            }
            Event::Borrowed { borrow, flow } => {
                let mut all = it.moves.proxies.iter_mut();
                let its = all.find(|(_, proxy)| proxy.borrow == Some(borrow));
                let Some((id, proxy)) = its else {
                    if let Ok(flow) = flow {
                        let _ = it.node.close(flow);
                    }
                    return None;
                };
                let id = *id;
                (proxy.flow, proxy.borrow) = (flow.ok(), None);
                proxy.lent = true;
                match flow {
                    Ok(_) => {
                        self.report.found += u64::from(proxy.sought.take().is_some());
                        self.pump_moving(index, id);
                    }
                    Err(why) => {
                        let why = format!("{why:?}");
                        self.must_be_nowhere(index, id, &why);
                        self.leads_nowhere(index, id, &why);
                    }
                }
            }
            Event::Left { port, borrow } => self.has_left(index, port, borrow),
            Event::CameHome {
                borrow,
                port,
                unsent,
            } => self.came_home(index, borrow, port, unsent),
            Event::Rekeyed { from, to } => {
                self.report.renamed += 1;
                if let Some(port) = it.moves.giving.remove(&from) {
                    it.moves.giving.insert(to, port);
                } else if let Some(of) = it.moves.forwarded.remove(&from) {
                    it.moves.forwarded.insert(to, of);
                } else {
                    let mut oracle = self.oracle.borrow_mut();
                    if let Some(at) = oracle.open.remove(&(index, from)) {
                        oracle.open.insert((index, to), at);
                    }
                }
            }
            Event::Dead { flow, .. } => match proxy_of(flow) {
                Some(id) => self.leads_nowhere(index, id, "its port was closed"),
                None => self.nodes[index]
                    .moves
                    .inboxes
                    .retain(|_, (inbox, _)| *inbox != flow),
            },
            Event::WantSenders { flow } => {
                let proxy = proxy_of(flow);
                if let Some(proxy) = proxy.and_then(|id| it.moves.proxies.get_mut(&id)) {
                    proxy.counted = true;
                }
            }
            Event::Ended { request, outcome } => {
                if let Some(port) = it.moves.giving.remove(&request) {
                    match outcome {
                        Outcome::Answered(Answer::Reply(_)) => self.report.moved += 1,
                        Outcome::NodeLost => self.close_home(index, port),
                        _ => self.report.not_moved += 1,
                    }
                } else if let Some(of) = it.moves.forwarded.remove(&request) {
                    let answer = match outcome {
                        Outcome::Answered(Answer::Reply(reply)) => {
                            let bytes = reply.header;
                            Answer::Reply(Message::short(&bytes))
                        }
                        Outcome::Answered(answer) => answer,
                        _ => Answer::ServerDead,
                    };
                    let _ = it.node.answer(of, answer);
                } else {
                    return Some(Event::Ended { request, outcome });
                }
            }
            other => return Some(other),
        }
        None
    }

    fn has_resolved(&mut self, index: usize, flow: FlowKey, is_there: bool) {
        let exact = self.is_exact();
        let home = self
            .by_id
            .get(&flow.peer)
            .map(|home| &self.nodes[*home].node);
        let mut streams = self.nodes[index].moves.streams.iter();
        let asked = streams.find(|it| it.route == Route::Asked(flow));
        let stay = asked.and_then(|it| home?.stay(key_of(it.place)));
        let is_home = stay != Some(PortStay::Left);
        let moves = &mut self.nodes[index].moves;
        for (inbox, is_lent) in moves.inboxes.values_mut() {
            *is_lent |= *inbox == flow && is_there;
        }
        let asked = |it: &&mut Stream| it.route == Route::Asked(flow);
        let Some(stream) = moves.streams.iter_mut().find(asked) else {
            return;
        };
        if !is_there {
            (stream.route, stream.left) = (Route::None, 0);
            if exact {
                let what = format!("node {index} is told that there is no port {stream:?}");
                self.oracle.borrow_mut().found("N5", what);
            }
            return;
        }
        moves.last_proxy += 1;
        stream.route = Route::Proxy(moves.last_proxy);
        let proxy = Proxy {
            place: stream.place,
            flow: Some(flow),
            borrow: None,
            queue: VecDeque::new(),
            backlog: None,
            of: None,
            counted: false,
            lent: is_home,
            sought: None,
        };
        moves.proxies.insert(moves.last_proxy, proxy);
    }

    /// Another node has taken a receive right: the queue is a proxy's from now on.
    fn has_left(&mut self, index: usize, port: PortKey, borrow: BorrowKey) {
        let loses = self.plan.fault == Some(Fault::LosesBacklog);
        let it = &mut self.nodes[index];
        let queue = it.machine.queues.remove(&port);
        let waiting = it.moves.homes.remove(&port);
        let queue = queue.into_iter().flat_map(|queue| queue.messages).flatten();
        let mut queue: VecDeque<Item> = queue.collect();
        let of_remote = queue.len();
        queue.extend(waiting.into_iter().flatten());
        if loses {
            queue.pop_front();
        }
        self.report.backlog += of_remote as u64;
        it.machine.lent.retain(|_, lent| *lent != port);
        it.moves.last_proxy += 1;
        let id = it.moves.last_proxy;
        for stream in &mut it.moves.streams {
            if stream.route == Route::Local(port) {
                stream.route = Route::Proxy(id);
            }
        }
        // Of an earlier stay here.
        let earlier = it.moves.proxies.values_mut();
        let earlier = earlier.filter(|proxy| proxy.of == Some(port));
        earlier.for_each(|proxy| proxy.of = None);
        // A driver may say so, or wait for the flow.
        let says = queue.is_empty() && borrow.0.is_multiple_of(2);
        let is_said = says && it.node.has_no_backlog(borrow).is_ok();
        let proxy = Proxy {
            place: port.0 - FIRST,
            flow: None,
            borrow: Some(borrow),
            backlog: (!is_said).then_some(queue.len()),
            queue,
            of: Some(port),
            counted: false,
            lent: true,
            sought: None,
        };
        it.moves.proxies.insert(id, proxy);
    }

    /// The port that a proxy stands for is here.
    fn came_home(
        &mut self,
        index: usize,
        borrow: BorrowKey,
        port: PortKey,
        unsent: Vec<Returned<Payload>>,
    ) {
        self.report.came_home += 1;
        let it = &mut self.nodes[index];
        let (id, home) = (it.id, it.moves.homes.get_mut(&port));
        let Some(home) = home else {
            if it.moves.closed.contains(&port) {
                return self.came_too_late(index, borrow, unsent);
            }
            let what = format!("{port:?} is said to be at node {index}");
            return self.oracle.borrow_mut().found("N4", what);
        };
        for returned in unsent {
            let mut request = None;
            if let Some(key) = returned.request {
                request = it.moves.forwarded.remove(&key);
                let mut oracle = self.oracle.borrow_mut();
                if request.is_none() && oracle.open.contains_key(&(index, key)) {
                    oracle.ends(index, key, "came home");
                }
            }
            home.push_back(Delivery {
                port,
                from: FlowKey {
                    peer: id,
                    association: 0,
                    flow: 0,
                },
                number: 0,
                request,
                deadline: returned.deadline,
                message: returned.message,
            });
        }
        let all = it.moves.proxies.iter();
        let mut its = all.filter(|(_, proxy)| proxy.borrow == Some(borrow));
        let Some(proxy) = its.next().map(|(id, _)| *id) else {
            return;
        };
        if let Some(gone) = it.moves.proxies.remove(&proxy) {
            self.report.found += u64::from(gone.sought.is_some());
            home.extend(gone.queue);
        }
        for stream in &mut it.moves.streams {
            if stream.route == Route::Proxy(proxy) {
                stream.route = Route::Local(port);
            }
        }
    }

    /// The port that a proxy stands for was here, and was closed when the node to which it was given was lost.
    fn came_too_late(&mut self, index: usize, borrow: BorrowKey, unsent: Vec<Returned<Payload>>) {
        let it = &mut self.nodes[index];
        for key in unsent.iter().filter_map(|returned| returned.request) {
            if let Some(of) = it.moves.forwarded.remove(&key) {
                let _ = it.node.answer(of, Answer::ServerDead);
                continue;
            }
            let mut oracle = self.oracle.borrow_mut();
            if oracle.open.contains_key(&(index, key)) {
                oracle.ends(index, key, "came home");
            }
        }
        let all = it.moves.proxies.iter();
        let mut its = all.filter(|(_, proxy)| proxy.borrow == Some(borrow));
        if let Some(proxy) = its.next().map(|(id, _)| *id) {
            self.leads_nowhere(index, proxy, "it was closed here");
        }
    }

    /// The port of a proxy is dead: what waits is lost, and its requests are answered.
    fn leads_nowhere(&mut self, index: usize, id: u64, why: &str) {
        if self.is_exact() {
            let what = format!("node {index} is told dead: {why}");
            self.oracle.borrow_mut().found("N5", what);
        }
        let it = &mut self.nodes[index];
        let Some(gone) = it.moves.proxies.remove(&id) else {
            return;
        };
        self.report.not_forwarded += gone.queue.len() as u64;
        for request in gone.queue.iter().filter_map(|item| item.request) {
            let _ = it.node.answer(request, Answer::ServerDead);
        }
        for stream in &mut it.moves.streams {
            if stream.route == Route::Proxy(id) {
                stream.route = Route::None;
                stream.in_vain += 1;
                // Where the port was it is found by its name, again and again, and has died elsewhere.
                if stream.in_vain > MOST_IN_VAIN {
                    stream.left = 0;
                }
            }
        }
    }

    /// A port may be at a node that was given up: it is not here any more.
    fn close_home(&mut self, index: usize, port: PortKey) {
        self.report.not_moved += 1;
        let it = &mut self.nodes[index];
        it.moves.closed.insert(port);
        let queue = it.machine.queues.remove(&port);
        let queue = queue.into_iter().flat_map(|queue| queue.messages).flatten();
        let waiting = it.moves.homes.remove(&port).into_iter().flatten();
        for request in queue.chain(waiting).filter_map(|item| item.request) {
            let _ = it.node.answer(request, Answer::ServerDead);
        }
        it.node.remove_port(self.now, port, DeadReason::Closed);
        for stream in &mut it.moves.streams {
            if stream.route == Route::Local(port) {
                stream.route = Route::None;
            }
        }
    }

    pub(crate) fn moves_over(&mut self, index: usize, peer: NodeId, flows: &[FlowEnd]) {
        if self.plan.moves == 0 {
            return;
        }
        let it = &mut self.nodes[index];
        let linked: Vec<(NodeId, u64)> = it
            .node
            .peers()
            .filter_map(|peer| Some((peer, it.node.view(peer)?.serial)))
            .collect();
        let moves = &mut it.moves;
        moves.inboxes.retain(|_, (flow, _)| flow.peer != peer);
        for stream in &mut moves.streams {
            if matches!(stream.route, Route::Asked(flow) if flow.peer == peer) {
                stream.route = Route::None;
            }
        }
        let all = moves.proxies.iter();
        let its = all.filter(|(_, it)| it.flow.is_some_and(|flow| flow.peer == peer));
        let its: Vec<u64> = its.map(|(id, _)| *id).collect();
        for id in its {
            let proxy = self.nodes[index].moves.proxies.get_mut(&id);
            let Some(proxy) = proxy else { continue };
            let linked = linked.clone();
            proxy.sought = Some(Sought {
                at: self.now,
                linked,
            });
            let end = flows.iter().find(|end| Some(end.flow) == proxy.flow);
            if let Some(borrow) = end.and_then(|end| end.borrow) {
                self.report.sought += 1;
                (proxy.flow, proxy.borrow) = (None, Some(borrow));
                proxy.counted = false;
            } else {
                // What is left of a backlog goes nowhere.
                if proxy.backlog.is_none() {
                    self.must_be_nowhere(index, id, "it asks nobody");
                }
                self.leads_nowhere(index, id, "its home was given up");
            }
        }
    }

    /// N5: a port whose home has gone is dead only if no node that could be asked has it.
    fn must_be_nowhere(&mut self, index: usize, id: u64, why: &str) {
        let Some(proxy) = self.nodes[index].moves.proxies.get(&id) else {
            return;
        };
        let Some(sought) = &proxy.sought else { return };
        let port = key_of(proxy.place);
        // It was asked for as long as it is.
        if self.now.since(sought.at) >= Duration::from_secs(29) {
            return;
        }
        let here = &self.nodes[index];
        let has_it = |(peer, serial): &&(NodeId, u64)| {
            let there = self.by_id.get(peer).map(|at| &self.nodes[*at]);
            let is_linked = here.node.association(*peer, *serial);
            let since = there.and_then(|it| it.moves.here_since.get(&port));
            let stay = there.and_then(|it| it.node.stay(port));
            is_linked.is_some()
                && there.and_then(|it| it.node.view(here.id)).map(|it| it.id) == is_linked
                && since.is_some_and(|since| *since < sought.at)
                && stay.is_some_and(|stay| stay != PortStay::Left)
        };
        if let Some((home, _)) = sought.linked.iter().find(has_it) {
            let what = format!("node {index} is told dead ({why}) {port:?}, which {home:?} has");
            self.oracle.borrow_mut().found("N5", what);
        }
    }

    /// N4: one home at a time. N7: a port without senders has none.
    pub(crate) fn look_at_homes(&mut self, index: usize) {
        if self.plan.moves == 0 || !self.is_exact() {
            return;
        }
        for port in self.nodes[index].moves.homes.keys() {
            let is_home = |it: &&SimNode| {
                matches!(
                    it.node.stay(*port),
                    Some(PortStay::Here | PortStay::Leaving)
                )
            };
            let near = group(&self.plan, index);
            let homes = self.nodes[near.clone()].iter().filter(is_home).count();
            if homes > 1 {
                let what = format!("{port:?} has {homes} homes");
                return self.oracle.borrow_mut().found("N4", what);
            }
            let it = &self.nodes[index];
            let local = |stream: &Stream| stream.route == Route::Local(*port);
            let is_used = it.node.flows_to(*port) > 0 || it.moves.streams.iter().any(local);
            if is_used || it.node.stay(*port) != Some(PortStay::Here) {
                continue;
            }
            for other in near {
                let there = &self.nodes[other];
                let sends = |stream: &&Stream| {
                    let proxy = match stream.route {
                        Route::Proxy(id) => there.moves.proxies.get(&id),
                        _ => None,
                    };
                    proxy.is_some_and(|it| it.lent && key_of(it.place) == *port)
                };
                if let Some(stream) = there.moves.streams.iter().find(sends) {
                    let what = format!(
                        "{port:?} at node {index} has no sender, but {stream:?} at {other}"
                    );
                    return self.oracle.borrow_mut().found("N7", what);
                }
            }
        }
    }

    pub(crate) fn moves_are_idle(&self, index: usize) -> bool {
        let moves = &self.nodes[index].moves;
        let is_sent = |proxy: &Proxy| proxy.queue.is_empty() && proxy.backlog.is_none();
        moves.streams.iter().all(|stream| stream.left == 0)
            && moves.homes.values().all(VecDeque::is_empty)
            && moves.proxies.values().all(is_sent)
    }

    pub(crate) fn what_moves(&self, index: usize) -> String {
        let it = &self.nodes[index];
        let stays = it.machine.queues.iter();
        let stays = stays.map(|(port, queue)| {
            let at = it.node.stay(*port);
            (*port, at, queue.messages.len(), it.node.port_view(*port))
        });
        let stays: Vec<_> = stays.collect();
        format!("node {index} is not done: {stays:?} {:?}", it.moves)
    }

    /// What is left of moves when all is quiet, if anything.
    pub(crate) fn unsettled_moves(&self, index: usize) -> Option<(&'static str, String)> {
        if self.plan.moves == 0 {
            return None;
        }
        let it = &self.nodes[index];
        if !it.moves.giving.is_empty() || !it.moves.forwarded.is_empty() {
            return Some(("N11", self.what_moves(index)));
        }
        let is_here = |port: &PortKey| it.node.stay(*port) == Some(PortStay::Here);
        if it.node.borrowing() > 0 || !it.moves.homes.keys().all(is_here) {
            return Some(("N13", self.what_moves(index)));
        }
        let oracle = self.oracle.borrow();
        let mut all = oracle.instances.iter().enumerate();
        if let Some((at, lost)) = all.find(|(_, it)| it.sent != it.entered)
            && self.is_exact()
        {
            return Some(("N3", format!("stream {at} has lost messages: {lost:?}")));
        }
        None
    }
}
