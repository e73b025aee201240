/* A revoked import: a process lends its memory to another one, and takes it back.
 *
 * The importer is no member of the domain, and could be another user's process, had the exporter
 * named that user. */
#include "example.h"

#include <sched.h>
#include <stdint.h>

/* Where the importer counts what it has written, and where it writes. */
enum { COUNT = 0, DATA = 4096 };

static uint64_t count_in(portolan_export_memory memory) {
    uint64_t count;
    must(portolan_export_memory_load_acquire(memory, COUNT, &count));
    return count;
}

static void check(bool holds, const char *what) {
    if (!holds) {
        fprintf(stderr, "%s\n", what);
        exit(1);
    }
}

static void exporter(void) {
    const char *name = own_name("c-revoked-import");
    portolan_domain domain;
    must(portolan_domain_join(name, &domain));
    portolan_export_memory memory;
    must(portolan_export_memory_new(1 << 20, &memory));
    /* Processes of this user may read and write it, whether they are in the domain or not. */
    portolan_export_options options = {.reach = PORTOLAN_REACH_READ_WRITE};
    portolan_export export;
    must(portolan_domain_export(domain, memory, "workspace", &options, soon(), &export));

    pid_t other = start(name, NULL);
    /* The importer writes when it likes; nothing wakes us, so we look. */
    while (count_in(memory) < 1000) {
        sched_yield();
    }
    void *before, *after;
    must(portolan_export_memory_data(memory, &before, NULL));

    /* It goes on writing all the time, and is not waited for. From here on it cannot. */
    must(portolan_export_unexport(export));
    uint64_t count = count_in(memory);
    finish(other);
    /* The same memory, at the same place, with what was there. */
    must(portolan_export_memory_data(memory, &after, NULL));
    check(after == before, "the memory has moved");
    check(count_in(memory) == count, "the count has changed");
    uint64_t last;
    must(portolan_export_memory_read(memory, DATA, &last, sizeof last));
    printf("exporter: has its memory back, with what was written last in it\n");
    /* What was said to have landed has; the data of the next one may be there already. */
    check(last == count || last == count + 1, "something else was written last");
    must(portolan_export_memory_free(memory));
    must(portolan_domain_leave(domain));
}

static void importer(const char *name) {
    portolan_domain_options exporters = {.name = name};
    portolan_import import;
    must(portolan_domain_import_from(&exporters, "workspace", soon(), &import));
    for (uint64_t number = 1;; number++) {
        /* First the data, then the count that announces them. */
        portolan_status landed = portolan_import_write(import, DATA, &number, sizeof number);
        if (landed == PORTOLAN_OK) {
            landed = portolan_import_store_release(import, COUNT, number);
        }
        if (landed == PORTOLAN_CLOSED) {
            printf("importer: was told that the export has ended\n");
            break;
        }
        must(landed);
    }
    must(portolan_import_free(import));
}

int main(int count, char **arguments) {
    if (count > 1) {
        importer(arguments[1]);
    } else {
        exporter();
    }
    return 0;
}
