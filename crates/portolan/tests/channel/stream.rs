//! Channels as streams of bytes, and as frames.

use crate::PATIENCE;
use portolan::channel::{
    ChannelError, ChannelOptions, ReadError, ReaderOptions, Signalling, WriteError,
};
use portolan::{Deadline, Domain};
use std::io::{ErrorKind, IoSlice, Read, Write};
use std::time::Duration;

fn bytes(len: u32) -> Vec<u8> {
    (0..len).map(|i| (i * 7 % 251).to_le_bytes()[0]).collect()
}

#[test]
fn every_byte_comes_in_order_and_then_the_end() {
    let domain = Domain::private().unwrap();
    let options = ChannelOptions::unnamed().reliable().unit(128).units(8);
    let channel = domain.make_channel(&options).unwrap();
    let reader = channel.bind_reader(ReaderOptions::default()).unwrap();
    let mut reader = reader.into_stream(PATIENCE);
    let mut writer = channel.bind_writer().unwrap().into_stream(PATIENCE);
    let all = bytes(50_000);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for (i, chunk) in all[..40_000].chunks(777).enumerate() {
                writer.write_all(chunk).unwrap();
                if i % 5 == 0 {
                    writer.flush().unwrap();
                }
            }
            let mut rest = &all[40_000..];
            while !rest.is_empty() {
                let (a, b) = rest.split_at(rest.len() / 2);
                let parts = [IoSlice::new(a), IoSlice::new(&[]), IoSlice::new(b)];
                let done = writer.write_vectored(&parts).unwrap();
                rest = &rest[done..];
            }
            // A second stream on the same channel.
            let writer = writer.finish().unwrap();
            let mut writer = writer.into_stream(PATIENCE);
            writer.write_all(b"second").unwrap();
        });
        let mut seen = vec![];
        let mut buffer = [0; 333];
        loop {
            match reader.read(&mut buffer).unwrap() {
                0 => break,
                read => seen.extend_from_slice(&buffer[..read]),
            }
        }
        assert!(seen == all);
        assert_eq!(reader.read(&mut buffer).unwrap(), 0);
        let mut second = String::new();
        let mut reader = reader.into_reader().into_stream(PATIENCE);
        reader.read_to_string(&mut second).unwrap();
        assert_eq!(second, "second");
    });
}

#[test]
fn what_cannot_go_on_is_an_error_with_its_cause_inside() {
    let domain = Domain::private().unwrap();
    let options = ChannelOptions::unnamed().reliable().units(4);
    let channel = domain.make_channel(&options).unwrap();
    let now = Duration::ZERO;
    let reader = channel.bind_reader(ReaderOptions::default()).unwrap();
    let mut reader = reader.into_stream(now);
    let mut writer = channel.bind_writer().unwrap().into_stream(now);
    let mut buffer = [0; 100];
    let error = reader.read(&mut buffer).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert_eq!(writer.write(&[1; 1000]).unwrap(), 192);
    let error = writer.write(&[1; 1000]).unwrap_err();
    let inner = error.get_ref().and_then(|e| e.downcast_ref());
    let (room, wanted) = (0, 1);
    assert_eq!(inner, Some(&WriteError::Full { room, wanted }));
    // It cannot be ended either, so its reader hears of a writer that is gone.
    drop(writer);
    let mut all = vec![];
    let error = reader.read_to_end(&mut all).unwrap_err();
    assert_eq!((error.kind(), all.len()), (ErrorKind::UnexpectedEof, 192));
}

