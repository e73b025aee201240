/* Calls every function with what it must not be given, from several threads if it is told so, which use
 * and free one another's handles. The table is made by tests/abuse.rs.
 *
 * Arguments are passed as words: on the platforms that there are, a handle, a pointer and a number
 * are passed in the same way. */
#include "../examples/example.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

typedef portolan_status (*any)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t,
                               uint64_t);

/* h: a handle, p: a place for one, and the number of its kind; t: a text, z: options, d: bytes to
 * read, o: a place, l: a length, u: a deadline, w: the same or to drop, f: a function, c: its context, n: a number. */
static const struct {
    const char *name;
    any call;
    const char *arguments;
} TABLE[] = {
#include "abuse_table.h"
};

enum { FUNCTIONS = sizeof TABLE / sizeof *TABLE, KINDS = 32, KEPT = 24, BYTES = 1 << 17, MOST = 8 };

static _Thread_local uint64_t state;

static uint64_t draw(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state * 0x2545F4914F6CDD1Dull;
}

static uint64_t below(uint64_t end) {
    return (draw() >> 16) % end;
}

/* Handles that were given, the last ones of each kind; some were freed since. */
static _Atomic uint64_t given[KINDS][KEPT];
static _Atomic size_t count_of[KINDS];

static unsigned char readable[BYTES], options[4096];
/* Of each thread. */
static _Thread_local uint64_t (*places)[BYTES / 8];

/* How many threads call; of several, one may use a handle that another one is given beside a wrong one. */
static long threads;

/* Whether this call is to be given what it may be, as far as there is such: or else few would do
 * anything. */
static _Thread_local int careful;

static void ignore(void *context, void *address) {
    (void)context;
    (void)address;
}

static uint64_t one_of(int kind) {
    size_t count = count_of[kind], there = count < KEPT ? count : KEPT;
    return there == 0 ? 0 : given[kind][below(there)];
}

/* What was freed; every second one is used again. */
static void forget(int kind, uint64_t id) {
    int kept = below(4) == 0;
    for (size_t at = 0; at < KEPT && !kept; at++) {
        if (given[kind][at] == id) {
            given[kind][at] = one_of(kind);
        }
    }
}

static int ends(int function, const char *with) {
    const char *name = TABLE[function].name;
    size_t len = strlen(name), tail = strlen(with);
    return len > tail && strcmp(name + len - tail, with) == 0;
}

/* A handle; whether it surely is none of this kind. */
static uint64_t handle(int kind, int *wrong) {
    uint64_t right = one_of(kind);
    switch (careful ? 12 : below(13)) {
    case 0:
        *wrong = 1;
        return 0;
    case 1:
        *wrong = 1;
        return draw() | 1ull << 63;
    case 2:
        *wrong = 1;
        return right ^ 1ull << 62;
    case 3:
        /* Its index is another's, or its generation. */
        *wrong |= right == 0;
        return right ^ 1ull << (16 + below(38));
    case 5:
        /* What is 0 in every handle, below the index. */
        *wrong = 1;
        return right ^ 1ull << below(4);
    case 4: {
        int other = (kind + 1 + (int)below(KINDS - 1)) % KINDS;
        *wrong = 1;
        return one_of(other);
    }
    default:
        *wrong |= right == 0;
        return right;
    }
}

static uint64_t number(void) {
    static const uint64_t numbers[] = {0, 1, 2, 3, 8, 64, 4096, 1 << 20, INT64_MAX, UINT64_MAX};
    return numbers[below(careful ? 7 : 10)];
}

/* Nothing waits for long. */
static uint64_t until(void) {
    switch (below(20)) {
    case 0:
        return portolan_deadline_after(200000);
    case 1:
        return 1;
    default:
        return PORTOLAN_NOW;
    }
}

