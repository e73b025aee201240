/*
 * Portolan: hand memory over between processes instead of copying it. The C ABI.
 *
 * Calls are called after the Rust library's: `SendRight::send` is `portolan_send_right_send`.
 * Link with `-lportolan`, or with what `pkg-config --cflags --libs portolan` says.
 *
 * What holds of every function:
 *
 * - It answers with a code; `portolan_error_text` says more of the thread's last failure: who is to
 *   blame, with which values, and what to do. That text is there until the thread's next call.
 * - A handle is a number and no pointer. One that is null ({0}), was freed or given away, or is
 *   another kind's is answered with PORTOLAN_BAD_HANDLE, and nothing happens.
 * - A call that fails has taken nothing, unless it says so: handles that it was given are the
 *   caller's still. Results are written only where it is answered with PORTOLAN_OK.
 * - A pointer that is not NULL points at what the function's type says, for as long as the call
 *   lasts: that is all that cannot be checked. One to a result may be NULL only where that is said;
 *   else it is PORTOLAN_BAD_ARGUMENT. Texts are UTF-8, ended by a zero.
 * - No call waits without a deadline.
 *
 * "Threads" says from which threads a function may be called: any, and with one handle any number
 * at once, or one at a time. A second one at the same time is answered with PORTOLAN_BUSY at once;
 * nothing is locked, and nothing breaks. "Owns" says whose a handle and whose bytes are afterwards.
 *
 * A forked child is no member of its parent's domains: all its calls with the parent's handles are
 * PORTOLAN_DISOWNED. It is to exec, or to join by itself after that.
 */


#ifndef PORTOLAN_H
#define PORTOLAN_H

/* Written by cbindgen from crates/capi/src: change that, and `cargo xtask capi --header`. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/**
 * Bytes of a header at the most.
 */
#define PORTOLAN_MAX_HEADER 4096

/**
 * Extents of one message at the most.
 */
#define PORTOLAN_MAX_EXTENTS 1024

/**
 * Rights of one message at the most.
 */
#define PORTOLAN_MAX_RIGHTS 64

/**
 * How a call ended. `portolan_error_text` says more of the last one that failed.
 *
 * The codes name causes, and one cause has one code whatever call it ends.
 */
typedef enum portolan_status {
    /**
     * It did what it says.
     */
    PORTOLAN_OK = 0,
    /**
     * The caller's: a handle is null, was freed or given away, is another kind's, or was never made.
     */
    PORTOLAN_BAD_HANDLE = 1,
    /**
     * The caller's: another call uses the handle, and only one may at a time.
     */
    PORTOLAN_BUSY = 2,
    /**
     * The caller's: a pointer is null, a number is none of those named, a text is not UTF-8.
     */
    PORTOLAN_BAD_ARGUMENT = 3,
    /**
     * The caller's: there is no such name for what was to be named.
     */
    PORTOLAN_BAD_NAME = 4,
    /**
     * The caller's: too long for what it was to be put into.
     */
    PORTOLAN_TOO_LONG = 5,
    /**
     * The caller's: it is of another kind: synchronous, raw, of another type.
     */
    PORTOLAN_WRONG_KIND = 6,
    /**
     * The caller's: it belongs to another domain.
     */
    PORTOLAN_FOREIGN = 7,
    /**
     * The caller's: this process may not.
     */
    PORTOLAN_NOT_PERMITTED = 8,
    /**
     * The caller's: it lies outside of the memory, or of what may be used of it.
     */
    PORTOLAN_OUT_OF_BOUNDS = 9,
    /**
     * The state's: nothing came before the deadline.
     */
    PORTOLAN_TIMED_OUT = 10,
    /**
     * The state's: the queue, or the channel, is full.
     */
    PORTOLAN_FULL = 11,
    /**
     * The state's: there is nothing of that name, or no such thing.
     */
    PORTOLAN_NOT_FOUND = 12,
    /**
     * The state's: something else has that name.
     */
    PORTOLAN_NAME_TAKEN = 13,
    /**
     * The state's: no memory within the domain's limit, or the machine's.
     */
    PORTOLAN_OUT_OF_MEMORY = 14,
    /**
     * The state's: as many of these as there can be.
     */
    PORTOLAN_NO_ROOM = 15,
    /**
     * The state's: it was closed, ended, or taken back by its owner.
     */
    PORTOLAN_CLOSED = 16,
    /**
     * The peer's: the port is gone, by its owner's act or death.
     */
    PORTOLAN_DEAD_NAME = 17,
    /**
     * The peer's: it ended, or was killed, before it answered.
     */
    PORTOLAN_PEER_DIED = 18,
    /**
     * The peer's: it dropped the request unanswered, or the reader.
     */
    PORTOLAN_DROPPED = 19,
    /**
     * The peer's: the node between is silent; it may come back.
     */
    PORTOLAN_UNREACHABLE = 20,
    /**
     * The peer's: it did not answer in time; it may be stopped.
     */
    PORTOLAN_UNANSWERED = 21,
    /**
     * The peer's: what it wrote is not what a program of this library writes.
     */
    PORTOLAN_GARBLED = 22,
    /**
     * The peer's: it speaks another version.
     */
    PORTOLAN_OTHER_VERSION = 23,
    /**
     * The state's: units were overwritten before they were read. Read on.
     */
    PORTOLAN_MISSED = 24,
    /**
     * The state's: the channel's writer has gone. Read on to wait for the next one.
     */
    PORTOLAN_WRITER_GONE = 25,
    /**
     * The caller's: this process was forked from a member, or has lost its connection.
     */
    PORTOLAN_DISOWNED = 26,
    /**
     * The system's: it has refused something; the text says what.
     */
    PORTOLAN_SYSTEM = 27,
    /**
     * The library's: a fault in it, which was caught. Free what the call was given, and report it.
     */
    PORTOLAN_PANICKED = 28,
    /**
     * None of these; the text says what.
     */
    PORTOLAN_OTHER = 29,
} portolan_status;

/**
 * How long a call may wait: until this many nanoseconds of `CLOCK_MONOTONIC`.
 */
typedef uint64_t portolan_deadline;

/**
 * A membership in a domain. It ends when its last handle of any kind is freed.
 *
 * Threads: any number of threads at once.
 */
typedef struct portolan_domain {
    /**
     * 0 for none. Nothing else is to be read from it.
     */
    uint64_t id;
} portolan_domain;

/**
 * What happens to a sender's access to the memory that it sends.
 */
typedef uint32_t portolan_protection;

/**
 * How to join a domain, and what it is like if this process is the first. All zeros are what
 * holds if nothing else is said; so `{ .name = "cameras" }` is enough.
 */
typedef struct portolan_domain_options {
    /**
     * The domain's name; for a private one it may be NULL.
     */
    const char *name;
    /**
     * Bytes of addresses for extents; 0 for 16 GiB.
     */
    uint64_t size;
    /**
     * Bytes of memory that the extents may have; 0 for half of what is available.
     */
    uint64_t limit;
    /**
     * Nanoseconds that joining may take; 0 for five seconds.
     */
    uint64_t deadline;
    /**
     * What this process is called in `portolan ls`; NULL for its program's name.
     */
    const char *space_name;
    /**
     * A directory in which the members meet; NULL for an abstract socket.
     */
    const char *path;
    /**
     * Users that may join beside the domain's own.
     */
    const uint32_t *allow_users;
    /**
     * How many.
     */
    size_t allow_users_len;
    /**
     * Groups whose members may join.
     */
    const uint32_t *allow_groups;
    /**
     * How many.
     */
    size_t allow_groups_len;
    /**
     * See `portolan_protection`.
     */
    portolan_protection protection;
    /**
     * Whose domain it is, if `is_of_user`.
     */
    uint32_t of_user;
    /**
     * Join the domain of the user `of_user`.
     */
    bool is_of_user;
    /**
     * Lock the pages of extents in memory.
     */
    bool lock_pages;
    /**
     * Keep this process's own mapping of a guarded domain open.
     */
    bool always_open;
    /**
     * Fail if the domain is not there, instead of making it.
     */
    bool no_create;
    /**
     * Have this machine's node span the domain.
     */
    bool spanning;
} portolan_domain_options;

/**
 * What a domain is like.
 */
typedef struct portolan_domain_state {
    /**
     * This process's number in the domain, from 1 on.
     */
    uint8_t space;
    /**
     * Whether this process hosts the domain now.
     */
    bool is_host;
    /**
     * How extents are protected.
     */
    portolan_protection protection;
} portolan_domain_state;

/**
 * Exclusive use of a run of pages, at the same address in every member of the domain.
 *
 * Threads: one thread at a time, any; a call beside another one is `PORTOLAN_BUSY`.
 */
typedef struct portolan_extent {
    /**
     * 0 for none. Nothing else is to be read from it.
     */
    uint64_t id;
} portolan_extent;

/**
 * A header, extents and rights, to be sent or received.
 *
 * Threads: one thread at a time, any; a call beside another one is `PORTOLAN_BUSY`.
 */
typedef struct portolan_message {
    /**
     * 0 for none. Nothing else is to be read from it.
     */
    uint64_t id;
} portolan_message;

/**
 * What a message tells, if it is no message but something that the port asked to be told.
 */
typedef uint32_t portolan_notice_kind;

/**
 * See `portolan_notice_kind`.
 */
typedef struct portolan_notice {
    /**
     * What is told.
     */
    portolan_notice_kind kind;
    /**
     * What the watcher gave to recognise the port by.
     */
    uint64_t token;
} portolan_notice;

/**
 * How a port is made. All zeros are what holds if nothing else is said.
 */
typedef struct portolan_port_options {
    /**
     * Under which others find it; NULL for a port that is reached only by rights that are sent.
     */
    const char *name;
    /**
     * Messages that the queue holds at least; 0 for 63.
     */
    size_t queue;
    /**
     * Bytes of header and descriptors that travel in the slot itself; 0 for 112.
     */
    size_t inline_bytes;
    /**
     * It takes requests, which are answered.
     */
    bool synchronous;
    /**
     * Hand out the message with the earliest deadline first, then by priority, then in order.
     */
    bool by_urgency;
    /**
     * Give the receiver a copy of what is sent.
     */
    bool copied;
    /**
     * Let the name out to other nodes that span the domain.
     */
    bool spanned;
} portolan_port_options;

/**
 * The right to receive from a port. Freed, it closes the port.
 *
 * Threads: one thread at a time, any; a call beside another one is `PORTOLAN_BUSY`.
 */
typedef struct portolan_receive_right {
    /**
     * 0 for none. Nothing else is to be read from it.
     */
    uint64_t id;
} portolan_receive_right;

