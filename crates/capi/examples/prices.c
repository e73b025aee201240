/* A topic of tables: a market publishes what it knows, and a shop in another process looks things up
 * in it, where it lies.
 *
 * In Rust the table is a structure of maps and texts, with pointers that hold in every process. C has
 * none of these: here it is an array that is sorted by name, found in by bsearch. */
#include "example.h"

#include <stdint.h>

struct price {
    char name[24];
    uint64_t cents;
};

/* What is published: all of it lies in one piece of memory, and points nowhere. */
struct market {
    uint32_t day, count;
    /* The place of the cheapest. */
    uint64_t cheapest;
    struct price prices[];
};

static const portolan_topic_options OPTIONS = {.history = 2};

static int by_name(const void *one, const void *two) {
    return strcmp(((const struct price *)one)->name, ((const struct price *)two)->name);
}

static void put(struct market *market, const char *name, uint64_t cents) {
    struct price *price = &market->prices[market->count++];
    snprintf(price->name, sizeof price->name, "%s", name);
    price->cents = cents;
}

/* Builds each day's prices where they will be read. */
static void sell(const char *name) {
    portolan_domain domain;
    must(portolan_domain_join(name, &domain));
    portolan_subscriber stop;
    must(portolan_domain_subscriber(domain, "stop", NULL, &stop));
    portolan_publisher publisher;
    must(portolan_domain_publisher(domain, "market", &OPTIONS, &publisher));
    for (uint32_t day = 1; day <= 2; day++) {
        uint32_t things = 1000 * day;
        void *room;
        size_t len = sizeof(struct market) + (3 + things) * sizeof(struct price);
        must(portolan_publisher_loan(publisher, len, &room));
        struct market *market = room;
        market->day = day;
        market->count = 0;
        put(market, "saffron", 900 + day);
        put(market, "pepper", 70 + day);
        put(market, "salt", 3 + day);
        for (uint32_t thing = 0; thing < things; thing++) {
            char name[24];
            snprintf(name, sizeof name, "thing %u", thing);
            put(market, name, 10);
        }
        qsort(market->prices, market->count, sizeof(struct price), by_name);
        market->cheapest = 0;
        for (uint32_t i = 1; i < market->count; i++) {
            if (market->prices[i].cents < market->prices[market->cheapest].cents) {
                market->cheapest = i;
            }
        }
        must(portolan_publisher_publish_loan(publisher, NULL));
    }
    portolan_sample sample;
    must(portolan_subscriber_receive(stop, soon(), &sample));
    must(portolan_sample_free(sample));
    must(portolan_publisher_free(publisher));
    must(portolan_subscriber_free(stop));
    must(portolan_domain_leave(domain));
}

/* A sample is the publisher's word: what it counts has to lie within it. */
static const struct market *market_in(portolan_sample sample) {
    const void *data;
    size_t len;
    must(portolan_sample_data(sample, &data, &len, NULL));
    const struct market *market = data;
    if (len < sizeof *market ||
        market->count > (len - sizeof *market) / sizeof(struct price) ||
        market->cheapest >= market->count) {
        fprintf(stderr, "a sample that is no market\n");
        exit(1);
    }
    return market;
}

/* Reads in place: nothing is copied, however much there is. */
static void shop(void) {
    const char *name = own_name("c-prices");
    portolan_domain domain;
    must(portolan_domain_join(name, &domain));
    portolan_subscriber subscriber;
    must(portolan_domain_subscriber(domain, "market", NULL, &subscriber));
    pid_t seller = start(name, NULL);
    portolan_sample kept[2];
    for (int i = 0; i < 2; i++) {
        must(portolan_subscriber_receive(subscriber, soon(), &kept[i]));
        const struct market *market = market_in(kept[i]);
        const struct price wanted = {.name = "saffron"};
        const struct price *saffron = bsearch(&wanted, market->prices, market->count,
                                              sizeof(struct price), by_name);
        printf("day %u: %u things, saffron for %llu, the cheapest is %s\n", market->day,
               market->count, (unsigned long long)(saffron == NULL ? 0 : saffron->cents),
               market->prices[market->cheapest].name);
    }
    portolan_publisher stop;
    must(portolan_domain_publisher(domain, "stop", NULL, &stop));
    must(portolan_publisher_publish(stop, "1", 1, NULL));
    finish(seller);
    /* The market has gone; a subscriber that keeps a sample has it still. */
    printf("of day %u: kept\n", market_in(kept[0])->day);
    must(portolan_sample_free(kept[0]));
    must(portolan_sample_free(kept[1]));
    must(portolan_publisher_free(stop));
    must(portolan_subscriber_free(subscriber));
    must(portolan_domain_leave(domain));
}

int main(int count, char **arguments) {
    if (count > 1) {
        sell(arguments[1]);
    } else {
        shop();
    }
    return 0;
}