static uint64_t text(void) {
    static char longest[5000], one[64], two[64];
    static const char *texts[] = {one, two, "", "with@node", "no/name", "\xff\xfe", longest};
    memset(longest, 'x', sizeof longest - 1);
    snprintf(one, sizeof one, "abuse-one-%d", (int)getpid());
    snprintf(two, sizeof two, "abuse-two-%d", (int)getpid());
    return !careful && below(8) == 0 ? 0 : (uint64_t)(uintptr_t)texts[below(careful ? 2 : 7)];
}

/* Frees what a kind's handles stand for, by every function that may. */
static void empty(void) {
    for (int i = 0; i < FUNCTIONS; i++) {
        if (!ends(i, "_free") && !ends(i, "_off")) {
            continue;
        }
        int kind = atoi(TABLE[i].arguments + 1);
        for (size_t at = 0; at < KEPT; at++) {
            TABLE[i].call(given[kind][at], 0, 0, 0, 0, 0, 0, 0);
            given[kind][at] = 0;
        }
        count_of[kind] = 0;
    }
}

static void fail(const char *what, int function, const uint64_t *words, portolan_status status) {
    fprintf(stderr, "%s: %s(%s), status %d: %s\n", what, TABLE[function].name,
            TABLE[function].arguments, (int)status, portolan_error_text());
    for (int i = 0; i < MOST; i++) {
        fprintf(stderr, "  %#llx\n", (unsigned long long)words[i]);
    }
    exit(1);
}

static portolan_status call(int function) {
    uint64_t words[MOST] = {0};
    int kinds[MOST], at = 0, wrong = 0, first_is_wrong = 0, data_is_null = 0;
    careful = below(2) == 0;
    for (const char *argument = TABLE[function].arguments; *argument != 0; at++) {
        int kind = atoi(argument + 1), null = !careful && below(10) == 0;
        kinds[at] = -1;
        switch (*argument) {
        case 'h':
            words[at] = handle(kind, &wrong);
            first_is_wrong |= at == 0 && wrong;
            break;
        case 'p':
            kinds[at] = kind;
            /* fall through */
        case 'o':
            memset(places[at], 0, 64);
            words[at] = null ? 0 : (uint64_t)(uintptr_t)places[at];
            data_is_null = null;
            break;
        case 'd':
            words[at] = null ? 0 : (uint64_t)(uintptr_t)readable;
            data_is_null = null;
            break;
        case 't':
            words[at] = text();
            break;
        case 'z':
            words[at] = null ? 0 : (uint64_t)(uintptr_t)options;
            break;
        case 'l':
            /* No more than is there, or more than anything has. */
            words[at] = number();
            if (!data_is_null && words[at] > BYTES / 16 && words[at] <= INT64_MAX) {
                words[at] = below(BYTES / 16);
            }
            break;
        case 'u':
            words[at] = until();
            break;
        case 'w':
            words[at] = null ? PORTOLAN_DROP : until();
            break;
        case 'f':
            words[at] = null ? 0 : (uint64_t)(uintptr_t)ignore;
            break;
        case 'n':
            words[at] = number();
            break;
        }
        argument += strcspn(argument, " ");
        argument += *argument == ' ';
    }
    portolan_status status =
        TABLE[function].call(words[0], words[1], words[2], words[3], words[4], words[5], words[6],
                             words[7]);
    if (status == PORTOLAN_PANICKED) {
        fail("a panic", function, words, status);
    }
    if ((int)status < 0 || status > PORTOLAN_OTHER) {
        fail("no status", function, words, status);
    }
    if (wrong && status == PORTOLAN_OK) {
        fail("a wrong handle was taken", function, words, status);
    }
    if (first_is_wrong && status != PORTOLAN_BAD_HANDLE && status != PORTOLAN_BAD_ARGUMENT &&
        status != PORTOLAN_TOO_LONG && (status != PORTOLAN_BUSY || threads == 1)) {
        fail("a wrong handle is not called so", function, words, status);
    }
    if (status != PORTOLAN_OK && portolan_error_text()[0] == 0) {
        fail("an error without a text", function, words, status);
    }
    if (status == PORTOLAN_OK && (ends(function, "_free") || ends(function, "_leave"))) {
        forget(atoi(TABLE[function].arguments + 1), words[0]);
    }
    for (int i = 0; i < at && status == PORTOLAN_OK; i++) {
        if (kinds[i] >= 0 && words[i] != 0 && places[i][0] != 0) {
            given[kinds[i]][count_of[kinds[i]]++ % KEPT] = places[i][0];
        }
    }
    return status;
}

