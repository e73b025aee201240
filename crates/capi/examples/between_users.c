/* Joins two programs that do not share a domain: a camera offers a port to processes that know a
 * token, and a guest, which could be another user's program, sends to it and asks it things. */
#include "example.h"

#include <stdint.h>

/* What the guest finds the token under, in its environment. */
static const char SECRET[] = "CAMERA_TOKEN";

enum { WIDTH = 1920, HEIGHT = 1080 };

static portolan_offered_port offer(portolan_receive_right port, const char *name,
                                   const portolan_access_token *token) {
    portolan_offer_options options = {.token = token, .most_bytes = 8 << 20};
    portolan_offered_port offered;
    must(portolan_receive_right_offer(port, name, &options, &offered));
    return offered;
}

/* Prints a message's header in a line of its own. */
static void print_header(const char *before, portolan_message message, const char *after) {
    const void *header;
    size_t len;
    must(portolan_message_header(message, &header, &len));
    printf("%s%.*s%s\n", before, (int)len, (const char *)header, after);
}

static void camera(void) {
    const char *name = own_name("c-camera");
    portolan_domain domain;
    must(portolan_domain_join(name, &domain));
    portolan_receive_right masks, settings;
    must(portolan_domain_bind(domain, NULL, &masks));
    portolan_port_options synchronous = {.synchronous = true};
    must(portolan_domain_bind(domain, &synchronous, &settings));

    /* A client does not join our domain: it sees none of our memory, and its messages are copied. */
    portolan_access_token token;
    must(portolan_access_token_random(&token));
    portolan_offered_port masks_offered = offer(masks, "masks", &token);
    portolan_offered_port settings_offered = offer(settings, "settings", &token);

    char secret[2 * sizeof token.bytes + 1];
    for (size_t at = 0; at < sizeof token.bytes; at++) {
        snprintf(secret + 2 * at, 3, "%02x", token.bytes[at]);
    }
    setenv(SECRET, secret, 1);
    pid_t guest = start(name, NULL);

    portolan_message message;
    must(portolan_message_new(NULL, 0, &message));
    portolan_send_once_right reply;
    must(portolan_receive_right_get_request(settings, message, PORTOLAN_LATER, soon(), &reply));
    print_header("camera: asked for \"", message, "\"");
    must(portolan_message_set_header(message, "1920 x 1080", 11));
    must(portolan_send_once_right_send(reply, message));

    must(portolan_receive_right_receive(masks, message, PORTOLAN_AT_ONCE, soon()));
    size_t extents, len = 0, covered = 0;
    must(portolan_message_extents(message, &extents, NULL));
    for (size_t index = 0; index < extents; index++) {
        void *data;
        size_t part;
        must(portolan_message_extent(message, index, &data, &part));
        for (size_t at = 0; at < part; at++) {
            covered += ((unsigned char *)data)[at] != 0;
        }
        len += part;
    }
    printf("camera: a mask of %zu bytes covers %zu\n", len, covered);
    /* Withdrawn, its right is a dead name: the guest may go. */
    must(portolan_offered_port_free(settings_offered));
    finish(guest);
    size_t violations;
    must(portolan_offered_port_take_violations(masks_offered, &violations));
    printf("camera: %zu clients broke the rules\n", violations);
    must(portolan_offered_port_free(masks_offered));
    must(portolan_message_free(message));
    must(portolan_receive_right_free(settings));
    must(portolan_receive_right_free(masks));
    must(portolan_domain_leave(domain));
}

static portolan_access_token token_in(const char *secret) {
    portolan_access_token token = {{0}};
    if (secret == NULL || strlen(secret) != 2 * sizeof token.bytes) {
        return token;
    }
    for (size_t at = 0; at < sizeof token.bytes; at++) {
        sscanf(secret + 2 * at, "%2hhx", &token.bytes[at]);
    }
    return token;
}

/* A message with a header and so many bytes. */
static portolan_message mask_of(portolan_domain domain, const char *header, size_t len) {
    portolan_message message;
    must(portolan_message_new(header, strlen(header), &message));
    portolan_extent extent;
    must(portolan_domain_allocate(domain, len, &extent));
    must(portolan_message_push(message, extent));
    return message;
}

static void guest(const char *camera) {
    char name[80];
    snprintf(name, sizeof name, "guest-of-%s", camera);
    portolan_domain domain;
    must(portolan_domain_join(name, &domain));
    portolan_access_token token = token_in(getenv(SECRET));
    /* Of another user's camera: `.of_user = UID, .is_of_user = true`. */
    portolan_domain_options cameras = {.name = camera};
    portolan_connect_options options = {.token = &token};

    portolan_send_right settings, masks;
    must(portolan_domain_connect_to(domain, &cameras, "settings", &options, soon(), &settings));
    portolan_message message;
    must(portolan_message_new("the resolution", 14, &message));
    must(portolan_send_right_request_reply(settings, message, PORTOLAN_LATER, soon()));
    print_header("guest: ", message, "");
    must(portolan_message_free(message));

    must(portolan_domain_connect_to(domain, &cameras, "masks", &options, soon(), &masks));
    message = mask_of(domain, "above the horizon", WIDTH * HEIGHT);
    void *data;
    size_t len;
    must(portolan_message_extent(message, 0, &data, &len));
    memset(data, 0, len);
    memset(data, 1, WIDTH * 100);
    must(portolan_send_right_send(masks, message, soon()));
    must(portolan_message_free(message));

    /* More than the camera takes is refused here, and comes back. */
    message = mask_of(domain, "too much", 9 << 20);
    if (portolan_send_right_send(masks, message, soon()) == PORTOLAN_TOO_LONG) {
        must(portolan_message_extents(message, NULL, &len));
        printf("guest: %zu bytes came back\n", len);
    }
    must(portolan_message_free(message));
    /* What was sent goes over while this process lives; the camera says when it may end. */
    portolan_right_state state;
    do {
        usleep(5000);
        must(portolan_send_right_state(settings, &state));
    } while (state != PORTOLAN_RIGHT_DEAD);
    must(portolan_send_right_free(masks));
    must(portolan_send_right_free(settings));
    must(portolan_domain_leave(domain));
}

int main(int count, char **arguments) {
    if (count > 1) {
        guest(arguments[1]);
    } else {
        camera();
    }
    return 0;
}
