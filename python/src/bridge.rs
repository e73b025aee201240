//! Ports that are offered to other domains, and connections to such ports.

use crate::closing::closes;
use crate::error::Fault;
use crate::rights::SendRight;
use crate::wait::{Handle, Timeout, far_patiently};
use portolan::{
    AccessToken, Builder, ConnectOptions, ConnectToError, Domain, OfferConnectError, OfferOptions,
    Permissions,
};
use pyo3::prelude::*;

/// A port that other domains can connect to, until it is closed.
#[pyclass(frozen, module = "portolan")]
#[derive(Debug)]
pub(crate) struct OfferedPort(Handle<portolan::OfferedPort>);

impl OfferedPort {
    pub(crate) fn new(offered: portolan::OfferedPort) -> Self {
        Self(Handle::new("offer", offered))
    }
}

/// Which processes may connect, as Python says it. Neither users nor groups: those of the own user.
pub(crate) fn permissions(
    users: Option<Vec<u32>>,
    groups: Option<Vec<u32>>,
    anyone: bool,
    token: Option<&[u8]>,
) -> Result<Permissions, Fault> {
    let permitted = match (anyone, users, groups) {
        (true, ..) => Permissions::anyone(),
        (false, None, None) => Permissions::own_user(),
        (false, users, groups) => Permissions::nobody()
            .users(users.unwrap_or_default())
            .groups(groups.unwrap_or_default()),
    };
    Ok(match token {
        Some(token) => permitted.token(access_token(token)?),
        None => permitted,
    })
}

fn access_token(bytes: &[u8]) -> Result<AccessToken, Fault> {
    match bytes.try_into() {
        Ok(bytes) => Ok(AccessToken::from_bytes(bytes)),
        Err(_) => {
            let text = format!("a token is 16 bytes, not {}", bytes.len());
            Err(Fault::new("ValueError", text))
        }
    }
}

pub(crate) fn offer_options(
    most_bytes: Option<u64>,
    most_clients: Option<usize>,
    most_requests: Option<usize>,
    timeout: Timeout,
) -> OfferOptions {
    // Python cannot look at sealed memory, so its ports take none.
    let mut options = OfferOptions::default()
        .sealed(false)
        .deadline(timeout.deadline());
    if let Some(most) = most_bytes {
        options = options.most_bytes(most);
    }
    if let Some(most) = most_clients {
        options = options.most_clients(most);
    }
    if let Some(most) = most_requests {
        options = options.most_requests(most);
    }
    options
}

pub(crate) fn connect_options(
    token: Option<&[u8]>,
    queue: Option<usize>,
    most_bytes: Option<u64>,
) -> Result<ConnectOptions, Fault> {
    let mut options = ConnectOptions::default();
    if let Some(token) = token {
        options = options.token(access_token(token)?);
    }
    if let Some(queue) = queue {
        options = options.queue(queue);
    }
    if let Some(most) = most_bytes {
        options = options.most_bytes(most);
    }
    Ok(options)
}

/// Waits until the other domain offers the port, and its host and the offering process answer: each
/// slice asks anew.
pub(crate) fn connect_to(
    py: Python<'_>,
    domain: &Domain,
    other: &Builder,
    name: &str,
    options: &ConnectOptions,
    timeout: Timeout,
) -> PyResult<SendRight> {
    let mut absent = None;
    let found = far_patiently(py, timeout, |deadline| {
        match domain.connect_to(other, name, options.clone().deadline(deadline)) {
            Err(
                why @ (ConnectToError::Unanswered(_)
                | ConnectToError::Connect(
                    OfferConnectError::NotOffered { .. }
                    | OfferConnectError::NotMet { .. }
                    | OfferConnectError::NotRunning { .. }
                    | OfferConnectError::Unanswered,
                )),
            ) => {
                absent = Some(why);
                Ok(None)
            }
            other => other.map(Some),
        }
    })?;
    let none = || absent.map_or_else(|| Fault::timed_out("offer"), Fault::from);
    Ok(SendRight::new(domain.clone(), found.ok_or_else(none)?))
}

#[pymethods]
impl OfferedPort {
    /// How many are connected now.
    #[getter]
    fn clients(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.0.lend_soon(py)?.clients())
    }

    /// What clients did against the rules since the last call, the last 64 times, as texts. Their
    /// connections were ended.
    fn take_violations(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        let violations = self.0.lend_soon(py)?.take_violations();
        Ok(violations.iter().map(ToString::to_string).collect())
    }
}

closes! {
    /// Withdraws the offer: no client can send any more, and their rights are dead names.
    OfferedPort, |this, py| this.0.close(py)
}
