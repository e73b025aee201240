/* A file server in a process of its own, and a process between it and its client.
 *
 *     client -- request --> manager -- request --> file server
 *            <-- blocks ---         <-- blocks ---
 *
 * The blocks are read from the file into pages that go all the way to the client: no process copies
 * them, and the manager, which counts and does not look, leaves them unopened (PORTOLAN_LATER).
 * Give it a file, or none. */
#include "example.h"

#include <fcntl.h>
#include <stdint.h>

/* Bytes of a block. */
enum { BLOCK = 64 << 10 };

/* In a guarded domain the MMU sees to it that a page is touched by the process that has it only. */
static portolan_domain join(const char *name) {
    portolan_domain_options options = {.name = name, .protection = PORTOLAN_PROTECTION_GUARDED};
    portolan_domain domain;
    must(portolan_domain_join_with(&options, &domain));
    return domain;
}

static portolan_receive_right bind_synchronous(portolan_domain domain, const char *name) {
    portolan_port_options options = {.name = name, .synchronous = true};
    portolan_receive_right port;
    must(portolan_domain_bind(domain, &options, &port));
    return port;
}

/* The number in a message's header. */
static uint64_t number_of(portolan_message message) {
    const void *header;
    size_t len;
    must(portolan_message_header(message, &header, &len));
    uint64_t number = 0;
    if (len != sizeof number) {
        fprintf(stderr, "a header of %zu bytes is no number\n", len);
        exit(1);
    }
    memcpy(&number, header, len);
    return number;
}

/* Reads a block of the file; how many bytes of it there are. */
static uint64_t read_block(int file, uint64_t number, char *block) {
    uint64_t length = 0;
    while (length < BLOCK) {
        ssize_t read = pread(file, block + length, BLOCK - length, (off_t)(number * BLOCK + length));
        if (read < 0) {
            perror("pread");
            exit(1);
        }
        if (read == 0) {
            break;
        }
        length += (uint64_t)read;
    }
    return length;
}

/* The file server: a request's header is a block's number; its answer holds the block. */
static void serve(const char *name, const char *path) {
    portolan_domain domain = join(name);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) {
        perror(path);
        exit(1);
    }
    portolan_receive_right port = bind_synchronous(domain, "files");
    portolan_message message;
    must(portolan_message_new(NULL, 0, &message));
    for (;;) {
        portolan_send_once_right reply;
        must(portolan_receive_right_get_request(port, message, PORTOLAN_LATER, soon(), &reply));
        portolan_extent block;
        must(portolan_domain_allocate(domain, BLOCK, &block));
        void *data;
        must(portolan_extent_data(block, &data, NULL));
        uint64_t length = read_block(file, number_of(message), data);
        /* The answer's header says how much of the block is the file's. */
        must(portolan_message_set_header(message, &length, sizeof length));
        if (length > 0) {
            must(portolan_message_push(message, block));
        } else {
            must(portolan_extent_free(block));
        }
        must(portolan_send_once_right_send(reply, message));
    }
}

/* The one between: it may grant, log, or count, without looking at what it passes on. */
static void manage(const char *name) {
    portolan_domain domain = join(name);
    portolan_send_right files;
    must(portolan_domain_connect(domain, "files", soon(), &files));
    portolan_receive_right port = bind_synchronous(domain, "manager");
    portolan_message message;
    must(portolan_message_new(NULL, 0, &message));
    size_t blocks = 0;
    for (size_t extents = 1; extents > 0; blocks += extents) {
        portolan_send_once_right reply;
        must(portolan_receive_right_get_request(port, message, PORTOLAN_LATER, soon(), &reply));
        must(portolan_send_right_request_reply(files, message, PORTOLAN_LATER, soon()));
        must(portolan_message_extents(message, &extents, NULL));
        must(portolan_send_once_right_send(reply, message));
    }
    printf("manager: passed %zu blocks on, unopened\n", blocks);
    must(portolan_message_free(message));
    must(portolan_receive_right_free(port));
    must(portolan_send_right_free(files));
    must(portolan_domain_leave(domain));
}

/* The client: asks for one block after the other, and looks at them. */
static void read_file(const char *path) {
    const char *name = own_name("c-file-server");
    portolan_domain domain = join(name);
    pid_t server = start_with((const char *const[]){"example", "serve", name, path, NULL});
    pid_t manager = start_with((const char *const[]){"example", "manage", name, NULL});
    portolan_send_right right;
    must(portolan_domain_connect(domain, "manager", soon(), &right));
    portolan_message message;
    must(portolan_message_new(NULL, 0, &message));
    uint64_t bytes = 0, sum = 0;
    for (uint64_t number = 0;; number++) {
        must(portolan_message_clear(message));
        must(portolan_message_set_header(message, &number, sizeof number));
        /* Looked at at once: opened in one go, not by a fault for each few pages. */
        must(portolan_send_right_request_reply(right, message, PORTOLAN_AT_ONCE, soon()));
        uint64_t length = number_of(message);
        if (length == 0) {
            break;
        }
        void *data;
        size_t len;
        must(portolan_message_extent(message, 0, &data, &len));
        for (uint64_t at = 0; at < length && at < len; at++) {
            sum += ((unsigned char *)data)[at];
        }
        bytes += length;
    }
    finish(manager);
    /* It would serve others. */
    end(server);
    must(portolan_message_free(message));
    must(portolan_send_right_free(right));
    must(portolan_domain_leave(domain));
    printf("client: %llu bytes, which add up to %llu\n", (unsigned long long)bytes,
           (unsigned long long)sum);
}

/* Two blocks and a bit. */
static void make_file(char *path) {
    int descriptor = mkstemp(path);
    FILE *file = descriptor < 0 ? NULL : fdopen(descriptor, "w");
    for (int n = 0; file != NULL && n < 150000; n++) {
        putc(n & 0xff, file);
    }
    if (file == NULL || fclose(file) != 0) {
        perror(path);
        exit(1);
    }
}

int main(int count, char **arguments) {
    if (count == 4 && strcmp(arguments[1], "serve") == 0) {
        serve(arguments[2], arguments[3]);
    } else if (count == 3 && strcmp(arguments[1], "manage") == 0) {
        manage(arguments[2]);
    } else if (count == 2) {
        read_file(arguments[1]);
    } else {
        char path[] = "/tmp/c-file-server-XXXXXX";
        make_file(path);
        read_file(path);
        unlink(path);
    }
    return 0;
}
