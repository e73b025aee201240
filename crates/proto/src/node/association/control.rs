//! Numbered control records: kept until acknowledged, handled once, in order.

use super::super::fault::Fault;
use super::super::flow::{Held, Receiving, Sending};
use super::super::keys;
use super::super::port::Stay;
use super::super::types::{Event, FlowKey, Outcome, PortKey};
use super::super::violation::{Unsent, Violation};
use super::{Association, Context, Inward};
use portolan_abi::node::{
    ANSWERS, Backlog, CONTROL, Claim, Dead, DeadReason, Lent, MAX_FLOWS, MoveRight, Moved, Record,
    Resolve, ResolveFailure, Sent,
};

/// Control records that may be unacknowledged: each flow has been asked for, replied to, redirected, and
/// ended.
pub(super) const MAX_CONTROL: usize = 4 * MAX_FLOWS;

/// A numbered control record that is kept.
#[derive(Clone, Debug)]
pub(in super::super) enum Control {
    Resolve {
        flow: u32,
        domain: String,
        name: String,
    },
    Resolved {
        flow: u32,
        lent: Result<Lent, ResolveFailure>,
    },
    Dead(Dead),
    Close {
        flow: u32,
    },
    Claim(Claim),
    Recall {
        request: u64,
    },
    WantSenders {
        flow: u32,
    },
    MoveRight(MoveRight),
    Backlog(Backlog),
    Moved(Moved),
}

impl Control {
    pub(super) fn record(&self) -> Record<'_> {
        match self {
            Self::Resolve { flow, domain, name } => Record::Resolve(Resolve {
                flow: *flow,
                domain,
                name,
            }),
            Self::Resolved { flow, lent } => Record::Resolved {
                flow: *flow,
                lent: *lent,
            },
            Self::Dead(dead) => Record::Dead(*dead),
            Self::Close { flow } => Record::Close { flow: *flow },
            Self::Claim(claim) => Record::Claim(*claim),
            Self::Recall { request } => Record::Recall { request: *request },
            Self::WantSenders { flow } => Record::WantSenders { flow: *flow },
            Self::MoveRight(moves) => Record::MoveRight(*moves),
            Self::Backlog(backlog) => Record::Backlog(*backlog),
            Self::Moved(moved) => Record::Moved(*moved),
        }
    }
}

impl<P: Clone> Association<P> {
    /// The next control record that is to be sent.
    pub(super) fn next_control(&mut self) -> Option<Vec<u8>> {
        let index = usize::try_from(self.control_cursor - self.control_first).ok()?;
        let record = self.control.get(index)?.record();
        let number = self.control_cursor;
        self.control_cursor += 1;
        self.control_reached = self.control_reached.max(self.control_cursor);
        Some(record.with(Sent {
            flow: CONTROL,
            number,
            ..Sent::default()
        }))
    }

    pub(super) fn control_acknowledged(&mut self, number: u64) -> Result<(), Violation> {
        let expected = self.control_reached;
        if number > expected {
            return Err(Violation::Number {
                flow: CONTROL,
                number,
                expected,
            });
        }
        while self.control_first < number && self.control.pop_front().is_some() {
            self.control_first += 1;
        }
        self.control_cursor = self.control_cursor.max(self.control_first);
        Ok(())
    }

    /// The number of the control record that comes next.
    pub(in super::super) fn control_expected(&self) -> u64 {
        self.control_next
    }

    pub(super) fn say(&mut self, control: Control) {
        self.control.push_back(control);
    }

    /// Handles a control record, once.
    pub(in super::super) fn handle_control(
        &mut self,
        cx: &mut Context<'_, P>,
        number: u64,
        record: Record<'_>,
    ) -> Result<(), Violation> {
        let expected = self.control_next;
        self.control_say = true;
        if number < expected {
            return Ok(());
        }
        if number > expected {
            return Err(Violation::Number {
                flow: CONTROL,
                number,
                expected,
            });
        }
        self.control_next += 1;
        match record {
            Record::Resolve(resolve) => self.asked(cx, resolve),
            Record::Resolved { flow, lent } => self.resolved(cx, flow, lent),
            Record::Dead(dead) => self.dead(cx, dead),
            Record::Close { flow } => self.closed(cx, flow),
            Record::Claim(claim) => self.claimed(cx, &claim),
            Record::Recall { request } => self.recalled(request),
            Record::WantSenders { flow } => self.senders_wanted(cx, flow),
            Record::MoveRight(moves) => self.right_moves(cx, moves),
            Record::Backlog(backlog) => self.backlog_ended(cx, backlog),
            Record::Moved(moved) => self.moved(cx, moved),
            // The caller has told these apart from all others.
            _ => Ok(()),
        }
    }

    /// Opens a flow, which leads nowhere yet.
    pub(super) fn open_flow(&mut self) -> Result<u32, Unsent> {
        let open = self.sending.len();
        let flow = self.last_flow_sent + 1;
        if open >= self.most_flows || flow == ANSWERS {
            return Err(Unsent::TooMany { open });
        }
        self.last_flow_sent = flow;
        self.sending.insert(flow, Sending::new());
        Ok(flow)
    }

