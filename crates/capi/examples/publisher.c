/*
 * Publisher: publishes a reading ten times a second, until Ctrl-C, to all subscribers there are.
 *
 * Run it in one terminal, and `subscriber` in any number of others. An argument names another domain
 * than `tutorial`. A topic of C is one of bytes, so programs in C and C++ share it; the topic of this
 * name in Rust is of a type, and the two refuse each other.
 */
#include "example.h"

#include <stdint.h>

struct reading {
    uint64_t number;
    double degrees;
};

int main(int count, char **arguments) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    portolan_domain domain;
    must(portolan_domain_join(count > 1 ? arguments[1] : "tutorial", &domain));
    printf("publisher: process %d\n", (int)getpid());
    portolan_publisher readings;
    must(portolan_domain_publisher(domain, "readings", NULL, &readings));
    for (uint64_t number = 1;; number++) {
        struct reading reading = {number, 20.0 + (double)(number % 100) / 10.0};
        /* Written once, however many subscribe. A slow, stopped or dead one delays nothing. */
        must(portolan_publisher_publish(readings, &reading, sizeof reading, NULL));
        if (number % 10 == 1) {
            printf("publisher: reading %llu is %.1f\n", (unsigned long long)number,
                   reading.degrees);
        }
        usleep(100 * 1000);
    }
}
