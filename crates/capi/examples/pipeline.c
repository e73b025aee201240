/* Pipeline: three processes; the one in the middle takes, modifies and forwards. */
#include "example.h"

enum { FRAME = 64 << 10, FRAMES = 3 };

/* The first stage: fills frames with 1, 2, 3 and sends them. */
static void source(void) {
    const char *name = own_name("c-pipeline");
    portolan_domain domain;
    must(portolan_domain_join(name, &domain));
    pid_t stages[] = {start(name, "double"), start(name, "print")};
    portolan_send_right next;
    must(portolan_domain_connect(domain, "double", soon(), &next));
    portolan_message message;
    must(portolan_message_new(NULL, 0, &message));
    for (unsigned char number = 1; number <= FRAMES; number++) {
        portolan_extent frame;
        must(portolan_domain_allocate(domain, FRAME, &frame));
        void *data;
        size_t len;
        must(portolan_extent_data(frame, &data, &len));
        memset(data, number, len);
        must(portolan_message_set_header(message, &number, 1));
        must(portolan_message_push(message, frame));
        must(portolan_send_right_send(next, message, PORTOLAN_NEVER));
    }
    /* The last right on that port: the next stage is told, and ends too. */
    must(portolan_send_right_free(next));
    finish(stages[0]);
    finish(stages[1]);
    must(portolan_message_free(message));
    must(portolan_domain_leave(domain));
}

/* The next frame; false if no sender is left. */
static bool receive(portolan_receive_right port, portolan_message message) {
    must(portolan_receive_right_receive(port, message, PORTOLAN_AT_ONCE, soon()));
    /* To be asked only once there has been a sender; asking again does no harm. */
    must(portolan_receive_right_request_no_more_senders(port));
    portolan_notice notice;
    must(portolan_message_notice(message, &notice));
    return notice.kind != PORTOLAN_NOTICE_NO_MORE_SENDERS;
}

/* The second stage: changes each frame where it lies and sends the same pages on. */
static void twice(const char *name) {
    portolan_domain domain;
    must(portolan_domain_join(name, &domain));
    portolan_port_options options = {.name = "double"};
    portolan_receive_right port;
    must(portolan_domain_bind(domain, &options, &port));
    portolan_send_right next;
    must(portolan_domain_connect(domain, "print", soon(), &next));
    portolan_message message;
    must(portolan_message_new(NULL, 0, &message));
    while (receive(port, message)) {
        void *data;
        size_t len;
        must(portolan_message_extent(message, 0, &data, &len));
        for (unsigned char *at = data; at < (unsigned char *)data + len; at++) {
            *at = (unsigned char)(*at * 2);
        }
        must(portolan_send_right_send(next, message, PORTOLAN_NEVER));
    }
    must(portolan_message_free(message));
    must(portolan_send_right_free(next));
    must(portolan_receive_right_free(port));
    must(portolan_domain_leave(domain));
}

/* The last stage. */
static void print(const char *name) {
    portolan_domain domain;
    must(portolan_domain_join(name, &domain));
    portolan_port_options options = {.name = "print"};
    portolan_receive_right port;
    must(portolan_domain_bind(domain, &options, &port));
    portolan_message message;
    must(portolan_message_new(NULL, 0, &message));
    while (receive(port, message)) {
        const void *header;
        void *data;
        size_t len;
        must(portolan_message_header(message, &header, &len));
        int number = *(const unsigned char *)header;
        must(portolan_message_extent(message, 0, &data, &len));
        printf("frame %d: %zu bytes of %d\n", number, len, *(unsigned char *)data);
        /* The next receive gives the pages back to the process that allocated them. */
    }
    printf("the pipeline is empty\n");
    must(portolan_message_free(message));
    must(portolan_receive_right_free(port));
    must(portolan_domain_leave(domain));
}

int main(int count, char **arguments) {
    if (count < 3) {
        source();
    } else if (strcmp(arguments[2], "double") == 0) {
        twice(arguments[1]);
    } else {
        print(arguments[1]);
    }
    return 0;
}
