/* Finds a server by calling on a well-known channel, as on citizens' band radio: many write, many
 * listen, and the server that is called answers. */
#include "example.h"

/* The one well-known name. */
static const char CALLS[] = "calls";

/* Sends a message with a right on `port`, so that the other side can ask. */
static void answer(portolan_send_right client, portolan_receive_right port) {
    portolan_message message;
    must(portolan_message_new(NULL, 0, &message));
    portolan_send_right right;
    must(portolan_receive_right_make_send(port, &right));
    must(portolan_message_attach_send_right(message, right));
    must(portolan_send_right_send(client, message, soon()));
    must(portolan_message_free(message));
}

/* Reads calls until this service is called. Others are called here too, and a call that was missed
 * comes again. */
static void wait_for_call(portolan_reader calls, const char *service) {
    const void *call;
    size_t len;
    do {
        portolan_status status = portolan_reader_receive(calls, soon(), &call, &len, NULL, NULL);
        if (status == PORTOLAN_MISSED) {
            len = 0;
            continue;
        }
        must(status);
    } while (len != strlen(service) || memcmp(call, service, len) != 0);
}

static void serve(const char *name, const char *service) {
    portolan_domain domain;
    must(portolan_domain_join(name, &domain));
    portolan_channel channel;
    must(portolan_domain_find_channel(domain, CALLS, soon(), &channel));
    portolan_reader calls;
    must(portolan_channel_bind_reader(channel, NULL, &calls));
    portolan_port_options options = {.synchronous = true};
    portolan_receive_right requests;
    must(portolan_domain_bind(domain, &options, &requests));
    wait_for_call(calls, service);
    char inbox[64];
    snprintf(inbox, sizeof inbox, "wants a %s", service);
    portolan_send_right client;
    must(portolan_domain_connect(domain, inbox, soon(), &client));
    answer(client, requests);

    portolan_message message;
    must(portolan_message_new(NULL, 0, &message));
    for (size_t len = 1; len > 0;) {
        portolan_send_once_right reply;
        must(portolan_receive_right_get_request(requests, message, PORTOLAN_LATER, soon(), &reply));
        const void *header;
        must(portolan_message_header(message, &header, &len));
        if (len > 0) {
            unsigned char number = *(const unsigned char *)header;
            number = strcmp(service, "adder") == 0 ? number + 1 : number * 2;
            must(portolan_message_set_header(message, &number, 1));
        }
        must(portolan_send_once_right_send(reply, message));
    }
    must(portolan_message_free(message));
    must(portolan_send_right_free(client));
    must(portolan_receive_right_free(requests));
    must(portolan_reader_free(calls));
    must(portolan_channel_free(channel));
    must(portolan_domain_leave(domain));
}

/* Calls until a server answers, with a right on a port of its own. */
static portolan_send_right find(portolan_domain domain, portolan_channel channel,
                                const char *service) {
    /* The call says who is wanted; the port's name says where the answer goes. */
    char name[64];
    snprintf(name, sizeof name, "wants a %s", service);
    portolan_port_options options = {.name = name};
    portolan_receive_right inbox;
    must(portolan_domain_bind(domain, &options, &inbox));
    portolan_writer writer;
    must(portolan_channel_bind_writer(channel, &writer));
    portolan_message message;
    must(portolan_message_new(NULL, 0, &message));
    portolan_status status;
    do {
        /* No server may have listened yet, so the client calls again. */
        must(portolan_writer_write(writer, service, strlen(service), soon(), NULL));
        status = portolan_receive_right_receive(inbox, message, PORTOLAN_LATER,
                                                portolan_deadline_after(SECONDS / 20));
    } while (status == PORTOLAN_TIMED_OUT);
    must(status);
    portolan_right rights[PORTOLAN_MAX_RIGHTS];
    size_t count;
    must(portolan_message_take_rights(message, rights, PORTOLAN_MAX_RIGHTS, &count));
    if (count != 1 || rights[0].kind != PORTOLAN_RIGHT_SEND) {
        fprintf(stderr, "an answer without a right\n");
        exit(1);
    }
    must(portolan_message_free(message));
    must(portolan_writer_free(writer));
    must(portolan_receive_right_free(inbox));
    return (portolan_send_right){rights[0].id};
}

static void call(void) {
    const char *name = own_name("c-find-server");
    portolan_domain domain;
    must(portolan_domain_join(name, &domain));
    portolan_channel_options options = {.name = CALLS, .many_writers = true};
    portolan_channel channel;
    must(portolan_domain_make_channel(domain, &options, &channel));
    pid_t servers[] = {start(name, "adder"), start(name, "doubler")};

    const char *services[] = {"doubler", "adder"};
    const unsigned char numbers[] = {21, 41};
    for (int i = 0; i < 2; i++) {
        portolan_send_right server = find(domain, channel, services[i]);
        /* From here on the two talk in private. */
        portolan_message message;
        must(portolan_message_new(&numbers[i], 1, &message));
        must(portolan_send_right_request_reply(server, message, PORTOLAN_LATER, soon()));
        const void *header;
        size_t len;
        must(portolan_message_header(message, &header, &len));
        printf("the %s says %d\n", services[i], len == 1 ? *(const unsigned char *)header : -1);
        /* An empty question sends it home. */
        must(portolan_message_clear(message));
        must(portolan_send_right_request_reply(server, message, PORTOLAN_LATER, soon()));
        must(portolan_message_free(message));
        must(portolan_send_right_free(server));
    }
    finish(servers[0]);
    finish(servers[1]);
    must(portolan_channel_free(channel));
    must(portolan_domain_leave(domain));
}

int main(int count, char **arguments) {
    if (count > 2) {
        serve(arguments[1], arguments[2]);
    } else {
        call();
    }
    return 0;
}
