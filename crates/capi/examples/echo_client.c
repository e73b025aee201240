/*
 * Echo client: asks `echo_server` five times a second, until Ctrl-C, and says how each request
 * ended.
 */
#include "example.h"

static portolan_deadline second(void) {
    return portolan_deadline_after(1 * SECONDS);
}

int main(int count, char **arguments) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    portolan_domain domain;
    must(portolan_domain_join(count > 1 ? arguments[1] : "tutorial", &domain));
    printf("client: process %d\n", (int)getpid());
    portolan_reconnecting_sender server;
    must(portolan_domain_reconnecting_sender(domain, "echo", &server));
    portolan_message message;
    must(portolan_message_new(NULL, 0, &message));
    for (int number = 1;; number++) {
        char text[32];
        int written = snprintf(text, sizeof text, "request %d", number);
        portolan_extent extent;
        must(portolan_domain_allocate(domain, (size_t)written, &extent));
        void *data;
        size_t len;
        must(portolan_extent_data(extent, &data, &len));
        memcpy(data, text, len);
        must(portolan_message_clear(message));
        must(portolan_message_push(message, extent));
        /* A right on the port of that name, looked up again if the port has died. */
        portolan_send_right right;
        if (portolan_reconnecting_sender_right(server, second(), &right) != PORTOLAN_OK) {
            printf("client: %s was not sent: %s\n", text, portolan_error_text());
        } else {
            if (portolan_send_right_request_reply(right, message, PORTOLAN_AT_ONCE, second()) !=
                PORTOLAN_OK) {
                /* A server's death ends the request at once, in an error that says so. */
                printf("client: %s was not answered: %s\n", text, portolan_error_text());
            } else if (number % 5 == 1) {
                must(portolan_message_extent(message, 0, &data, &len));
                printf("client: %.*s\n", (int)len, (const char *)data);
            }
            must(portolan_send_right_free(right));
        }
        usleep(200 * 1000);
    }
}
