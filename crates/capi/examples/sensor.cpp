// Automatic update in C++20: what is stored to memory of an importer's reaches the exporter's. Both are
// this process here; the importer could be another user's.
#include <portolan.hpp>

#include <iostream>
#include <unistd.h>

using namespace std::chrono_literals;

int main() {
    const auto name = "cpp-sensor-" + std::to_string(getpid());
    auto domain = portolan::domain::join(name).value();
    auto buffer = portolan::export_memory::make(4096).value();
    auto exported =
        domain.export_(buffer, "samples", {.reach = portolan::reach::write}, 30s).value();

    auto imported =
        portolan::domain::import_from({.name = name}, "samples", 30s).value();
    auto local = portolan::export_memory::make(4096).value();
    auto log = imported.map_log(local, 0, 4096, 0).value();
    const double sample = 21.5;
    log.store(64, std::as_bytes(std::span(&sample, 1))).value();
    // The flag comes behind what was stored before it.
    log.store_release(0, 1).value();
    std::cout << "samples: " << buffer.load_acquire(0).value() << '\n';
    double seen = 0;
    buffer.read(64, std::as_writable_bytes(std::span(&seen, 1))).value();
    std::cout << "sample: " << seen << '\n';

    exported.unexport().value();
    const auto late = log.store_release(0, 2).status();
    std::cout << "revoked: " << (late == PORTOLAN_CLOSED) << '\n';
}
