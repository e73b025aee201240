/* What the examples share: an error ends the program, and the other process is this program again. */
#ifndef EXAMPLE_H
#define EXAMPLE_H

#include <portolan.h>

#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

#define SECONDS 1000000000ull

/* Ends the program if a call has failed, with the reason. */
static inline void must(portolan_status status) {
    if (status != PORTOLAN_OK) {
        fprintf(stderr, "error %d: %s\n", (int)status, portolan_error_text());
        exit(1);
    }
}

/* Half a minute from now. */
static inline portolan_deadline soon(void) {
    return portolan_deadline_after(30 * SECONDS);
}

/* Starts this program again as another process, with these arguments; NULL ends them. */
static inline pid_t start_with(const char *const arguments[]) {
    pid_t child = 0;
    if (posix_spawn(&child, "/proc/self/exe", NULL, NULL, (char **)arguments, environ) != 0) {
        perror("posix_spawn");
        exit(1);
    }
    return child;
}

/* The same with the domain's name, and perhaps more to do. */
static inline pid_t start(const char *domain, const char *what) {
    const char *const arguments[] = {"example", domain, what, NULL};
    return start_with(arguments);
}

/* Waits for a process; it must have ended well. */
static inline void finish(pid_t child) {
    int status = 0;
    if (waitpid(child, &status, 0) != child || status != 0) {
        fprintf(stderr, "the other process has failed\n");
        exit(1);
    }
}

/* Ends a process that would go on, as by `kill -9`. */
static inline void end(pid_t child) {
    if (kill(child, SIGKILL) != 0 || waitpid(child, NULL, 0) != child) {
        perror("kill");
        exit(1);
    }
}

/* A name of a domain that no other process has. */
static inline const char *own_name(const char *of) {
    static char name[64];
    snprintf(name, sizeof name, "%s-%d", of, (int)getpid());
    return name;
}

#endif