/**
 * The right to send any number of messages to a port.
 *
 * Threads: any number of threads at once.
 */
typedef struct portolan_send_right {
    /**
     * 0 for none. Nothing else is to be read from it.
     */
    uint64_t id;
} portolan_send_right;

/**
 * Whether a receiver will touch a message's pages at once.
 */
typedef uint32_t portolan_access;

/**
 * The right to send one message, most often the answer to a request. Freed unused, it tells
 * the client that no answer will come.
 *
 * Threads: one thread at a time, any; a call beside another one is `PORTOLAN_BUSY`.
 */
typedef struct portolan_send_once_right {
    /**
     * 0 for none. Nothing else is to be read from it.
     */
    uint64_t id;
} portolan_send_once_right;

/**
 * How a call waits.
 */
typedef uint32_t portolan_waiting;

/**
 * What a send does when the queue is full: a deadline, to wait for room until then;
 * `PORTOLAN_FAIL`; or `PORTOLAN_DROP`.
 */
typedef uint64_t portolan_when_full;

/**
 * How the port of a right stands.
 */
typedef uint32_t portolan_right_state;

/**
 * Memory that members share: all of them write and read it where it lies.
 *
 * Threads: any number of threads at once.
 */
typedef struct portolan_segment {
    /**
     * 0 for none. Nothing else is to be read from it.
     */
    uint64_t id;
} portolan_segment;

/**
 * Memory that was filled once, and that no program writes any more.
 *
 * Threads: any number of threads at once.
 */
typedef struct portolan_shared_extent {
    /**
     * 0 for none. Nothing else is to be read from it.
     */
    uint64_t id;
} portolan_shared_extent;

/**
 * The right to a channel: to write to it, to read it, to pass it on.
 *
 * Threads: any number of threads at once.
 */
typedef struct portolan_channel {
    /**
     * 0 for none. Nothing else is to be read from it.
     */
    uint64_t id;
} portolan_channel;

/**
 * What a right is.
 */
typedef uint32_t portolan_right_kind;

/**
 * A right that came in a message.
 */
typedef struct portolan_right {
    /**
     * What it is.
     */
    portolan_right_kind kind;
    /**
     * The `id` of a handle of that kind.
     */
    uint64_t id;
} portolan_right;

/**
 * A request on its way, whose answer is waited for. Freed, it is abandoned.
 *
 * Threads: one thread at a time, any; a call beside another one is `PORTOLAN_BUSY`.
 */
typedef struct portolan_pending_reply {
    /**
     * 0 for none. Nothing else is to be read from it.
     */
    uint64_t id;
} portolan_pending_reply;

/**
 * How a channel is to be. All zeros are what holds if nothing else is said: message-consistent
 * (newest data wins), of 1,024 units of a cache line.
 */
typedef struct portolan_channel_options {
    /**
     * Under which others find it; NULL for one that is passed on as a right.
     */
    const char *name;
    /**
     * Bytes of a unit, a multiple of a cache line of which 16 are its head; 0 for 64.
     */
    size_t unit;
    /**
     * Units of the ring, a power of two; 0 for 1,024.
     */
    uint64_t units;
    /**
     * How many readers can have an entry; 0 for 8.
     */
    uint64_t readers;
    /**
     * A number that says what the channel contains, for readers to compare.
     */
    uint64_t content;
    /**
     * Signal at every so many bytes, a multiple of a cache line; 0: at each message.
     */
    uint32_t signal_bytes;
    /**
     * Writers signal no reader: readers poll.
     */
    bool never_signals;
    /**
     * The writer waits for the slowest reader.
     */
    bool reliable;
    /**
     * Any number of processes write, each message in a unit of its own.
     */
    bool many_writers;
} portolan_channel_options;

/**
 * What a channel is like.
 */
typedef struct portolan_channel_shape {
    /**
     * Bytes of a unit, its head included.
     */
    size_t unit;
    /**
     * Units of the ring.
     */
    uint64_t units;
    /**
     * Bytes that one message may have.
     */
    size_t longest;
    /**
     * What its maker says of its content.
     */
    uint64_t content;
    /**
     * The first address of its units, for handlers of signals.
     */
    size_t start;
    /**
     * The address behind the last.
     */
    size_t end;
    /**
     * Whether the writer waits for readers.
     */
    bool is_reliable;
} portolan_channel_shape;

/**
 * The writer of a channel.
 *
 * Threads: one thread at a time, any; a call beside another one is `PORTOLAN_BUSY`.
 */
typedef struct portolan_writer {
    /**
     * 0 for none. Nothing else is to be read from it.
     */
    uint64_t id;
} portolan_writer;

/**
 * What becomes of a reader that lags, on a reliable channel.
 */
typedef uint32_t portolan_lagging;

/**
 * How a reader is to be. All zeros are what holds if nothing else is said.
 */
typedef struct portolan_reader_options {
    /**
     * How many of the units that were written before it wants, as far as they are there.
     */
    uint64_t since_last;
    /**
     * On a reliable channel, what becomes of it if it lags.
     */
    portolan_lagging lagging;
} portolan_reader_options;

/**
 * A reader of a channel, at its own pace.
 *
 * Threads: one thread at a time, any; a call beside another one is `PORTOLAN_BUSY`.
 */
typedef struct portolan_reader {
    /**
     * 0 for none. Nothing else is to be read from it.
     */
    uint64_t id;
} portolan_reader;

/**
 * The units that a reader missed: from one position to before another.
 */
typedef struct portolan_missed {
    /**
     * The first one.
     */
    uint64_t from;
    /**
     * The first one that was not missed, or not yet.
     */
    uint64_t to;
} portolan_missed;

/**
 * How a topic is to be. All zeros are what holds if nothing else is said. How many publish and
 * subscribe the first one who does either decides for all.
 */
typedef struct portolan_topic_options {
    /**
     * Of a publisher: samples that a late subscriber can get; of a subscriber: earlier samples that
     * it wants of each publisher. 0 for one.
     */
    uint64_t history;
    /**
     * How many may subscribe at a time; 0 for 32.
     */
    uint64_t subscribers;
    /**
     * Samples of up to so many bytes are copied; a longer one lies in memory of its own, where it
     * is filled, and read by all. 0 for 4,096.
     */
    size_t copied;
    /**
     * How many may publish at a time; 0 for 8.
     */
    uint8_t publishers;
    /**
     * The subscriber wants no earlier samples, whatever `history` says.
     */
    bool no_history;
} portolan_topic_options;

/**
 * A publisher of a topic.
 *
 * Threads: one thread at a time, any; a call beside another one is `PORTOLAN_BUSY`.
 */
typedef struct portolan_publisher {
    /**
     * 0 for none. Nothing else is to be read from it.
     */
    uint64_t id;
} portolan_publisher;

/**
 * A subscriber of a topic.
 *
 * Threads: one thread at a time, any; a call beside another one is `PORTOLAN_BUSY`.
 */
typedef struct portolan_subscriber {
    /**
     * 0 for none. Nothing else is to be read from it.
     */
    uint64_t id;
} portolan_subscriber;

/**
 * One published value. A long one lies where its publisher filled it, until its last sample is
 * freed.
 *
 * Threads: any number of threads at once.
 */
typedef struct portolan_sample {
    /**
     * 0 for none. Nothing else is to be read from it.
     */
    uint64_t id;
} portolan_sample;

/**
 * Where a sample is from.
 */
typedef struct portolan_sample_origin {
    /**
     * Its number among its publisher's samples.
     */
    uint64_t position;
    /**
     * Samples of that publisher that were missed just before it.
     */
    uint64_t missed;
    /**
     * Who published it.
     */
    uint8_t publisher;
} portolan_sample_origin;

/**
 * Sends to the port that has a name, whichever process has bound it.
 *
 * Threads: one thread at a time, any; a call beside another one is `PORTOLAN_BUSY`.
 */
typedef struct portolan_reconnecting_sender {
    /**
     * 0 for none. Nothing else is to be read from it.
     */
    uint64_t id;
} portolan_reconnecting_sender;

/**
 * What may be lost with a receiver that has died, or has closed its port.
 */
typedef struct portolan_lost {
    /**
     * Which receiver: the one that `portolan_sent` named. 0: nothing was lost.
     */
    uint64_t receiver;
    /**
     * Messages that were sent to it in all.
     */
    uint64_t sent;
    /**
     * So many of these, at most, it has not received: the last ones, unless it receives by
     * urgency. All others were received; whether they were worked off, the receiver alone knew.
     */
    uint64_t at_most;
} portolan_lost;

/**
 * A message was sent.
 */
typedef struct portolan_sent {
    /**
     * Which receiver's queue has it: 1 for the first, and one more after each death.
     */
    uint64_t receiver;
    /**
     * What may be lost with the receiver before, if this is the first message since its death.
     */
    struct portolan_lost lost;
} portolan_sent;

/**
 * A subscriber of a topic that is told of each publisher that left or died.
 *
 * Threads: one thread at a time, any; a call beside another one is `PORTOLAN_BUSY`.
 */
typedef struct portolan_reconnecting_subscriber {
    /**
     * 0 for none. Nothing else is to be read from it.
     */
    uint64_t id;
} portolan_reconnecting_subscriber;

/**
 * A publisher left, or died. What it had published was received, or was missed and is counted.
 *
 * If the next publisher has taken its place already, samples of that one may have come before, and
 * one notice may stand for several publishers that went between two calls.
 */
typedef struct portolan_publisher_gone {
    /**
     * The position at which the samples of this number go on.
     */
    uint64_t next;
    /**
     * Samples that were missed since the last one that was received: overwritten before they were
     * read, left unfinished at the death, or long ones whose memory went with their publisher.
     */
    uint64_t missed;
    /**
     * Which one. The next publisher that comes has this number again, if it is free.
     */
    uint8_t publisher;
} portolan_publisher_gone;

/**
 * How a listener is made. All zeros are what holds if nothing else is said.
 */
typedef struct portolan_listener_options {
    /**
     * Signals that it holds, 512 at most; 0 for 128. One that finds it full is dropped and counted.
     */
    size_t depth;
    /**
     * How it waits.
     */
    portolan_waiting waiting;
} portolan_listener_options;

/**
 * The one thread that handles signals, with its handlers.
 *
 * Threads: one thread at a time, any; a call beside another one is `PORTOLAN_BUSY`.
 */
typedef struct portolan_listener {
    /**
     * 0 for none. Nothing else is to be read from it.
     */
    uint64_t id;
} portolan_listener;

/**
 * How a handler's thread is told.
 */
typedef uint32_t portolan_delivery;

