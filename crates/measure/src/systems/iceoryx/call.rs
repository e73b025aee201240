//! Measures requests and responses of iceoryx2; for blocking an event each way, too.
//!
//! The bytes are copied into the loaned request, and read where they lie. There is no
//! checksum.

use std::hint::black_box;
use std::os::fd::OwnedFd;

use iceoryx2::active_request::ActiveRequest;
use iceoryx2::pending_response::PendingResponse;
use iceoryx2::port::client::Client;
use iceoryx2::port::server::Server;
use iceoryx2::prelude::*;

use super::{Event, Service, event, name, node, refused, service_name, wait, wake};
use crate::case::Case;
use crate::error::{MeasureError, Result};
use crate::systems::Endpoint;
use crate::systems::answer::Exchange;
use crate::systems::memory::Spin;
use crate::systems::portolan::parent;

/// One side of a row.
pub(crate) struct IceoryxCall {
    side: Side,
    event: Option<Event>,
    exchange: Exchange,
    spin: Spin,
    /// Last: the ports go before the node they belong to.
    _node: Node<Service>,
}

type Called = PendingResponse<Service, [u8], (), [u8], ()>;
type Asked = ActiveRequest<Service, [u8], (), [u8], ()>;

/// What is under way is there between sending and receiving.
enum Side {
    Client {
        port: Client<Service, [u8], (), [u8], ()>,
        called: Option<Called>,
    },
    Server {
        port: Server<Service, [u8], (), [u8], ()>,
        asked: Option<Asked>,
    },
}

impl IceoryxCall {
    /// `coordinator` is the process that both sides know: the client's.
    fn new(case: &Case, coordinator: u32, calls: bool) -> Result<Self> {
        let node = node()?;
        let name = |part| name(case, coordinator, part);
        let exchange = Exchange::new(case);
        // Memory for no bytes there is none.
        let longest = exchange.bytes.len().max(1);
        let service = node
            .service_builder(&service_name(&name("call"))?)
            .request_response::<[u8], [u8]>()
            .max_clients(1)
            .max_servers(1)
            .open_or_create()
            .map_err(refused)?;
        let side = if calls {
            let port = service.client_builder().initial_max_slice_len(longest);
            Side::Client {
                port: port.create().map_err(refused)?,
                called: None,
            }
        } else {
            let port = service.server_builder().initial_max_slice_len(longest);
            Side::Server {
                port: port.create().map_err(refused)?,
                asked: None,
            }
        };
        let mut ways = [name("there"), name("back")];
        if !calls {
            ways.reverse();
        }
        let [ours, theirs] = ways;
        Ok(Self {
            side,
            event: event(case, &node, &ours, &theirs)?,
            exchange,
            spin: Spin::new(case),
            _node: node,
        })
    }
}

impl Endpoint for IceoryxCall {
    fn create(case: &Case) -> Result<(Self, Vec<OwnedFd>)> {
        Ok((Self::new(case, std::process::id(), true)?, Vec::new()))
    }

    fn attach(case: &Case, _seat: u32, _descriptors: Vec<OwnedFd>) -> Result<Self> {
        Self::new(case, parent()?, false)
    }

    #[inline(always)]
    fn send(&mut self) -> Result<()> {
        match &mut self.side {
            Side::Client { port, called } => {
                let bytes = &self.exchange.bytes;
                let request = port.loan_slice_uninit(bytes.len()).map_err(refused)?;
                *called = Some(request.write_from_slice(bytes).send().map_err(refused)?);
            }
            Side::Server { asked, .. } => {
                let asked = asked.take().ok_or(MeasureError::Gone)?;
                let answer = self.exchange.answer(black_box(asked.payload()));
                let response = asked.loan_slice_uninit(answer.len()).map_err(refused)?;
                response.write_from_slice(answer).send().map_err(refused)?;
            }
        }
        wake(self.event.as_ref())
    }

    #[inline(always)]
    fn receive(&mut self) -> Result<()> {
        let event = self.event.as_ref();
        match &mut self.side {
            Side::Client { called, .. } => {
                let called = called.take().ok_or(MeasureError::Gone)?;
                let answer = wait(self.spin, event, || called.receive().map_err(refused))?;
                self.exchange.check("iceoryx2", answer.payload())
            }
            Side::Server { port, asked } => {
                *asked = Some(wait(self.spin, event, || port.receive().map_err(refused))?);
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::{Mode, Shape, System};

    /// Both ends, in one process.
    fn ends(case: &Case) -> (IceoryxCall, IceoryxCall) {
        let (client, _) = IceoryxCall::create(case).unwrap();
        let server = IceoryxCall::new(case, std::process::id(), false).unwrap();
        (client, server)
    }

    #[test]
    fn calls_come_back() {
        for mode in [Mode::Poll, Mode::Block] {
            for (bytes, shape) in [
                (0, Shape::Plain),
                (32, Shape::Answered),
                (1 << 10, Shape::Plain),
                (64 << 10, Shape::Answered),
            ] {
                let case = Case {
                    mode,
                    shape,
                    ..Case::new(System::IceoryxCall, bytes)
                };
                let (mut client, mut server) = ends(&case);
                for _ in 0..20 {
                    client.send().unwrap();
                    server.echo().unwrap();
                    client.receive().unwrap();
                }
            }
        }
    }

    #[test]
    fn a_wrong_answer_is_noticed() {
        let case = Case {
            shape: Shape::Answered,
            ..Case::new(System::IceoryxCall, 40)
        };
        let (mut client, mut server) = ends(&case);
        server.exchange.answered = false;
        client.send().unwrap();
        server.echo().unwrap();
        let error = client.receive().unwrap_err();
        assert!(
            matches!(error, MeasureError::WrongAnswer { came: 0, .. }),
            "{error}"
        );
    }
}
