/* A bulk transfer: a process writes blocks straight into the memory of another one, which sleeps
 * until it is notified of each. */
#include "example.h"

enum { BLOCK = 64 * 1024, BLOCKS = 4 };

static void exporter(void) {
    const char *name = own_name("c-bulk-transfer");
    portolan_domain domain;
    must(portolan_domain_join(name, &domain));
    portolan_export_memory memory;
    must(portolan_export_memory_new(BLOCK * BLOCKS, &memory));
    portolan_export_options options = {.reach = PORTOLAN_REACH_WRITE};
    portolan_export export;
    must(portolan_domain_export(domain, memory, "blocks", &options, soon(), &export));
    portolan_notifications notifications;
    must(portolan_export_notifications(export, &notifications));

    pid_t importer = start(name, NULL);
    for (int i = 0; i < BLOCKS; i++) {
        portolan_notification note;
        must(portolan_notifications_wait(notifications, soon(), &note));
        unsigned char first;
        must(portolan_export_memory_read(memory, note.offset, &first, 1));
        printf("block %zu: %zu bytes, all %d\n", note.offset / BLOCK, note.len, first);
    }
    /* From here on the memory is this process's alone, whatever the importer keeps. */
    must(portolan_export_unexport(export));
    finish(importer);
    must(portolan_notifications_free(notifications));
    must(portolan_export_memory_free(memory));
    must(portolan_domain_leave(domain));
}

static void importer(const char *name) {
    portolan_domain domain;
    must(portolan_domain_join(name, &domain));
    portolan_import import;
    must(portolan_domain_import(domain, "blocks", soon(), &import));
    static unsigned char block[BLOCK];
    for (int i = 0; i < BLOCKS; i++) {
        memset(block, i + 1, sizeof block);
        must(portolan_import_write(import, (size_t)i * BLOCK, block, sizeof block));
        int told = portolan_import_notify(import, (size_t)i * BLOCK, sizeof block);
        /* The exporter takes the memory back as soon as it has heard of the last block. */
        if (told != PORTOLAN_OK && !(told == PORTOLAN_CLOSED && i + 1 == BLOCKS)) {
            exit(1);
        }
    }
    /* Until it is taken back. */
    while (portolan_import_check(import, NULL) == PORTOLAN_OK) {
        usleep(1000);
    }
    if (portolan_import_write(import, 0, block, 1) != PORTOLAN_CLOSED) {
        exit(1);
    }
    must(portolan_import_free(import));
    must(portolan_domain_leave(domain));
}

int main(int count, char **arguments) {
    if (count > 1) {
        importer(arguments[1]);
    } else {
        exporter();
    }
    return 0;
}
