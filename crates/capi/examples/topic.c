/* Publish and subscribe: two weather stations, and somebody who comes late. */
#include "example.h"

#include <stdint.h>

/* What a sample is: a struct of fixed size, by its bytes. */
struct reading {
    int32_t station, hour, tenths;
};

static const portolan_topic_options OPTIONS = {.history = 2};

static void publish(const char *name, int station) {
    portolan_domain domain;
    must(portolan_domain_join(name, &domain));
    portolan_publisher publisher;
    must(portolan_domain_publisher(domain, "weather", &OPTIONS, &publisher));
    for (int hour = 6; hour <= 18; hour += 6) {
        struct reading reading = {station, hour, 100 * station + hour};
        must(portolan_publisher_publish(publisher, &reading, sizeof reading, NULL));
    }
    portolan_subscriber stop;
    must(portolan_domain_subscriber(domain, "stop", NULL, &stop));
    portolan_sample sample;
    must(portolan_subscriber_receive(stop, soon(), &sample));
    must(portolan_sample_free(sample));
    must(portolan_subscriber_free(stop));
    must(portolan_publisher_free(publisher));
    must(portolan_domain_leave(domain));
}

static struct reading next(portolan_subscriber subscriber) {
    portolan_sample sample;
    must(portolan_subscriber_receive(subscriber, soon(), &sample));
    const void *data;
    size_t len;
    must(portolan_sample_data(sample, &data, &len, NULL));
    struct reading reading = {0, 0, 0};
    if (len == sizeof reading) {
        memcpy(&reading, data, len);
    }
    must(portolan_sample_free(sample));
    return reading;
}

static void subscribe(void) {
    const char *name = own_name("c-topic");
    portolan_domain domain;
    must(portolan_domain_join(name, &domain));
    portolan_subscriber subscriber;
    must(portolan_domain_subscriber(domain, "weather", &OPTIONS, &subscriber));
    pid_t stations[] = {start(name, "1"), start(name, "2")};
    int tenths[2] = {0, 0};
    for (int i = 0; i < 6; i++) {
        struct reading reading = next(subscriber);
        tenths[reading.station - 1] += reading.tenths;
    }
    printf("stations 1 and 2: %d and %d tenths of a degree in all\n", tenths[0], tenths[1]);

    /* Late, one still gets the last readings of each. */
    portolan_subscriber late;
    must(portolan_domain_subscriber(domain, "weather", &OPTIONS, &late));
    int last[2] = {0, 0};
    for (int i = 0; i < 4; i++) {
        struct reading reading = next(late);
        last[reading.station - 1] = reading.hour;
    }
    printf("late: the last readings are of %d h and %d h\n", last[0], last[1]);

    /* A long sample is filled where its subscribers read it. */
    portolan_publisher stop;
    must(portolan_domain_publisher(domain, "stop", NULL, &stop));
    void *room;
    must(portolan_publisher_loan(stop, 1 << 20, &room));
    memset(room, 1, 1 << 20);
    must(portolan_publisher_publish_loan(stop, NULL));
    finish(stations[0]);
    finish(stations[1]);
    must(portolan_publisher_free(stop));
    must(portolan_subscriber_free(late));
    must(portolan_subscriber_free(subscriber));
    must(portolan_domain_leave(domain));
}

int main(int count, char **arguments) {
    if (count > 2) {
        publish(arguments[1], atoi(arguments[2]));
    } else {
        subscribe();
    }
    return 0;
}
