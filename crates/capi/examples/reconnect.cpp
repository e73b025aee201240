// A receiver and a publisher go, and the next ones of their names come, in C++20, within one process.
#include <portolan.hpp>

#include <iostream>

using namespace std::chrono_literals;

int main() {
    auto domain = portolan::domain::private_().value();

    auto jobs = domain.reconnecting_sender("jobs").value();
    auto first = domain.bind({.name = "jobs"}).value();
    jobs.send(portolan::message::make("one").value(), 30s).value();
    std::cout << "connected: " << jobs.is_connected() << '\n';
    first.reset(); // Or its process is killed.
    std::cout << "connected: " << jobs.is_connected() << '\n';
    auto second = domain.bind_when_free({.name = "jobs"}, 30s).value();
    const auto sent = jobs.send(portolan::message::make("two").value(), 30s).value();
    std::cout << "receiver " << sent.receiver << ": of " << sent.lost.sent << " sent to receiver "
              << sent.lost.receiver << ", " << sent.lost.at_most << " may be lost\n";
    std::cout << "received: " << portolan::text(second.receive(30s).value().header()) << '\n';
    std::cout << "more is lost: " << jobs.take_lost().has_value() << '\n';

    auto heights = domain.reconnecting_subscriber("heights").value();
    auto set = portolan::wait_set::make(domain).value();
    set.add(heights).value();
    for (const int height : {8848, 8849}) {
        auto publisher = domain.publisher("heights").value();
        publisher.publish_value(height).value();
        auto ready = set.wait(30s).value();
        std::cout << "ready: " << (ready.front() == heights.id() ? "heights" : "jobs") << '\n';
        auto update = heights.receive(30s).value();
        if (const auto *sample = std::get_if<portolan::sample>(&update)) {
            std::cout << "height: " << *sample->as<int>() << '\n';
        }
        publisher.reset();
        update = heights.receive(30s).value();
        if (const auto *gone = std::get_if<portolan_publisher_gone>(&update)) {
            std::cout << "gone: publisher " << int(gone->publisher) << ", " << gone->missed
                      << " missed\n";
        }
    }
}