/**
 * What a handler does: `address` lies in its range. It may call this library, but not with its own
 * listener (`PORTOLAN_BUSY`), and must return: no `longjmp`, no exception.
 */
typedef void (*portolan_handle_signal)(void *context, void *address);

/**
 * A handler of a listener.
 *
 * Threads: one thread at a time, any; a call beside another one is `PORTOLAN_BUSY`.
 */
typedef struct portolan_handler {
    /**
     * 0 for none. Nothing else is to be read from it.
     */
    uint64_t id;
} portolan_handler;

/**
 * A descriptor, a timer or a Unix signal that signals an address. Freed, it does not any more.
 *
 * Threads: any number of threads at once.
 */
typedef struct portolan_source {
    /**
     * 0 for none. Nothing else is to be read from it.
     */
    uint64_t id;
} portolan_source;

/**
 * Memory of this process that can be exported.
 *
 * Threads: any number of threads at once.
 */
typedef struct portolan_export_memory {
    /**
     * 0 for none. Nothing else is to be read from it.
     */
    uint64_t id;
} portolan_export_memory;

/**
 * What importers may do.
 */
typedef uint32_t portolan_reach;

/**
 * How memory is exported.
 */
typedef struct portolan_export_options {
    /**
     * Users whose processes may import it; if neither these nor groups are named, it is the own
     * user's.
     */
    const uint32_t *users;
    /**
     * How many.
     */
    size_t users_len;
    /**
     * Groups whose members may import it.
     */
    const uint32_t *groups;
    /**
     * How many.
     */
    size_t groups_len;
    /**
     * How many may have imported it at one time; 0 for 4,096.
     */
    size_t importers;
    /**
     * What they may do.
     */
    portolan_reach reach;
} portolan_export_options;

/**
 * An export of memory. Freed, it ends as by `portolan_export_unexport`.
 *
 * Threads: any number of threads at once.
 */
typedef struct portolan_export {
    /**
     * 0 for none. Nothing else is to be read from it.
     */
    uint64_t id;
} portolan_export;

/**
 * What the importers of one export say that they have written.
 *
 * Threads: one thread at a time, any; a call beside another one is `PORTOLAN_BUSY`.
 */
typedef struct portolan_notifications {
    /**
     * 0 for none. Nothing else is to be read from it.
     */
    uint64_t id;
} portolan_notifications;

/**
 * What an importer says.
 */
typedef struct portolan_notification {
    /**
     * The first byte that it has written, within the export.
     */
    size_t offset;
    /**
     * Bytes; may be none.
     */
    size_t len;
    /**
     * Not 0: it has written more than there was room to tell, so many notes of it; anything may
     * have changed.
     */
    uint64_t several;
    /**
     * The importer's process when it imported; 0 if it is in another namespace.
     */
    uint32_t process;
    /**
     * Its user.
     */
    uint32_t user;
} portolan_notification;

/**
 * An import of another process's memory.
 *
 * Threads: any number of threads at once.
 */
typedef struct portolan_import {
    /**
     * 0 for none. Nothing else is to be read from it.
     */
    uint64_t id;
} portolan_import;

/**
 * Stores to memory of this process that reach an import too, one after another.
 *
 * Threads: one thread at a time, any; a call beside another one is `PORTOLAN_BUSY`.
 */
typedef struct portolan_log {
    /**
     * 0 for none. Nothing else is to be read from it.
     */
    uint64_t id;
} portolan_log;

/**
 * A secret that an offer asks for, of clients that are permitted otherwise.
 */
typedef struct portolan_access_token {
    /**
     * Any bytes. The caller gives them to the other program.
     */
    uint8_t bytes[16];
} portolan_access_token;

/**
 * How a port is offered to other domains. All zeros are what holds if nothing else is said.
 */
typedef struct portolan_offer_options {
    /**
     * Users whose processes may connect; if neither these nor groups are named, and not
     * `permits_anyone`, it is the own user's.
     */
    const uint32_t *users;
    /**
     * How many.
     */
    size_t users_len;
    /**
     * Groups whose members may connect.
     */
    const uint32_t *groups;
    /**
     * How many.
     */
    size_t groups_len;
    /**
     * Asked for in addition; NULL for none.
     */
    const struct portolan_access_token *token;
    /**
     * Bytes of memory that a message may take; 0 for 256 MiB.
     */
    uint64_t most_bytes;
    /**
     * How many may be connected at one time; 0 for 64.
     */
    size_t most_clients;
    /**
     * Requests of a client that are with the server at one time; 0 for 64.
     */
    size_t most_requests;
    /**
     * Nanoseconds that the domain's host may take; 0 for five seconds.
     */
    uint64_t deadline;
    /**
     * Every process whose user is known may connect.
     */
    bool permits_anyone;
} portolan_offer_options;

/**
 * A port that other domains can connect to. Freed, it is offered no more.
 *
 * Threads: any number of threads at once.
 */
typedef struct portolan_offered_port {
    /**
     * 0 for none. Nothing else is to be read from it.
     */
    uint64_t id;
} portolan_offered_port;

/**
 * How a port of another domain is connected to. All zeros are what holds if nothing else is said.
 */
typedef struct portolan_connect_options {
    /**
     * What the offer asks for; NULL for nothing.
     */
    const struct portolan_access_token *token;
    /**
     * Messages that wait in this domain before sending finds the queue full; 0 for 63.
     */
    size_t queue;
    /**
     * Bytes of memory that an answer may take; 0 for 256 MiB.
     */
    uint64_t most_bytes;
} portolan_connect_options;

/**
 * Waits for any number of things at once.
 *
 * Threads: one thread at a time, any; a call beside another one is `PORTOLAN_BUSY`.
 */
typedef struct portolan_wait_set {
    /**
     * 0 for none. Nothing else is to be read from it.
     */
    uint64_t id;
} portolan_wait_set;

/**
 * Do not wait at all.
 */
#define PORTOLAN_NOW 0

/**
 * Wait for as long as it takes.
 */
#define PORTOLAN_NEVER 18446744073709551615ull

/**
 * Give the message back at once.
 */
#define PORTOLAN_FAIL 0

/**
 * Drop the message, count it, and call it sent.
 */
#define PORTOLAN_DROP 18446744073709551614ull

/**
 * As the domain is; one that is made is trusted.
 */
#define PORTOLAN_PROTECTION_ANY 0

/**
 * The handle is used up and the owner changes; page tables stay as they are.
 */
#define PORTOLAN_PROTECTION_TRUSTED 1

/**
 * An extent is accessible only in the process that owns it; a stray access is reported.
 */
#define PORTOLAN_PROTECTION_GUARDED 2

/**
 * It is a message.
 */
#define PORTOLAN_NOTICE_NONE 0

/**
 * No send right on the port is left anywhere.
 */
#define PORTOLAN_NOTICE_NO_MORE_SENDERS 1

/**
 * A send-once right on the port was dropped unused.
 */
#define PORTOLAN_NOTICE_SEND_ONCE_DROPPED 2

/**
 * A watched port has died; `token` says which.
 */
#define PORTOLAN_NOTICE_DEAD_NAME 3

/**
 * A watched port is on a node that is silent; `token` says which.
 */
#define PORTOLAN_NOTICE_UNREACHABLE 4

/**
 * Its node is there again; `token` says which.
 */
#define PORTOLAN_NOTICE_REACHABLE 5

/**
 * Something that this version has no number for.
 */
#define PORTOLAN_NOTICE_OTHER 6

/**
 * Open pages as they are touched, if they are.
 */
#define PORTOLAN_LATER 0

/**
 * Open all pages now, in one batch.
 */
#define PORTOLAN_AT_ONCE 1

/**
 * Spin for an adaptive time, then sleep.
 */
#define PORTOLAN_ADAPTIVE 0

/**
 * Never sleep: lowest latency, one processor at full load.
 */
#define PORTOLAN_POLL 1

/**
 * Sleep at once.
 */
#define PORTOLAN_SLEEP 2

/**
 * The port lives.
 */
#define PORTOLAN_RIGHT_LIVE 0

/**
 * The port is on another node, which is silent. It may be there again.
 */
#define PORTOLAN_RIGHT_UNREACHABLE 1

/**
 * The port is dead, for good.
 */
#define PORTOLAN_RIGHT_DEAD 2

/**
 * A `portolan_send_right`.
 */
#define PORTOLAN_RIGHT_SEND 1

/**
 * A `portolan_send_once_right`.
 */
#define PORTOLAN_RIGHT_SEND_ONCE 2

/**
 * A `portolan_receive_right`.
 */
#define PORTOLAN_RIGHT_RECEIVE 3

/**
 * A `portolan_segment`; of a channel, `portolan_channel_of_segment` makes that of it.
 */
#define PORTOLAN_RIGHT_SEGMENT 4

/**
 * A `portolan_shared_extent`.
 */
#define PORTOLAN_RIGHT_SHARED_EXTENT 5

/**
 * The writer waits for it.
 */
#define PORTOLAN_LAGGING_WAIT 0

/**
 * It misses what is overwritten, and is told.
 */
#define PORTOLAN_LAGGING_SKIP 1

/**
 * It is dropped.
 */
#define PORTOLAN_LAGGING_DROP 2

/**
 * As its listener waits.
 */
#define PORTOLAN_DELIVERY_LISTENED 0

/**
 * The thread looks again and again, and never sleeps.
 */
#define PORTOLAN_DELIVERY_POLLED 1

/**
 * The processor watches the line.
 */
#define PORTOLAN_DELIVERY_MONITORED 2

/**
 * The thread sleeps, at once, and is woken.
 */
#define PORTOLAN_DELIVERY_DOORBELL 3

/**
 * Read it.
 */
#define PORTOLAN_REACH_READ 1

/**
 * Write it.
 */
#define PORTOLAN_REACH_WRITE 2

/**
 * Both.
 */
#define PORTOLAN_REACH_READ_WRITE 3

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * What the last call of this thread that failed has to say: who is to blame, with which values,
 * and what to do.
 *
 * Threads: any.
 * Owns: the library; the text is there until the thread's next call of this library.
 */
const char *portolan_error_text(void);

/**
 * The version of the library, as in "0.1.0".
 *
 * Threads: any.
 * Owns: the library; the text is there for good.
 */
const char *portolan_version(void);

/**
 * The deadline so many nanoseconds from now on; for none it is `PORTOLAN_NOW`.
 *
 * Threads: any.
 */
portolan_deadline portolan_deadline_after(uint64_t nanoseconds);

/**
 * Joins the domain of this name, and makes it if it is not there. Nothing has to be installed or
 * running.
 *
 * Threads: any.
 * Owns: `*domain` is the caller's, to be freed or left.
 */
enum portolan_status portolan_domain_join(const char *name, struct portolan_domain *domain);

