// A timer and a descriptor signal addresses, in C++20: one listener waits for both.
#include <portolan.hpp>

#include <iostream>
#include <unistd.h>

using namespace std::chrono_literals;

int main() {
    auto domain = portolan::domain::private_().value();
    auto segment = domain.make_segment("", 4096).value();
    auto *tick = &segment.bytes()[0];
    auto *text = &segment.bytes()[64];
    int ends[2];
    if (pipe(ends) != 0) {
        return 1;
    }
    auto listener = domain.listen().value();
    int ticks = 0;
    char letter = 0;
    listener.on(segment.bytes().first(1), [&](void *) { ++ticks; }).value();
    listener.on(segment.bytes().subspan(64, 1), [&](void *) {
        if (read(ends[0], &letter, 1) != 1) {
            letter = '?';
        }
    }).value();
    // Handled from here on: a timer that runs out once signals once.
    auto timer = domain.bind_address_to_timer(tick, 1ms).value();
    auto pipe = domain.bind_address_to_descriptor(text, ends[0]).value();
    if (write(ends[1], "x", 1) != 1) {
        return 1;
    }
    while (ticks == 0 || letter == 0) {
        listener.wait(30s).value();
    }
    std::cout << "ticks: " << ticks << '\n' << "text: " << letter << '\n';
    close(ends[0]);
    close(ends[1]);
}
