//! A program that does everything which the command is to see: channels, a topic, calls,
//! signals, exports, and connections between two domains.

use portolan::channel::{
    Channel, ChannelOptions, FrameWriter, Publisher, Reader, ReaderOptions, Subscriber,
    TopicOptions, Writer,
};
use portolan::rpc::{self, Server};
use portolan::vmmc::{
    Export, ExportMemory, ExportOptions, Import, Notifications, OrdinaryMemory, Reach,
};
use portolan::{
    Access, ConnectOptions, Deadline, Domain, Followed, Listener, ListenerOptions, Message,
    OfferOptions, OfferedChannel, OfferedPort, Permissions, PortOptions, ReceiveRight, Segment,
    SendRight, SharedExtent, WhenFull,
};
use portolan_testkit::{PATIENCE, unique};
use std::time::Duration;

#[portolan::service]
pub(crate) trait Adder {
    fn add(&self, a: u64, b: u64) -> u64;
}

struct Sums;

impl Adder for Sums {
    fn add(&self, a: u64, b: u64) -> u64 {
        a + b
    }
}

/// The program: a member of one domain, and of another one beside it.
pub(crate) struct Lively {
    /// The domain that is watched.
    pub(crate) name: String,
    /// The other one.
    pub(crate) beside: String,
    pub(crate) domain: Domain,
    ticks: Writer,
    reader: Reader,
    /// It reads nothing.
    _laggard: Reader,
    frames: FrameWriter,
    _frames: Channel,
    pub(crate) plain: Segment,
    pub(crate) shared: SharedExtent,
    publisher: Publisher<[f64; 3]>,
    subscriber: Subscriber<[f64; 3]>,
    adder: AdderClient,
    _server: Server,
    listener: Listener,
    memory: ExportMemory,
    import: Import,
    notifications: Notifications,
    _exports: [Export; 2],
    orders: SendRight,
    ordered: ReceiveRight,
    followed: Followed,
    news: Writer,
    told: Reader,
    inbox: ReceiveRight,
    into: SendRight,
    back: Followed,
    _offers: (OfferedPort, OfferedPort, OfferedChannel, OfferedChannel),
}

impl Lively {
    pub(crate) fn start(test: &str) -> Self {
        let name = unique(&format!("lively-{test}"));
        let beside = unique(&format!("beside-{test}"));
        let join = |name: &str, space: &str| {
            let builder = Domain::builder(name).limit(64 << 20).space_name(space);
            builder.join().unwrap()
        };
        let (domain, other) = (join(&name, "lively"), join(&beside, "beside"));

        let options = ChannelOptions::named("ticks")
            .units(64)
            .reliable()
            .readers(4);
        let channel = domain.make_channel(&options).unwrap();
        let bind = || channel.bind_reader(ReaderOptions::default()).unwrap();
        let skip = ReaderOptions::default().lagging(portolan::channel::Lagging::Skip);
        let (reader, laggard) = (bind(), channel.bind_reader(skip).unwrap());
        let options = ChannelOptions::named("screen").unit(4096).units(16).raw();
        let frames = domain.make_channel(&options).unwrap();

        let plain = domain.make_segment(Some("counters"), 4096).unwrap();
        let shared = domain
            .share_extent(domain.allocate(10_000).unwrap())
            .unwrap();
        let topic = TopicOptions::default();
        let publisher = domain.publisher("position", topic).unwrap();
        let subscriber = domain.subscriber("position", topic).unwrap();
        let service = AdderService(Sums);
        let server = rpc::serve(&domain, "adder", service, &Default::default()).unwrap();
        let adder = AdderClient::connect(&domain, "adder", PATIENCE).unwrap();
        let mut listener = domain.listen(ListenerOptions::default()).unwrap();
        let at = plain.address();
        listener.on(at..at + 64, |_| {}).unwrap();

        let memory = ExportMemory::new(8192).unwrap();
        let options = ExportOptions::new(Reach::ReadWrite);
        let picture = domain
            .export(&memory, "picture", &options, PATIENCE)
            .unwrap();
        let notifications = picture.notifications().unwrap();
        let ordinary = OrdinaryMemory::from(vec![7; 1000]);
        let options = ExportOptions::new(Reach::Read);
        let table = domain
            .export(&ordinary, "table", &options, PATIENCE)
            .unwrap();
        let import = domain.import("picture", PATIENCE).unwrap();

        let (own, offer) = (Permissions::own_user(), OfferOptions::default);
        let connect = ConnectOptions::default;
        let ordered = other.bind(PortOptions::named("orders")).unwrap();
        let orders_offer = ordered.offer("orders", &own, offer()).unwrap();
        let there = Domain::builder(&beside);
        let orders = domain.connect_to(&there, "orders", connect()).unwrap();
        let news = other.make_channel(&ChannelOptions::named("news")).unwrap();
        let news_offer = news.offer("news", &own, offer()).unwrap();
        let followed = domain.follow(&there, "news", connect()).unwrap();
        let told = followed
            .channel()
            .bind_reader(ReaderOptions::default())
            .unwrap();
        let inbox = domain.bind(PortOptions::named("inbox")).unwrap();
        let inbox_offer = inbox.offer("inbox", &own, offer()).unwrap();
        let here = Domain::builder(&name);
        let into = other.connect_to(&here, "inbox", connect()).unwrap();
        let ticks_offer = channel.offer("ticks", &own, offer()).unwrap();
        let back = other.follow(&here, "ticks", connect()).unwrap();
        Self {
            name,
            beside,
            ticks: channel.bind_writer().unwrap(),
            reader,
            _laggard: laggard,
            frames: frames.bind_frame_writer().unwrap(),
            _frames: frames,
            plain,
            shared,
            publisher,
            subscriber,
            adder,
            _server: server,
            listener,
            memory,
            import,
            notifications,
            _exports: [picture, table],
            orders,
            ordered,
            followed,
            news: news.bind_writer().unwrap(),
            told,
            inbox,
            into,
            back,
            domain,
            _offers: (orders_offer, inbox_offer, news_offer, ticks_offer),
        }
    }

