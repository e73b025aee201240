//! Async receive, request and send: nothing is lost, whatever is dropped.
#![cfg(feature = "tokio")]

use portolan::{
    Access, Deadline, Domain, Message, Notice, PortOptions, ReceiveRight, RequestError, SendRight,
    WaitSet, WhenFull,
};
use portolan_testkit::{PATIENCE, until};
use std::future::Future;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

fn runtimes() -> [Runtime; 2] {
    let several = Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    [one_thread(), several.unwrap()]
}

fn one_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// In both kinds of runtime.
fn in_each<F: Future<Output = ()>>(test: impl Fn() -> F) {
    for runtime in runtimes() {
        runtime.block_on(async { soon(test()).await });
    }
}

async fn soon<T>(future: impl Future<Output = T>) -> T {
    timeout(PATIENCE, future)
        .await
        .expect("what should come soon does not come")
}

fn bound(options: PortOptions) -> (Domain, ReceiveRight, SendRight) {
    let domain = Domain::private().unwrap();
    let port = domain.bind(options).unwrap();
    let right = port.make_send();
    (domain, port, right)
}

fn message(number: u32) -> Message {
    Message::new(&number.to_le_bytes()).unwrap()
}

fn number(message: &Message) -> u32 {
    u32::from_le_bytes(message.header().try_into().unwrap())
}

#[test]
fn what_a_thread_sends_wakes_a_task() {
    in_each(async || {
        let (_domain, mut port, right) = bound(PortOptions::unnamed());
        let sender = std::thread::spawn(move || {
            for n in 0..2000 {
                if n % 100 == 0 {
                    std::thread::sleep(Duration::from_millis(1));
                }
                right.send(message(n), Deadline::after(PATIENCE)).unwrap();
            }
        });
        for n in 0..2000 {
            assert_eq!(
                number(&soon(port.receive_async(Access::Later)).await.unwrap()),
                n
            );
        }
        sender.join().unwrap();
    });
}

#[test]
fn tasks_send_to_tasks_through_full_queues() {
    in_each(async || {
        let (domain, mut port, right) = bound(PortOptions::unnamed().queue(2));
        let mut back = domain.bind(PortOptions::unnamed().queue(1)).unwrap();
        let to_back = back.make_send();
        let echo = tokio::spawn(async move {
            for _ in 0..3000 {
                let message = port.receive_async(Access::Later).await.unwrap();
                to_back.send_async(message).await.unwrap();
            }
        });
        let sender = tokio::spawn(async move {
            for n in 0..3000 {
                right.send_async(message(n)).await.unwrap();
            }
        });
        for n in 0..3000 {
            assert_eq!(number(&back.receive_async(Access::Later).await.unwrap()), n);
        }
        echo.await.unwrap();
        sender.await.unwrap();
    });
}

#[test]
fn a_dropped_receive_loses_no_message() {
    in_each(async || {
        let (_domain, mut port, right) = bound(PortOptions::unnamed());
        let sender = std::thread::spawn(move || {
            for n in 0..300 {
                std::thread::sleep(Duration::from_micros(u64::from(n * 7 % 1000)));
                right.send(message(n), Deadline::after(PATIENCE)).unwrap();
            }
        });
        let mut expected = 0;
        while expected < 300 {
            // Most end by the timer, some in the same moment in which a message comes.
            let wait = Duration::from_micros(u64::from(expected * 13 % 700));
            tokio::select! {
                biased;
                () = tokio::time::sleep(wait) => {}
                received = port.receive_async(Access::Later) => {
                    assert_eq!(number(&received.unwrap()), expected);
                    expected += 1;
                }
            }
        }
        sender.join().unwrap();
        // Dropped while it sleeps: the port then works without a runtime.
        assert!(
            timeout(Duration::from_millis(1), port.receive_async(Access::Later))
                .await
                .is_err()
        );
        port.make_send().send(message(7), WhenFull::Fail).unwrap();
        assert_eq!(
            number(
                &port
                    .receive(Access::Later, Deadline::after(PATIENCE))
                    .unwrap()
            ),
            7
        );
    });
}

#[test]
fn a_port_goes_from_runtime_to_runtime() {
    let (_domain, mut port, right) = bound(PortOptions::unnamed());
    let [one, other] = runtimes();
    let sleeps = async |port: &mut ReceiveRight| {
        let wait = Duration::from_millis(1);
        assert!(
            timeout(wait, port.receive_async(Access::Later))
                .await
                .is_err()
        );
    };
    // `one` lives on and does not run.
    one.block_on(sleeps(&mut port));
    for runtime in [&other, &one, &one_thread()] {
        runtime.block_on(sleeps(&mut port));
        let right = right.clone();
        let sender = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(10));
            right.send(message(1), WhenFull::Fail).unwrap();
        });
        let received = runtime.block_on(async { soon(port.receive_async(Access::Later)).await });
        assert_eq!(number(&received.unwrap()), 1);
        sender.join().unwrap();
    }
}