/* What a program does that does nothing wrong. */
static void hello(void) {
    portolan_domain domain;
    must(portolan_domain_private(NULL, &domain));
    portolan_receive_right port;
    must(portolan_domain_bind(domain, NULL, &port));
    portolan_send_right right;
    must(portolan_receive_right_make_send(port, &right));
    portolan_message message;
    must(portolan_message_new("hello", 5, &message));
    must(portolan_send_right_send(right, message, PORTOLAN_FAIL));
    must(portolan_receive_right_receive(port, message, PORTOLAN_LATER, PORTOLAN_NOW));
    const void *header;
    size_t len;
    must(portolan_message_header(message, &header, &len));
    if (len != 5 || memcmp(header, "hello", len) != 0) {
        exit(1);
    }
    must(portolan_message_free(message));
    must(portolan_send_right_free(right));
    must(portolan_receive_right_free(port));
    must(portolan_domain_leave(domain));
}

static _Atomic long answers[PORTOLAN_OTHER + 1], done_well[FUNCTIONS];
static long calls;
static pthread_barrier_t all;

static void *abuse(void *seed) {
    state = (uint64_t)(uintptr_t)seed * 2 + 1;
    places = calloc(MOST, sizeof *places);
    if (places == NULL) {
        exit(1);
    }
    pthread_barrier_wait(&all);
    for (long i = 0; i < calls; i++) {
        int function = (int)below(FUNCTIONS);
        /* Or else nothing lives for long. */
        while ((ends(function, "_free") || ends(function, "_leave")) && below(4) != 0) {
            function = (int)below(FUNCTIONS);
        }
        portolan_status status = call(function);
        answers[status]++;
        done_well[function] += status == PORTOLAN_OK;
        if (i % 5000 == 4999) {
            /* What was lost from the list is the process's until it ends. */
            empty();
        }
    }
    free(places);
    return NULL;
}

/* SEED CALLS THREADS: so many calls by each of so many threads. */
int main(int count, char **arguments) {
    uint64_t seed = count > 1 ? strtoull(arguments[1], NULL, 0) : 1;
    calls = count > 2 ? atol(arguments[2]) : 1000;
    threads = count > 3 ? atol(arguments[3]) : 1;
    pthread_t running[64];
    if (threads < 1 || threads > 64) {
        return 1;
    }
    pthread_barrier_init(&all, NULL, (unsigned)threads);
    for (long i = 0; i < threads; i++) {
        if (pthread_create(&running[i], NULL, abuse, (void *)(uintptr_t)(seed + i)) != 0) {
            return 1;
        }
    }
    for (long i = 0; i < threads; i++) {
        pthread_join(running[i], NULL);
    }
    int ever = 0;
    for (int i = 0; i < FUNCTIONS; i++) {
        ever += done_well[i] > 0;
    }
    printf("%ld calls were answered: %ld well, %ld as bad handles, %ld busy; %d of %d functions did something\n",
           calls * threads, (long)answers[PORTOLAN_OK], (long)answers[PORTOLAN_BAD_HANDLE],
           (long)answers[PORTOLAN_BUSY], ever, (int)FUNCTIONS);
    if (ever < FUNCTIONS * 2 / 3) {
        fprintf(stderr, "most functions were never given what they need\n");
        return 1;
    }
    state = 1;
    empty();
    hello();
    printf("and afterwards all is well\n");
    return 0;
}