    /// Waits until the threads that carry messages to other domains have counted so many: they
    /// do once a message has gone, and perhaps come.
    pub(crate) fn has_sent(&self, messages: u64) {
        let end = std::time::Instant::now() + PATIENCE;
        loop {
            let connections = self.domain.survey().unwrap().connections;
            let mut orders = connections.iter().filter(|c| c.offer == "orders");
            if orders.any(|c| c.out == messages) {
                return;
            }
            assert!(std::time::Instant::now() < end, "{connections:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Does each thing once, and waits until it has happened.
    pub(crate) fn work(&mut self) {
        let soon = || Deadline::after(PATIENCE);
        self.ticks.write(b"a tick of 20 bytes..", soon()).unwrap();
        assert_eq!(self.reader.receive(soon()).unwrap().len(), 20);
        self.frames.put(3, &[1; 4096]).unwrap();
        self.frames.show().unwrap();
        self.publisher.publish(&[1.0, 2.0, 3.0]).unwrap();
        assert_eq!(self.subscriber.receive(soon()).unwrap()[2], 3.0);
        assert_eq!(self.adder.add(40, 2), Ok(42));
        let at = self.plain.address();
        assert_eq!(self.domain.signal(at + 8).unwrap(), 1);
        assert!(self.listener.wait(soon()).is_some());
        self.import.write_notifying(64, &[5; 100]).unwrap();
        self.notifications.wait(soon()).unwrap();
        assert_eq!(self.memory.load_acquire(64), Ok(u64::from_ne_bytes([5; 8])));
        self.orders
            .send(Message::new(b"go there").unwrap(), WhenFull::Wait(soon()))
            .unwrap();
        drop(self.ordered.receive(Access::Later, soon()).unwrap());
        self.news.write(b"it rains", soon()).unwrap();
        assert_eq!(*self.told.receive(soon()).unwrap(), *b"it rains");
        self.into
            .send(Message::new(b"hello").unwrap(), WhenFull::Wait(soon()))
            .unwrap();
        drop(self.inbox.receive(Access::Later, soon()).unwrap());
        assert!(self.followed.is_live() && self.back.is_live());
        assert_eq!(self.shared.len(), 10_000);
    }
}
