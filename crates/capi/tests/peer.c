/* The other side of tests/peer.rs: serves a program in Rust, or asks one. */
#include "../examples/example.h"

#include <stdint.h>

static void serve(portolan_domain domain) {
    portolan_port_options options = {.name = "sum", .synchronous = true};
    portolan_receive_right port;
    must(portolan_domain_bind(domain, &options, &port));
    portolan_publisher publisher;
    must(portolan_domain_publisher(domain, "served", NULL, &publisher));
    portolan_message message;
    must(portolan_message_new(NULL, 0, &message));
    for (int served = 1;; served++) {
        portolan_send_once_right reply;
        must(portolan_receive_right_get_request(port, message, PORTOLAN_AT_ONCE, soon(), &reply));
        const void *header;
        size_t len;
        must(portolan_message_header(message, &header, &len));
        if (len == 5 && memcmp(header, "crash", len) == 0) {
            _exit(7);
        }
        void *data;
        must(portolan_message_extent(message, 0, &data, &len));
        uint64_t sum = 0;
        uint32_t *numbers = data;
        for (size_t i = 0; i < len / sizeof *numbers; i++) {
            sum += numbers[i];
            numbers[i] = ~numbers[i];
        }
        must(portolan_message_set_header(message, &sum, sizeof sum));
        must(portolan_send_once_right_send(reply, message));
        if (served == 2) {
            must(portolan_publisher_publish(publisher, "2 requests", 10, NULL));
        }
    }
}

static void ask(portolan_domain domain) {
    portolan_send_right right;
    must(portolan_domain_connect(domain, "upper", soon(), &right));
    portolan_extent extent;
    must(portolan_domain_allocate(domain, 12, &extent));
    void *data;
    size_t len;
    must(portolan_extent_data(extent, &data, &len));
    memcpy(data, "hello from c", len);
    portolan_message message;
    must(portolan_message_new("shout", 5, &message));
    must(portolan_message_push(message, extent));
    must(portolan_send_right_request_reply(right, message, PORTOLAN_LATER, soon()));
    must(portolan_message_extent(message, 0, &data, &len));
    printf("%.*s\n", (int)len, (char *)data);

    must(portolan_message_clear(message));
    printf("dropped: %d\n",
           portolan_send_right_request_reply(right, message, PORTOLAN_LATER, soon()));
    /* Whether the port dies before its last request is dropped, or after. */
    portolan_status status =
        portolan_send_right_request_reply(right, message, PORTOLAN_LATER, soon());
    if (status != PORTOLAN_PEER_DIED && status != PORTOLAN_DROPPED) {
        must(status);
    }
    portolan_right_state state;
    do {
        must(portolan_send_right_state(right, &state));
    } while (state != PORTOLAN_RIGHT_DEAD);
    printf("dead: %d\n", portolan_send_right_send(right, message, PORTOLAN_FAIL));
    must(portolan_message_free(message));
    must(portolan_send_right_free(right));
    must(portolan_domain_leave(domain));
}

int main(int count, char **arguments) {
    portolan_domain domain;
    must(portolan_domain_join(arguments[1], &domain));
    if (count > 2 && strcmp(arguments[2], "serve") == 0) {
        serve(domain);
    } else {
        ask(domain);
    }
    return 0;
}
