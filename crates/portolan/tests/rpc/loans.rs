//! Tests arguments and results that are filled in place, moved, and read in place.

use super::service::PATIENCE;
use portolan::channel::Payload;
use portolan::rpc::{self, Concurrency, Loan, ServerOptions};
use portolan::{AllocateError, Domain};

type Outcome = Result<(), Box<dyn std::error::Error>>;

#[derive(Clone, Copy, Debug, PartialEq, Payload)]
#[repr(C)]
struct Track {
    id: u64,
    seen: bool,
}

#[portolan::service]
trait Lab {
    /// The same memory, each value doubled, and where it lies.
    fn double(&self, values: Loan<[f64]>) -> (u64, Loan<[f64]>);
    fn mark(&self, track: Loan<Track>) -> Loan<Track>;
    fn count(&self, one: Loan<[u8]>, other: Vec<Loan<[u8]>>) -> u64;
    fn make(&self, count: usize) -> Option<Loan<[u32]>>;
    fn takes(&self, bytes: Loan<[u8]>);
}

struct Bench(Domain);

fn at<T: ?Sized>(value: &T) -> u64 {
    std::ptr::from_ref(value).addr() as u64
}

impl Lab for Bench {
    fn double(&self, mut values: Loan<[f64]>) -> (u64, Loan<[f64]>) {
        let there = values.write().unwrap();
        there.iter_mut().for_each(|value| *value *= 2.0);
        (at(there), values)
    }

    fn mark(&self, mut track: Loan<Track>) -> Loan<Track> {
        track.write().unwrap().seen = true;
        track
    }

    fn count(&self, one: Loan<[u8]>, other: Vec<Loan<[u8]>>) -> u64 {
        let all = std::iter::once(&one).chain(&other);
        all.map(|loan| loan.read().unwrap().len() as u64).sum()
    }

    fn make(&self, count: usize) -> Option<Loan<[u32]>> {
        let mut made = Loan::<[u32]>::slice(&self.0, count).ok()?;
        made.write()?.fill(7);
        Some(made)
    }

    fn takes(&self, _bytes: Loan<[u8]>) {}
}

fn served(concurrency: Concurrency) -> (Domain, rpc::Server, LabClient) {
    let domain = Domain::private().unwrap();
    let options = ServerOptions::default().concurrency(concurrency);
    let service = LabService(Bench(domain.clone()));
    let server = rpc::serve(&domain, "lab", service, &options).unwrap();
    let client = LabClient::connect(&domain, "lab", PATIENCE).unwrap();
    (domain, server, client)
}

#[test]
fn a_loan_is_filled_moved_and_changed_where_it_lies() -> Outcome {
    for concurrency in [Concurrency::Client, Concurrency::Call] {
        let (domain, _server, client) = served(concurrency);
        for count in [1, 1000, 1 << 18] {
            let mut values = Loan::<[f64]>::slice(&domain, count)?;
            values.write().unwrap().fill(1.5);
            let lies = at(&*values.read().unwrap());
            let (lay, values) = client.double(values)?;
            assert_eq!((lay, at(&*values.read().unwrap())), (lies, lies));
            let read = values.read().unwrap();
            assert_eq!(read.len(), count);
            assert!(read.iter().all(|value| *value == 3.0));
        }
        let mut track = Loan::<Track>::new(&domain)?;
        assert_eq!(*track.read().unwrap(), Track { id: 0, seen: false });
        track.write().unwrap().id = 9;
        let track = client.mark(track)?;
        assert_eq!(*track.read().unwrap(), Track { id: 9, seen: true });
    }
    Ok(())
}

#[test]
fn several_loans_of_any_length_go_with_one_call_and_come_back() -> Outcome {
    let (domain, _server, client) = served(Concurrency::Client);
    let before = domain.survey()?.memory.used;
    let of = |len| Loan::<[u8]>::slice(&domain, len);
    assert_eq!(client.count(of(0)?, vec![of(1)?, of(5000)?, of(0)?])?, 5001);
    let made = client.make(3)?.ok_or("there is memory")?;
    assert_eq!(*made.read().unwrap(), [7; 3]);
    assert_eq!(made.into_extent().map(|extent| extent.len()), Some(12));
    assert!(client.make(usize::MAX)?.is_none());
    assert_eq!(domain.survey()?.memory.used, before);
    Ok(())
}

#[test]
fn what_does_not_go_stays() -> Outcome {
    let (domain, server, client) = served(Concurrency::Client);
    assert!(matches!(
        Loan::<[u64]>::slice(&domain, usize::MAX),
        Err(AllocateError::OutOfPages { .. })
    ));
    // Not in a call.
    let mut bytes = Loan::<[u8]>::slice(&domain, 100)?;
    bytes.write().unwrap().fill(3);
    assert!(postcard::to_allocvec(&bytes).is_err());
    assert_eq!(*bytes.read().unwrap(), [3; 100]);
    // While it is read.
    let read = bytes.read();
    assert!(postcard::to_allocvec(&bytes).is_err());
    assert_eq!(read.as_deref(), Some(&[3; 100][..]));
    drop(read);
    client.takes(bytes)?;
    // A dead server has what was sent to it, and gives it back with the rest.
    drop(server);
    let bytes = Loan::<[u8]>::slice(&domain, 100)?;
    assert!(client.takes(bytes).is_err());
    Ok(())
}
