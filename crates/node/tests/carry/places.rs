//! As many requests are open at a peer as may be: the next ones wait for places, and each place that becomes free
//! goes to one of them.

use portolan::{
    Access, Message, PendingReply, PortOptions, ReceiveRight, Request, SendRight, WhenFull,
};
use portolan_testkit::{PATIENCE, until};

use crate::machine::{Machine, Network, Patience, Plan};
use crate::messages::serve;
use crate::moves::Ways;

/// Servers at the hall, and their clients at the roof, of which so many requests may be open at the hall.
struct Scene {
    hall: Machine,
    roof: Machine,
    attic: Machine,
    /// Answers nobody.
    mute: ReceiveRight,
    upper: ReceiveRight,
    to_mute: SendRight,
    to_upper: SendRight,
}

impl Scene {
    fn new(places: usize) -> Self {
        let network = Network::tls();
        // No peer is silent: all proxies are looked at when it is heard again.
        let patience = Patience {
            silent: PATIENCE,
            dead: 2 * PATIENCE,
        };
        let [hall, roof, attic] = ["hall", "roof", "attic"].map(|name| {
            let plan = Plan {
                name,
                patience,
                places: (name == "roof").then_some(places),
                ..Plan::default()
            };
            Machine::planned(&network, &plan)
        });
        roof.linked(&hall);
        roof.linked(&attic);
        attic.linked(&hall);
        let options = PortOptions::named("mute").spanned().synchronous().queue(1);
        let mute = hall.domain.bind(options).unwrap();
        let upper = serve(&hall, "upper");
        let connect = |name| roof.domain.connect(name, PATIENCE).unwrap();
        let (to_mute, to_upper) = (connect("mute"), connect("upper"));
        Self {
            hall,
            roof,
            attic,
            mute,
            upper,
            to_mute,
            to_upper,
        }
    }

    /// The next request to a port was taken off its proxy, and waits.
    fn is_held(&self, name: &str) {
        until("it is held", || {
            let proxies = &self.roof.report().spans[0].proxies;
            let mut its = proxies.iter().filter(|proxy| proxy.name == name);
            its.any(|proxy| proxy.waits && proxy.depth == 0)
        });
    }

    /// A request of the roof waits for room in the port that answers nobody.
    fn is_blocked(&self) {
        until("it waits for room", || {
            let lent = &self.hall.report().spans[0].lent;
            let mut its = lent.iter().filter(|port| port.name == "mute");
            its.any(|port| !port.waiting.is_empty())
        });
    }

    /// Programs of the hall fill the queue of the port that answers nobody.
    fn fill(&self) -> Vec<PendingReply> {
        let right = self.mute.make_send();
        let one = || right.begin_request(Message::default(), WhenFull::Fail);
        std::iter::from_fn(|| one().ok()).collect()
    }
}

fn begin(right: &SendRight) -> PendingReply {
    let wait = WhenFull::Wait(PATIENCE.into());
    right.begin_request(Message::default(), wait).unwrap()
}

/// The next request at its server.
#[track_caller]
fn comes(port: &mut ReceiveRight) -> Request {
    port.get_request(Access::Later, PATIENCE).unwrap()
}

#[test]
fn a_request_that_is_held_goes_when_the_clients_of_others_give_up() {
    let mut scene = Scene::new(2);
    let open = [begin(&scene.to_mute), begin(&scene.to_mute)];
    let _kept = [comes(&mut scene.mute), comes(&mut scene.mute)];
    let _held = begin(&scene.to_upper);
    scene.is_held("upper");
    drop(open);
    drop(comes(&mut scene.upper));
}

#[test]
fn a_request_that_finds_others_unwanted_leaves_a_place_to_the_one_that_is_held() {
    let mut scene = Scene::new(2);
    let open = [begin(&scene.to_mute), begin(&scene.to_mute)];
    let _kept = [comes(&mut scene.mute), comes(&mut scene.mute)];
    let _held = begin(&scene.to_upper);
    scene.is_held("upper");
    drop(open);
    let _next = begin(&scene.to_mute);
    drop((comes(&mut scene.upper), comes(&mut scene.mute)));
}

#[test]
fn the_place_of_a_port_that_dies_goes_to_a_request_that_is_held_for_another_one() {
    let mut scene = Scene::new(1);
    let _full = scene.fill();
    let _open = begin(&scene.to_mute);
    scene.is_blocked();
    let (_first, _second) = (begin(&scene.to_mute), begin(&scene.to_upper));
    scene.is_held("mute");
    scene.is_held("upper");
    drop(scene.mute);
    drop(comes(&mut scene.upper));
}

#[test]
fn the_place_of_a_request_that_goes_to_another_home_goes_to_one_that_is_held() {
    let mut scene = Scene::new(1);
    let mut ways = Ways::new(&[&scene.hall, &scene.attic]);
    let _full = scene.fill();
    let _open = begin(&scene.to_mute);
    scene.is_blocked();
    let _held = begin(&scene.to_upper);
    scene.is_held("upper");
    let _mute = ways.moves(scene.mute, 0, 1);
    drop(comes(&mut scene.upper));
}

/// One that has many clients begins its next request as soon as one has ended.
#[test]
fn places_go_to_requests_in_the_order_in_which_they_were_held() {
    let mut scene = Scene::new(1);
    let _many: Vec<_> = (0..20).map(|_| begin(&scene.to_mute)).collect();
    let first = comes(&mut scene.mute);
    let _held = begin(&scene.to_upper);
    scene.is_held("upper");
    first.reply(Message::default()).unwrap();
    comes(&mut scene.mute).reply(Message::default()).unwrap();
    comes(&mut scene.upper).reply(Message::default()).unwrap();
    drop(comes(&mut scene.mute));
}
