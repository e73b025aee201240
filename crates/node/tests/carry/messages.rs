//! Messages, there and in order.

use portolan::{Access, Deadline, Message, PortOptions};
use portolan_testkit::PATIENCE;

use crate::machine::{Machine, Network};

crate::scenes! {
    a_message_reaches_a_port_on_another_machine,
}

fn a_message_reaches_a_port_on_another_machine(network: &Network) {
    let (hall, roof) = (Machine::new(network, "hall"), Machine::new(network, "roof"));
    roof.linked(&hall);
    let upper = PortOptions::named("upper").spanned();
    let mut upper = hall.domain.bind(upper).unwrap();
    let right = roof.domain.connect("upper", PATIENCE).unwrap();
    for number in 0..100_u32 {
        let message = Message::new(&number.to_le_bytes()).unwrap();
        right.send(message, Deadline::after(PATIENCE)).unwrap();
    }
    for number in 0..100_u32 {
        let came = upper.receive(Access::Later, PATIENCE).unwrap();
        assert_eq!(came.header(), number.to_le_bytes());
    }
}