/**
 * As `portolan_domain_join`, with options.
 *
 * Threads: any.
 * Owns: `*domain` is the caller's, to be freed or left. The options are read and not kept.
 */
enum portolan_status portolan_domain_join_with(const struct portolan_domain_options *options,
                                               struct portolan_domain *domain);

/**
 * A domain that only this process is in. `options` may be NULL.
 *
 * Threads: any.
 * Owns: `*domain` is the caller's, to be freed or left. The options are read and not kept.
 */
enum portolan_status portolan_domain_private(const struct portolan_domain_options *options,
                                             struct portolan_domain *domain);

/**
 * Another handle of the same membership.
 *
 * Threads: any, also several at once.
 * Owns: `*clone` is the caller's, to be freed.
 */
enum portolan_status portolan_domain_clone(struct portolan_domain domain,
                                           struct portolan_domain *clone);

/**
 * Leaves the domain, and waits until what this process held was returned.
 * `PORTOLAN_BUSY`: other handles (ports, extents, ...) keep the membership; it ends with the last
 * of them.
 *
 * Threads: any.
 * Owns: `domain` is freed, also when the call fails for another reason than `PORTOLAN_BAD_HANDLE`
 * or a call that uses it.
 */
enum portolan_status portolan_domain_leave(struct portolan_domain domain);

/**
 * Frees the handle. The process leaves with the last handle of the membership.
 *
 * Threads: any.
 * Owns: `domain` is freed.
 */
enum portolan_status portolan_domain_free(struct portolan_domain domain);

/**
 * What the domain is like, and whether this process is a member still: if not,
 * `PORTOLAN_DISOWNED`.
 *
 * Threads: any, also several at once.
 */
enum portolan_status portolan_domain_check(struct portolan_domain domain,
                                           struct portolan_domain_state *state);

/**
 * Allocates an extent of at least `bytes` bytes, one page at least. What it holds is unspecified.
 *
 * Threads: any, also several at once.
 * Owns: `*extent` is the caller's, until it is sent or freed.
 */
enum portolan_status portolan_domain_allocate(struct portolan_domain domain,
                                              size_t bytes,
                                              struct portolan_extent *extent);

/**
 * Gives memory that no extent uses back to the system; how many bytes. `given` may be NULL.
 *
 * Threads: any, also several at once.
 */
enum portolan_status portolan_domain_trim(struct portolan_domain domain, uint64_t *given);

/**
 * Where an extent's bytes lie, which is the same in every member, and how many belong to the
 * message. `len` may be NULL.
 *
 * Threads: one at a time.
 * Owns: the bytes are the extent's: use them until it is sent, pushed into a message, or freed.
 */
enum portolan_status portolan_extent_data(struct portolan_extent extent, void **data, size_t *len);

/**
 * Bytes that the extent could hold.
 *
 * Threads: one at a time.
 */
enum portolan_status portolan_extent_capacity(struct portolan_extent extent, size_t *capacity);

/**
 * Says how many bytes belong to the message: up to the capacity.
 *
 * Threads: one at a time.
 */
enum portolan_status portolan_extent_set_len(struct portolan_extent extent, size_t len);

/**
 * Gives the extent back to the domain.
 *
 * Threads: any.
 * Owns: `extent` is freed; its bytes are not the caller's any more.
 */
enum portolan_status portolan_extent_free(struct portolan_extent extent);

/**
 * A message with this header and nothing else, for any domain. A header of no bytes may be NULL.
 *
 * Threads: any.
 * Owns: `*message` is the caller's, to be freed; to send it empties it and leaves it the caller's.
 */
enum portolan_status portolan_message_new(const void *header,
                                          size_t len,
                                          struct portolan_message *message);

/**
 * As `portolan_message_new`; a header of more than 48 bytes is written straight into a page of
 * the domain, which saves a copy.
 *
 * Threads: any, also several at once.
 * Owns: as `portolan_message_new`.
 */
enum portolan_status portolan_domain_message(struct portolan_domain domain,
                                             const void *header,
                                             size_t len,
                                             struct portolan_message *message);

/**
 * Gives all that the message holds back.
 *
 * Threads: any.
 * Owns: `message` is freed, with its extents and rights.
 */
enum portolan_status portolan_message_free(struct portolan_message message);

/**
 * Drops all that the message holds; it can be used again.
 *
 * Threads: one at a time.
 */
enum portolan_status portolan_message_clear(struct portolan_message message);

/**
 * The message's header.
 *
 * Threads: one at a time.
 * Owns: the bytes are the message's: there until its next call, of whatever function.
 */
enum portolan_status portolan_message_header(struct portolan_message message,
                                             const void **header,
                                             size_t *len);

/**
 * Replaces the message's header.
 *
 * Threads: one at a time.
 * Owns: the bytes are copied.
 */
enum portolan_status portolan_message_set_header(struct portolan_message message,
                                                 const void *header,
                                                 size_t len);

/**
 * Appends an extent.
 *
 * Threads: one at a time.
 * Owns: `extent` is freed: it is the message's now. If the call fails it is the caller's still.
 */
enum portolan_status portolan_message_push(struct portolan_message message,
                                           struct portolan_extent extent);

/**
 * How many extents the message holds, and how many bytes in all. Either may be NULL.
 *
 * Threads: one at a time.
 */
enum portolan_status portolan_message_extents(struct portolan_message message,
                                              size_t *extents,
                                              size_t *len);

/**
 * Where the bytes of the extent at `index` lie. `len` may be NULL.
 *
 * Threads: one at a time.
 * Owns: the bytes are the message's: use them until it is sent, cleared or freed, or the extent
 * removed.
 */
enum portolan_status portolan_message_extent(struct portolan_message message,
                                             size_t index,
                                             void **data,
                                             size_t *len);

/**
 * Takes the extent at `index` out.
 *
 * Threads: one at a time.
 * Owns: `*extent` is the caller's, until it is sent or freed.
 */
enum portolan_status portolan_message_remove(struct portolan_message message,
                                             size_t index,
                                             struct portolan_extent *extent);

/**
 * Says when the message should be dealt with, for ports that hand out the most urgent first: by
 * an instant of the monotonic clock, in nanoseconds.
 *
 * Threads: one at a time.
 */
enum portolan_status portolan_message_set_deadline(struct portolan_message message,
                                                   portolan_deadline deadline);

/**
 * As `portolan_message_set_deadline`, by a number: the higher, the more urgent; all come after
 * those with a deadline.
 *
 * Threads: one at a time.
 */
enum portolan_status portolan_message_set_priority(struct portolan_message message,
                                                   uint32_t priority);

/**
 * Whether this is no message but something that the port asked to be told.
 *
 * Threads: one at a time.
 */
enum portolan_status portolan_message_notice(struct portolan_message message,
                                             struct portolan_notice *notice);

/**
 * Binds a port to this process. `options` may be NULL.
 *
 * Threads: any, also several at once.
 * Owns: `*port` is the caller's; freed, it closes the port. The options are read and not kept.
 */
enum portolan_status portolan_domain_bind(struct portolan_domain domain,
                                          const struct portolan_port_options *options,
                                          struct portolan_receive_right *port);

/**
 * A send right on the port of this name, waiting until there is one. `name` may be
 * `port@node`, where a node spans the domain.
 *
 * Threads: any, also several at once.
 * Owns: `*right` is the caller's, to be freed.
 */
enum portolan_status portolan_domain_connect(struct portolan_domain domain,
                                             const char *name,
                                             portolan_deadline until,
                                             struct portolan_send_right *right);

/**
 * Receives a message from an asynchronous port into `message`; what that held is dropped first.
 * `PORTOLAN_TIMED_OUT`: nothing came before the deadline.
 *
 * Threads: one at a time.
 * Owns: `message` is the caller's; what it holds now is too.
 */
enum portolan_status portolan_receive_right_receive(struct portolan_receive_right port,
                                                    struct portolan_message message,
                                                    portolan_access how,
                                                    portolan_deadline until);

/**
 * Receives a request from a synchronous port: what is asked, into `message`, and the right to
 * answer it: `portolan_send_once_right_send`, from any thread, in any order. `reply->id` is 0 where
 * a notice came, for which no client waits.
 *
 * Threads: one at a time.
 * Owns: `message` is the caller's; `*reply` too: freed unused, it tells the client that no answer
 * will come.
 */
enum portolan_status portolan_receive_right_get_request(struct portolan_receive_right port,
                                                        struct portolan_message message,
                                                        portolan_access how,
                                                        portolan_deadline until,
                                                        struct portolan_send_once_right *reply);

/**
 * A new send right on this port.
 *
 * Threads: one at a time.
 * Owns: `*right` is the caller's, to be freed.
 */
enum portolan_status portolan_receive_right_make_send(struct portolan_receive_right port,
                                                      struct portolan_send_right *right);

/**
 * A new send-once right on this port.
 *
 * Threads: one at a time.
 * Owns: `*right` is the caller's, to be freed.
 */
enum portolan_status portolan_receive_right_make_send_once(struct portolan_receive_right port,
                                                           struct portolan_send_once_right *right);

/**
 * Asks to be told, once, when no send right on this port is left anywhere: a message with the
 * notice `PORTOLAN_NOTICE_NO_MORE_SENDERS`.
 *
 * Threads: one at a time.
 */
enum portolan_status portolan_receive_right_request_no_more_senders(struct portolan_receive_right port);

/**
 * How many messages wait in the port, and how many send rights there are, held or travelling.
 * Either may be NULL.
 *
 * Threads: one at a time.
 */
enum portolan_status portolan_receive_right_depth(struct portolan_receive_right port,
                                                  size_t *depth,
                                                  uint32_t *senders);

/**
 * Chooses how this port waits.
 *
 * Threads: one at a time.
 */
enum portolan_status portolan_receive_right_set_waiting(struct portolan_receive_right port,
                                                        portolan_waiting how);

/**
 * Closes the port. What waits in it is dropped, and its clients are told.
 *
 * Threads: any.
 * Owns: `port` is freed.
 */
enum portolan_status portolan_receive_right_free(struct portolan_receive_right port);

/**
 * Sends the message to an asynchronous port. For a full queue see `portolan_when_full`.
 *
 * Threads: any, also several at once with one right; the message by one at a time.
 * Owns: `message` is the caller's: empty when it was sent, untouched when not.
 */
enum portolan_status portolan_send_right_send(struct portolan_send_right right,
                                              struct portolan_message message,
                                              portolan_when_full full);

/**
 * Waits until the machine of the port has put what was sent into the port's queue, if that is
 * another one.
 *
 * Threads: any, also several at once.
 */
