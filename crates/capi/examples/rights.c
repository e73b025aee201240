/* Rights: they travel in messages, and a port knows when no sender is left.
 *
 * A guest hands the keeper the right to send to a port that has no name, so that no one else can. */
#include "example.h"

static void say(portolan_send_right to, const char *text) {
    portolan_message message;
    must(portolan_message_new(text, strlen(text), &message));
    must(portolan_send_right_send(to, message, soon()));
    must(portolan_message_free(message));
}

static void print(const char *who, portolan_message message) {
    const void *header;
    size_t len;
    must(portolan_message_header(message, &header, &len));
    printf("%s \"%.*s\"\n", who, (int)len, (const char *)header);
    fflush(stdout);
}

static void keeper(void) {
    const char *name = own_name("c-rights");
    portolan_domain domain;
    must(portolan_domain_join(name, &domain));
    portolan_port_options options = {.name = "lobby"};
    portolan_receive_right lobby;
    must(portolan_domain_bind(domain, &options, &lobby));
    pid_t guest = start(name, NULL);

    portolan_message message;
    must(portolan_message_new(NULL, 0, &message));
    must(portolan_receive_right_receive(lobby, message, PORTOLAN_LATER, soon()));
    print("keeper: a guest says", message);
    portolan_right rights[PORTOLAN_MAX_RIGHTS];
    size_t count;
    must(portolan_message_take_rights(message, rights, PORTOLAN_MAX_RIGHTS, &count));
    if (count == 1 && rights[0].kind == PORTOLAN_RIGHT_SEND) {
        /* The holder of a right may use it; this one came with the message. */
        portolan_send_right room = {rights[0].id};
        say(room, "breakfast is at eight");
        say(room, "the key is yours");
        /* Freed here, and it was the only one. */
        must(portolan_send_right_free(room));
    }
    finish(guest);
    must(portolan_message_free(message));
    must(portolan_receive_right_free(lobby));
    must(portolan_domain_leave(domain));
}

static void guest(const char *name) {
    portolan_domain domain;
    must(portolan_domain_join(name, &domain));
    portolan_send_right lobby;
    must(portolan_domain_connect(domain, "lobby", soon(), &lobby));

    /* A port without a name is reached by those only who are given a right on it. */
    portolan_receive_right room;
    must(portolan_domain_bind(domain, NULL, &room));
    portolan_send_right right;
    must(portolan_receive_right_make_send(room, &right));
    portolan_message message;
    must(portolan_message_new("write to my room", 16, &message));
    must(portolan_message_attach_send_right(message, right));
    must(portolan_send_right_send(lobby, message, soon()));

    /* Rights are counted, also while they travel and when their holder is killed. */
    must(portolan_receive_right_request_no_more_senders(room));
    for (;;) {
        must(portolan_receive_right_receive(room, message, PORTOLAN_LATER, soon()));
        portolan_notice notice;
        must(portolan_message_notice(message, &notice));
        if (notice.kind == PORTOLAN_NOTICE_NO_MORE_SENDERS) {
            printf("guest: nobody can write to me any more\n");
            break;
        }
        print("guest: got", message);
    }

    /* The other way round: a right on a port that is gone is a dead name, and no crash. */
    must(portolan_receive_right_make_send(room, &right));
    must(portolan_receive_right_free(room));
    if (portolan_send_right_send(right, message, soon()) == PORTOLAN_DEAD_NAME) {
        printf("guest: not sent, for the port is dead\n");
    }
    must(portolan_send_right_free(right));
    must(portolan_send_right_free(lobby));
    must(portolan_message_free(message));
    must(portolan_domain_leave(domain));
}

int main(int count, char **arguments) {
    if (count > 1) {
        guest(arguments[1]);
    } else {
        keeper();
    }
    return 0;
}
