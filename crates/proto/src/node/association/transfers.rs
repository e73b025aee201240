//! Long payloads, in fragments: those that go out take turns, those that come in are put together.

use super::super::fault::Fault;
use super::super::flow::{Arrived, Held, Way};
use super::super::port::TransferKey;
use super::super::rate::{By, Pace};
use super::super::types::{Destination, DomainKey, Home, OutFragment, Place};
use super::super::violation::Violation;
use super::{Association, Context, Inward};
use portolan_abi::node::{
    FragmentHead, FragmentKind, INLINE, MAX_FRAGMENT, MAX_TRANSFERS, MessageRecord, Record,
    RecordFlags, RecordHead,
};

/// Numbers from here on are of transfers that are announced.
pub(super) const ANNOUNCED: u32 = 1 << 31;

/// What a transfer brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    /// A message: flow and number.
    Flow(u32, u64),
    /// The answer to a request.
    Answer(u64),
}

/// A transfer that goes out. An announced one has the number by which the peer knows it; any other
/// gets that when it opens, because the peer sees them open in the order of their numbers.
#[derive(Debug)]
pub(super) struct OutTransfer {
    /// What the peer knows it by; 0 until then.
    number: u32,
    pub(super) subject: Subject,
    /// Flags of the record that opens it.
    pub(super) flags: RecordFlags,
    /// It was announced, and not granted.
    pub(super) is_announced: bool,
    is_opened: bool,
    offset: u64,
    total: u64,
}

impl OutTransfer {
    fn new(number: u32, subject: Subject, flags: RecordFlags, total: u64) -> Self {
        Self {
            number,
            subject,
            flags,
            is_announced: number != 0,
            is_opened: false,
            offset: 0,
            total,
        }
    }
}

/// A transfer that comes in.
#[derive(Debug)]
pub(super) struct InTransfer<P> {
    subject: Subject,
    domain: DomainKey,
    total: u64,
    /// It was announced; of the domain's budget it was granted so many bytes.
    announced: bool,
    granted: u64,
    /// What has come, once it is opened.
    arrived: Option<Arrived<P>>,
    got: u64,
}

impl<P> InTransfer<P> {
    pub(super) fn announced(subject: Subject, domain: DomainKey, total: u64) -> Self {
        Self {
            subject,
            domain,
            total,
            announced: true,
            granted: 0,
            arrived: None,
            got: 0,
        }
    }
}

impl<P: Clone> Association<P> {
    pub(super) fn transfer_key(&self, transfer: u32) -> TransferKey {
        TransferKey {
            peer: self.peer,
            association: self.serial,
            transfer,
        }
    }

    /// A transfer that may begin at once, or is announced; `None` if there are too many.
    pub(super) fn new_transfer(
        &mut self,
        subject: Subject,
        flags: RecordFlags,
        total: u64,
        announced: bool,
    ) -> Option<u32> {
        if self.out.len() >= self.most_transfers {
            return None;
        }
        let last = if announced {
            &mut self.last_announced_sent
        } else {
            &mut self.last_transfer
        };
        *last += 1;
        let transfer = *last;
        let number = if announced { transfer } else { 0 };
        let out = OutTransfer::new(number, subject, flags, total);
        self.out.insert(transfer, out);
        if !announced {
            self.bulk.add(subject, transfer);
        }
        Some(transfer)
    }

    /// The peer says that a transfer may begin.
    pub(in super::super) fn granted(&mut self, transfer: u32) -> Result<(), Violation> {
        if !(ANNOUNCED..=self.last_announced_sent).contains(&transfer) {
            return Err(Violation::Transfer { transfer });
        }
        // If there is none, it was sent again in another way meanwhile.
        if let Some(out) = self.out.get_mut(&transfer)
            && std::mem::take(&mut out.is_announced)
        {
            self.bulk.add(out.subject, transfer);
            let way = Way::Transfer {
                transfer,
                charged: false,
            };
            match out.subject {
                Subject::Flow(flow, number) => {
                    let sending = self.sending.get_mut(&flow);
                    if let Some(kept) = sending.and_then(|sending| sending.at(number)) {
                        kept.way = way;
                    }
                }
                Subject::Answer(request) => {
                    if let Some(answer) = self.answers.get_mut(&request) {
                        answer.way = way;
                    }
                }
            }
        }
        Ok(())
    }