enum portolan_status portolan_send_right_flush(struct portolan_send_right right,
                                               portolan_deadline until);

/**
 * Another right on the same port, which is counted.
 *
 * Threads: any, also several at once.
 * Owns: `*clone` is the caller's, to be freed.
 */
enum portolan_status portolan_send_right_clone(struct portolan_send_right right,
                                               struct portolan_send_right *clone);

/**
 * How the port is, as things are.
 *
 * Threads: any, also several at once.
 */
enum portolan_status portolan_send_right_state(struct portolan_send_right right,
                                               portolan_right_state *state);

/**
 * Asks that `notify` be told, once, when the port of this right dies: a message with the notice
 * `PORTOLAN_NOTICE_DEAD_NAME` and this token.
 *
 * Threads: any, also several at once with one right; `notify` by one at a time.
 */
enum portolan_status portolan_send_right_watch(struct portolan_send_right right,
                                               struct portolan_receive_right notify,
                                               uint64_t token);

/**
 * Ends a `portolan_send_right_watch`.
 *
 * Threads: any, also several at once with one right; `notify` by one at a time.
 */
enum portolan_status portolan_send_right_unwatch(struct portolan_send_right right,
                                                 struct portolan_receive_right notify,
                                                 uint64_t token);

/**
 * Frees the right, which is counted no more.
 *
 * Threads: any.
 * Owns: `right` is freed.
 */
enum portolan_status portolan_send_right_free(struct portolan_send_right right);

/**
 * Sends the one message: most often the answer to a request.
 *
 * Threads: any; the message by one at a time.
 * Owns: `right` is freed, also when the call fails for what is in the message: the client that
 * waits is told that no answer will come. `message` is the caller's: empty when it was sent,
 * untouched when not.
 */
enum portolan_status portolan_send_once_right_send(struct portolan_send_once_right right,
                                                   struct portolan_message message);

/**
 * Frees the right unused: the client that waits for the answer is told.
 *
 * Threads: any.
 * Owns: `right` is freed.
 */
enum portolan_status portolan_send_once_right_free(struct portolan_send_once_right right);

/**
 * Attaches a send right.
 *
 * Threads: one at a time.
 * Owns: `right` is freed: it is the message's now. If the call fails it is the caller's still.
 */
enum portolan_status portolan_message_attach_send_right(struct portolan_message message,
                                                        struct portolan_send_right right);

/**
 * Attaches a send-once right.
 *
 * Threads: one at a time.
 * Owns: `right` is freed: it is the message's now. If the call fails it is the caller's still.
 */
enum portolan_status portolan_message_attach_send_once_right(struct portolan_message message,
                                                             struct portolan_send_once_right right);

/**
 * Attaches a receive right: the port moves, with what waits in it. It leaves its wait set first.
 *
 * Threads: one at a time.
 * Owns: `port` is freed: it is the message's now. If the call fails it is the caller's still.
 */
enum portolan_status portolan_message_attach_receive_right(struct portolan_message message,
                                                           struct portolan_receive_right port);

/**
 * Attaches a segment.
 *
 * Threads: one at a time.
 * Owns: `segment` is freed: it is the message's now. If the call fails it is the caller's still.
 */
enum portolan_status portolan_message_attach_segment(struct portolan_message message,
                                                     struct portolan_segment segment);

/**
 * Attaches a shared extent.
 *
 * Threads: one at a time.
 * Owns: `shared` is freed: it is the message's now. If the call fails it is the caller's still.
 */
enum portolan_status portolan_message_attach_shared_extent(struct portolan_message message,
                                                           struct portolan_shared_extent shared);

/**
 * Attaches a channel; it arrives as a segment.
 *
 * Threads: one at a time.
 * Owns: `channel` is freed: it is the message's now. If the call fails it is the caller's still.
 */
enum portolan_status portolan_message_attach_channel(struct portolan_message message,
                                                     struct portolan_channel channel);

/**
 * Takes the rights that came with the message: `rights` has room for all that there may be,
 * `PORTOLAN_MAX_RIGHTS`, and `*count` says how many there were.
 *
 * Threads: one at a time.
 * Owns: each is the caller's, to be freed by the function of its kind.
 */
enum portolan_status portolan_message_take_rights(struct portolan_message message,
                                                  struct portolan_right *rights,
                                                  size_t most,
                                                  size_t *count);

/**
 * Sends `message` as a request to a synchronous port and waits for the answer, which is then in
 * `message`. If the request was not sent, `message` is as it was; if it was, and no answer came,
 * it is empty: `PORTOLAN_TIMED_OUT`, `PORTOLAN_DROPPED`, `PORTOLAN_PEER_DIED`.
 *
 * Threads: any, also several at once with one right; the message by one at a time.
 * Owns: `message` is the caller's; what it holds now is too.
 */
enum portolan_status portolan_send_right_request_reply(struct portolan_send_right right,
                                                       struct portolan_message message,
                                                       portolan_access how,
                                                       portolan_deadline until);

/**
 * Sends `message` as a request; its answer is waited for later. Any number may be under way. For
 * a full queue see `portolan_when_full`.
 *
 * Threads: any, also several at once with one right; the message by one at a time.
 * Owns: `message` is the caller's: empty, unless the call failed. `*pending` is the caller's, to be
 * freed.
 */
enum portolan_status portolan_send_right_begin_request(struct portolan_send_right right,
                                                       struct portolan_message message,
                                                       portolan_when_full full,
                                                       struct portolan_pending_reply *pending);

/**
 * Waits for the answer, which is then in `message`; what that held is dropped first. After
 * `PORTOLAN_TIMED_OUT` it can be waited for again.
 *
 * Threads: one at a time.
 * Owns: `message` is the caller's; `pending` too, and is of no use once the answer has come.
 */
enum portolan_status portolan_pending_reply_wait(struct portolan_pending_reply pending,
                                                 struct portolan_message message,
                                                 portolan_access how,
                                                 portolan_deadline until);

/**
 * Frees the handle; a request that is not answered yet is abandoned.
 *
 * Threads: any.
 * Owns: `pending` is freed.
 */
enum portolan_status portolan_pending_reply_free(struct portolan_pending_reply pending);

/**
 * Makes a segment of at least `bytes` bytes, whole pages of zeros. `name` may be NULL: then it is
 * passed on in messages.
 *
 * Threads: any, also several at once.
 * Owns: `*segment` is the caller's, to be freed.
 */
enum portolan_status portolan_domain_make_segment(struct portolan_domain domain,
                                                  const char *name,
                                                  size_t bytes,
                                                  struct portolan_segment *segment);

/**
 * A right on the segment of this name, waiting until there is one.
 *
 * Threads: any, also several at once.
 * Owns: `*segment` is the caller's, to be freed.
 */
enum portolan_status portolan_domain_find_segment(struct portolan_domain domain,
                                                  const char *name,
                                                  portolan_deadline until,
                                                  struct portolan_segment *segment);

/**
 * Where the segment lies, which is the same in every member, and its bytes. Other processes write
 * it meanwhile: what is read while it is written is read by atomics. `len` may be NULL.
 *
 * Threads: any, also several at once.
 * Owns: the bytes are all members'; use them until the handle is freed.
 */
enum portolan_status portolan_segment_data(struct portolan_segment segment,
                                           void **data,
                                           size_t *len);

/**
 * Another right on the same segment.
 *
 * Threads: any, also several at once.
 * Owns: `*clone` is the caller's, to be freed.
 */
enum portolan_status portolan_segment_clone(struct portolan_segment segment,
                                            struct portolan_segment *clone);

/**
 * Frees the right; the last one frees the memory.
 *
 * Threads: any.
 * Owns: `segment` is freed; its bytes are not to be used any more.
 */
enum portolan_status portolan_segment_free(struct portolan_segment segment);

/**
 * Makes what was filled readable by all, and writable by none.
 *
 * Threads: any; the extent by one at a time.
 * Owns: `extent` is freed: it is the shared extent now. If the call fails it is the caller's still.
 * `*shared` is the caller's, to be freed.
 */
enum portolan_status portolan_domain_share_extent(struct portolan_domain domain,
                                                  struct portolan_extent extent,
                                                  struct portolan_shared_extent *shared);

/**
 * Where the bytes of a shared extent lie. `len` may be NULL.
 *
 * Threads: any, also several at once.
 * Owns: no program may write the bytes; read them until the handle is freed.
 */
enum portolan_status portolan_shared_extent_data(struct portolan_shared_extent shared,
                                                 const void **data,
                                                 size_t *len);

/**
 * Frees the handle; the last one, in whatever process, frees the memory.
 *
 * Threads: any.
 * Owns: `shared` is freed; its bytes are not to be used any more.
 */
enum portolan_status portolan_shared_extent_free(struct portolan_shared_extent shared);

/**
 * Makes a channel. `options` may be NULL.
 *
 * Threads: any, also several at once.
 * Owns: `*channel` is the caller's, to be freed. The options are read and not kept.
 */
enum portolan_status portolan_domain_make_channel(struct portolan_domain domain,
                                                  const struct portolan_channel_options *options,
                                                  struct portolan_channel *channel);

/**
 * A right on the channel of this name, waiting until there is one.
 *
 * Threads: any, also several at once.
 * Owns: `*channel` is the caller's, to be freed.
 */
enum portolan_status portolan_domain_find_channel(struct portolan_domain domain,
                                                  const char *name,
                                                  portolan_deadline until,
                                                  struct portolan_channel *channel);

/**
 * The channel that a segment holds, which came in a message.
 *
 * Threads: any; the segment by one at a time.
 * Owns: `segment` is freed: it is the channel now. If the call fails it is the caller's still.
 * `*channel` is the caller's, to be freed.
 */
enum portolan_status portolan_channel_of_segment(struct portolan_segment segment,
                                                 struct portolan_channel *channel);

/**
 * What the channel is like.
 *
 * Threads: any, also several at once.
 */
enum portolan_status portolan_channel_get_shape(struct portolan_channel channel,
                                                struct portolan_channel_shape *shape);

/**
 * Another right on the same channel.
 *
 * Threads: any, also several at once.
 * Owns: `*clone` is the caller's, to be freed.
 */
enum portolan_status portolan_channel_clone(struct portolan_channel channel,
                                            struct portolan_channel *clone);

/**
 * Frees the right; the last right, writer and reader free the memory.
 *
 * Threads: any.
 * Owns: `channel` is freed.
 */
enum portolan_status portolan_channel_free(struct portolan_channel channel);

/**
 * Makes this process the one that writes; on a channel of many writers, one of them.
 *
 * Threads: any, also several at once.
 * Owns: `*writer` is the caller's, to be freed.
 */
