/* Reconnect: a worker is killed in the middle of its work, and its sender goes on with the next one. */
#include "example.h"

#include <signal.h>
#include <stdint.h>

enum { JOBS = 40 };

/* Does jobs until it has done the last, and then says which that was. */
static void work(const char *name) {
    portolan_domain domain;
    must(portolan_domain_join(name, &domain));
    /* The worker that was killed has the name for another moment. */
    portolan_port_options options = {.name = "jobs", .queue = 7};
    portolan_receive_right jobs;
    must(portolan_domain_bind_when_free(domain, &options, soon(), &jobs));
    portolan_message message;
    must(portolan_message_new(NULL, 0, &message));
    uint64_t last = 0;
    while (last < JOBS) {
        must(portolan_receive_right_receive(jobs, message, PORTOLAN_LATER, soon()));
        const void *header;
        size_t len;
        must(portolan_message_header(message, &header, &len));
        memcpy(&last, header, sizeof last);
        usleep(2000);
    }
    options = (portolan_port_options){.name = "total", .synchronous = true};
    portolan_receive_right total;
    must(portolan_domain_bind(domain, &options, &total));
    portolan_send_once_right reply;
    must(portolan_receive_right_get_request(total, message, PORTOLAN_LATER, soon(), &reply));
    must(portolan_message_set_header(message, &last, sizeof last));
    must(portolan_send_once_right_send(reply, message));
    must(portolan_message_free(message));
    must(portolan_receive_right_free(total));
    must(portolan_receive_right_free(jobs));
    must(portolan_domain_leave(domain));
}

static void send_jobs(void) {
    const char *name = own_name("c-reconnect");
    portolan_domain domain;
    must(portolan_domain_join(name, &domain));
    pid_t worker = start(name, NULL);
    portolan_reconnecting_sender jobs;
    must(portolan_domain_reconnecting_sender(domain, "jobs", &jobs));
    portolan_message message;
    must(portolan_message_new(NULL, 0, &message));
    uint64_t lost = 0;
    for (uint64_t number = 1; number <= JOBS; number++) {
        if (number == 21) {
            /* It gets no chance to say anything. */
            kill(worker, SIGKILL);
            waitpid(worker, NULL, 0);
            worker = start(name, NULL);
        }
        /* Waits for a worker. After the death it finds the next one, and says what may be lost. */
        must(portolan_message_set_header(message, &number, sizeof number));
        portolan_sent sent;
        must(portolan_reconnecting_sender_send(jobs, message, soon(), &sent));
        if (sent.lost.receiver != 0) {
            printf("sender: worker %llu has died\n", (unsigned long long)sent.lost.receiver);
            lost += sent.lost.at_most;
        }
    }

    /* An answer says more than a count: the worker answers with the last job that it has done. */
    portolan_reconnecting_sender total;
    must(portolan_domain_reconnecting_sender(domain, "total", &total));
    portolan_send_right right;
    must(portolan_reconnecting_sender_right(total, soon(), &right));
    must(portolan_send_right_request_reply(right, message, PORTOLAN_AT_ONCE, soon()));
    const void *header;
    size_t len;
    must(portolan_message_header(message, &header, &len));
    uint64_t done = 0;
    memcpy(&done, header, sizeof done);
    printf("sender: the next worker did the rest, up to job %llu of %d\n",
           (unsigned long long)done, JOBS);
    printf("sender: of some it is not known whether they were done: %s\n",
           lost > 0 ? "true" : "false");
    finish(worker);
    must(portolan_send_right_free(right));
    must(portolan_reconnecting_sender_free(total));
    must(portolan_reconnecting_sender_free(jobs));
    must(portolan_message_free(message));
    must(portolan_domain_leave(domain));
}

int main(int count, char **arguments) {
    if (count > 1) {
        work(arguments[1]);
    } else {
        send_jobs();
    }
    return 0;
}