    /// Asks for a port by its name, and opens the flow that will lead there.
    pub(in super::super) fn resolve(&mut self, domain: &str, name: &str) -> Result<u32, Unsent> {
        let flow = self.open_flow()?;
        let (domain, name) = (domain.to_owned(), name.to_owned());
        self.say(Control::Resolve { flow, domain, name });
        Ok(flow)
    }

    /// The peer asks for a port by its name.
    fn asked(&mut self, cx: &mut Context<'_, P>, resolve: Resolve<'_>) -> Result<(), Violation> {
        let flow = resolve.flow;
        self.asks_for_flow(flow)?;
        cx.events.push_back(Event::Resolve {
            flow: self.flow_key(flow),
            domain: resolve.domain.to_owned(),
            name: resolve.name.to_owned(),
        });
        Ok(())
    }

    /// The peer opens a flow, and asks where it leads.
    pub(super) fn asks_for_flow(&mut self, flow: u32) -> Result<(), Violation> {
        let is_new = flow > self.last_flow_received && flow != ANSWERS;
        if !is_new || self.receiving.len() >= MAX_FLOWS {
            return Err(Violation::Flow { flow });
        }
        if self.control.len() >= MAX_CONTROL {
            let records = self.control.len();
            return Err(Violation::Unread { records });
        }
        self.last_flow_received = flow;
        self.receiving.insert(flow, Inward::Asked);
        Ok(())
    }

    /// The driver says which port a flow of the peer's leads to.
    pub(in super::super) fn lend(
        &mut self,
        cx: &mut Context<'_, P>,
        flow: u32,
        port: Result<PortKey, ResolveFailure>,
    ) -> Result<(), Unsent> {
        if !matches!(self.receiving.get(&flow), Some(Inward::Asked)) {
            return Err(Unsent::Dead);
        }
        let key = self.flow_key(flow);
        let knows_moves = self.takes_moves();
        if port.is_err() {
            self.backlog_refused(cx, key);
        }
        let there = port.and_then(|port| {
            let entry = cx.ports.get_mut(&port);
            let entry = entry.ok_or(ResolveFailure::NoSuchPort)?;
            let moves = matches!(entry.stay, Stay::Leaving | Stay::Left(..));
            match moves && !knows_moves {
                true => Err(ResolveFailure::NoSuchPort),
                false => Ok((port, entry)),
            }
        });
        let planted = self.planted;
        let (mut wants_senders, mut moved) = (false, None);
        let lent = match there {
            Ok((port, entry)) => {
                if !entry.brings_backlog(key)
                    && !planted.is(Fault::ServesBeforeBacklog)
                    && let Stay::Arriving(arriving) = &mut entry.stay
                {
                    arriving.flows.push(key);
                    return Ok(());
                }
                if let Stay::Left(home, incarnation) = entry.stay {
                    moved = Some((port, home, incarnation));
                }
                entry.flows.insert(key);
                wants_senders = entry.wants_senders;
                let settings = entry.settings;
                let receiving = Inward::Open(Receiving::new(port));
                self.receiving.insert(flow, receiving);
                Ok(Lent {
                    port: settings.id,
                    secret: settings.secret(),
                    key: keys::of_borrower(&settings.key, key.peer),
                    synchronous: settings.synchronous,
                })
            }
            Err(failure) => {
                self.receiving.remove(&flow);
                Err(failure)
            }
        };
        self.say(Control::Resolved { flow, lent });
        if let Some((port, home, incarnation)) = moved {
            self.moves_away(cx, flow, port, (home, incarnation));
        } else if wants_senders {
            self.say(Control::WantSenders { flow });
        }
        Ok(())
    }

    fn resolved(
        &mut self,
        cx: &mut Context<'_, P>,
        flow: u32,
        lent: Result<Lent, ResolveFailure>,
    ) -> Result<(), Violation> {
        let sending = self.sending.get_mut(&flow);
        let Some(sending) = sending.filter(|sending| sending.lent.is_none()) else {
            return Err(Violation::Flow { flow });
        };
        let is_closing = sending.closing;
        let claim = sending.claim.take();
        match lent {
            Ok(there) => sending.lent = Some(there),
            Err(_) => drop(self.sending.remove(&flow)),
        }
        if is_closing {
            self.close_if_empty(flow);
        } else if let Some(borrow) = claim {
            self.claim_ended(cx, borrow, flow, lent);
        } else {
            let flow = self.flow_key(flow);
            cx.events.push_back(Event::Resolved { flow, lent });
        }
        Ok(())
    }

