/* Address-valued signals: a shared table says which of its rows has changed.
 *
 * No message is sent. The other process changes a row and signals its address; the handler is given
 * the same address here, and looks. */
#include "example.h"

#include <stdatomic.h>
#include <stdint.h>

enum { ROW = 64, ROWS = 64 };

typedef _Atomic(uint64_t) word;

static void changed(void *context, void *address) {
    char *table = context;
    printf("watcher: row %d is %d now\n", (int)(((char *)address - table) / ROW),
           (int)atomic_load((word *)address));
}

static void watcher(void) {
    const char *name = own_name("c-address-signal");
    portolan_domain domain;
    must(portolan_domain_join(name, &domain));
    portolan_segment segment;
    must(portolan_domain_make_segment(domain, "table", ROW * ROWS, &segment));
    void *table;
    size_t len;
    must(portolan_segment_data(segment, &table, &len));

    portolan_listener listener;
    must(portolan_domain_listen(domain, NULL, &listener));
    portolan_handler handler;
    must(portolan_listener_on(listener, PORTOLAN_DELIVERY_LISTENED, table, len, changed, table,
                              &handler));

    pid_t writer = start(name, NULL);
    for (int i = 0; i < 3; i++) {
        must(portolan_listener_wait(listener, soon()));
    }
    finish(writer);
    uint64_t dropped;
    must(portolan_listener_dropped(listener, &dropped));
    printf("watcher: %d signals were dropped\n", (int)dropped);
    must(portolan_listener_off(handler));
    must(portolan_listener_free(listener));
    must(portolan_segment_free(segment));
    must(portolan_domain_leave(domain));
}

static void write_rows(const char *name) {
    portolan_domain domain;
    must(portolan_domain_join(name, &domain));
    portolan_segment segment;
    must(portolan_domain_find_segment(domain, "table", soon(), &segment));
    void *table;
    must(portolan_segment_data(segment, &table, NULL));
    const int rows[][2] = {{3, 30}, {41, 410}, {7, 70}};
    for (int i = 0; i < 3; i++) {
        /* What is written before the signal is there when the handler looks. */
        char *row = (char *)table + rows[i][0] * ROW;
        atomic_store((word *)row, (uint64_t)rows[i][1]);
        size_t reached;
        must(portolan_domain_signal(domain, row, &reached));
        if (reached != 1) {
            exit(1);
        }
    }
    must(portolan_segment_free(segment));
    must(portolan_domain_leave(domain));
}

int main(int count, char **arguments) {
    if (count > 1) {
        write_rows(arguments[1]);
    } else {
        watcher();
    }
    return 0;
}