#[test]
fn frames_have_places_and_a_waiting_reader_is_woken() {
    let domain = Domain::private().unwrap();
    for signal in [Signalling::Message, Signalling::Bytes(128)] {
        let options = ChannelOptions::unnamed().raw().units(8).signal(signal);
        let channel = domain.make_channel(&options).unwrap();
        assert!(channel.is_raw());
        assert!(matches!(
            channel.bind_writer().map(|_| ()),
            Err(ChannelError::WrongKind("raw", _))
        ));
        assert!(channel.bind_reader(ReaderOptions::default()).is_err());
        let mut reader = channel.bind_frame_reader().unwrap();
        let mut writer = channel.bind_frame_writer().unwrap();
        assert!(channel.bind_frame_writer().is_err());
        assert_eq!(reader.wait(Deadline::NOW), Err(ReadError::TimedOut));
        std::thread::scope(|scope| {
            let (turn, turns) = std::sync::mpsc::channel();
            scope.spawn(move || {
                for round in 1..=50u8 {
                    std::thread::sleep(Duration::from_micros(u64::from(round % 3) * 500));
                    for place in 0..8u64 {
                        if place != u64::from(round % 8) {
                            writer.put(place, &[round; 99]).unwrap();
                        }
                    }
                    writer.show().unwrap();
                    turns.recv().unwrap();
                }
            });
            let mut units = [0u8; 8];
            for round in 1..=50u8 {
                let mut puts = 0;
                while puts < 7 {
                    puts += reader.wait(PATIENCE).unwrap();
                }
                for (place, old) in (0..).zip(&mut units) {
                    let mut unit = [9; 100];
                    assert_eq!(reader.get(place, &mut unit), Ok(64));
                    let expected = if place == u64::from(round % 8) {
                        *old
                    } else {
                        round
                    };
                    assert_eq!(unit[..64], [expected; 64], "{place} in {round}");
                    *old = expected;
                }
                turn.send(()).unwrap();
            }
        });
        assert_eq!(reader.wait(PATIENCE), Err(ReadError::WriterGone));
    }
    let message = domain.make_channel(&ChannelOptions::unnamed()).unwrap();
    assert!(message.bind_frame_reader().is_err() && message.bind_frame_writer().is_err());
}

#[cfg(feature = "tokio")]
mod with_tokio {
    use super::bytes;
    use crate::PATIENCE;
    use portolan::Domain;
    use portolan::channel::{ChannelOptions, ReadError, ReaderOptions};
    use std::io::IoSlice;
    use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};

    #[tokio::test(flavor = "multi_thread")]
    async fn many_streams_and_messages_in_one_runtime() {
        let domain = Domain::private().unwrap();
        let options = ChannelOptions::unnamed().reliable().units(4);
        let mut tasks = vec![];
        for _ in 0..10 {
            let channel = domain.make_channel(&options).unwrap();
            let reader = channel.bind_reader(ReaderOptions::default()).unwrap();
            let mut reader = reader.into_stream(PATIENCE);
            let mut writer = channel.bind_writer().unwrap().into_stream(PATIENCE);
            tasks.push(tokio::spawn(async move {
                let (all, mut done) = (bytes(20_000), 0);
                assert!(writer.is_write_vectored());
                while done < 9_900 {
                    let parts = [&all[done..done + 7], &[], &all[done + 7..10_000]];
                    let now = writer.write_vectored(&parts.map(IoSlice::new)).await;
                    // More than the first of the parts, where there is room.
                    assert!(
                        done > 0 || now.as_ref().is_ok_and(|now| *now > 7),
                        "{now:?}"
                    );
                    done += now.unwrap();
                }
                for chunk in all[done..].chunks(1234) {
                    writer.write_all(chunk).await.unwrap();
                }
                writer.shutdown().await.unwrap();
                assert!(writer.write_all(b"more").await.is_err());
            }));
            tasks.push(tokio::spawn(async move {
                let mut all = vec![];
                reader.read_to_end(&mut all).await.unwrap();
                assert!(all == bytes(20_000));
            }));
            let channel = domain.make_channel(&options).unwrap();
            let mut reader = channel.bind_reader(ReaderOptions::default()).unwrap();
            let mut writer = channel.bind_writer().unwrap();
            tasks.push(tokio::spawn(async move {
                for i in 0..500u32 {
                    writer.write_async(&i.to_le_bytes()).await.unwrap();
                }
            }));
            tasks.push(tokio::spawn(async move {
                for i in 0..500u32 {
                    assert_eq!(*reader.receive_async().await.unwrap(), i.to_le_bytes());
                }
                assert_eq!(reader.receive_async().await, Err(ReadError::WriterGone));
            }));
        }
        for task in tasks {
            tokio::time::timeout(PATIENCE, task).await.unwrap().unwrap();
        }
    }
}
