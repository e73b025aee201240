// Hello, in C++20: one process sends a message, another receives it.
#include "example.h"

#include <portolan.hpp>

#include <algorithm>
#include <iostream>

using namespace std::chrono_literals;

static void receive() {
    const std::string name = own_name("cpp-hello");
    auto domain = portolan::domain::join(name).value();
    auto port = domain.bind({.name = "greetings"}).value();
    const pid_t peer = start(name.c_str(), nullptr);

    auto message = port.receive(30s, portolan::access::at_once).value();
    std::cout << "header:  " << portolan::text(message.header()) << '\n';
    // The pages are ours now. They were not copied: they changed owner.
    const auto pages = message.extent_bytes(0);
    std::cout << "pages:   " << pages.size() << " bytes, all " << int(pages[0]) << '\n';

    // What fails says so by its result.
    if (auto none = port.receive(portolan::deadline::now()); !none) {
        std::cout << "no more: " << none.error().text << '\n';
    }
    finish(peer);
}

static void send(const std::string &name) {
    auto domain = portolan::domain::join(name).value();
    auto port = domain.connect("greetings", 30s).value();
    auto extent = domain.allocate(1 << 20).value();
    std::ranges::fill(extent.bytes(), std::byte{42});
    auto message = portolan::message::make("hello from another process").value();
    message.push(std::move(extent)).value();
    port.send(message, portolan::deadline::never()).value();
    if (!extent) {
        std::cout << "sent:    the pages are another's" << std::endl;
    }
}

int main(int count, char **arguments) {
    if (count > 1) {
        send(arguments[1]);
    } else {
        receive();
    }
}