enum portolan_status portolan_channel_bind_writer(struct portolan_channel channel,
                                                  struct portolan_writer *writer);

/**
 * Writes a message; a reliable channel that is full waits until the deadline. `position` may be
 * NULL.
 *
 * Threads: one at a time.
 * Owns: the bytes are copied.
 */
enum portolan_status portolan_writer_write(struct portolan_writer writer,
                                           const void *data,
                                           size_t len,
                                           portolan_deadline until,
                                           uint64_t *position);

/**
 * Frees the writer; its readers are told once they have read all.
 *
 * Threads: any.
 * Owns: `writer` is freed.
 */
enum portolan_status portolan_writer_free(struct portolan_writer writer);

/**
 * A reader of its own pace. `options` may be NULL.
 *
 * Threads: any, also several at once.
 * Owns: `*reader` is the caller's, to be freed. The options are read and not kept.
 */
enum portolan_status portolan_channel_bind_reader(struct portolan_channel channel,
                                                  const struct portolan_reader_options *options,
                                                  struct portolan_reader *reader);

/**
 * The next message, waiting for it until the deadline. `PORTOLAN_MISSED`: units were overwritten
 * before they were read, `*missed` says which; read on. `PORTOLAN_WRITER_GONE`: all was read; read
 * on to wait for the next writer. `position` and `missed` may be NULL.
 *
 * Threads: one at a time.
 * Owns: the bytes are the reader's: there until its next call, of whatever function.
 */
enum portolan_status portolan_reader_receive(struct portolan_reader reader,
                                             portolan_deadline until,
                                             const void **data,
                                             size_t *len,
                                             uint64_t *position,
                                             struct portolan_missed *missed);

/**
 * From now on every signalling unit that is written is signalled, by its address, to the handlers
 * that listeners have for it. Add the handlers first, then enable, then read what is there.
 *
 * Threads: one at a time.
 */
enum portolan_status portolan_reader_enable(struct portolan_reader reader);

/**
 * Ends `portolan_reader_enable`.
 *
 * Threads: one at a time.
 */
enum portolan_status portolan_reader_disable(struct portolan_reader reader);

/**
 * Chooses how the reader waits.
 *
 * Threads: one at a time.
 */
enum portolan_status portolan_reader_set_waiting(struct portolan_reader reader,
                                                 portolan_waiting how);

/**
 * Frees the reader; a writer that waited for it goes on.
 *
 * Threads: any.
 * Owns: `reader` is freed.
 */
enum portolan_status portolan_reader_free(struct portolan_reader reader);

/**
 * Publishes samples, of any length, under `topic`. `options` may be NULL.
 *
 * Threads: any, also several at once.
 * Owns: `*publisher` is the caller's, to be freed. The options are read and not kept.
 */
enum portolan_status portolan_domain_publisher(struct portolan_domain domain,
                                               const char *topic,
                                               const struct portolan_topic_options *options,
                                               struct portolan_publisher *publisher);

/**
 * Publishes a sample. Never waits. `position` may be NULL.
 *
 * Threads: one at a time.
 * Owns: the bytes are copied. A loan is given up.
 */
enum portolan_status portolan_publisher_publish(struct portolan_publisher publisher,
                                                const void *data,
                                                size_t len,
                                                uint64_t *position);

/**
 * Room for a sample of `len` bytes, to be filled in place and published by
 * `portolan_publisher_publish_loan`. Until it is filled it holds an older sample, or anything.
 *
 * Threads: one at a time.
 * Owns: the room is the publisher's: write it until it is published, or the publisher's next
 * call, which gives it up.
 */
enum portolan_status portolan_publisher_loan(struct portolan_publisher publisher,
                                             size_t len,
                                             void **data);

/**
 * Publishes what was filled in place. `position` may be NULL.
 *
 * Threads: one at a time.
 * Owns: the room is not the caller's any more.
 */
enum portolan_status portolan_publisher_publish_loan(struct portolan_publisher publisher,
                                                     uint64_t *position);

/**
 * Frees the publisher.
 *
 * Threads: any.
 * Owns: `publisher` is freed, with its loan.
 */
enum portolan_status portolan_publisher_free(struct portolan_publisher publisher);

/**
 * Subscribes to the samples of all who publish under `topic`, now and later. `options` may be
 * NULL.
 *
 * Threads: any, also several at once.
 * Owns: `*subscriber` is the caller's, to be freed. The options are read and not kept.
 */
enum portolan_status portolan_domain_subscriber(struct portolan_domain domain,
                                                const char *topic,
                                                const struct portolan_topic_options *options,
                                                struct portolan_subscriber *subscriber);

/**
 * The next sample of any publisher, waiting for it until the deadline.
 *
 * Threads: one at a time.
 * Owns: `*sample` is the caller's, to be freed.
 */
enum portolan_status portolan_subscriber_receive(struct portolan_subscriber subscriber,
                                                 portolan_deadline until,
                                                 struct portolan_sample *sample);

/**
 * Chooses how the subscriber waits.
 *
 * Threads: one at a time.
 */
enum portolan_status portolan_subscriber_set_waiting(struct portolan_subscriber subscriber,
                                                     portolan_waiting how);

/**
 * Frees the subscriber.
 *
 * Threads: any.
 * Owns: `subscriber` is freed; its samples are their handles' still.
 */
enum portolan_status portolan_subscriber_free(struct portolan_subscriber subscriber);

/**
 * The sample's bytes. A long one is read where its publisher filled it. `origin` may be NULL.
 *
 * Threads: any, also several at once.
 * Owns: the bytes are the sample's: read them until it is freed.
 */
enum portolan_status portolan_sample_data(struct portolan_sample sample,
                                          const void **data,
                                          size_t *len,
                                          struct portolan_sample_origin *origin);

/**
 * Frees the sample; the memory of a long one goes back when its last sample, in whatever process,
 * is freed.
 *
 * Threads: any.
 * Owns: `sample` is freed; its bytes are not to be used any more.
 */
enum portolan_status portolan_sample_free(struct portolan_sample sample);

/**
 * As `portolan_domain_bind`, waiting while another port has the name: for a process that takes the
 * place of one that was killed just now. `options` may be NULL.
 *
 * Threads: any, also several at once.
 * Owns: `*port` is the caller's; freed, it closes the port. The options are read and not kept.
 */
enum portolan_status portolan_domain_bind_when_free(struct portolan_domain domain,
                                                    const struct portolan_port_options *options,
                                                    portolan_deadline until,
                                                    struct portolan_receive_right *port);

/**
 * A sender to the port of this name, which looks the name up when it first sends, and again when
 * the port has died. Nothing waits and nothing is checked here.
 *
 * Threads: any, also several at once.
 * Owns: `*sender` is the caller's, to be freed.
 */
enum portolan_status portolan_domain_reconnecting_sender(struct portolan_domain domain,
                                                         const char *name,
                                                         struct portolan_reconnecting_sender *sender);

/**
 * Sends the message to the port that has the name now. With a deadline it waits for such a port
 * (`PORTOLAN_NOT_FOUND` if none came), and for room in its queue; with `PORTOLAN_FAIL` and
 * `PORTOLAN_DROP` for neither. What a call that fails has found lost is kept for the next one.
 *
 * Threads: one at a time.
 * Owns: `message` is the caller's: empty when it was sent, untouched when not.
 */
enum portolan_status portolan_reconnecting_sender_send(struct portolan_reconnecting_sender sender,
                                                       struct portolan_message message,
                                                       portolan_when_full full,
                                                       struct portolan_sent *sent);

/**
 * Waits until a port has the name, unless the one of the last send lives. Sends nothing.
 *
 * Threads: one at a time.
 */
enum portolan_status portolan_reconnecting_sender_connect(struct portolan_reconnecting_sender sender,
                                                          portolan_deadline until);

/**
 * A right on the port that has the name, waiting for one as `portolan_reconnecting_sender_connect`
 * does: for requests, which say themselves what became of them. What is sent by it is not counted
 * by the sender.
 *
 * Threads: one at a time.
 * Owns: `*right` is the caller's, to be freed.
 */
enum portolan_status portolan_reconnecting_sender_right(struct portolan_reconnecting_sender sender,
                                                        portolan_deadline until,
                                                        struct portolan_send_right *right);

/**
 * Whether the port of the last send, or of `portolan_reconnecting_sender_connect`, lives.
 *
 * Threads: one at a time.
 */
enum portolan_status portolan_reconnecting_sender_is_connected(struct portolan_reconnecting_sender sender,
                                                               bool *is_connected);

/**
 * What may be lost with the last receiver, if it has died and no call has told of it: to be asked
 * before a program ends, say. `lost->receiver` is 0 where nothing was.
 *
 * Threads: one at a time.
 */
enum portolan_status portolan_reconnecting_sender_take_lost(struct portolan_reconnecting_sender sender,
                                                            struct portolan_lost *lost);

/**
 * Frees the sender.
 *
 * Threads: any.
 * Owns: `sender` is freed.
 */
enum portolan_status portolan_reconnecting_sender_free(struct portolan_reconnecting_sender sender);

/**
 * As `portolan_domain_subscriber`; it is told of publishers that left or died. `options` may be
 * NULL.
 *
 * Threads: any, also several at once.
 * Owns: `*subscriber` is the caller's, to be freed. The options are read and not kept.
 */
enum portolan_status portolan_domain_reconnecting_subscriber(struct portolan_domain domain,
                                                             const char *topic,
                                                             const struct portolan_topic_options *options,
                                                             struct portolan_reconnecting_subscriber *subscriber);

/**
 * The next sample of any publisher, or that one has gone, waiting until the deadline: also for the
 * publisher that comes after the last has gone. `sample->id` is 0 where one has gone; then, and
 * only then, `*gone` is written.
 *
 * Threads: one at a time.
 * Owns: `*sample` is the caller's, to be freed.
 */
enum portolan_status portolan_reconnecting_subscriber_receive(struct portolan_reconnecting_subscriber subscriber,
                                                              portolan_deadline until,
                                                              struct portolan_sample *sample,
                                                              struct portolan_publisher_gone *gone);

/**
 * How many publishers there are now.
 *
 * Threads: one at a time.
 */
enum portolan_status portolan_reconnecting_subscriber_live_publishers(struct portolan_reconnecting_subscriber subscriber,
                                                                      size_t *publishers);

/**
 * Chooses how the subscriber waits.
 *
 * Threads: one at a time.
 */
enum portolan_status portolan_reconnecting_subscriber_set_waiting(struct portolan_reconnecting_subscriber subscriber,
                                                                  portolan_waiting how);

/**
 * Frees the subscriber.
 *
 * Threads: any.
 * Owns: `subscriber` is freed; its samples are their handles' still.
 */
