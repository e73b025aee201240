/* Hello: one process sends a message, another receives it. */
#include "example.h"

static void receive(void) {
    /* Nothing has to be installed or running: the first to join a domain creates it. */
    const char *name = own_name("c-hello");
    portolan_domain domain;
    must(portolan_domain_join(name, &domain));
    /* A port is where messages are received. Others find it by its name. */
    portolan_port_options options = {.name = "greetings"};
    portolan_receive_right port;
    must(portolan_domain_bind(domain, &options, &port));
    pid_t peer = start(name, NULL);

    portolan_message message;
    must(portolan_message_new(NULL, 0, &message));
    must(portolan_receive_right_receive(port, message, PORTOLAN_AT_ONCE, soon()));
    const void *header;
    size_t len;
    must(portolan_message_header(message, &header, &len));
    printf("header:  %.*s\n", (int)len, (const char *)header);
    /* The pages are ours now. They were not copied: they changed owner. */
    void *pages;
    must(portolan_message_extent(message, 0, &pages, &len));
    printf("pages:   %zu bytes, all %d\n", len, *(unsigned char *)pages);

    finish(peer);
    must(portolan_message_free(message));
    must(portolan_receive_right_free(port));
    must(portolan_domain_leave(domain));
}

static void send_to(const char *name) {
    portolan_domain domain;
    must(portolan_domain_join(name, &domain));
    /* Waits until somebody has bound a port of this name. */
    portolan_send_right port;
    must(portolan_domain_connect(domain, "greetings", soon(), &port));

    /* A message is a short header, which is copied, and extents of pages, which are not. */
    portolan_extent extent;
    must(portolan_domain_allocate(domain, 1 << 20, &extent));
    void *pages;
    size_t len;
    must(portolan_extent_data(extent, &pages, &len));
    memset(pages, 42, len);
    printf("sending: %zu bytes\n", len);
    fflush(stdout);

    static const char header[] = "hello from another process";
    portolan_message message;
    must(portolan_message_new(header, strlen(header), &message));
    must(portolan_message_push(message, extent));
    must(portolan_send_right_send(port, message, PORTOLAN_NEVER));
    /* The handle of the extent is gone: it was given away. */
    if (portolan_extent_data(extent, &pages, &len) == PORTOLAN_BAD_HANDLE) {
        printf("sent:    the pages are another's\n");
    }

    must(portolan_message_free(message));
    must(portolan_send_right_free(port));
    must(portolan_domain_leave(domain));
}

int main(int count, char **arguments) {
    /* The second process is this program again, with the domain's name as an argument. */
    if (count > 1) {
        send_to(arguments[1]);
    } else {
        receive();
    }
    return 0;
}