#[test]
fn notices_come_to_tasks() {
    in_each(async || {
        let (_domain, mut port, right) = bound(PortOptions::unnamed());
        port.request_no_more_senders();
        let dropper = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(10));
            drop(right);
        });
        let message = port.receive_async(Access::Later).await.unwrap();
        assert_eq!(message.notice(), Some(Notice::NoMoreSenders));
        dropper.join().unwrap();
    });
}

/// Doubles numbers, each in a task; drops every request that is `dropped`.
async fn doubles(mut port: ReceiveRight, dropped: u32) {
    while let Ok(mut request) = port.get_request_async(Access::Later).await {
        tokio::spawn(async move {
            let n = number(&request.message);
            tokio::time::sleep(Duration::from_micros(u64::from(n % 50 * 20))).await;
            if n != dropped {
                request.message.set_header(&(2 * n).to_le_bytes()).unwrap();
                // Its client may have given up.
                let _ = request.reply_in_place();
            }
        });
    }
}

#[test]
fn many_requests_are_under_way_at_once() {
    in_each(async || {
        let (_domain, port, right) = bound(PortOptions::unnamed().synchronous().queue(3));
        let server = tokio::spawn(doubles(port, 77));
        let clients: Vec<_> = (0..200)
            .map(|n| {
                let right = right.clone();
                tokio::spawn(
                    async move { right.request_reply_async(message(n), Access::Later).await },
                )
            })
            .collect();
        for (n, client) in (0..).zip(clients) {
            match client.await.unwrap() {
                Ok(answer) => assert_eq!(number(&answer), 2 * n),
                Err(RequestError::Dropped) => assert_eq!(n, 77),
                Err(error) => panic!("{n}: {error}"),
            }
        }
        server.abort();
    });
}

#[test]
fn abandoned_requests_do_not_disturb_later_ones() {
    in_each(async || {
        let (_domain, port, right) = bound(PortOptions::unnamed().synchronous());
        let server = tokio::spawn(doubles(port, u32::MAX));
        let mut answered = 0;
        for n in 0..300u32 {
            let wait = Duration::from_micros(u64::from(n * 11 % 1500));
            let request = right.request_reply_async(message(n), Access::Later);
            if let Ok(answer) = timeout(wait, request).await {
                assert_eq!(number(&answer.unwrap()), 2 * n);
                answered += 1;
            }
        }
        let answer = soon(right.request_reply_async(message(500), Access::Later)).await;
        assert_eq!(number(&answer.unwrap()), 1000, "after {answered} answers");
        server.abort();
    });
}

#[test]
fn a_server_that_goes_answers_its_clients_with_an_error() {
    in_each(async || {
        let (_domain, port, right) = bound(PortOptions::unnamed().synchronous());
        let closer = std::thread::spawn(move || {
            until("it was asked", || port.depth() > 0);
            drop(port);
        });
        let error = right
            .request_reply_async(message(1), Access::Later)
            .await
            .unwrap_err();
        assert!(matches!(error, RequestError::ServerDead), "{error}");
        closer.join().unwrap();
        let error = right
            .request_reply_async(message(2), Access::Later)
            .await
            .unwrap_err();
        assert!(matches!(error, RequestError::Unsent(_)), "{error}");
    });
}

#[test]
fn a_sender_that_waits_for_room_is_told_of_a_dead_port() {
    in_each(async || {
        let (_domain, port, right) = bound(PortOptions::unnamed().queue(1));
        let closer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(10));
            drop(port);
        });
        let error = loop {
            if let Err(error) = right.send_async(message(3)).await {
                break error;
            }
        };
        assert_eq!(number(&error.item), 3, "the message comes back");
        closer.join().unwrap();
    });
}

#[test]
fn a_wait_set_is_a_descriptor_for_tokio() {
    in_each(async || {
        let domain = Domain::private().unwrap();
        let mut set = WaitSet::new(&domain).unwrap();
        let rights: Vec<SendRight> = (0..20)
            .map(|_| {
                let port = domain.bind(PortOptions::unnamed()).unwrap();
                let right = port.make_send();
                set.add(port).unwrap();
                right
            })
            .collect();
        let sender = std::thread::spawn(move || {
            for n in 0..2000usize {
                if n % 50 == 0 {
                    std::thread::sleep(Duration::from_millis(1));
                }
                let wait = Deadline::after(PATIENCE);
                rights[n * n % 20].send(Message::default(), wait).unwrap();
            }
        });
        let mut received = 0;
        while received < 2000 {
            let ready = soon(set.wait_async()).await.unwrap();
            assert!(!ready.is_empty());
            for token in ready {
                let port = set.get_mut(token.of::<portolan::ReceiveRight>()).unwrap();
                while port.receive(Access::Later, Deadline::NOW).is_ok() {
                    received += 1;
                }
            }
        }
        sender.join().unwrap();
    });
}
