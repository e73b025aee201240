/* One wait for everything: a row of a shared table that another process changed, a line of text from
 * a socket, a timer, and a Unix signal. Each has an address. */
#include "example.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/un.h>

/* Addresses in the shared segment, from its beginning. */
enum { ROW = 0, TEXT = 64, TICK = 128, CHILD = 192, LEN = 4096 };

/* What there is to be told of, once each. */
struct waited {
    char *start;
    int server;
    bool row, text, tick, child;
};

/* The address of the socket: an abstract one, by the domain's name. */
static struct sockaddr_un socket_of(const char *name, socklen_t *len) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t named = strlen(name);
    memcpy(address.sun_path + 1, name, named);
    *len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + named);
    return address;
}

static void check(bool done, const char *what) {
    if (!done) {
        perror(what);
        exit(1);
    }
}

/* Prints a line of text that somebody writes to the socket. */
static void print_text(int server) {
    /* It waits already, so this does not. */
    int stream = accept(server, NULL, NULL);
    check(stream >= 0, "accept");
    char text[16] = "";
    size_t len = 0;
    ssize_t got = 0;
    do {
        len += (size_t)got;
        got = read(stream, text + len, sizeof text - 1 - len);
    } while (got > 0);
    printf("text is \"%s\"\n", text);
    close(stream);
}

/* Handles a signal of any address in the table. */
static void handle(void *context, void *address) {
    struct waited *waited = context;
    switch ((char *)address - waited->start) {
    case ROW:
        printf("row is %llu\n",
               (unsigned long long)atomic_load((_Atomic uint64_t *)(void *)waited->start));
        waited->row = true;
        break;
    case TEXT:
        print_text(waited->server);
        waited->text = true;
        break;
    case TICK:
        if (!waited->tick) {
            printf("tick\n");
        }
        waited->tick = true;
        break;
    case CHILD:
        printf("a child has ended\n");
        waited->child = true;
        break;
    }
}

static void wait_for_all(void) {
    const char *name = own_name("c-one-wait");
    portolan_domain domain;
    must(portolan_domain_join(name, &domain));
    portolan_segment table;
    must(portolan_domain_make_segment(domain, "table", LEN, &table));
    void *data;
    must(portolan_segment_data(table, &data, NULL));
    struct waited waited = {.start = data};
    waited.server = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    socklen_t len;
    struct sockaddr_un address = socket_of(name, &len);
    check(bind(waited.server, (struct sockaddr *)&address, len) == 0, "bind");
    check(listen(waited.server, 1) == 0, "listen");

    /* What is not a signal of somebody's becomes one. */
    portolan_source text, tick, child;
    must(portolan_domain_bind_address_to_descriptor(domain, waited.start + TEXT, waited.server, &text));
    must(portolan_domain_bind_address_to_timer(domain, waited.start + TICK, SECONDS / 1000,
                                               SECONDS / 200, &tick));
    must(portolan_domain_bind_address_to_unix_signal(domain, waited.start + CHILD, SIGCHLD, &child));

    portolan_listener listener;
    must(portolan_domain_listen(domain, NULL, &listener));
    portolan_handler handler;
    must(portolan_listener_on(listener, PORTOLAN_DELIVERY_LISTENED, data, LEN, handle, &waited,
                              &handler));
    pid_t other = start(name, NULL);
    while (!waited.row || !waited.text || !waited.tick || !waited.child) {
        must(portolan_listener_wait(listener, soon()));
    }
    finish(other);
    must(portolan_listener_off(handler));
    must(portolan_listener_free(listener));
    must(portolan_source_free(child));
    must(portolan_source_free(tick));
    must(portolan_source_free(text));
    close(waited.server);
    must(portolan_segment_free(table));
    must(portolan_domain_leave(domain));
}

/* The other process: it changes a row and says so, writes a line, and ends. */
static void change(const char *name) {
    portolan_domain domain;
    must(portolan_domain_join(name, &domain));
    portolan_segment table;
    must(portolan_domain_find_segment(domain, "table", soon(), &table));
    void *data;
    must(portolan_segment_data(table, &data, NULL));
    atomic_store((_Atomic uint64_t *)data, 7);
    must(portolan_domain_signal(domain, (char *)data + ROW, NULL));
    int stream = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    socklen_t len;
    struct sockaddr_un address = socket_of(name, &len);
    check(connect(stream, (struct sockaddr *)&address, len) == 0, "connect");
    check(write(stream, "hello", 5) == 5, "write");
    close(stream);
    must(portolan_segment_free(table));
    must(portolan_domain_leave(domain));
}

int main(int count, char **arguments) {
    if (count > 1) {
        change(arguments[1]);
    } else {
        wait_for_all();
    }
    return 0;
}
