//! A raw handle is adopted where it was laid down, and nowhere else.

use portolan::{Domain, OwnerError};

#[test]
fn a_raw_handle_of_another_domain_is_refused() {
    let (a, b) = (Domain::private().unwrap(), Domain::private().unwrap());
    let (first, mut second) = (a.allocate(4096).unwrap(), a.allocate(4096).unwrap());
    second.fill(7);
    let large = b.allocate(1 << 20).unwrap();
    let (ours, theirs) = (first.into_raw(), large.into_raw());
    assert!(matches!(a.adopt(theirs), Err(OwnerError::Foreign)));
    assert!(second.iter().all(|byte| *byte == 7));
    // Nothing was taken: each is adopted where it belongs, once.
    assert_eq!(b.adopt(theirs).unwrap().len(), 1 << 20);
    assert_eq!(a.adopt(ours).unwrap().len(), 4096);
    assert!(matches!(a.adopt(ours), Err(OwnerError::NotHeld { .. })));
}

#[test]
fn a_raw_handle_of_the_same_place_in_another_domain_is_refused() {
    let (a, b) = (Domain::private().unwrap(), Domain::private().unwrap());
    let lay_down = |domain: &Domain| domain.allocate(4096).unwrap().into_raw();
    let (ours, theirs) = (lay_down(&a), lay_down(&b));
    assert!(matches!(a.adopt(theirs), Err(OwnerError::Foreign)));
    assert_eq!(a.adopt(ours).unwrap().len(), 4096);
    assert_eq!(b.adopt(theirs).unwrap().len(), 4096);
}

#[test]
fn a_raw_handle_does_not_outlive_the_membership() {
    let name = portolan_testkit::unique("raw");
    let stays = Domain::join(&name).unwrap();
    let raw = stays.allocate(4096).unwrap().into_raw();
    stays.leave().unwrap();
    let again = Domain::join(&name).unwrap();
    let _some = again.allocate(4096).unwrap();
    assert!(matches!(again.adopt(raw), Err(OwnerError::Foreign)));
}