    /// The port of one of our flows is gone.
    fn dead(&mut self, cx: &mut Context<'_, P>, dead: Dead) -> Result<(), Violation> {
        let Dead { flow, reason, next } = dead;
        let Some(mut sending) = self.sending.remove(&flow) else {
            // It was closed here meanwhile.
            let is_known = (1..=self.last_flow_sent).contains(&flow);
            return is_known.then_some(()).ok_or(Violation::Flow { flow });
        };
        if sending.lent.is_none() || next > sending.reached {
            let expected = sending.reached;
            return Err(Violation::Number {
                flow,
                number: next,
                expected,
            });
        }
        for kept in sending.acknowledged(next) {
            self.forget(&kept);
        }
        let mut lost = Vec::new();
        for kept in sending.kept {
            self.forget(&kept);
            if let Some((request, _)) = kept.request {
                self.end_request(cx, request, Outcome::PortDead);
            }
            self.take_rights_back(cx, &kept.message);
            lost.push(kept.message);
        }
        self.empties.remove(flow);
        let flow = self.flow_key(flow);
        cx.events.push_back(Event::Dead { flow, reason, lost });
        Ok(())
    }

    /// The driver has closed a port.
    pub(in super::super) fn port_closed(
        &mut self,
        cx: &mut Context<'_, P>,
        flow: u32,
        reason: DeadReason,
    ) {
        let Some(Inward::Open(receiving)) = self.receiving.get(&flow) else {
            // It follows the port, or will lead nowhere.
            if let Some(Inward::Moved(_)) = self.receiving.get(&flow) {
                self.receiving.remove(&flow);
            }
            return;
        };
        let next = receiving.next;
        if self.planted.is(Fault::HidesDeath) {
            return;
        }
        self.close_inward(cx, flow);
        self.say(Control::Dead(Dead { flow, reason, next }));
    }

    /// The peer has closed a flow.
    fn closed(&mut self, cx: &mut Context<'_, P>, flow: u32) -> Result<(), Violation> {
        if !(1..=self.last_flow_received).contains(&flow) {
            return Err(Violation::NotLent { flow });
        }
        if matches!(self.receiving.get(&flow), Some(Inward::Asked)) {
            return Err(Violation::Flow { flow });
        }
        self.close_inward(cx, flow);
        Ok(())
    }

    /// A flow from the peer ends here: its slots are free.
    pub(super) fn close_inward(&mut self, cx: &mut Context<'_, P>, flow: u32) {
        self.withdraw(cx, flow);
        self.leave_queue(cx, flow);
        self.says.remove(flow);
        self.late.forget_flow(flow);
        let key = match self.receiving.remove(&flow) {
            Some(Inward::Open(receiving)) => receiving.port,
            Some(Inward::Moved(port)) => port,
            _ => return,
        };
        if let Some(port) = cx.ports.get_mut(&key) {
            if port.brings_backlog(self.flow_key(flow)) {
                cx.arrived.insert(key);
            }
            port.flows.remove(&self.flow_key(flow));
            if port.flows.is_empty() {
                // Nobody is left to be asked; who comes later is asked if it is wanted still.
                port.wants_senders = self.planted.is(Fault::CountsUnasked);
                let port = key;
                cx.events.push_back(Event::Unused { port });
            }
        }
    }

    /// Takes no more messages for a flow, and closes it once all are acknowledged.
    pub(in super::super) fn close(&mut self, flow: u32) -> Result<(), Unsent> {
        let sending = self.sending.get_mut(&flow).ok_or(Unsent::Dead)?;
        sending.closing = true;
        self.close_if_empty(flow);
        Ok(())
    }

    pub(super) fn close_if_empty(&mut self, flow: u32) {
        let Some(sending) = self.sending.get(&flow) else {
            return;
        };
        if sending.closing && sending.kept.is_empty() && sending.lent.is_some() {
            self.sending.remove(&flow);
            self.empties.remove(flow);
            self.say(Control::Close { flow });
        }
    }

    /// Takes credit, and all that is held, from a flow of the peer's.
    pub(super) fn withdraw(&mut self, cx: &mut Context<'_, P>, flow: u32) {
        let Some(Inward::Open(receiving)) = self.receiving.get_mut(&flow) else {
            return;
        };
        let port = receiving.port;
        let (promised, held) = receiving.withdraw();
        let mut domain = None;
        if let Some(port) = cx.ports.get_mut(&port) {
            port.withdraw(promised);
            domain = Some(port.settings.domain);
        }
        cx.served.insert(port);
        for held in held.into_values() {
            match held {
                Held::Whole(arrived) => {
                    if let Some(domain) = domain {
                        cx.give_back(domain, arrived.granted);
                    }
                }
                Held::Coming(transfer) => self.drop_incoming(cx, transfer),
            }
        }
    }

    pub(super) fn leave_queue(&mut self, cx: &mut Context<'_, P>, flow: u32) {
        let key: FlowKey = self.flow_key(flow);
        if let Some(Inward::Open(receiving)) = self.receiving.get(&flow)
            && let Some(port) = cx.ports.get_mut(&receiving.port)
        {
            port.waiting.remove(key);
        }
    }
}
