// A port that is offered to another domain, to programs that know a token, in C++20. Both domains are
// this process's here; the other one could be another user's.
#include <portolan.hpp>

#include <iostream>
#include <unistd.h>

using namespace std::chrono_literals;

int main() {
    const auto name = "cpp-camera-" + std::to_string(getpid());
    auto camera = portolan::domain::join(name).value();
    auto masks = camera.bind().value();
    const auto token = portolan::random_access_token().value();
    auto offered = masks.offer("masks", {.token = token, .most_bytes = 8 << 20}).value();

    auto guests = portolan::domain::join("guest-of-" + name).value();
    const portolan::domain_options cameras{.name = name};
    const auto refused = guests.connect_to(cameras, "masks", 30s).status();
    std::cout << "without the token: "
              << (refused == PORTOLAN_NOT_PERMITTED ? "refused" : "let in") << '\n';
    auto right = guests.connect_to(cameras, "masks", 30s, {.token = token}).value();
    auto mask = guests.allocate(1 << 20).value();
    mask.bytes()[7] = std::byte{9};
    auto message = portolan::message::make("a mask").value();
    message.push(std::move(mask)).value();
    right.send(message, 30s).value();
    auto received = masks.receive(30s).value();
    std::cout << "received: " << portolan::text(received.header()) << ", " << received.len()
              << " bytes, " << int(received.extent_bytes(0)[7]) << '\n';

    // More than the offer takes comes back.
    message = portolan::message::make("too much").value();
    message.push(guests.allocate(9 << 20).value()).value();
    const auto sent = right.send(message, 30s);
    std::cout << "too much: " << (sent ? "sent" : "came back") << ", " << message.len()
              << " bytes\n";
    std::cout << "clients: " << offered.clients() << ", " << offered.take_violations()
              << " broke the rules\n";
}
