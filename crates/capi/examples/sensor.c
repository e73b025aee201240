/* A sensor's samples, in another user's memory: automatic update.
 *
 * The reader exports a buffer that one other user may write. The sensor, a process of that user, maps
 * memory of its own to it; whatever it stores there is in the reader's memory too, in the order of the
 * program, and the reader's processor does nothing for it. As root the sensor is of another user, else
 * of the same one. */
#include "example.h"

#include <math.h>
#include <sched.h>
#include <stdint.h>

/* Where the sensor counts its samples, and where they begin; eight bytes each. */
enum { COUNT = 0, FIRST = 64, SAMPLES = 1000, LEN = FIRST + 8 * SAMPLES };

/* The sensor's user, where the reader may choose it. */
enum { SENSOR = 1042 };

/* What there is to measure. */
static double measured(uint64_t number) {
    return sin((double)number / 50);
}

static double sample_in(portolan_export_memory memory, uint64_t number) {
    uint64_t bits;
    must(portolan_export_memory_load_acquire(memory, FIRST + 8 * number, &bits));
    double sample;
    memcpy(&sample, &bits, sizeof sample);
    return sample;
}

/* This process becomes another user's before it is the sensor. */
static void become(uid_t user) {
    if (getuid() != user && (setgid(user) != 0 || setuid(user) != 0)) {
        perror("setuid");
        exit(1);
    }
}

static void reader(void) {
    const char *name = own_name("c-sensor");
    portolan_domain domain;
    must(portolan_domain_join(name, &domain));
    uint32_t us = getuid(), them = us == 0 ? SENSOR : us;

    portolan_export_memory buffer;
    must(portolan_export_memory_new(LEN, &buffer));
    portolan_export_options options = {
        .reach = PORTOLAN_REACH_WRITE, .users = &them, .users_len = 1};
    portolan_export export;
    must(portolan_domain_export(domain, buffer, "samples", &options, soon(), &export));

    char ours[16], theirs[16];
    snprintf(ours, sizeof ours, "%u", us);
    snprintf(theirs, sizeof theirs, "%u", them);
    pid_t child = start_with((const char *const[]){"example", name, ours, theirs, NULL});
    for (uint64_t seen = 0, count = 0; seen < SAMPLES; seen = count) {
        /* What was stored before the count is there when the count is. */
        must(portolan_export_memory_load_acquire(buffer, COUNT, &count));
        for (uint64_t number = seen; number < count; number++) {
            if (fabs(sample_in(buffer, number) - measured(number)) > 1e-12) {
                fprintf(stderr, "sample %llu is another\n", (unsigned long long)number);
                exit(1);
            }
        }
        sched_yield();
    }
    finish(child);
    printf("reader: saw %d samples, each before it was counted\n", SAMPLES);
    must(portolan_export_unexport(export));
    must(portolan_export_memory_free(buffer));
    must(portolan_domain_leave(domain));
}

static void sensor(const char *name, uint32_t readers) {
    portolan_domain_options exporters = {.name = name, .of_user = readers, .is_of_user = true};
    portolan_import import;
    must(portolan_domain_import_from(&exporters, "samples", soon(), &import));
    size_t len;
    must(portolan_import_check(import, &len));
    portolan_export_memory local;
    must(portolan_export_memory_new(len, &local));
    portolan_log buffer;
    must(portolan_import_map_log(import, local, 0, len, 0, &buffer));
    for (uint64_t number = 0; number < SAMPLES; number++) {
        double sample = measured(number);
        must(portolan_log_store(buffer, FIRST + 8 * number, &sample, sizeof sample));
        uint64_t count = number + 1;
        must(portolan_log_store(buffer, COUNT, &count, sizeof count));
    }
    must(portolan_log_unmap(buffer));
    printf("sensor: the last of %d samples was %.3f\n", SAMPLES, sample_in(local, SAMPLES - 1));
    must(portolan_export_memory_free(local));
    must(portolan_import_free(import));
}

int main(int count, char **arguments) {
    if (count > 3) {
        become((uid_t)strtoul(arguments[3], NULL, 10));
        sensor(arguments[1], (uint32_t)strtoul(arguments[2], NULL, 10));
    } else {
        reader();
    }
    return 0;
}
