/*
 * Echo server: answers each request with its own text in capitals, until Ctrl-C.
 *
 * Run it in one terminal, and `echo_client` in another, in C or in Rust. An argument names another
 * domain than `tutorial`.
 */
#include "example.h"

#include <ctype.h>

int main(int count, char **arguments) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    portolan_domain domain;
    must(portolan_domain_join(count > 1 ? arguments[1] : "tutorial", &domain));
    printf("server: process %d\n", (int)getpid());
    /* A server that was killed just now has the name for another moment. */
    portolan_port_options options = {.name = "echo", .synchronous = true};
    portolan_receive_right port;
    must(portolan_domain_bind_when_free(domain, &options, portolan_deadline_after(5 * SECONDS),
                                        &port));
    portolan_message request;
    must(portolan_message_new(NULL, 0, &request));
    for (;;) {
        portolan_send_once_right reply;
        must(portolan_receive_right_get_request(port, request, PORTOLAN_AT_ONCE, PORTOLAN_NEVER,
                                                &reply));
        size_t extents;
        must(portolan_message_extents(request, &extents, NULL));
        for (size_t i = 0; i < extents; i++) {
            void *data;
            size_t len;
            must(portolan_message_extent(request, i, &data, &len));
            for (char *at = data; at < (char *)data + len; at++) {
                *at = (char)toupper((unsigned char)*at);
            }
        }
        /* The answer is the request's own memory. A client that has died meanwhile does not matter. */
        if (reply.id != 0) {
            (void)portolan_send_once_right_send(reply, request);
        }
    }
}
