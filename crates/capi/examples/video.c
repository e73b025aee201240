/* A picture stream: one camera, and a viewer that is slower than it.
 *
 * The channel is message-consistent: the camera writes each frame once and waits for nobody. A
 * viewer that is too slow loses frames, knows which, and never sees half of one. */
#include "example.h"

enum { FRAMES = 200, PIXELS = 4000 };

static void camera(const char *name) {
    portolan_domain domain;
    must(portolan_domain_join(name, &domain));
    portolan_channel channel;
    must(portolan_domain_find_channel(domain, "video", soon(), &channel));
    portolan_writer writer;
    must(portolan_channel_bind_writer(channel, &writer));
    unsigned char frame[PIXELS];
    for (int number = 1; number <= FRAMES; number++) {
        memset(frame, number, sizeof frame);
        must(portolan_writer_write(writer, frame, sizeof frame, PORTOLAN_NOW, NULL));
    }
    must(portolan_writer_free(writer));
    must(portolan_channel_free(channel));
    must(portolan_domain_leave(domain));
}

static void viewer(void) {
    const char *name = own_name("c-video");
    portolan_domain domain;
    must(portolan_domain_join(name, &domain));
    /* A frame takes one unit; the ring holds 16 of them. */
    portolan_channel_options options = {.name = "video", .unit = 4096, .units = 16};
    portolan_channel channel;
    must(portolan_domain_make_channel(domain, &options, &channel));
    portolan_reader reader;
    must(portolan_channel_bind_reader(channel, NULL, &reader));
    /* All frames are written before the viewer looks. */
    finish(start(name, NULL));

    int seen = 0, torn = 0, last = 0;
    unsigned long long lost = 0;
    for (;;) {
        const void *data;
        size_t len;
        portolan_missed missed;
        portolan_status status =
            portolan_reader_receive(reader, soon(), &data, &len, NULL, &missed);
        if (status == PORTOLAN_MISSED) {
            lost += missed.to - missed.from;
            continue;
        }
        if (status == PORTOLAN_WRITER_GONE) {
            break;
        }
        must(status);
        const unsigned char *frame = data;
        torn += len != PIXELS || frame[0] != frame[len - 1];
        last = frame[0];
        seen++;
    }
    printf("frames: %llu in all, the last is %d, %d torn\n", lost + (unsigned)seen, last, torn);
    printf("the viewer was slow: %s\n", lost > 0 ? "it lost some, and knows how many" : "no");

    must(portolan_reader_free(reader));
    must(portolan_channel_free(channel));
    must(portolan_domain_leave(domain));
}

int main(int count, char **arguments) {
    if (count > 1) {
        camera(arguments[1]);
    } else {
        viewer();
    }
    return 0;
}
