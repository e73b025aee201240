/* Request and reply: a server in a process of its own, and what a client sees of it. */
#include "example.h"

#include <ctype.h>

static int is(const void *header, size_t len, const char *text) {
    return len == strlen(text) && memcmp(header, text, len) == 0;
}

static void serve(const char *name) {
    portolan_domain domain;
    must(portolan_domain_join(name, &domain));
    /* Requests go to synchronous ports. */
    portolan_port_options options = {.name = "upper", .synchronous = true};
    portolan_receive_right port;
    must(portolan_domain_bind(domain, &options, &port));
    portolan_message message;
    must(portolan_message_new(NULL, 0, &message));
    for (;;) {
        portolan_send_once_right reply;
        must(portolan_receive_right_get_request(port, message, PORTOLAN_AT_ONCE, soon(), &reply));
        const void *header;
        size_t len;
        must(portolan_message_header(message, &header, &len));
        if (is(header, len, "drop me")) {
            /* Its client is told. */
            must(portolan_send_once_right_free(reply));
        } else if (is(header, len, "die")) {
            /* So is this one: the host answers for the dead. */
            _exit(0);
        } else {
            /* The answer is the request's own pages, changed where they lie. */
            void *data;
            must(portolan_message_extent(message, 0, &data, &len));
            for (char *at = data; at < (char *)data + len; at++) {
                *at = (char)toupper((unsigned char)*at);
            }
            must(portolan_send_once_right_send(reply, message));
        }
    }
}

/* Puts a request into the message. */
static void fill(portolan_domain domain, portolan_message message, const char *text) {
    portolan_extent extent;
    must(portolan_domain_allocate(domain, strlen(text), &extent));
    void *data;
    size_t len;
    must(portolan_extent_data(extent, &data, &len));
    memcpy(data, text, len);
    must(portolan_message_clear(message));
    must(portolan_message_push(message, extent));
}

static void print(portolan_message answer) {
    void *data;
    size_t len;
    must(portolan_message_extent(answer, 0, &data, &len));
    printf("answer: %.*s\n", (int)len, (const char *)data);
}

static void ask(void) {
    const char *name = own_name("c-request-reply");
    portolan_domain domain;
    must(portolan_domain_join(name, &domain));
    pid_t server = start(name, NULL);
    portolan_send_right right;
    must(portolan_domain_connect(domain, "upper", soon(), &right));
    portolan_message message;
    must(portolan_message_new(NULL, 0, &message));

    /* Ask, and wait for the answer, which is in the same message. */
    fill(domain, message, "one at a time");
    must(portolan_send_right_request_reply(right, message, PORTOLAN_AT_ONCE, soon()));
    print(message);

    /* Or have several requests under way; the answers may be taken in any order. */
    const char *texts[] = {"the first of two", "the second of two"};
    portolan_pending_reply pending[2];
    for (int i = 0; i < 2; i++) {
        fill(domain, message, texts[i]);
        must(portolan_send_right_begin_request(right, message, PORTOLAN_FAIL, &pending[i]));
    }
    for (int i = 1; i >= 0; i--) {
        must(portolan_pending_reply_wait(pending[i], message, PORTOLAN_AT_ONCE, soon()));
        print(message);
        must(portolan_pending_reply_free(pending[i]));
    }

    /* A request that is not answered ends in an error at once, not after a timeout. */
    const char *headers[] = {"drop me", "die"};
    for (int i = 0; i < 2; i++) {
        must(portolan_message_clear(message));
        must(portolan_message_set_header(message, headers[i], strlen(headers[i])));
        portolan_status status =
            portolan_send_right_request_reply(right, message, PORTOLAN_AT_ONCE, soon());
        printf("%s: %s\n", headers[i], status == PORTOLAN_OK ? "answered" : portolan_error_text());
    }
    finish(server);
    must(portolan_message_free(message));
    must(portolan_send_right_free(right));
    must(portolan_domain_leave(domain));
}

int main(int count, char **arguments) {
    if (count > 1) {
        serve(arguments[1]);
    } else {
        ask();
    }
    return 0;
}