enum portolan_status portolan_reconnecting_subscriber_free(struct portolan_reconnecting_subscriber subscriber);

/**
 * Signals an address in memory that the domain's members share: every handler whose range holds
 * it, in every process. How many listeners it reached, none of which is no error; `reached` may
 * be NULL.
 *
 * Threads: any, also several at once.
 */
enum portolan_status portolan_domain_signal(struct portolan_domain domain,
                                            const void *address,
                                            size_t *reached);

/**
 * A listener, which handles signals on the thread that waits with it. `options` may be NULL.
 *
 * Threads: any, also several at once.
 * Owns: `*listener` is the caller's, to be freed.
 */
enum portolan_status portolan_domain_listen(struct portolan_domain domain,
                                            const struct portolan_listener_options *options,
                                            struct portolan_listener *listener);

/**
 * Adds a handler for the `len` bytes at `start`, which lie in memory that members share. It runs
 * in `portolan_listener_wait` and `portolan_listener_poll`, on the thread that calls them.
 *
 * Threads: one at a time.
 * Owns: `*handler` is the caller's, until `portolan_listener_off`; the context has to live until
 * then, or until the listener is freed.
 */
enum portolan_status portolan_listener_on(struct portolan_listener listener,
                                          portolan_delivery delivery,
                                          const void *start,
                                          size_t len,
                                          portolan_handle_signal run,
                                          void *context,
                                          struct portolan_handler *handler);

/**
 * Takes a handler away from its listener, which may be gone.
 *
 * Threads: one at a time.
 * Owns: `handler` is freed; its function is not called any more.
 */
enum portolan_status portolan_listener_off(struct portolan_handler handler);

/**
 * Waits until a signal came, and handles it; `PORTOLAN_TIMED_OUT` if none came before the
 * deadline.
 *
 * Threads: one at a time.
 */
enum portolan_status portolan_listener_wait(struct portolan_listener listener,
                                            portolan_deadline until);

/**
 * Handles what is there; how many signals. `handled` may be NULL.
 *
 * Threads: one at a time.
 */
enum portolan_status portolan_listener_poll(struct portolan_listener listener, size_t *handled);

/**
 * Signals that found the listener full, and were dropped.
 *
 * Threads: one at a time.
 */
enum portolan_status portolan_listener_dropped(struct portolan_listener listener,
                                               uint64_t *dropped);

/**
 * Frees the listener, with its handlers.
 *
 * Threads: any.
 * Owns: `listener` is freed; handles of its handlers are to be freed by `portolan_listener_off`.
 */
enum portolan_status portolan_listener_free(struct portolan_listener listener);

/**
 * Has `address`, in memory that members share, signalled by a descriptor, as if a thread called
 * `portolan_domain_signal` when there is more to read or to accept, or the other end has gone. The
 * handler reads until nothing is left; it is told again only of what comes after.
 *
 * Threads: any, also several at once.
 * Owns: `*source` is the caller's, to be freed. `descriptor` is the caller's still; the source keeps
 * a duplicate of it.
 */
enum portolan_status portolan_domain_bind_address_to_descriptor(struct portolan_domain domain,
                                                                const void *address,
                                                                int32_t descriptor,
                                                                struct portolan_source *source);

/**
 * Has `address`, in memory that members share, signalled by a timer of the monotonic clock: `first`
 * nanoseconds from now, and then again after `every` so many; 0 for once.
 *
 * Threads: any, also several at once.
 * Owns: `*source` is the caller's, to be freed.
 */
enum portolan_status portolan_domain_bind_address_to_timer(struct portolan_domain domain,
                                                           const void *address,
                                                           uint64_t first,
                                                           uint64_t every,
                                                           struct portolan_source *source);

/**
 * Has `address`, in memory that members share, signalled by a Unix signal of this process, by its
 * number. Several that come together may signal once. A handler that the program has for it is
 * still called; if it has none, the signal's default action is off from here on.
 *
 * Threads: any, also several at once.
 * Owns: `*source` is the caller's, to be freed.
 */
enum portolan_status portolan_domain_bind_address_to_unix_signal(struct portolan_domain domain,
                                                                 const void *address,
                                                                 int32_t number,
                                                                 struct portolan_source *source);

/**
 * Frees the source: the address is bound to nothing.
 *
 * Threads: any.
 * Owns: `source` is freed, with its duplicate of a descriptor.
 */
enum portolan_status portolan_source_free(struct portolan_source source);

/**
 * Memory of at least `len` bytes, whole pages of zeros, that can be exported.
 *
 * Threads: any.
 * Owns: `*memory` is the caller's, to be freed.
 */
enum portolan_status portolan_export_memory_new(size_t len, struct portolan_export_memory *memory);

/**
 * Takes memory for every page now, so that no access can fail for want of it.
 *
 * Threads: any, also several at once.
 */
enum portolan_status portolan_export_memory_populate(struct portolan_export_memory memory);

/**
 * Where the memory lies, and its bytes. Importers may write it meanwhile: what is read while they
 * do is read by atomics, or by `portolan_export_memory_read`. `len` may be NULL.
 *
 * Threads: any, also several at once.
 * Owns: the bytes are the memory's: use them until it is freed.
 */
enum portolan_status portolan_export_memory_data(struct portolan_export_memory memory,
                                                 void **data,
                                                 size_t *len);

/**
 * Copies `len` bytes from `offset` on. What importers write meanwhile is there in part or not.
 *
 * Threads: any, also several at once.
 * Owns: `data` is the caller's.
 */
enum portolan_status portolan_export_memory_read(struct portolan_export_memory memory,
                                                 size_t offset,
                                                 void *data,
                                                 size_t len);

/**
 * Copies `len` bytes to `offset` and the following.
 *
 * Threads: any, also several at once.
 * Owns: the bytes are copied.
 */
enum portolan_status portolan_export_memory_write(struct portolan_export_memory memory,
                                                  size_t offset,
                                                  const void *data,
                                                  size_t len);

/**
 * Loads the word at `offset`, a multiple of 8: what its writer wrote before it is then there.
 *
 * Threads: any, also several at once.
 */
enum portolan_status portolan_export_memory_load_acquire(struct portolan_export_memory memory,
                                                         size_t offset,
                                                         uint64_t *value);

/**
 * Stores a word at `offset`, a multiple of 8, behind everything written before.
 *
 * Threads: any, also several at once.
 */
enum portolan_status portolan_export_memory_store_release(struct portolan_export_memory memory,
                                                          size_t offset,
                                                          uint64_t value);

/**
 * Frees the handle; memory that is exported is there until the export ends.
 *
 * Threads: any.
 * Owns: `memory` is freed; its bytes are not to be used any more.
 */
enum portolan_status portolan_export_memory_free(struct portolan_export_memory memory);

/**
 * Exports the memory under a name, from now until it is taken back.
 *
 * Threads: any, also several at once.
 * Owns: `*export` is the caller's, to be freed; `memory` is the caller's still. The options are
 * read and not kept.
 */
enum portolan_status portolan_domain_export(struct portolan_domain domain,
                                            struct portolan_export_memory memory,
                                            const char *name,
                                            const struct portolan_export_options *options,
                                            portolan_deadline until,
                                            struct portolan_export *export_);

/**
 * Ends the export: from here on no importer changes a byte, and the memory is the caller's alone,
 * at the same address.
 *
 * Threads: any.
 * Owns: `export` is freed. If the call fails it is the caller's still, to try again.
 */
enum portolan_status portolan_export_unexport(struct portolan_export export_);

/**
 * How many have imported it now.
 *
 * Threads: any, also several at once.
 */
enum portolan_status portolan_export_importers(struct portolan_export export_, size_t *importers);

/**
 * Frees the export, which ends.
 *
 * Threads: any.
 * Owns: `export` is freed.
 */
enum portolan_status portolan_export_free(struct portolan_export export_);

/**
 * Has importers notify from now on; there is one such handle of an export at a time.
 *
 * Threads: any, also several at once.
 * Owns: `*notifications` is the caller's, to be freed.
 */
enum portolan_status portolan_export_notifications(struct portolan_export export_,
                                                   struct portolan_notifications *notifications);

/**
 * Waits for a notification.
 *
 * Threads: one at a time.
 */
enum portolan_status portolan_notifications_wait(struct portolan_notifications notifications,
                                                 portolan_deadline until,
                                                 struct portolan_notification *notification);

/**
 * Frees the handle: importers notify no more.
 *
 * Threads: any.
 * Owns: `notifications` is freed.
 */
enum portolan_status portolan_notifications_free(struct portolan_notifications notifications);

/**
 * Imports what a member has exported under this name, waiting until there is such an export.
 *
 * Threads: any, also several at once.
 * Owns: `*import` is the caller's, to be freed.
 */
enum portolan_status portolan_domain_import(struct portolan_domain domain,
                                            const char *name,
                                            portolan_deadline until,
                                            struct portolan_import *import);

/**
 * Imports what a member of another domain has exported under this name, without joining it, and
 * waits until there is such an export. `other` says which domain: by `name`, `path`, `of_user`.
 *
 * Threads: any.
 * Owns: `*import` is the caller's, to be freed. The options are read and not kept.
 */
enum portolan_status portolan_domain_import_from(const struct portolan_domain_options *other,
                                                 const char *name,
                                                 portolan_deadline until,
                                                 struct portolan_import *import);

/**
 * Bytes of the import, and whether the export is still there: if not, `PORTOLAN_CLOSED` or
 * `PORTOLAN_PEER_DIED`. `len` may be NULL.
 *
 * Threads: any, also several at once.
 */
enum portolan_status portolan_import_check(struct portolan_import import, size_t *len);

/**
 * Copies `len` bytes to `offset` and the following. When it returns they are in the exporter's
 * memory.
 *
 * Threads: any, also several at once.
 * Owns: the bytes are copied.
 */
enum portolan_status portolan_import_write(struct portolan_import import,
                                           size_t offset,
                                           const void *data,
                                           size_t len);

/**
 * Copies `len` bytes from `offset` on.
 *
 * Threads: any, also several at once.
 * Owns: `data` is the caller's.
 */
enum portolan_status portolan_import_read(struct portolan_import import,
                                          size_t offset,
                                          void *data,
                                          size_t len);

/**
 * Stores a word at `offset`, a multiple of 8, behind everything that this thread wrote before.
 *
 * Threads: any, also several at once.
 */
enum portolan_status portolan_import_store_release(struct portolan_import import,
                                                   size_t offset,
                                                   uint64_t value);

/**
 * Loads the word at `offset`, a multiple of 8: what its writer wrote before it is then there.
 *
 * Threads: any, also several at once.
 */
