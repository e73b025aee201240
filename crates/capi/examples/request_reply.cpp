// Request and reply, in C++20 with exceptions: a server in a process of its own.
#define PORTOLAN_EXCEPTIONS
#include "example.h"

#include <portolan.hpp>

#include <iostream>

using namespace std::chrono_literals;

static void serve(const std::string &name) {
    auto domain = portolan::domain::join(name);
    auto port = domain.bind({.name = "double", .synchronous = true});
    for (;;) {
        auto request = port.get_request(30s);
        if (portolan::text(request.message.header()) == "stop") {
            // The answer is never given, so its client is told.
            return;
        }
        auto extent = request.message.remove(0);
        for (auto &number : extent.as<double>()) {
            number *= 2;
        }
        request.message.push(std::move(extent));
        request.reply_in_place();
    }
}

static void ask() {
    const std::string name = own_name("cpp-request-reply");
    auto domain = portolan::domain::join(name);
    const pid_t server = start(name.c_str(), nullptr);
    auto right = domain.connect("double", 30s);

    auto numbers = domain.allocate(3 * sizeof(double));
    for (double next = 1.5; auto &number : numbers.as<double>()) {
        number = next++;
    }
    auto message = portolan::message::make("");
    message.push(std::move(numbers));
    right.request_reply(message, 30s);
    auto answer = message.remove(0);
    std::cout << "answer:";
    for (const auto number : answer.as<double>()) {
        std::cout << ' ' << number;
    }
    std::cout << '\n';

    try {
        auto stop = portolan::message::make("stop");
        right.request_reply(stop, 30s);
    } catch (const portolan::failure &failure) {
        const bool told =
            failure.status() == PORTOLAN_DROPPED || failure.status() == PORTOLAN_PEER_DIED;
        std::cout << "stop: " << (told ? "the server has gone" : failure.what()) << '\n';
    }
    finish(server);
}

int main(int count, char **arguments) {
    try {
        if (count > 1) {
            serve(arguments[1]);
        } else {
            ask();
        }
    } catch (const portolan::failure &failure) {
        std::cerr << failure.what() << '\n';
        return 1;
    }
}
