/* A wait set in an epoll loop: any number of ports behind one descriptor, beside others. */
#include "example.h"

#include <errno.h>
#include <sys/epoll.h>

static const char *COLOURS[] = {"red", "green", "blue"};

static void paint(const char *name) {
    portolan_domain domain;
    must(portolan_domain_join(name, &domain));
    const char *things[] = {"an apple", "a leaf", "the sky"};
    for (int i = 0; i < 3; i++) {
        portolan_send_right port;
        must(portolan_domain_connect(domain, COLOURS[i], soon(), &port));
        portolan_message message;
        must(portolan_message_new(things[i], strlen(things[i]), &message));
        must(portolan_send_right_send(port, message, PORTOLAN_NEVER));
        must(portolan_message_free(message));
        must(portolan_send_right_free(port));
    }
    must(portolan_domain_leave(domain));
}

static void watch(void) {
    const char *name = own_name("c-wait-set");
    portolan_domain domain;
    must(portolan_domain_join(name, &domain));
    portolan_wait_set set;
    must(portolan_wait_set_new(domain, &set));
    portolan_receive_right ports[3];
    for (int i = 0; i < 3; i++) {
        portolan_port_options options = {.name = COLOURS[i]};
        must(portolan_domain_bind(domain, &options, &ports[i]));
        /* A port in a set is used by its handle as before. */
        must(portolan_wait_set_add_receive_right(set, ports[i]));
    }
    int descriptor;
    must(portolan_wait_set_descriptor(set, &descriptor));
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN};
    if (epoll < 0 || epoll_ctl(epoll, EPOLL_CTL_ADD, descriptor, &event) != 0) {
        perror("epoll");
        exit(1);
    }
    pid_t painter = start(name, NULL);
    portolan_message message;
    must(portolan_message_new(NULL, 0, &message));
    const char *painted[3] = {NULL, NULL, NULL};
    for (int found = 0; found < 3;) {
        if (epoll_wait(epoll, &event, 1, 30000) < 1 && errno != EINTR) {
            fprintf(stderr, "nothing was painted\n");
            exit(1);
        }
        /* Readable: look, without waiting. */
        uint64_t ready[3];
        size_t count;
        must(portolan_wait_set_wait(set, PORTOLAN_NOW, ready, 3, &count));
        for (size_t at = 0; at < count; at++) {
            for (int i = 0; i < 3; i++) {
                if (ports[i].id != ready[at]) {
                    continue;
                }
                while (portolan_receive_right_receive(ports[i], message, PORTOLAN_LATER,
                                                      PORTOLAN_NOW) == PORTOLAN_OK) {
                    const void *header;
                    size_t len;
                    must(portolan_message_header(message, &header, &len));
                    painted[i] = strndup(header, len);
                    found++;
                }
            }
        }
    }
    for (int i = 0; i < 3; i++) {
        printf("%s: %s\n", COLOURS[i], painted[i]);
        free((void *)painted[i]);
        must(portolan_receive_right_free(ports[i]));
    }
    finish(painter);
    must(portolan_message_free(message));
    must(portolan_wait_set_free(set));
    close(epoll);
    must(portolan_domain_leave(domain));
}

int main(int count, char **arguments) {
    if (count > 1) {
        paint(arguments[1]);
    } else {
        watch();
    }
    return 0;
}