enum portolan_status portolan_import_load_acquire(struct portolan_import import,
                                                  size_t offset,
                                                  uint64_t *value);

/**
 * Adds to the word at `offset`, a multiple of 8, in one step. `before`, what it was, may be NULL.
 *
 * Threads: any, also several at once.
 */
enum portolan_status portolan_import_fetch_add(struct portolan_import import,
                                               size_t offset,
                                               uint64_t value,
                                               uint64_t *before);

/**
 * Replaces the word at `offset`, a multiple of 8, by `new_value` if it is `current`, in one step;
 * `*before` is what it was: `current`, if it was replaced.
 *
 * Threads: any, also several at once.
 */
enum portolan_status portolan_import_compare_exchange(struct portolan_import import,
                                                      size_t offset,
                                                      uint64_t current,
                                                      uint64_t new_value,
                                                      uint64_t *before);

/**
 * Tells the exporter that these bytes were written, if it wants to be notified.
 *
 * Threads: any, also several at once.
 */
enum portolan_status portolan_import_notify(struct portolan_import import,
                                            size_t offset,
                                            size_t len);

/**
 * Waits until everything that was written before has landed.
 *
 * Threads: any, also several at once.
 */
enum portolan_status portolan_import_flush(struct portolan_import import, portolan_deadline until);

/**
 * Frees the import.
 *
 * Threads: any.
 * Owns: `import` is freed.
 */
enum portolan_status portolan_import_free(struct portolan_import import);

/**
 * Maps the `len` bytes at `start` of `memory` to the import from `offset` on: what is stored by the
 * log is stored there and sent, one store after another, so that a reader that sees a flag sees what
 * was stored before it. `memory` need not be exported.
 *
 * Threads: any, also several at once.
 * Owns: `*log` is the caller's, to be freed; `import` and `memory` are the caller's still, and may be
 * freed before it.
 */
enum portolan_status portolan_import_map_log(struct portolan_import import,
                                             struct portolan_export_memory memory,
                                             size_t start,
                                             size_t len,
                                             size_t offset,
                                             struct portolan_log *log);

/**
 * Stores `len` bytes, `at` so many after the first mapped one. Stores that follow one another without
 * a gap are sent together: at the next one that lies elsewhere, after 4,096 bytes, at
 * `portolan_log_store_release`, `portolan_log_flush` and `portolan_log_unmap`.
 *
 * Threads: one at a time.
 * Owns: the bytes are copied.
 */
enum portolan_status portolan_log_store(struct portolan_log log,
                                        size_t at,
                                        const void *data,
                                        size_t len);

/**
 * Stores a word, `at` so many bytes after the first mapped one, at a multiple of 8 in the memory and
 * in the import. When this returns, it and all that was stored before have landed.
 *
 * Threads: one at a time.
 */
enum portolan_status portolan_log_store_release(struct portolan_log log,
                                                size_t at,
                                                uint64_t value);

/**
 * Sends what is not sent yet. When this returns, all that was stored has landed.
 *
 * Threads: one at a time.
 */
enum portolan_status portolan_log_flush(struct portolan_log log);

/**
 * As `portolan_log_flush`, and notifies the exporter of what was sent since this was called last.
 *
 * Threads: one at a time.
 */
enum portolan_status portolan_log_flush_notifying(struct portolan_log log);

/**
 * Sends what is not sent yet, and ends the mapping. If that fails the last stores may not have
 * landed.
 *
 * Threads: any.
 * Owns: `log` is freed, also when the call fails for another reason than `PORTOLAN_BAD_HANDLE` or a
 * call that uses it.
 */
enum portolan_status portolan_log_unmap(struct portolan_log log);

/**
 * As `portolan_log_unmap`; whether the last stores have landed is not said.
 *
 * Threads: any.
 * Owns: `log` is freed.
 */
enum portolan_status portolan_log_free(struct portolan_log log);

/**
 * A random token.
 *
 * Threads: any.
 */
enum portolan_status portolan_access_token_random(struct portolan_access_token *token);

/**
 * Offers the port to other domains under a name, which may be another than its own, from now until
 * the offer is freed. What comes is a copy, without rights. What a client does against the rules
 * ends its own connection, and is recorded (`portolan_offered_port_take_violations`). `options` may be
 * NULL.
 *
 * Threads: one at a time.
 * Owns: `*offered` is the caller's, to be freed; `port` is the caller's still. The options are read
 * and not kept.
 */
enum portolan_status portolan_receive_right_offer(struct portolan_receive_right port,
                                                  const char *name,
                                                  const struct portolan_offer_options *options,
                                                  struct portolan_offered_port *offered);

/**
 * How many are connected now.
 *
 * Threads: any, also several at once.
 */
enum portolan_status portolan_offered_port_clients(struct portolan_offered_port offered,
                                                   size_t *clients);

/**
 * How many clients have broken the rules since the last call, 64 at most: their connections
 * were ended.
 *
 * Threads: any, also several at once.
 */
enum portolan_status portolan_offered_port_take_violations(struct portolan_offered_port offered,
                                                           size_t *violations);

/**
 * Frees the offer, which ends: no client can send any more, and their rights are dead names. What
 * they sent before is in the port.
 *
 * Threads: any.
 * Owns: `offered` is freed.
 */
enum portolan_status portolan_offered_port_free(struct portolan_offered_port offered);

/**
 * A right on a port that another domain offers under this name, waiting until it does. `other` says
 * which domain, as for joining it: by `name`, `path`, `of_user`; this process need not be permitted
 * to join. What is sent goes over while this process lives. `options` may be NULL.
 *
 * Threads: any, also several at once.
 * Owns: `*right` is the caller's, to be freed. The options are read and not kept.
 */
enum portolan_status portolan_domain_connect_to(struct portolan_domain domain,
                                                const struct portolan_domain_options *other,
                                                const char *name,
                                                const struct portolan_connect_options *options,
                                                portolan_deadline until,
                                                struct portolan_send_right *right);

/**
 * A wait set without members.
 *
 * Threads: any, also several at once.
 * Owns: `*set` is the caller's, to be freed.
 */
enum portolan_status portolan_wait_set_new(struct portolan_domain domain,
                                           struct portolan_wait_set *set);

/**
 * Frees the set. Its members are their handles' still, and in no set.
 *
 * Threads: any.
 * Owns: `set` is freed, unless another call uses a member (`PORTOLAN_BUSY`).
 */
enum portolan_status portolan_wait_set_free(struct portolan_wait_set set);

/**
 * Adds a port. If something is there already, the next wait names it. The port's handle is used
 * as before; freed or sent, it leaves the set.
 *
 * Threads: one at a time.
 * Owns: `port` is the caller's still.
 */
enum portolan_status portolan_wait_set_add_receive_right(struct portolan_wait_set set,
                                                         struct portolan_receive_right port);

/**
 * Adds a request that waits for its answer. See `portolan_wait_set_add_receive_right`.
 *
 * Threads: one at a time.
 * Owns: `pending` is the caller's still.
 */
enum portolan_status portolan_wait_set_add_pending_reply(struct portolan_wait_set set,
                                                         struct portolan_pending_reply pending);

/**
 * Adds a reader of a channel. See `portolan_wait_set_add_receive_right`.
 *
 * Threads: one at a time.
 * Owns: `reader` is the caller's still.
 */
enum portolan_status portolan_wait_set_add_reader(struct portolan_wait_set set,
                                                  struct portolan_reader reader);

/**
 * Adds a subscriber of a topic. See `portolan_wait_set_add_receive_right`.
 *
 * Threads: one at a time.
 * Owns: `subscriber` is the caller's still.
 */
enum portolan_status portolan_wait_set_add_subscriber(struct portolan_wait_set set,
                                                      struct portolan_subscriber subscriber);

/**
 * Adds a reconnecting sender. It is named when a send may succeed, or says something: a port of
 * this machine has the name and its queue has room, or the port has died. Take it out while there
 * is nothing to send. See `portolan_wait_set_add_receive_right`.
 *
 * Threads: one at a time.
 * Owns: `sender` is the caller's still.
 */
enum portolan_status portolan_wait_set_add_reconnecting_sender(struct portolan_wait_set set,
                                                               struct portolan_reconnecting_sender sender);

/**
 * Adds a reconnecting subscriber. See `portolan_wait_set_add_receive_right`.
 *
 * Threads: one at a time.
 * Owns: `subscriber` is the caller's still.
 */
enum portolan_status portolan_wait_set_add_reconnecting_subscriber(struct portolan_wait_set set,
                                                                   struct portolan_reconnecting_subscriber subscriber);

/**
 * Adds a listener for signals. See `portolan_wait_set_add_receive_right`.
 *
 * Threads: one at a time.
 * Owns: `listener` is the caller's still.
 */
enum portolan_status portolan_wait_set_add_listener(struct portolan_wait_set set,
                                                    struct portolan_listener listener);

/**
 * Adds the notifications of an export. See `portolan_wait_set_add_receive_right`.
 *
 * Threads: one at a time.
 * Owns: `notifications` is the caller's still.
 */
enum portolan_status portolan_wait_set_add_notifications(struct portolan_wait_set set,
                                                         struct portolan_notifications notifications);

/**
 * Takes a member out of the set: the thing whose handle has this `id`.
 *
 * Threads: one at a time.
 * Owns: the member is its handle's, as before.
 */
enum portolan_status portolan_wait_set_remove(struct portolan_wait_set set, uint64_t id);

/**
 * Waits until something is at a member, or until the deadline. `ready` gets the `id` of the handle
 * of each, up to `most`; `*count` says how many, 0 if the deadline came first, which is no error.
 * What found no room is named by the next wait. A member that still has something is named again.
 *
 * Threads: one at a time; meanwhile no other thread can use the set's members.
 * Owns: the array is the caller's.
 */
enum portolan_status portolan_wait_set_wait(struct portolan_wait_set set,
                                            portolan_deadline until,
                                            uint64_t *ready,
                                            size_t most,
                                            size_t *count);

/**
 * The set as a descriptor for epoll: readable while `portolan_wait_set_wait` may find something.
 * Whenever it is, call that with `PORTOLAN_NOW` until it finds nothing.
 *
 * Threads: one at a time.
 * Owns: the descriptor is the set's: do not close it, nor read from it.
 */
enum portolan_status portolan_wait_set_descriptor(struct portolan_wait_set set,
                                                  int32_t *descriptor);

/**
 * Chooses how the set waits.
 *
 * Threads: one at a time.
 */
enum portolan_status portolan_wait_set_set_waiting(struct portolan_wait_set set,
                                                   portolan_waiting how);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* PORTOLAN_H */
