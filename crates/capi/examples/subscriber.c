/* Subscriber: prints what `publisher` publishes, until Ctrl-C, and when a publisher goes. */
#include "example.h"

#include <stdint.h>

/* As in `publisher`. */
struct reading {
    uint64_t number;
    double degrees;
};

static void print(portolan_sample sample) {
    const void *data;
    size_t len;
    portolan_sample_origin origin;
    must(portolan_sample_data(sample, &data, &len, &origin));
    if (origin.missed > 0) {
        printf("subscriber: missed %llu\n", (unsigned long long)origin.missed);
    }
    struct reading reading;
    if (len == sizeof reading) {
        memcpy(&reading, data, len);
        if (reading.number % 10 == 1) {
            printf("subscriber: reading %llu is %.1f\n", (unsigned long long)reading.number,
                   reading.degrees);
        }
    }
    must(portolan_sample_free(sample));
}

int main(int count, char **arguments) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    portolan_domain domain;
    must(portolan_domain_join(count > 1 ? arguments[1] : "tutorial", &domain));
    printf("subscriber: process %d\n", (int)getpid());
    portolan_reconnecting_subscriber readings;
    must(portolan_domain_reconnecting_subscriber(domain, "readings", NULL, &readings));
    for (;;) {
        portolan_sample sample;
        portolan_publisher_gone gone;
        must(portolan_reconnecting_subscriber_receive(readings, PORTOLAN_NEVER, &sample, &gone));
        if (sample.id != 0) {
            print(sample);
        } else {
            printf("subscriber: publisher %d has gone; %llu of its readings were missed\n",
                   gone.publisher, (unsigned long long)gone.missed);
        }
    }
}
