/* A program gives another one a right on a port of a third, and is gone: the right works on.
 *
 * Without arguments it is three processes in one domain. The three may as well be on three machines,
 * whose nodes span a domain; nothing changes in the programs:
 *
 *     handoff home DOMAIN        # on one machine: DOMAIN is that machine's name for the domain
 *     handoff receiver DOMAIN    # on another
 *     handoff giver DOMAIN       # on a third */
#include "example.h"

static portolan_receive_right bind_spanned(portolan_domain domain, const char *name, bool synchronous) {
    portolan_port_options options = {.name = name, .synchronous = synchronous, .spanned = true};
    portolan_receive_right port;
    must(portolan_domain_bind(domain, &options, &port));
    return port;
}

/* Counts for all that have a right, until one says that it was enough. */
static void home(portolan_domain domain) {
    portolan_receive_right counter = bind_spanned(domain, "counter", true);
    portolan_message message;
    must(portolan_message_new(NULL, 0, &message));
    for (size_t len = 1; len > 0;) {
        portolan_send_once_right reply;
        must(portolan_receive_right_get_request(counter, message, PORTOLAN_LATER, soon(), &reply));
        const void *header;
        must(portolan_message_header(message, &header, &len));
        if (len > 0) {
            unsigned char next = *(const unsigned char *)header + 1;
            must(portolan_message_set_header(message, &next, 1));
        }
        must(portolan_send_once_right_send(reply, message));
    }
    must(portolan_message_free(message));
    must(portolan_receive_right_free(counter));
}

/* Knows nothing of the counter but the right that it is given. */
static void receiver(portolan_domain domain) {
    portolan_receive_right inbox = bind_spanned(domain, "receiver", false);
    portolan_message message;
    must(portolan_message_new(NULL, 0, &message));
    must(portolan_receive_right_receive(inbox, message, PORTOLAN_LATER, soon()));
    portolan_right rights[PORTOLAN_MAX_RIGHTS];
    size_t count;
    must(portolan_message_take_rights(message, rights, PORTOLAN_MAX_RIGHTS, &count));
    if (count != 1 || rights[0].kind != PORTOLAN_RIGHT_SEND) {
        fprintf(stderr, "a message without a right\n");
        exit(1);
    }
    portolan_send_right counter = {rights[0].id};
    unsigned char number = 41;
    must(portolan_message_set_header(message, &number, 1));
    must(portolan_send_right_request_reply(counter, message, PORTOLAN_LATER, soon()));
    const void *header;
    size_t len;
    must(portolan_message_header(message, &header, &len));
    printf("receiver: the counter says %d\n", len == 1 ? *(const unsigned char *)header : -1);
    /* An empty question ends it. */
    must(portolan_message_clear(message));
    must(portolan_send_right_request_reply(counter, message, PORTOLAN_LATER, soon()));
    must(portolan_send_right_free(counter));
    must(portolan_message_free(message));
    must(portolan_receive_right_free(inbox));
}

/* Has a right on the counter, and gives it away. */
static void giver(portolan_domain domain) {
    portolan_send_right counter, receiver;
    must(portolan_domain_connect(domain, "counter", soon(), &counter));
    must(portolan_domain_connect(domain, "receiver", soon(), &receiver));
    portolan_message message;
    must(portolan_message_new("ask this one", 12, &message));
    must(portolan_message_attach_send_right(message, counter));
    must(portolan_send_right_send(receiver, message, soon()));
    printf("giver: gave its right away\n");
    must(portolan_message_free(message));
    must(portolan_send_right_free(receiver));
}

static const struct {
    const char *name;
    void (*play)(portolan_domain);
} ROLES[] = {{"home", home}, {"receiver", receiver}, {"giver", giver}};

enum { COUNT = sizeof ROLES / sizeof *ROLES };

int main(int count, char **arguments) {
    const char *name = count > 2 ? arguments[2] : own_name("c-handoff");
    portolan_domain domain;
    must(portolan_domain_join(name, &domain));
    pid_t children[COUNT];
    for (int i = 0; i < COUNT; i++) {
        if (count < 3) {
            children[i] =
                start_with((const char *const[]){"example", ROLES[i].name, name, NULL});
        } else if (strcmp(arguments[1], ROLES[i].name) == 0) {
            ROLES[i].play(domain);
        }
    }
    for (int i = 0; i < COUNT && count < 3; i++) {
        finish(children[i]);
    }
    must(portolan_domain_leave(domain));
    return 0;
}