    /// A transfer's message is not to be sent any more, or again from its beginning.
    pub(super) fn drop_out(&mut self, transfer: u32) {
        let Some(out) = self.out.remove(&transfer) else {
            return;
        };
        self.bulk.remove(out.subject, transfer);
        // Its home has heard of it: by its opening, or by its announcement.
        let is_known = out.is_opened || out.number >= ANNOUNCED;
        if is_known && out.offset < out.total {
            self.aborts.push_back(out.number);
        }
        // There is room for another one.
        if let Some(turn) = self.stuck.pop() {
            self.ready.push(turn);
        }
    }

    /// The next fragment.
    pub(in super::super) fn next_fragment(
        &mut self,
        now: crate::Time,
        pace: &mut Pace,
    ) -> Option<OutFragment<P>> {
        if let Some(transfer) = self.aborts.pop_front() {
            return Some(OutFragment {
                head: FragmentHead {
                    transfer,
                    offset: 0,
                    length: 0,
                    kind: FragmentKind::Aborts,
                },
                record: Vec::new(),
                payload: None,
            });
        }
        while let Some((turn, transfer)) = self.bulk.take() {
            let Some(out) = self.out.get(&transfer) else {
                continue;
            };
            let subject = out.subject;
            if !pace.may_go(now, By::Fragments) {
                self.bulk.give_back(turn);
                return None;
            }
            let fragment = self.fragment_of(now, transfer, pace.fragment());
            let out = self.out.get(&transfer);
            let has_more = fragment.is_some() && out.is_some_and(|out| out.offset < out.total);
            if !has_more {
                self.bulk.remove(subject, transfer);
            }
            self.bulk.again(turn, has_more);
            if fragment.is_some() {
                return fragment;
            }
        }
        None
    }

    /// The next fragment of a transfer: the record that opens it, or bytes.
    fn fragment_of(
        &mut self,
        now: crate::Time,
        transfer: u32,
        most: u64,
    ) -> Option<OutFragment<P>> {
        let out = self.out.get(&transfer)?;
        let (subject, flags) = (out.subject, out.flags);
        if !out.is_opened {
            let record = self.opening(now, subject, flags)?;
            let out = self.out.get_mut(&transfer)?;
            out.is_opened = true;
            if out.number == 0 {
                self.last_transfer_sent += 1;
                out.number = self.last_transfer_sent;
            }
            let transfer = out.number;
            return Some(OutFragment {
                head: FragmentHead {
                    transfer,
                    offset: 0,
                    length: u32::try_from(record.len()).unwrap_or(u32::MAX),
                    kind: FragmentKind::Opens,
                },
                record,
                payload: None,
            });
        }
        let payload = self.payload_of(subject)?;
        let out = self.out.get_mut(&transfer)?;
        let (transfer, offset) = (out.number, out.offset);
        let bytes = (out.total - offset).min(most);
        out.offset += bytes;
        Some(OutFragment {
            head: FragmentHead {
                transfer,
                offset,
                length: u32::try_from(bytes).unwrap_or(u32::MAX),
                kind: FragmentKind::Data,
            },
            record: Vec::new(),
            payload: Some((payload, offset..offset + bytes)),
        })
    }

    fn payload_of(&mut self, subject: Subject) -> Option<P> {
        match subject {
            Subject::Flow(flow, number) => {
                let kept = self.sending.get_mut(&flow)?.at(number)?;
                kept.message.payload.clone()
            }
            Subject::Answer(request) => self.answers.get(&request)?.payload(),
        }
    }

    /// The head of a fragment has come: where its bytes go.
    pub(in super::super) fn fragment(
        &mut self,
        cx: &mut Context<'_, P>,
        head: FragmentHead,
    ) -> Result<Place<P>, Violation> {
        let transfer = head.transfer;
        match head.kind {
            FragmentKind::Opens => Ok(Place::Record),
            FragmentKind::Aborts => {
                self.aborted(cx, transfer)?;
                Ok(Place::Discard)
            }
            FragmentKind::Data => {
                let Some(coming) = self.incoming.get(&transfer) else {
                    let violation = Violation::Transfer { transfer };
                    let is_known = self.was_there(transfer);
                    return is_known.then_some(Place::Discard).ok_or(violation);
                };
                let Some(arrived) = &coming.arrived else {
                    return Err(Violation::Transfer { transfer });
                };
                let expected = coming.got;
                let fits = u64::from(head.length) <= coming.total - expected;
                if head.offset != expected || !fits {
                    return Err(Violation::Fragment {
                        transfer,
                        offset: head.offset,
                        expected,
                    });
                }
                let payload = arrived.message.payload.clone();
                Ok(payload.map_or(Place::Discard, |payload| Place::Into(payload, expected)))
            }
        }
    }

