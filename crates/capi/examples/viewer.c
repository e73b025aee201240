/* Viewer: receives the pictures of `camera`, until Ctrl-C. */
#include "example.h"

#include <stdint.h>

int main(int count, char **arguments) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    portolan_domain domain;
    must(portolan_domain_join(count > 1 ? arguments[1] : "tutorial", &domain));
    printf("viewer: process %d\n", (int)getpid());
    /* A viewer that was killed just now has the name for another moment. */
    portolan_port_options options = {.name = "pictures", .queue = 8};
    portolan_receive_right port;
    must(portolan_domain_bind_when_free(domain, &options, portolan_deadline_after(5 * SECONDS),
                                        &port));
    portolan_message message;
    must(portolan_message_new(NULL, 0, &message));
    for (;;) {
        /* What the message held is dropped first: its memory goes back to the camera. */
        must(portolan_receive_right_receive(port, message, PORTOLAN_LATER, PORTOLAN_NEVER));
        const void *header;
        size_t len;
        must(portolan_message_header(message, &header, &len));
        uint64_t number = 0;
        memcpy(&number, header, len < sizeof number ? len : sizeof number);
        /* The pages that the camera filled, at the same address. They are ours: we may write them. */
        void *data;
        must(portolan_message_extent(message, 0, &data, &len));
        unsigned char *picture = data, before = picture[0];
        picture[0] = (unsigned char)~before;
        if (number % 10 == 1) {
            printf("viewer: picture %llu, %zu bytes of %d at %p\n", (unsigned long long)number, len,
                   before, data);
        }
    }
}
