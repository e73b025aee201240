// A topic, a channel, signals and a wait set, in C++20, within one process.
#include <portolan.hpp>

#include <atomic>
#include <iostream>

using namespace std::chrono_literals;

struct position {
    double x, y, z;
};

int main() {
    auto domain = portolan::domain::private_().value();

    // Samples of a type, by value.
    auto publisher = domain.publisher("position").value();
    auto subscriber = domain.subscriber("position").value();
    publisher.publish_value(position{1, 2, 3}).value();
    auto sample = subscriber.receive(30s).value();
    std::cout << "position: " << sample.as<position>()->y << '\n';
    // A long sample is filled where it is read.
    auto room = publisher.loan(1 << 20).value();
    room[7] = std::byte{9};
    publisher.publish_loan().value();

    // One wait for both, which names what is ready.
    auto channel = domain.make_channel({.name = "log", .reliable = true}).value();
    auto reader = channel.bind_reader().value();
    auto set = portolan::wait_set::make(domain).value();
    set.add(subscriber).value();
    set.add(reader).value();
    for (const auto id : set.wait(30s).value()) {
        std::cout << "ready: " << (id == subscriber.id() ? "the topic" : "the log") << '\n';
    }
    auto picture = subscriber.receive(portolan::deadline::now()).value();
    std::cout << "long: " << picture.bytes().size() << " bytes, "
              << int(picture.bytes()[7]) << '\n';
    channel.bind_writer().value().write("begun", portolan::deadline::now()).value();
    std::cout << "log: " << portolan::text(reader.receive(30s).value()) << '\n';

    // A handler runs on the thread that waits.
    auto segment = domain.make_segment("", 4096).value();
    auto listener = domain.listen().value();
    int signals = 0;
    listener.on(segment.bytes(), [&](void *) { ++signals; }).value();
    std::atomic_ref(*reinterpret_cast<std::uint64_t *>(segment.bytes().data())).store(7);
    domain.signal(segment.bytes().data()).value();
    listener.wait(30s).value();
    std::cout << "signals: " << signals << '\n';
}
