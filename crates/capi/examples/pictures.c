/* Publishes pictures on a topic: each has its own size, and all viewers read it where it was drawn.
 *
 * Two viewers look at every picture and let go of it. A third one keeps what it gets, and is killed:
 * the camera does not notice, and the memory comes back. */
#include "example.h"

#include <stdint.h>

/* Four bytes of a pixel. */
enum { PIXEL = 4, VIEWERS = 3 };

/* Who saw how many pixels, and where. */
struct seen {
    uint64_t who, pixels, at;
};

static const portolan_topic_options OPTIONS = {.history = 8};

static struct seen next(portolan_subscriber subscriber) {
    portolan_sample sample;
    must(portolan_subscriber_receive(subscriber, soon(), &sample));
    const void *data;
    size_t len;
    must(portolan_sample_data(sample, &data, &len, NULL));
    struct seen seen = {0, 0, 0};
    if (len == sizeof seen) {
        memcpy(&seen, data, len);
    }
    must(portolan_sample_free(sample));
    return seen;
}

static void draw(void) {
    const char *name = own_name("c-pictures");
    portolan_domain domain;
    must(portolan_domain_join(name, &domain));
    portolan_publisher pictures;
    must(portolan_domain_publisher(domain, "pictures", &OPTIONS, &pictures));
    portolan_subscriber views;
    must(portolan_domain_subscriber(domain, "seen", &OPTIONS, &views));
    pid_t viewers[VIEWERS];
    const char *who[VIEWERS] = {"1", "2", "3"};
    for (int i = 0; i < VIEWERS; i++) {
        viewers[i] = start(name, who[i]);
        /* It has subscribed. */
        next(views);
    }

    const size_t widths[] = {4, 64, 1024};
    for (int i = 0; i < 3; i++) {
        size_t width = widths[i];
        void *picture;
        must(portolan_publisher_loan(pictures, width * width * PIXEL, &picture));
        memset(picture, 7, width * width * PIXEL);
        must(portolan_publisher_publish_loan(pictures, NULL));
        int in_place = 0;
        for (int view = 0; view < VIEWERS; view++) {
            struct seen seen = next(views);
            if (seen.pixels != width * width) {
                fprintf(stderr, "a picture of %llu pixels\n", (unsigned long long)seen.pixels);
                exit(1);
            }
            in_place += seen.at == (uintptr_t)picture;
        }
        printf("%zu x %zu: %d of 3 look at it where it was drawn\n", width, width, in_place);
    }

    end(viewers[2]);
    for (int i = 0; i < 1000; i++) {
        void *picture;
        must(portolan_publisher_loan(pictures, 256 * 256 * PIXEL, &picture));
        must(portolan_publisher_publish_loan(pictures, NULL));
    }
    printf("a viewer died with pictures in its hands, and 1000 more were published\n");
    /* An empty one says that there will be no more. */
    must(portolan_publisher_publish(pictures, NULL, 0, NULL));
    finish(viewers[0]);
    finish(viewers[1]);
    must(portolan_subscriber_free(views));
    must(portolan_publisher_free(pictures));
    must(portolan_domain_leave(domain));
}

static void view(const char *name, uint64_t who) {
    portolan_domain domain;
    must(portolan_domain_join(name, &domain));
    portolan_subscriber pictures;
    must(portolan_domain_subscriber(domain, "pictures", &OPTIONS, &pictures));
    portolan_publisher views;
    must(portolan_domain_publisher(domain, "seen", &OPTIONS, &views));
    struct seen seen = {who, 0, 0};
    must(portolan_publisher_publish(views, &seen, sizeof seen, NULL));
    for (;;) {
        portolan_sample picture;
        must(portolan_subscriber_receive(pictures, soon(), &picture));
        const void *data;
        size_t len;
        must(portolan_sample_data(picture, &data, &len, NULL));
        if (len == 0) {
            must(portolan_sample_free(picture));
            break;
        }
        seen = (struct seen){who, len / PIXEL, (uintptr_t)data};
        must(portolan_publisher_publish(views, &seen, sizeof seen, NULL));
        if (who != 3) {
            must(portolan_sample_free(picture));
        }
    }
    printf("viewer %llu: no more pictures\n", (unsigned long long)who);
    must(portolan_publisher_free(views));
    must(portolan_subscriber_free(pictures));
    must(portolan_domain_leave(domain));
}

int main(int count, char **arguments) {
    if (count > 2) {
        view(arguments[1], strtoull(arguments[2], NULL, 10));
    } else {
        draw();
    }
    return 0;
}
