//! What `#[portolan::service]` makes of a trait: its own names meet none of the trait's, and
//! each method has the flags that it was given.

use super::service::{PATIENCE, TestService, Tested};
use portolan::Domain;
use portolan::rpc::{self, CallError, Method, Schema, ServerOptions, Service};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

type Outcome = core::result::Result<(), Box<dyn std::error::Error>>;

/// A type of the name that a type parameter has in most programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Schema, Serialize, Deserialize)]
struct S(u32);

/// Its names are those that the attribute's own code has, or had.
#[portolan::service]
trait T {
    fn call(&self, call: u32, method: u32, result: u32) -> u32;
    async fn returned(&self, call: u32, method: u32, result: u32, returned: u32) -> u32;
    async fn awaited(&self, awaited: &str, call: String) -> Result<S, String>;
    fn method(&self, stub: u32, name: u32, domain: u32, deadline: u32, options: u32) -> u32;
    fn all(&self, returned: S) -> Result<S, u32>;
    /// As a conversion by value, of what implements the trait too, is called.
    fn into(&self, r#fn: u32) -> u32;
    fn r#type(&self, r#type: u32) -> u32;
    #[rpc(one_way, best_effort, no_checksum)]
    fn result(&self, result: u32);
}

/// Two of its methods are configured out, with a type that is not there.
#[portolan::service]
trait Configured {
    #[cfg(any())]
    fn never(&self) -> Missing;
    /// As a list is written.
    #[cfg(test)]
    async fn sum(&self, numbers: VecDeque<u64>) -> u64;
    #[cfg(any())]
    async fn nor(&self, missing: Missing);
}

struct Sum;

impl Configured for Sum {
    async fn sum(&self, numbers: VecDeque<u64>) -> u64 {
        numbers.iter().sum()
    }
}

#[test]
fn a_method_that_is_configured_out_is_nowhere() -> Outcome {
    let domain = Domain::private()?;
    let plain = ServerOptions::default();
    let _server = rpc::serve(&domain, "sum", ConfiguredService(Sum), &plain)?;
    let client = ConfiguredClient::connect(&domain, "sum", PATIENCE)?.within(PATIENCE);
    assert_eq!(client.sum((0..100).collect()), Ok(4950));
    assert_eq!(
        rpc::wait_for(client.sum_async([1, 2].into())).unwrap(),
        Ok(3)
    );
    assert_eq!(client.begin_sum(VecDeque::new())?.wait(), Ok(0));
    let names: Vec<_> = ConfiguredService::<Sum>::METHODS
        .iter()
        .map(Method::name)
        .collect();
    assert_eq!(names, ["sum"]);
    assert_eq!(VecDeque::<u64>::HASH, Vec::<u64>::HASH);
    Ok(())
}

struct Sums;

impl T for Sums {
    fn call(&self, call: u32, method: u32, result: u32) -> u32 {
        call + method + result
    }

    async fn returned(&self, call: u32, method: u32, result: u32, returned: u32) -> u32 {
        call + method + result + returned
    }

    async fn awaited(&self, awaited: &str, call: String) -> Result<S, String> {
        awaited.parse().map(S).map_err(|_| call)
    }

    fn method(&self, stub: u32, name: u32, domain: u32, deadline: u32, options: u32) -> u32 {
        stub + name + domain + deadline + options
    }

    fn all(&self, returned: S) -> Result<S, u32> {
        if returned.0 > 9 {
            return Err(returned.0);
        }
        Ok(returned)
    }

    fn into(&self, r#fn: u32) -> u32 {
        r#fn + 1
    }

    fn r#type(&self, r#type: u32) -> u32 {
        r#type + 2
    }

    fn result(&self, result: u32) {
        assert_eq!(result, 5);
    }
}

#[test]
fn a_service_may_use_the_names_of_the_code_that_is_made_for_it() -> Outcome {
    // Each runs asynchronous methods in another way: in the client's thread, as tasks.
    let runtime = tokio::runtime::Builder::new_multi_thread().build()?;
    let handle = runtime.handle().clone();
    let spawn = move |task| {
        handle.spawn(task);
    };
    let plain = ServerOptions::default();
    for options in [plain.clone(), plain.tasks(spawn)] {
        let domain = Domain::private()?;
        let _server = rpc::serve(&domain, "names", TService(Sums), &options)?;
        let client = TClient::connect(&domain, "names", PATIENCE)?.within(PATIENCE);
        assert_eq!(client.call(1, 2, 3), Ok(6));
        assert_eq!(client.returned(1, 2, 3, 4), Ok(10));
        assert_eq!(client.awaited("7", "no number".to_owned()), Ok(S(7)));
        let refused = client.awaited("x", "no number".to_owned());
        assert_eq!(refused, Err(CallError::Method("no number".to_owned())));
        assert_eq!(client.method(1, 2, 3, 4, 5), Ok(15));
        assert_eq!(client.all(S(3)), Ok(S(3)));
        assert_eq!(client.all(S(10)), Err(CallError::Method(10)));
        assert_eq!(TClient::into(&client, 4), Ok(5));
        assert_eq!(client.r#type(4), Ok(6));
        assert_eq!(client.begin_type(5)?.wait(), Ok(7));
        client.result(5)?;
    }
    Ok(())
}

/// A method without its flags.
fn plain(method: &Method) -> Method {
    Method::new(method.name(), method.layout(), method.moves())
}

#[test]
fn methods_have_the_flags_that_they_were_given_and_no_others() {
    let mut flagged = Vec::new();
    for method in TestService::<Tested>::METHODS {
        let plain = plain(method);
        let expected = match method.name() {
            "count" => plain.one_way(true),
            "hint" => plain.best_effort(true),
            "raw" => plain.unchecked(true),
            _ => plain,
        };
        assert_eq!(*method, expected);
        if *method != plain {
            flagged.push(method.name());
        }
    }
    assert_eq!(flagged, ["count", "hint", "raw"]);
    let [.., named, last] = TService::<Sums>::METHODS else {
        panic!("there are two methods");
    };
    let all = plain(last).one_way(true).best_effort(true).unchecked(true);
    assert_eq!(*last, all);
    assert_eq!(named.name(), "type", "not as it has to be written");
}
