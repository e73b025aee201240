//! Tests clients that present themselves over a well-known channel.

use super::calls::other;
use super::service::{Fault, PATIENCE, TestClient, Tested};
use portolan::channel::{ChannelError, ChannelOptions};
use portolan::rpc::{self, CallError, ClientError, ClientOptions, RpcError, ServerOptions};
use portolan::{Deadline, Domain};
use std::time::Duration;

type Outcome = Result<(), Box<dyn std::error::Error>>;

fn over_channel() -> ClientOptions {
    ClientOptions::default().limit(PATIENCE).over_channel()
}

#[test]
fn a_client_is_let_in_over_the_channel_with_all_that_it_needs() -> Outcome {
    let domain = Domain::private()?;
    let options = ServerOptions::default().on_channel();
    let server = rpc::serve(&domain, "test", Tested::service(&domain), &options)?;
    let client = TestClient::connect_with(&domain, "test", &over_channel(), PATIENCE)?;
    assert_eq!(client.add(1, 2), Ok(3));
    let overflow = CallError::Method(Fault::Overflow { a: u64::MAX, b: 1 });
    assert_eq!(client.add(u64::MAX, 1), Err(overflow));
    // Extents go through ports, which are found by name.
    let large = client.fill(50_000, 3)?.into_extent().ok_or("no extent")?;
    assert_eq!(client.total(vec![large.into()], false), Ok(150_000));
    // The port is there for others.
    let by_port = TestClient::connect(&domain, "test", PATIENCE)?;
    assert_eq!(by_port.add(4, 5), Ok(9));
    assert_eq!(server.clients(), 2);
    assert_eq!(server.counts().damaged, 0);

    let unrelated =
        other::UnrelatedClient::connect_with(&domain, "test", &over_channel(), PATIENCE);
    assert!(
        matches!(
            unrelated.err(),
            Some(ClientError::OtherService {
                ours: "Unrelated",
                ..
            })
        ),
        "another service answered"
    );
    drop(server);
    assert_eq!(client.null(), Err(RpcError::ServerDied));
    Ok(())
}

#[test]
fn a_client_that_calls_out_is_heard_by_a_later_server_and_garbage_is_not() -> Outcome {
    let domain = Domain::private()?;
    let calls = ChannelOptions::named("test calls").many_writers();
    let calls = domain.make_channel(&calls.unit(512).units(64))?;
    let options = ServerOptions::default().on_channel();
    for _ in 0..2 {
        // The channel outlives the server: a client has a right on it.
        std::thread::scope(|scope| {
            let calling = scope.spawn(|| {
                TestClient::connect_with(&domain, "test", &over_channel(), PATIENCE).unwrap()
            });
            let mut noise = calls.bind_writer().unwrap();
            let service = Tested::service(&domain);
            let _server = rpc::serve(&domain, "test", service, &options).unwrap();
            for garbage in [&b""[..], b"hello?", &[0xff; 300]] {
                noise.write(garbage, PATIENCE).unwrap();
            }
            let client = calling.join().unwrap();
            assert_eq!(client.add(20, 1), Ok(21));
        });
    }
    Ok(())
}

#[test]
fn nobody_who_listens_is_an_error_that_says_so() -> Outcome {
    let domain = Domain::private()?;
    let options = ServerOptions::default();
    let _server = rpc::serve(&domain, "test", Tested::service(&domain), &options)?;
    let connect = |deadline| TestClient::connect_with(&domain, "test", &over_channel(), deadline);
    let refused = connect(Deadline::NOW).err();
    assert!(
        matches!(
            refused,
            Some(ClientError::Channel(ChannelError::Connect(_)))
        ),
        "{refused:?}"
    );
    let calls = ChannelOptions::named("test calls").many_writers().unit(512);
    let _calls = domain.make_channel(&calls)?;
    let refused = connect(Deadline::after(Duration::from_millis(50))).err();
    assert!(
        matches!(&refused, Some(ClientError::Unheard { name }) if name == "test"),
        "{refused:?}"
    );
    Ok(())
}
