/*
 * Portolan for C++20: handles that free themselves, over the C ABI of portolan.h.
 *
 * A call gives a `portolan::result<T>`: its value, or why there is none. With PORTOLAN_EXCEPTIONS
 * defined before this file is included, it gives the value itself and throws `portolan::failure`.
 * `portolan::outcome<T>` is the one or the other. The two live in namespaces of their own, so that
 * files that chose differently may be linked.
 *
 * Classes and methods are called after the Rust library's, but for words that C++ has taken:
 * `private_`, `export_`, `import_`. Each class says in portolan.h, at the function that it calls,
 * from which threads it may be used. All of them move and none is copied; `clone` makes another
 * right, where there can be one.
 */
#ifndef PORTOLAN_HPP
#define PORTOLAN_HPP

#include "portolan.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#ifdef PORTOLAN_EXCEPTIONS
#include <stdexcept>
#endif

namespace portolan {
#ifdef PORTOLAN_EXCEPTIONS
inline namespace throwing {
#else
inline namespace answering {
#endif

/* Why a call did not do what it says. */
struct error {
    portolan_status status = PORTOLAN_OK;
    std::string text;

    /* Of this thread's last call. */
    static error last(portolan_status status) { return {status, portolan_error_text()}; }
};

/* A value, or why there is none. */
template <class T>
class [[nodiscard]] result {
  public:
    result(T value) : held_(std::in_place_index<0>, std::move(value)) {}
    result(portolan::error why) : held_(std::in_place_index<1>, std::move(why)) {}

    bool has_value() const noexcept { return held_.index() == 0; }
    explicit operator bool() const noexcept { return has_value(); }

    /* The value; where there is none the program ends with the reason. */
    T &value() & {
        demand();
        return *std::get_if<0>(&held_);
    }
    const T &value() const & {
        demand();
        return *std::get_if<0>(&held_);
    }
    T value() && {
        demand();
        return std::move(*std::get_if<0>(&held_));
    }
    T &operator*() & { return value(); }
    const T &operator*() const & { return value(); }
    T operator*() && { return std::move(*this).value(); }
    T *operator->() { return &value(); }

    /* Why there is no value; PORTOLAN_OK where there is one. */
    portolan::error error() const {
        const auto *why = std::get_if<1>(&held_);
        return why ? *why : portolan::error{};
    }
    portolan_status status() const noexcept {
        const auto *why = std::get_if<1>(&held_);
        return why ? why->status : PORTOLAN_OK;
    }

  private:
    void demand() const {
        if (const auto *why = std::get_if<1>(&held_)) {
            std::fprintf(stderr, "portolan: a result has no value: %s\n", why->text.c_str());
            std::abort();
        }
    }

    std::variant<T, portolan::error> held_;
};

template <>
class [[nodiscard]] result<void> {
  public:
    result() = default;
    result(portolan::error why) : why_(std::move(why)) {}

    bool has_value() const noexcept { return why_.status == PORTOLAN_OK; }
    explicit operator bool() const noexcept { return has_value(); }

    /* Nothing; where it failed the program ends with the reason. */
    void value() const {
        if (!has_value()) {
            std::fprintf(stderr, "portolan: a call failed: %s\n", why_.text.c_str());
            std::abort();
        }
    }
    void operator*() const { value(); }
    portolan::error error() const { return why_; }
    portolan_status status() const noexcept { return why_.status; }

  private:
    portolan::error why_;
};

#ifdef PORTOLAN_EXCEPTIONS

/* What a call throws that did not do what it says. */
class failure : public std::runtime_error {
  public:
    explicit failure(error why) : std::runtime_error(why.text), why_(std::move(why)) {}
    const portolan::error &why() const noexcept { return why_; }
    portolan_status status() const noexcept { return why_.status; }

  private:
    portolan::error why_;
};

template <class T>
using outcome = T;

#else

template <class T>
using outcome = result<T>;

#endif

namespace detail {

/* What a call gives: the value that `make` makes, or this thread's error. */
template <class F>
outcome<std::invoke_result_t<F>> finish(portolan_status status, F make) {
    if (status == PORTOLAN_OK) {
        if constexpr (std::is_void_v<std::invoke_result_t<F>>) {
            make();
            return outcome<void>();
        } else {
            return make();
        }
    }
#ifdef PORTOLAN_EXCEPTIONS
    throw failure(error::last(status));
#else
    return error::last(status);
#endif
}

inline outcome<void> finish(portolan_status status) {
    return finish(status, [] {});
}

/* A handle of C's that frees itself. */
template <class H, portolan_status (*Free)(H)>
class handle {
  public:
    handle() = default;
    explicit handle(H owned) noexcept : owned_(owned) {}
    handle(handle &&other) noexcept : owned_(other.release()) {}
    handle &operator=(handle &&other) noexcept {
        if (this != &other) {
            reset();
            owned_ = other.release();
        }
        return *this;
    }
    handle(const handle &) = delete;
    handle &operator=(const handle &) = delete;
    ~handle() { reset(); }

    /* C's handle, which is this one's still. */
    H get() const noexcept { return owned_; }
    std::uint64_t id() const noexcept { return owned_.id; }
    explicit operator bool() const noexcept { return owned_.id != 0; }

    /* C's handle, to be freed by the caller. */
    H release() noexcept { return std::exchange(owned_, H{}); }

    void reset() noexcept {
        if (owned_.id != 0) {
            Free(release());
        }
    }

  private:
    H owned_{};
};

inline std::span<std::byte> bytes(void *data, std::size_t len) {
    return {static_cast<std::byte *>(data), len};
}

inline std::span<const std::byte> bytes(const void *data, std::size_t len) {
    return {static_cast<const std::byte *>(data), len};
}

inline const char *text_or_none(const std::string &text) {
    return text.empty() ? nullptr : text.c_str();
}

} // namespace detail

/* Bytes as text, and text as bytes. */
inline std::string_view text(std::span<const std::byte> bytes) {
    return {reinterpret_cast<const char *>(bytes.data()), bytes.size()};
}

inline std::span<const std::byte> bytes(std::string_view text) {
    return {reinterpret_cast<const std::byte *>(text.data()), text.size()};
}

/* A value as the bytes that a message or a topic carries. */
template <class T>
    requires std::is_trivially_copyable_v<T>
std::span<const std::byte> bytes_of(const T &value) {
    return std::as_bytes(std::span<const T, 1>(&value, 1));
}

/* How long a call may wait. */
class deadline {
  public:
    template <class Rep, class Period>
    deadline(std::chrono::duration<Rep, Period> time)
        : word_(portolan_deadline_after(nanoseconds(time))) {}

    static constexpr deadline now() { return deadline(PORTOLAN_NOW); }
    static constexpr deadline never() { return deadline(PORTOLAN_NEVER); }
    constexpr portolan_deadline word() const { return word_; }

  private:
    constexpr explicit deadline(portolan_deadline word) : word_(word) {}

    template <class Rep, class Period>
    static std::uint64_t nanoseconds(std::chrono::duration<Rep, Period> time) {
        const auto count = std::chrono::duration_cast<std::chrono::nanoseconds>(time).count();
        return count > 0 ? static_cast<std::uint64_t>(count) : 0;
    }

    portolan_deadline word_;
};

/* What a send does when the queue is full: waits until a deadline, or one of these. */
class when_full {
  public:
    constexpr when_full(deadline until) : word_(until.word()) {}
    template <class Rep, class Period>
    when_full(std::chrono::duration<Rep, Period> time) : word_(deadline(time).word()) {}

    static constexpr when_full fail() { return when_full(std::uint64_t{PORTOLAN_FAIL}); }
    static constexpr when_full drop() { return when_full(std::uint64_t{PORTOLAN_DROP}); }
    constexpr portolan_when_full word() const { return word_; }

  private:
    constexpr explicit when_full(std::uint64_t word) : word_(word) {}

    portolan_when_full word_;
};

enum class access : portolan_access { later = PORTOLAN_LATER, at_once = PORTOLAN_AT_ONCE };

enum class waiting : portolan_waiting {
    adaptive = PORTOLAN_ADAPTIVE,
    poll = PORTOLAN_POLL,
    sleep = PORTOLAN_SLEEP,
};

/* What holds if nothing else is said is what each of these begins with; portolan.h says more of each
 * field. A text that is empty is none. */

struct domain_options {
    std::string name{};
    std::uint64_t size = 0;
    std::uint64_t limit = 0;
    std::chrono::nanoseconds deadline{0};
    std::string space_name{};
    std::string path{};
    std::vector<std::uint32_t> allow_users{};
    std::vector<std::uint32_t> allow_groups{};
    portolan_protection protection = PORTOLAN_PROTECTION_ANY;
    std::optional<std::uint32_t> of_user{};
    bool lock_pages = false;
    bool always_open = false;
    bool create = true;
    bool spanning = false;

    /* As C has it: points into this. */
    portolan_domain_options c() const {
        portolan_domain_options options{};
        options.name = detail::text_or_none(name);
        options.size = size;
        options.limit = limit;
        options.deadline = deadline.count() > 0 ? static_cast<std::uint64_t>(deadline.count()) : 0;
        options.space_name = detail::text_or_none(space_name);
        options.path = detail::text_or_none(path);
        options.allow_users = allow_users.data();
        options.allow_users_len = allow_users.size();
        options.allow_groups = allow_groups.data();
        options.allow_groups_len = allow_groups.size();
        options.protection = protection;
        options.of_user = of_user.value_or(0);
        options.is_of_user = of_user.has_value();
        options.lock_pages = lock_pages;
        options.always_open = always_open;
        options.no_create = !create;
        options.spanning = spanning;
        return options;
    }
};

struct port_options {
    std::string name{};
    std::size_t queue = 0;
    std::size_t inline_bytes = 0;
    bool synchronous = false;
    bool by_urgency = false;
    bool copied = false;
    bool spanned = false;

    portolan_port_options c() const {
        return {detail::text_or_none(name), queue, inline_bytes, synchronous, by_urgency, copied,
                spanned};
    }
};

struct channel_options {
    std::string name{};
    std::size_t unit = 0;
    std::uint64_t units = 0;
    std::uint64_t readers = 0;
    std::uint64_t content = 0;
    std::uint32_t signal_bytes = 0;
    bool never_signals = false;
    bool reliable = false;
    bool many_writers = false;

    portolan_channel_options c() const {
        return {detail::text_or_none(name), unit,          units,    readers,     content,
                signal_bytes,               never_signals, reliable, many_writers};
    }
};

struct reader_options {
    std::uint64_t since_last = 0;
    portolan_lagging lagging = PORTOLAN_LAGGING_WAIT;

    portolan_reader_options c() const { return {since_last, lagging}; }
};

struct topic_options {
    /* Of a subscriber, 0 for none of the earlier samples. */
    std::uint64_t history = 1;
    std::uint64_t subscribers = 0;
    std::size_t copied = 0;
    std::uint8_t publishers = 0;

    portolan_topic_options c() const {
        return {history, subscribers, copied, publishers, history == 0};
    }
};

struct listener_options {
    std::size_t depth = 0;
    portolan::waiting waiting = portolan::waiting::adaptive;

    portolan_listener_options c() const {
        return {depth, static_cast<portolan_waiting>(waiting)};
    }
};

enum class reach : portolan_reach {
    read = PORTOLAN_REACH_READ,
    write = PORTOLAN_REACH_WRITE,
    read_write = PORTOLAN_REACH_READ_WRITE,
};

struct export_options {
    portolan::reach reach = portolan::reach::read;
    std::vector<std::uint32_t> users{};
    std::vector<std::uint32_t> groups{};
    std::size_t importers = 0;

    portolan_export_options c() const {
        return {users.data(),  users.size(), groups.data(),
                groups.size(), importers,    static_cast<portolan_reach>(reach)};
    }
};

struct offer_options {
    std::vector<std::uint32_t> users{};
    std::vector<std::uint32_t> groups{};
    std::optional<portolan_access_token> token{};
    std::uint64_t most_bytes = 0;
    std::size_t most_clients = 0;
    std::size_t most_requests = 0;
    std::chrono::nanoseconds deadline{0};
    bool permits_anyone = false;

    portolan_offer_options c() const {
        portolan_offer_options options{};
        options.users = users.data();
        options.users_len = users.size();
        options.groups = groups.data();
        options.groups_len = groups.size();
        options.token = token ? &*token : nullptr;
        options.most_bytes = most_bytes;
        options.most_clients = most_clients;
        options.most_requests = most_requests;
        options.deadline = deadline.count() > 0 ? static_cast<std::uint64_t>(deadline.count()) : 0;
        options.permits_anyone = permits_anyone;
        return options;
    }
};

struct connect_options {
    std::optional<portolan_access_token> token{};
    std::size_t queue = 0;
    std::uint64_t most_bytes = 0;

    portolan_connect_options c() const {
        return {token ? &*token : nullptr, queue, most_bytes};
    }
};

/* A random token. */
inline outcome<portolan_access_token> random_access_token() {
    portolan_access_token token{};
    const auto status = portolan_access_token_random(&token);
    return detail::finish(status, [&] { return token; });
}

/* Exclusive use of a run of pages, until sent, pushed into a message, or gone. */
class extent : public detail::handle<portolan_extent, portolan_extent_free> {
  public:
    using handle::handle;

    /* Its bytes; none, if it was given away. */
    std::span<std::byte> bytes() {
        void *data = nullptr;
        std::size_t len = 0;
        portolan_extent_data(get(), &data, &len);
        return detail::bytes(data, len);
    }

    /* The same as values; a tail that is no whole one is left out. */
    template <class T>
        requires std::is_trivially_copyable_v<T>
    std::span<T> as() {
        const auto all = bytes();
        return {reinterpret_cast<T *>(all.data()), all.size() / sizeof(T)};
    }

    std::size_t capacity() const {
        std::size_t bytes = 0;
        portolan_extent_capacity(get(), &bytes);
        return bytes;
    }

    outcome<void> set_len(std::size_t len) {
        return detail::finish(portolan_extent_set_len(get(), len));
    }
};

/* The right to send any number of messages to a port. */
class send_right;
/* The right to send one. */
class send_once_right;
/* The right to receive from a port. */
class receive_right;
class segment;
class shared_extent;
class channel;

/* A right of any kind, as it comes in a message. */
using right = std::variant<send_right, send_once_right, receive_right, segment, shared_extent>;

/* A header, extents and rights. */
class message : public detail::handle<portolan_message, portolan_message_free> {
  public:
    using handle::handle;

    static outcome<message> make(std::span<const std::byte> header) {
        portolan_message made{};
        const auto status = portolan_message_new(header.data(), header.size(), &made);
        return detail::finish(status, [&] { return message(made); });
    }
    static outcome<message> make(std::string_view header = {}) {
        return make(portolan::bytes(header));
    }

    std::span<const std::byte> header() const {
        const void *data = nullptr;
        std::size_t len = 0;
        portolan_message_header(get(), &data, &len);
        return detail::bytes(data, len);
    }
    outcome<void> set_header(std::span<const std::byte> header) {
        return detail::finish(portolan_message_set_header(get(), header.data(), header.size()));
    }
    outcome<void> set_header(std::string_view header) {
        return set_header(portolan::bytes(header));
    }

    /* Appends an extent, which is then the message's; if that fails it is as it was. */
    outcome<void> push(extent &&extent) {
        return detail::finish(portolan_message_push(get(), extent.get()),
                              [&] { extent.release(); });
    }
    std::size_t extents() const {
        std::size_t count = 0;
        portolan_message_extents(get(), &count, nullptr);
        return count;
    }
    std::size_t len() const {
        std::size_t bytes = 0;
        portolan_message_extents(get(), nullptr, &bytes);
        return bytes;
    }
    /* The bytes of an extent; none, if there are not so many. */
    std::span<std::byte> extent_bytes(std::size_t index) {
        void *data = nullptr;
        std::size_t len = 0;
        portolan_message_extent(get(), index, &data, &len);
        return detail::bytes(data, len);
    }
    outcome<extent> remove(std::size_t index) {
        portolan_extent taken{};
        const auto status = portolan_message_remove(get(), index, &taken);
        return detail::finish(status, [&] { return extent(taken); });
    }

    inline outcome<void> attach(send_right &&right);
    inline outcome<void> attach(send_once_right &&right);
    inline outcome<void> attach(receive_right &&port);
    inline outcome<void> attach(segment &&segment);
    inline outcome<void> attach(shared_extent &&shared);
    inline outcome<void> attach(channel &&channel);
    inline outcome<std::vector<right>> take_rights();

    outcome<void> clear() { return detail::finish(portolan_message_clear(get())); }
    outcome<void> set_priority(std::uint32_t priority) {
        return detail::finish(portolan_message_set_priority(get(), priority));
    }
    outcome<void> set_deadline(deadline by) {
        return detail::finish(portolan_message_set_deadline(get(), by.word()));
    }
    /* Its kind is PORTOLAN_NOTICE_NONE for what is a message. */
    portolan_notice notice() const {
        portolan_notice told{};
        portolan_message_notice(get(), &told);
        return told;
    }
};

/* A request on its way. */
class pending_reply
    : public detail::handle<portolan_pending_reply, portolan_pending_reply_free> {
  public:
    using handle::handle;

    outcome<message> wait(deadline until, access how = access::later) {
        portolan_message made{};
        auto status = portolan_message_new(nullptr, 0, &made);
        message answer(made);
        if (status == PORTOLAN_OK) {
            status = portolan_pending_reply_wait(
                get(), made, static_cast<portolan_access>(how), until.word());
        }
        return detail::finish(status, [&] { return std::move(answer); });
    }
};

class send_right : public detail::handle<portolan_send_right, portolan_send_right_free> {
  public:
    using handle::handle;

    /* The message is empty when it was sent, and untouched when not. */
    outcome<void> send(message &message, when_full full) const {
        return detail::finish(portolan_send_right_send(get(), message.get(), full.word()));
    }
    outcome<void> send(message &&message, when_full full) const { return send(message, full); }

    /* The answer is in the message then. */
    outcome<void> request_reply(message &message, deadline until,
                                access how = access::later) const {
        return detail::finish(portolan_send_right_request_reply(
            get(), message.get(), static_cast<portolan_access>(how), until.word()));
    }
    outcome<pending_reply> begin_request(message &message, when_full full) const {
        portolan_pending_reply begun{};
        const auto status =
            portolan_send_right_begin_request(get(), message.get(), full.word(), &begun);
        return detail::finish(status, [&] { return pending_reply(begun); });
    }
    outcome<pending_reply> begin_request(message &&message, when_full full) const {
        return begin_request(message, full);
    }

    outcome<send_right> clone() const {
        portolan_send_right another{};
        const auto status = portolan_send_right_clone(get(), &another);
        return detail::finish(status, [&] { return send_right(another); });
    }
    bool is_live() const {
        portolan_right_state state = PORTOLAN_RIGHT_DEAD;
        portolan_send_right_state(get(), &state);
        return state != PORTOLAN_RIGHT_DEAD;
    }
    outcome<void> flush(deadline until) const {
        return detail::finish(portolan_send_right_flush(get(), until.word()));
    }
    inline outcome<void> watch(const receive_right &notify, std::uint64_t token) const;
};

class send_once_right
    : public detail::handle<portolan_send_once_right, portolan_send_once_right_free> {
  public:
    using handle::handle;

    /* Uses the right up. */
    outcome<void> send(message &message) && {
        return detail::finish(portolan_send_once_right_send(release(), message.get()));
    }
};

/* A request that was received. */
struct request {
    portolan::message message;
    /* The right to answer; none, where no client waits for one. */
    send_once_right answer;

    /* Answers with the request's own message. */
    outcome<void> reply_in_place() { return std::move(answer).send(message); }
};

/* A port that other domains can connect to; gone, it is offered no more. */
class offered_port : public detail::handle<portolan_offered_port, portolan_offered_port_free> {
  public:
    using handle::handle;

    std::size_t clients() const {
        std::size_t clients = 0;
        portolan_offered_port_clients(get(), &clients);
        return clients;
    }
    /* How many clients have broken the rules since the last call. */
    std::size_t take_violations() const {
        std::size_t violations = 0;
        portolan_offered_port_take_violations(get(), &violations);
        return violations;
    }
};

class receive_right : public detail::handle<portolan_receive_right, portolan_receive_right_free> {
  public:
    using handle::handle;

    /* Into a message that is there; what it held is dropped first. */
    outcome<void> receive_into(message &message, deadline until, access how = access::later) {
        return detail::finish(portolan_receive_right_receive(
            get(), message.get(), static_cast<portolan_access>(how), until.word()));
    }
    outcome<message> receive(deadline until, access how = access::later) {
        portolan_message made{};
        auto status = portolan_message_new(nullptr, 0, &made);
        message received(made);
        if (status == PORTOLAN_OK) {
            status = portolan_receive_right_receive(
                get(), made, static_cast<portolan_access>(how), until.word());
        }
        return detail::finish(status, [&] { return std::move(received); });
    }
    outcome<request> get_request(deadline until, access how = access::later) {
        portolan_message made{};
        auto status = portolan_message_new(nullptr, 0, &made);
        message received(made);
        portolan_send_once_right answer{};
        if (status == PORTOLAN_OK) {
            status = portolan_receive_right_get_request(
                get(), made, static_cast<portolan_access>(how), until.word(), &answer);
        }
        return detail::finish(status, [&] {
            return request{std::move(received), send_once_right(answer)};
        });
    }

    outcome<send_right> make_send() {
        portolan_send_right made{};
        const auto status = portolan_receive_right_make_send(get(), &made);
        return detail::finish(status, [&] { return send_right(made); });
    }
    outcome<send_once_right> make_send_once() {
        portolan_send_once_right made{};
        const auto status = portolan_receive_right_make_send_once(get(), &made);
        return detail::finish(status, [&] { return send_once_right(made); });
    }
    outcome<void> request_no_more_senders() {
        return detail::finish(portolan_receive_right_request_no_more_senders(get()));
    }
    outcome<void> set_waiting(waiting how) {
        return detail::finish(
            portolan_receive_right_set_waiting(get(), static_cast<portolan_waiting>(how)));
    }
    /* Offers the port to other domains under a name, until the offer is gone. */
    outcome<offered_port> offer(const std::string &name, const offer_options &options = {}) {
        portolan_offered_port made{};
        const auto wanted = options.c();
        const auto status =
            portolan_receive_right_offer(get(), name.c_str(), &wanted, &made);
        return detail::finish(status, [&] { return offered_port(made); });
    }
    std::size_t depth() const {
        std::size_t depth = 0;
        portolan_receive_right_depth(get(), &depth, nullptr);
        return depth;
    }
};

inline outcome<void> send_right::watch(const receive_right &notify, std::uint64_t token) const {
    return detail::finish(portolan_send_right_watch(get(), notify.get(), token));
}

/* Memory that members share. */
class segment : public detail::handle<portolan_segment, portolan_segment_free> {
  public:
    using handle::handle;

    /* All members write it: what is read meanwhile is read by std::atomic_ref. */
    std::span<std::byte> bytes() const {
        void *data = nullptr;
        std::size_t len = 0;
        portolan_segment_data(get(), &data, &len);
        return detail::bytes(data, len);
    }
    outcome<segment> clone() const {
        portolan_segment another{};
        const auto status = portolan_segment_clone(get(), &another);
        return detail::finish(status, [&] { return segment(another); });
    }
};

/* Memory that was filled once, and that no program writes any more. */
class shared_extent : public detail::handle<portolan_shared_extent, portolan_shared_extent_free> {
  public:
    using handle::handle;

    std::span<const std::byte> bytes() const {
        const void *data = nullptr;
        std::size_t len = 0;
        portolan_shared_extent_data(get(), &data, &len);
        return detail::bytes(data, len);
    }
};

/* The writer of a channel. */
class writer : public detail::handle<portolan_writer, portolan_writer_free> {
  public:
    using handle::handle;

    outcome<std::uint64_t> write(std::span<const std::byte> message, deadline until) {
        std::uint64_t position = 0;
        const auto status =
            portolan_writer_write(get(), message.data(), message.size(), until.word(), &position);
        return detail::finish(status, [&] { return position; });
    }
    outcome<std::uint64_t> write(std::string_view message, deadline until) {
        return write(portolan::bytes(message), until);
    }
};

/* A reader of a channel. */
class reader : public detail::handle<portolan_reader, portolan_reader_free> {
  public:
    using handle::handle;

    /* The bytes are the reader's: there until its next call. */
    outcome<std::span<const std::byte>> receive(deadline until) {
        const void *data = nullptr;
        std::size_t len = 0;
        const auto status =
            portolan_reader_receive(get(), until.word(), &data, &len, nullptr, &missed_);
        return detail::finish(status, [&] { return detail::bytes(data, len); });
    }
    /* Which units the last PORTOLAN_MISSED was about. */
    portolan_missed missed() const { return missed_; }

  private:
    portolan_missed missed_{};
};

/* The right to a channel. */
class channel : public detail::handle<portolan_channel, portolan_channel_free> {
  public:
    using handle::handle;

    static outcome<channel> of(segment &&held) {
        portolan_channel made{};
        const auto status = portolan_channel_of_segment(held.get(), &made);
        return detail::finish(status, [&] {
            held.release();
            return channel(made);
        });
    }
    outcome<writer> bind_writer() const {
        portolan_writer bound{};
        const auto status = portolan_channel_bind_writer(get(), &bound);
        return detail::finish(status, [&] { return writer(bound); });
    }
    outcome<reader> bind_reader(const reader_options &options = {}) const {
        portolan_reader bound{};
        const auto wanted = options.c();
        const auto status = portolan_channel_bind_reader(get(), &wanted, &bound);
        return detail::finish(status, [&] { return reader(bound); });
    }
    outcome<channel> clone() const {
        portolan_channel another{};
        const auto status = portolan_channel_clone(get(), &another);
        return detail::finish(status, [&] { return channel(another); });
    }
};

inline outcome<void> message::attach(send_right &&right) {
    return detail::finish(portolan_message_attach_send_right(get(), right.get()),
                          [&] { right.release(); });
}
inline outcome<void> message::attach(send_once_right &&right) {
    return detail::finish(portolan_message_attach_send_once_right(get(), right.get()),
                          [&] { right.release(); });
}
inline outcome<void> message::attach(receive_right &&port) {
    return detail::finish(portolan_message_attach_receive_right(get(), port.get()),
                          [&] { port.release(); });
}
inline outcome<void> message::attach(segment &&segment) {
    return detail::finish(portolan_message_attach_segment(get(), segment.get()),
                          [&] { segment.release(); });
}
inline outcome<void> message::attach(shared_extent &&shared) {
    return detail::finish(portolan_message_attach_shared_extent(get(), shared.get()),
                          [&] { shared.release(); });
}
inline outcome<void> message::attach(channel &&channel) {
    return detail::finish(portolan_message_attach_channel(get(), channel.get()),
                          [&] { channel.release(); });
}
inline outcome<std::vector<right>> message::take_rights() {
    portolan_right came[PORTOLAN_MAX_RIGHTS];
    std::size_t count = 0;
    const auto status =
        portolan_message_take_rights(get(), came, PORTOLAN_MAX_RIGHTS, &count);
    return detail::finish(status, [&] {
        std::vector<right> rights;
        rights.reserve(count);
        for (std::size_t i = 0; i < count; ++i) {
            const auto id = came[i].id;
            switch (came[i].kind) {
            case PORTOLAN_RIGHT_SEND:
                rights.emplace_back(send_right(portolan_send_right{id}));
                break;
            case PORTOLAN_RIGHT_SEND_ONCE:
                rights.emplace_back(send_once_right(portolan_send_once_right{id}));
                break;
            case PORTOLAN_RIGHT_RECEIVE:
                rights.emplace_back(receive_right(portolan_receive_right{id}));
                break;
            case PORTOLAN_RIGHT_SEGMENT:
                rights.emplace_back(segment(portolan_segment{id}));
                break;
            default:
                rights.emplace_back(shared_extent(portolan_shared_extent{id}));
            }
        }
        return rights;
    });
}

/* One published value. */
class sample : public detail::handle<portolan_sample, portolan_sample_free> {
  public:
    using handle::handle;

    std::span<const std::byte> bytes() const {
        const void *data = nullptr;
        std::size_t len = 0;
        portolan_sample_data(get(), &data, &len, nullptr);
        return detail::bytes(data, len);
    }
    /* The same as a value; nothing, if it has another size. */
    template <class T>
        requires std::is_trivially_copyable_v<T>
    const T *as() const {
        const auto all = bytes();
        return all.size() == sizeof(T) ? reinterpret_cast<const T *>(all.data()) : nullptr;
    }
    portolan_sample_origin origin() const {
        const void *data = nullptr;
        std::size_t len = 0;
        portolan_sample_origin origin{};
        portolan_sample_data(get(), &data, &len, &origin);
        return origin;
    }
};

/* A publisher of a topic. */
class publisher : public detail::handle<portolan_publisher, portolan_publisher_free> {
  public:
    using handle::handle;

    outcome<std::uint64_t> publish(std::span<const std::byte> sample) {
        std::uint64_t position = 0;
        const auto status =
            portolan_publisher_publish(get(), sample.data(), sample.size(), &position);
        return detail::finish(status, [&] { return position; });
    }
    template <class T>
        requires std::is_trivially_copyable_v<T>
    outcome<std::uint64_t> publish_value(const T &value) {
        return publish(bytes_of(value));
    }

    /* Room to be filled in place, until it is published or the publisher's next call. */
    outcome<std::span<std::byte>> loan(std::size_t len) {
        void *data = nullptr;
        const auto status = portolan_publisher_loan(get(), len, &data);
        return detail::finish(status, [&] { return detail::bytes(data, len); });
    }
    outcome<std::uint64_t> publish_loan() {
        std::uint64_t position = 0;
        const auto status = portolan_publisher_publish_loan(get(), &position);
        return detail::finish(status, [&] { return position; });
    }
};

/* A subscriber of a topic. */
class subscriber : public detail::handle<portolan_subscriber, portolan_subscriber_free> {
  public:
    using handle::handle;

    outcome<sample> receive(deadline until) {
        portolan_sample taken{};
        const auto status = portolan_subscriber_receive(get(), until.word(), &taken);
        return detail::finish(status, [&] { return sample(taken); });
    }
};

/* Sends to the port that has a name, whichever process has bound it. */
class reconnecting_sender
    : public detail::handle<portolan_reconnecting_sender, portolan_reconnecting_sender_free> {
  public:
    using handle::handle;

    /* The message is empty when it was sent, and untouched when not. */
    outcome<portolan_sent> send(message &message, when_full full) {
        portolan_sent sent{};
        const auto status =
            portolan_reconnecting_sender_send(get(), message.get(), full.word(), &sent);
        return detail::finish(status, [&] { return sent; });
    }
    outcome<portolan_sent> send(message &&message, when_full full) { return send(message, full); }

    outcome<void> connect(deadline until) {
        return detail::finish(portolan_reconnecting_sender_connect(get(), until.word()));
    }
    /* For requests; what is sent by it is not counted here. */
    outcome<send_right> right(deadline until) {
        portolan_send_right right{};
        const auto status = portolan_reconnecting_sender_right(get(), until.word(), &right);
        return detail::finish(status, [&] { return send_right(right); });
    }
    bool is_connected() {
        bool is_connected = false;
        portolan_reconnecting_sender_is_connected(get(), &is_connected);
        return is_connected;
    }
    /* What no call has told of. */
    std::optional<portolan_lost> take_lost() {
        portolan_lost lost{};
        portolan_reconnecting_sender_take_lost(get(), &lost);
        return lost.receiver != 0 ? std::optional(lost) : std::nullopt;
    }
};

/* A sample, or a publisher that left or died. */
using update = std::variant<sample, portolan_publisher_gone>;

/* A subscriber of a topic that is told of publishers that left or died. */
class reconnecting_subscriber
    : public detail::handle<portolan_reconnecting_subscriber,
                            portolan_reconnecting_subscriber_free> {
  public:
    using handle::handle;

    outcome<update> receive(deadline until) {
        portolan_sample taken{};
        portolan_publisher_gone gone{};
        const auto status =
            portolan_reconnecting_subscriber_receive(get(), until.word(), &taken, &gone);
        return detail::finish(status, [&] {
            return taken.id != 0 ? update(sample(taken)) : update(gone);
        });
    }
    std::size_t live_publishers() {
        std::size_t publishers = 0;
        portolan_reconnecting_subscriber_live_publishers(get(), &publishers);
        return publishers;
    }
    outcome<void> set_waiting(waiting how) {
        return detail::finish(portolan_reconnecting_subscriber_set_waiting(
            get(), static_cast<portolan_waiting>(how)));
    }
};

/* The one thread that handles signals. */
class listener : public detail::handle<portolan_listener, portolan_listener_free> {
  public:
    using handle::handle;
    listener(listener &&) = default;
    listener &operator=(listener &&other) noexcept {
        /* The old listener first: its handlers' functions are dropped after it. */
        handle::operator=(std::move(other));
        handlers_ = std::move(other.handlers_);
        return *this;
    }
    ~listener() { reset(); }

    /* Runs `work` for each signal of an address in the range, on the thread that waits. An exception
     * that leaves it ends the program. */
    outcome<void> on(std::span<const std::byte> range, std::function<void(void *)> work) {
        auto kept = std::make_unique<std::function<void(void *)>>(std::move(work));
        portolan_handler handler{};
        const auto status =
            portolan_listener_on(get(), PORTOLAN_DELIVERY_LISTENED, range.data(), range.size(),
                                 &run, kept.get(), &handler);
        return detail::finish(status, [&] {
            handlers_.push_back({std::move(kept), off(handler)});
        });
    }
    /* Whether a signal came is its status: PORTOLAN_TIMED_OUT, if not. */
    outcome<void> wait(deadline until) {
        return detail::finish(portolan_listener_wait(get(), until.word()));
    }
    outcome<std::size_t> poll() {
        std::size_t handled = 0;
        const auto status = portolan_listener_poll(get(), &handled);
        return detail::finish(status, [&] { return handled; });
    }
    std::uint64_t dropped() const {
        std::uint64_t dropped = 0;
        portolan_listener_dropped(get(), &dropped);
        return dropped;
    }

  private:
    using off = detail::handle<portolan_handler, portolan_listener_off>;

    static void run(void *context, void *address) noexcept {
        (*static_cast<std::function<void(void *)> *>(context))(address);
    }

    struct kept_handler {
        std::unique_ptr<std::function<void(void *)>> work;
        off handler;
    };
    std::vector<kept_handler> handlers_;
};

/* A descriptor, a timer or a Unix signal that signals an address; gone, it does not any more. */
class source : public detail::handle<portolan_source, portolan_source_free> {
  public:
    using handle::handle;
};

/* Memory of this process that can be exported. */
class export_memory
    : public detail::handle<portolan_export_memory, portolan_export_memory_free> {
  public:
    using handle::handle;

    static outcome<export_memory> make(std::size_t len) {
        portolan_export_memory made{};
        const auto status = portolan_export_memory_new(len, &made);
        return detail::finish(status, [&] { return export_memory(made); });
    }
    /* Importers may write it: what is read meanwhile is read by std::atomic_ref, or by `read`. */
    std::span<std::byte> bytes() const {
        void *data = nullptr;
        std::size_t len = 0;
        portolan_export_memory_data(get(), &data, &len);
        return detail::bytes(data, len);
    }
    outcome<void> read(std::size_t offset, std::span<std::byte> out) const {
        return detail::finish(
            portolan_export_memory_read(get(), offset, out.data(), out.size()));
    }
    outcome<void> write(std::size_t offset, std::span<const std::byte> data) const {
        return detail::finish(
            portolan_export_memory_write(get(), offset, data.data(), data.size()));
    }
    outcome<std::uint64_t> load_acquire(std::size_t offset) const {
        std::uint64_t value = 0;
        const auto status = portolan_export_memory_load_acquire(get(), offset, &value);
        return detail::finish(status, [&] { return value; });
    }
    outcome<void> store_release(std::size_t offset, std::uint64_t value) const {
        return detail::finish(portolan_export_memory_store_release(get(), offset, value));
    }
};

/* What importers say that they have written. */
class notifications
    : public detail::handle<portolan_notifications, portolan_notifications_free> {
  public:
    using handle::handle;

    outcome<portolan_notification> wait(deadline until) {
        portolan_notification told{};
        const auto status = portolan_notifications_wait(get(), until.word(), &told);
        return detail::finish(status, [&] { return told; });
    }
};

/* An export; gone, it has ended. */
class exported : public detail::handle<portolan_export, portolan_export_free> {
  public:
    using handle::handle;

    outcome<portolan::notifications> notifications() const {
        portolan_notifications made{};
        const auto status = portolan_export_notifications(get(), &made);
        return detail::finish(status, [&] { return portolan::notifications(made); });
    }
    /* If it fails the export is there still. */
    outcome<void> unexport() {
        return detail::finish(portolan_export_unexport(get()), [&] { release(); });
    }
};

/* Stores to memory of this process that reach an import too. */
class log : public detail::handle<portolan_log, portolan_log_free> {
  public:
    using handle::handle;

    outcome<void> store(std::size_t at, std::span<const std::byte> data) {
        return detail::finish(portolan_log_store(get(), at, data.data(), data.size()));
    }
    outcome<void> store_release(std::size_t at, std::uint64_t value) {
        return detail::finish(portolan_log_store_release(get(), at, value));
    }
    outcome<void> flush() { return detail::finish(portolan_log_flush(get())); }
    outcome<void> flush_notifying() {
        return detail::finish(portolan_log_flush_notifying(get()));
    }
    /* If it fails the last stores may not have landed; the mapping has ended all the same. */
    outcome<void> unmap() && { return detail::finish(portolan_log_unmap(release())); }
};

/* An import of another process's memory. */
class imported : public detail::handle<portolan_import, portolan_import_free> {
  public:
    using handle::handle;

    outcome<void> write(std::size_t offset, std::span<const std::byte> data) const {
        return detail::finish(portolan_import_write(get(), offset, data.data(), data.size()));
    }
    outcome<void> read(std::size_t offset, std::span<std::byte> out) const {
        return detail::finish(portolan_import_read(get(), offset, out.data(), out.size()));
    }
    outcome<void> store_release(std::size_t offset, std::uint64_t value) const {
        return detail::finish(portolan_import_store_release(get(), offset, value));
    }
    outcome<std::uint64_t> load_acquire(std::size_t offset) const {
        std::uint64_t value = 0;
        const auto status = portolan_import_load_acquire(get(), offset, &value);
        return detail::finish(status, [&] { return value; });
    }
    outcome<void> notify(std::size_t offset, std::size_t len) const {
        return detail::finish(portolan_import_notify(get(), offset, len));
    }
    outcome<void> flush(deadline until) const {
        return detail::finish(portolan_import_flush(get(), until.word()));
    }
    /* Maps the `len` bytes at `start` of the memory to the import from `offset` on. */
    outcome<log> map_log(const export_memory &memory, std::size_t start, std::size_t len,
                         std::size_t offset) const {
        portolan_log made{};
        const auto status =
            portolan_import_map_log(get(), memory.get(), start, len, offset, &made);
        return detail::finish(status, [&] { return log(made); });
    }
};

/* A membership in a domain. */
class domain : public detail::handle<portolan_domain, portolan_domain_free> {
  public:
    using handle::handle;

    static outcome<domain> join(const std::string &name) {
        portolan_domain joined{};
        const auto status = portolan_domain_join(name.c_str(), &joined);
        return detail::finish(status, [&] { return domain(joined); });
    }
    static outcome<domain> join(const domain_options &options) {
        portolan_domain joined{};
        const auto wanted = options.c();
        const auto status = portolan_domain_join_with(&wanted, &joined);
        return detail::finish(status, [&] { return domain(joined); });
    }
    static outcome<domain> private_() {
        portolan_domain made{};
        const auto status = portolan_domain_private(nullptr, &made);
        return detail::finish(status, [&] { return domain(made); });
    }
    outcome<domain> clone() const {
        portolan_domain another{};
        const auto status = portolan_domain_clone(get(), &another);
        return detail::finish(status, [&] { return domain(another); });
    }
    outcome<void> leave() && { return detail::finish(portolan_domain_leave(release())); }

    outcome<extent> allocate(std::size_t bytes) const {
        portolan_extent allocated{};
        const auto status = portolan_domain_allocate(get(), bytes, &allocated);
        return detail::finish(status, [&] { return extent(allocated); });
    }
    outcome<receive_right> bind(const port_options &options = {}) const {
        portolan_receive_right bound{};
        const auto wanted = options.c();
        const auto status = portolan_domain_bind(get(), &wanted, &bound);
        return detail::finish(status, [&] { return receive_right(bound); });
    }
    /* Waits while another port has the name. */
    outcome<receive_right> bind_when_free(const port_options &options, deadline until) const {
        portolan_receive_right bound{};
        const auto wanted = options.c();
        const auto status = portolan_domain_bind_when_free(get(), &wanted, until.word(), &bound);
        return detail::finish(status, [&] { return receive_right(bound); });
    }
    outcome<send_right> connect(const std::string &name, deadline until) const {
        portolan_send_right connected{};
        const auto status =
            portolan_domain_connect(get(), name.c_str(), until.word(), &connected);
        return detail::finish(status, [&] { return send_right(connected); });
    }
    outcome<portolan::reconnecting_sender> reconnecting_sender(const std::string &name) const {
        portolan_reconnecting_sender made{};
        const auto status = portolan_domain_reconnecting_sender(get(), name.c_str(), &made);
        return detail::finish(status, [&] { return portolan::reconnecting_sender(made); });
    }
    /* Without a name it is passed on in messages. */
    outcome<segment> make_segment(const std::string &name, std::size_t bytes) const {
        portolan_segment made{};
        const auto status =
            portolan_domain_make_segment(get(), detail::text_or_none(name), bytes, &made);
        return detail::finish(status, [&] { return segment(made); });
    }
    outcome<segment> find_segment(const std::string &name, deadline until) const {
        portolan_segment found{};
        const auto status =
            portolan_domain_find_segment(get(), name.c_str(), until.word(), &found);
        return detail::finish(status, [&] { return segment(found); });
    }
    outcome<shared_extent> share_extent(extent &&filled) const {
        portolan_shared_extent made{};
        const auto status = portolan_domain_share_extent(get(), filled.get(), &made);
        return detail::finish(status, [&] {
            filled.release();
            return shared_extent(made);
        });
    }
    outcome<channel> make_channel(const channel_options &options = {}) const {
        portolan_channel made{};
        const auto wanted = options.c();
        const auto status = portolan_domain_make_channel(get(), &wanted, &made);
        return detail::finish(status, [&] { return channel(made); });
    }
    outcome<channel> find_channel(const std::string &name, deadline until) const {
        portolan_channel found{};
        const auto status =
            portolan_domain_find_channel(get(), name.c_str(), until.word(), &found);
        return detail::finish(status, [&] { return channel(found); });
    }
    outcome<portolan::publisher> publisher(const std::string &topic,
                                           const topic_options &options = {}) const {
        portolan_publisher made{};
        const auto wanted = options.c();
        const auto status = portolan_domain_publisher(get(), topic.c_str(), &wanted, &made);
        return detail::finish(status, [&] { return portolan::publisher(made); });
    }
    outcome<portolan::subscriber> subscriber(const std::string &topic,
                                             const topic_options &options = {}) const {
        portolan_subscriber made{};
        const auto wanted = options.c();
        const auto status = portolan_domain_subscriber(get(), topic.c_str(), &wanted, &made);
        return detail::finish(status, [&] { return portolan::subscriber(made); });
    }
    outcome<portolan::reconnecting_subscriber>
    reconnecting_subscriber(const std::string &topic, const topic_options &options = {}) const {
        portolan_reconnecting_subscriber made{};
        const auto wanted = options.c();
        const auto status =
            portolan_domain_reconnecting_subscriber(get(), topic.c_str(), &wanted, &made);
        return detail::finish(status,
                              [&] { return portolan::reconnecting_subscriber(made); });
    }
    /* How many listeners it reached. */
    outcome<std::size_t> signal(const void *address) const {
        std::size_t reached = 0;
        const auto status = portolan_domain_signal(get(), address, &reached);
        return detail::finish(status, [&] { return reached; });
    }
    /* The descriptor is the caller's still. */
    outcome<source> bind_address_to_descriptor(const void *address, int descriptor) const {
        portolan_source made{};
        const auto status =
            portolan_domain_bind_address_to_descriptor(get(), address, descriptor, &made);
        return detail::finish(status, [&] { return source(made); });
    }
    /* Once, unless `every` is more than nothing. */
    outcome<source> bind_address_to_timer(const void *address, std::chrono::nanoseconds first,
                                          std::chrono::nanoseconds every = {}) const {
        const auto count = [](std::chrono::nanoseconds time) {
            return time.count() > 0 ? static_cast<std::uint64_t>(time.count()) : 0;
        };
        portolan_source made{};
        const auto status = portolan_domain_bind_address_to_timer(get(), address, count(first),
                                                                  count(every), &made);
        return detail::finish(status, [&] { return source(made); });
    }
    outcome<source> bind_address_to_unix_signal(const void *address, int number) const {
        portolan_source made{};
        const auto status =
            portolan_domain_bind_address_to_unix_signal(get(), address, number, &made);
        return detail::finish(status, [&] { return source(made); });
    }
    outcome<listener> listen(const listener_options &options = {}) const {
        portolan_listener made{};
        const auto wanted = options.c();
        const auto status = portolan_domain_listen(get(), &wanted, &made);
        return detail::finish(status, [&] { return listener(made); });
    }
    outcome<exported> export_(const export_memory &memory, const std::string &name,
                              const export_options &options, deadline until) const {
        portolan_export made{};
        const auto wanted = options.c();
        const auto status = portolan_domain_export(get(), memory.get(), name.c_str(), &wanted,
                                                   until.word(), &made);
        return detail::finish(status, [&] { return exported(made); });
    }
    outcome<imported> import_(const std::string &name, deadline until) const {
        portolan_import made{};
        const auto status = portolan_domain_import(get(), name.c_str(), until.word(), &made);
        return detail::finish(status, [&] { return imported(made); });
    }
    /* Of another domain, without joining it. */
    static outcome<imported> import_from(const domain_options &other, const std::string &name,
                                         deadline until) {
        portolan_import made{};
        const auto others = other.c();
        const auto status =
            portolan_domain_import_from(&others, name.c_str(), until.word(), &made);
        return detail::finish(status, [&] { return imported(made); });
    }
    /* A right on a port that another domain offers. */
    outcome<send_right> connect_to(const domain_options &other, const std::string &name,
                                   deadline until, const connect_options &options = {}) const {
        portolan_send_right connected{};
        const auto others = other.c();
        const auto wanted = options.c();
        const auto status = portolan_domain_connect_to(get(), &others, name.c_str(), &wanted,
                                                       until.word(), &connected);
        return detail::finish(status, [&] { return send_right(connected); });
    }
};

/* Waits for any number of things at once; gone, it leaves its members as they were. */
class wait_set : public detail::handle<portolan_wait_set, portolan_wait_set_free> {
  public:
    using handle::handle;

    static outcome<wait_set> make(const domain &domain) {
        portolan_wait_set made{};
        const auto status = portolan_wait_set_new(domain.get(), &made);
        return detail::finish(status, [&] { return wait_set(made); });
    }
    outcome<void> add(const receive_right &port) {
        return detail::finish(portolan_wait_set_add_receive_right(get(), port.get()));
    }
    outcome<void> add(const pending_reply &pending) {
        return detail::finish(portolan_wait_set_add_pending_reply(get(), pending.get()));
    }
    outcome<void> add(const reader &reader) {
        return detail::finish(portolan_wait_set_add_reader(get(), reader.get()));
    }
    outcome<void> add(const subscriber &subscriber) {
        return detail::finish(portolan_wait_set_add_subscriber(get(), subscriber.get()));
    }
    outcome<void> add(const reconnecting_sender &sender) {
        return detail::finish(portolan_wait_set_add_reconnecting_sender(get(), sender.get()));
    }
    outcome<void> add(const reconnecting_subscriber &subscriber) {
        return detail::finish(
            portolan_wait_set_add_reconnecting_subscriber(get(), subscriber.get()));
    }
    outcome<void> add(const listener &listener) {
        return detail::finish(portolan_wait_set_add_listener(get(), listener.get()));
    }
    outcome<void> add(const notifications &notifications) {
        return detail::finish(portolan_wait_set_add_notifications(get(), notifications.get()));
    }
    outcome<void> remove(std::uint64_t id) {
        return detail::finish(portolan_wait_set_remove(get(), id));
    }

    /* The ids of what is ready; none, if the deadline came first. */
    outcome<std::vector<std::uint64_t>> wait(deadline until) {
        std::vector<std::uint64_t> ready(16);
        std::size_t count = 0;
        const auto status =
            portolan_wait_set_wait(get(), until.word(), ready.data(), ready.size(), &count);
        return detail::finish(status, [&] {
            ready.resize(count);
            return std::move(ready);
        });
    }
    /* For epoll; the set's. */
    int descriptor() const {
        int descriptor = -1;
        portolan_wait_set_descriptor(get(), &descriptor);
        return descriptor;
    }
};

} // inline namespace
} // namespace portolan

#endif
