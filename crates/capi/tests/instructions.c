/* What instructions.rs counts by C: each part stands between two marks, in the order that is named there. */
#define _GNU_SOURCE
#include <portolan.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* As `portolan_instruments::step::mark`. */
__attribute__((noinline)) static void mark(void)
{
    raise(SIGURG);
}

#define PART(work)                                                                                                     \
    do {                                                                                                               \
        mark();                                                                                                        \
        work;                                                                                                          \
        mark();                                                                                                        \
    } while (0)

static void ok(enum portolan_status status)
{
    if (status != PORTOLAN_OK) {
        fprintf(stderr, "%s\n", portolan_error_text());
        _exit(1);
    }
}

/* Made, sent, received, read and freed. The header is read, as a program reads it. */
__attribute__((noinline)) static enum portolan_status header(struct portolan_send_right right,
                                                             struct portolan_receive_right port, const void *bytes,
                                                             size_t len, uint64_t *read)
{
    struct portolan_message message;
    enum portolan_status status;
    const void *data;
    if ((status = portolan_message_new(bytes, len, &message)))
        return status;
    if ((status = portolan_send_right_send(right, message, PORTOLAN_FAIL)))
        return status;
    if ((status = portolan_receive_right_receive(port, message, PORTOLAN_LATER, PORTOLAN_NEVER)))
        return status;
    if ((status = portolan_message_header(message, &data, &len)))
        return status;
    memcpy(read, data, sizeof *read);
    return portolan_message_free(message);
}

/* The same, of a page. */
__attribute__((noinline)) static enum portolan_status page(struct portolan_domain domain,
                                                           struct portolan_send_right right,
                                                           struct portolan_receive_right port, uint64_t *read)
{
    struct portolan_extent extent;
    struct portolan_message message;
    enum portolan_status status;
    void *data;
    if ((status = portolan_domain_allocate(domain, 4096, &extent)))
        return status;
    if ((status = portolan_extent_data(extent, &data, NULL)))
        return status;
    memcpy(data, read, sizeof *read);
    if ((status = portolan_message_new(NULL, 0, &message)))
        return status;
    if ((status = portolan_message_push(message, extent)))
        return status;
    if ((status = portolan_send_right_send(right, message, PORTOLAN_FAIL)))
        return status;
    if ((status = portolan_receive_right_receive(port, message, PORTOLAN_LATER, PORTOLAN_NEVER)))
        return status;
    if ((status = portolan_message_extent(message, 0, &data, NULL)))
        return status;
    memcpy(read, data, sizeof *read);
    return portolan_message_free(message);
}

int main(int argc, char **argv)
{
    struct portolan_domain domain;
    struct portolan_receive_right port;
    struct portolan_send_right right;
    struct portolan_message message;
    struct portolan_port_options options = {.inline_bytes = 48};
    unsigned char bytes[48];
    volatile size_t len = sizeof bytes;
    volatile uint64_t read = 7;
    char go;

    (void)argv;
    ok(portolan_domain_private(NULL, &domain));
    ok(portolan_domain_bind(domain, &options, &port));
    ok(portolan_receive_right_set_waiting(port, PORTOLAN_POLL));
    ok(portolan_receive_right_make_send(port, &right));
    ok(portolan_message_new(NULL, 0, &message));
    memset(bytes, argc, sizeof bytes);

    printf("counted: %d\n", (int)gettid());
    fflush(stdout);
    if (fread(&go, 1, 1, stdin) != 1)
        return 1;
    for (;;) {
        enum portolan_status status;
        uint64_t word = read;
        PART(;);
        PART(status = portolan_send_right_send(right, message, PORTOLAN_FAIL));
        ok(status);
        PART(status = portolan_receive_right_receive(port, message, PORTOLAN_LATER, PORTOLAN_NEVER));
        ok(status);
        PART(status = header(right, port, bytes, len, &word));
        ok(status);
        PART(status = page(domain, right, port, &word));
        ok(status);
        read = word;
    }
}
