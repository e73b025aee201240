/*
 * Camera: sends a picture ten times a second, until Ctrl-C, to the viewer that there is.
 *
 * Run it in one terminal, and `viewer` in another, in any order, in C or in Rust. Kill the viewer, and
 * start it again. An argument names another domain than `tutorial`.
 */
#include "example.h"

#include <stdint.h>

enum { PICTURE = 1920 * 1080 * 3 };

static void tell(portolan_lost lost) {
    if (lost.receiver != 0) {
        printf("camera: a viewer has gone; it had not received %llu of %llu pictures at most\n",
               (unsigned long long)lost.at_most, (unsigned long long)lost.sent);
    }
}

int main(int count, char **arguments) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    portolan_domain domain;
    must(portolan_domain_join(count > 1 ? arguments[1] : "tutorial", &domain));
    printf("camera: process %d\n", (int)getpid());
    /* The port's name is looked up when a picture is sent, and again when the port has died. */
    portolan_reconnecting_sender viewer;
    must(portolan_domain_reconnecting_sender(domain, "pictures", &viewer));
    portolan_message message;
    must(portolan_message_new(NULL, 0, &message));
    for (uint64_t number = 1;; number++) {
        /* Memory that every process of the domain has at this address. */
        portolan_extent picture;
        must(portolan_domain_allocate(domain, PICTURE, &picture));
        void *data;
        size_t len;
        must(portolan_extent_data(picture, &data, &len));
        memset(data, (int)(number % 256), len);
        must(portolan_message_set_header(message, &number, sizeof number));
        must(portolan_message_push(message, picture));
        /* It waits for a viewer, and for room in that one's queue. */
        portolan_sent sent;
        portolan_status status = portolan_reconnecting_sender_send(
            viewer, message, portolan_deadline_after(1 * SECONDS), &sent);
        if (status == PORTOLAN_OK) {
            tell(sent.lost);
            if (number % 10 == 1) {
                printf("camera: viewer %llu has picture %llu\n", (unsigned long long)sent.receiver,
                       (unsigned long long)number);
            }
        } else if (status == PORTOLAN_NOT_FOUND) {
            printf("camera: no viewer for picture %llu\n", (unsigned long long)number);
        } else if (status == PORTOLAN_FULL) {
            printf("camera: picture %llu was not taken: %s\n", (unsigned long long)number,
                   portolan_error_text());
        } else {
            must(status);
        }
        /* What was not sent is freed here. */
        must(portolan_message_clear(message));
        usleep(100 * 1000);
    }
}