    /// The record that opens a transfer has come.
    pub(in super::super) fn opened(
        &mut self,
        cx: &mut Context<'_, P>,
        home: &mut dyn Home<P>,
        transfer: u32,
        bytes: &[u8],
    ) -> Result<(), Violation> {
        let (head, record) = Record::decode(bytes)?;
        let violation = Violation::Transfer { transfer };
        if let Some(coming) = self.incoming.get(&transfer) {
            // It was announced and granted, and says the same now.
            let said = match (&record, coming.subject) {
                (Some(Record::Message(it)), Subject::Flow(flow, number)) => {
                    let is_it = head.flow == flow && head.near(number) == number;
                    is_it && it.payload() == coming.total
                }
                (Some(Record::Answer(it)), Subject::Answer(request)) => {
                    it.body.request == request && it.payload() == coming.total
                }
                _ => false,
            };
            if !said || coming.arrived.is_some() || coming.granted == 0 {
                return Err(violation);
            }
        } else if transfer > self.last_transfer_received && transfer < ANNOUNCED {
            self.last_transfer_received = transfer;
            if self.incoming.len() >= MAX_TRANSFERS {
                return Err(violation);
            }
        } else if transfer >= ANNOUNCED && self.was_there(transfer) {
            // It was granted, and then thrown away.
            return Ok(());
        } else {
            return Err(violation);
        }
        let check = |it: &MessageRecord<'_>| {
            let bytes = it.payload();
            let is_long = it.body.inline == 0 && bytes > INLINE;
            is_long.then_some(()).ok_or(Violation::Stream { bytes })
        };
        match record {
            Some(Record::Message(it)) => {
                check(&it)?;
                self.may_give(&it)?;
                let number = head.near(self.expected(head.flow));
                self.message_opens(cx, home, transfer, (head.flow, number, head.flags), &it)
            }
            Some(Record::Answer(it)) => {
                check(&it)?;
                self.may_give(&it)?;
                self.answer_opens(cx, home, transfer, &it)
            }
            _ => Err(violation),
        }
    }

    /// Whether there has been a transfer of this number. Those that are announced open when they
    /// are granted, so they have numbers of their own.
    fn was_there(&self, transfer: u32) -> bool {
        let announced = ANNOUNCED..=self.last_announced_received;
        let others = 1..=self.last_transfer_received;
        announced.contains(&transfer) || others.contains(&transfer)
    }

    /// A transfer is opened.
    pub(super) fn open_incoming(
        &mut self,
        cx: &Context<'_, P>,
        transfer: u32,
        subject: Subject,
        mut arrived: Arrived<P>,
    ) -> Result<(), Violation> {
        let total = arrived.message.bytes();
        let domain = match subject {
            Subject::Flow(flow, _) => match self.receiving.get(&flow) {
                Some(Inward::Open(receiving)) => {
                    let port = cx.ports.get(&receiving.port);
                    port.map(|port| port.settings.domain)
                }
                _ => None,
            },
            Subject::Answer(request) => self.open.get(&request).map(|open| open.domain),
        };
        let coming = self.incoming.entry(transfer).or_insert(InTransfer {
            subject,
            domain: domain.unwrap_or(DomainKey(0)),
            total,
            announced: false,
            granted: 0,
            arrived: None,
            got: 0,
        });
        arrived.granted = coming.granted;
        coming.arrived = Some(arrived);
        Ok(())
    }

    /// Bytes of a fragment are where they belong.
    pub(in super::super) fn fragment_received(
        &mut self,
        cx: &mut Context<'_, P>,
        home: &mut dyn Home<P>,
        head: FragmentHead,
    ) -> Result<(), Violation> {
        let transfer = head.transfer;
        let Some(coming) = self.incoming.get_mut(&transfer) else {
            return Ok(());
        };
        coming.got += u64::from(head.length);
        if coming.got < coming.total {
            return Ok(());
        }
        let Some(coming) = self.incoming.remove(&transfer) else {
            return Ok(());
        };
        let Some(arrived) = coming.arrived else {
            return Ok(());
        };
        match coming.subject {
            Subject::Flow(flow, number) => {
                if let Some(Inward::Open(receiving)) = self.receiving.get_mut(&flow) {
                    receiving.held.insert(number, Held::Whole(arrived));
                    self.deliver(cx, home, flow);
                }
            }
            Subject::Answer(request) => {
                cx.give_back(coming.domain, arrived.granted);
                self.answered(cx, request, arrived.message)?;
            }
        }
        Ok(())
    }

    /// Its sender has thrown a transfer away, and begins anew with that message, or with one before
    /// it, once it has credit. It may have announced it before it heard that its flow waits, and the
    /// announcement was taken as a probe: that credit it has not heard of.
    fn aborted(&mut self, cx: &mut Context<'_, P>, transfer: u32) -> Result<(), Violation> {
        let announced = self.last_announced_received;
        if transfer > announced && transfer >= ANNOUNCED {
            // By the other stream, its announcement comes later.
            let most = usize::try_from(transfer - announced).unwrap_or(usize::MAX);
            if most > MAX_TRANSFERS {
                return Err(Violation::Transfer { transfer });
            }
            self.aborted.insert(transfer);
            return Ok(());
        }
        let subject = self.incoming.get(&transfer).map(|coming| coming.subject);
        self.drop_incoming(cx, transfer);
        if let Some(Subject::Flow(flow, _)) = subject
            && let Some(Inward::Open(receiving)) = self.receiving.get_mut(&flow)
            && receiving.promised() > 0
        {
            receiving.say.credit = true;
            self.says.push(flow);
        }
        Ok(())
    }

    /// A transfer that comes in is not wanted any more, or has ended before it was whole.
    pub(super) fn drop_incoming(&mut self, cx: &mut Context<'_, P>, transfer: u32) {
        if self.planted.is(Fault::KeepsPartial) {
            return;
        }
        let key = self.transfer_key(transfer);
        let Some(coming) = self.incoming.remove(&transfer) else {
            return;
        };
        if coming.announced && coming.granted == 0 {
            if let Some(budget) = cx.budgets.get_mut(&coming.domain) {
                budget.waiting.retain(|(other, _)| *other != key);
            }
        } else {
            cx.give_back(coming.domain, coming.granted);
        }
        if let Subject::Flow(flow, number) = coming.subject
            && let Some(Inward::Open(receiving)) = self.receiving.get_mut(&flow)
            && matches!(receiving.held.get(&number), Some(Held::Coming(other)) if *other == transfer)
        {
            receiving.held.remove(&number);
        }
    }

    /// The domain has memory for a transfer that was announced.
    pub(in super::super) fn grant(&mut self, transfer: u32) -> bool {
        let Some(coming) = self.incoming.get_mut(&transfer) else {
            return false;
        };
        coming.granted = coming.total;
        self.grants.push_back(transfer);
        true
    }

    /// The answer to a request opens its transfer.
    fn answer_opens(
        &mut self,
        cx: &mut Context<'_, P>,
        home: &mut dyn Home<P>,
        transfer: u32,
        record: &MessageRecord<'_>,
    ) -> Result<(), Violation> {
        let request = record.body.request;
        if self.wants_answer(request)?.is_none() {
            self.drop_incoming(cx, transfer);
            self.acknowledge_answer(cx, request, 0);
            return self.give_back_unread(&record.rights);
        }
        let to = Destination::Request(self.request_key(request));
        let Some(memory) = home.allocate(to, &record.lengths) else {
            self.drop_incoming(cx, transfer);
            self.no_memory(cx, request);
            return self.give_back_unread(&record.rights);
        };
        let arrived = self.arrived(cx, record, Some(memory), false);
        self.open_incoming(cx, transfer, Subject::Answer(request), arrived)
    }
}

const _: () = assert!(RecordHead::BYTES < MAX_FRAGMENT as usize);
