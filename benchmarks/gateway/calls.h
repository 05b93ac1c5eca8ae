/* The calls of the load generator: connections that ask, read the answer as it comes, count it and ask again. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "histogram.h"

enum { MOST_HEAD = 8192, MOST_LINE = 512, HANDSHAKES_AT_ONCE = 256, RETRY_NS = 10000000 };
enum state { CLOSED, CONNECTING, SENDING, HEAD, BODY, FINISHED };
enum framing { BY_LENGTH, CHUNKED, TO_THE_END };
enum chunk_part { CHUNK_SIZE, CHUNK_EXTENSION, CHUNK_DATA, CHUNK_END, TRAILERS };

struct call {
    int fd;
    enum state state;
    bool waits_to_write, good, done, closes, served;
    size_t sent;
    int64_t began_ns, retry_ns;
    char head[MOST_HEAD];
    size_t head_used;
    enum framing framing;
    enum chunk_part part;
    size_t length;       /* of the body so far */
    size_t left;         /* of the body by length, or of the chunk */
    size_t trailer_line; /* characters of the trailer line so far */
    char line[MOST_LINE];
    size_t line_used;
    int64_t late_ns; /* of the event before; -1 before the first */
};

static long port, connections = 64, stream, once; /* options */
static char *request;
static size_t request_length;
static struct call *calls;
static struct call **to_open; /* a ring of those that are to be connected */
static size_t open_first, open_count, handshakes;
static int poller;
static bool counting;
static uint64_t succeeded, failed, events, body_bytes, finished, served;
static struct histogram latencies, event_delays, event_gaps;
static char first_fault[256];

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

/* --- one call after the other ------------------------------------------------------------- */

static void open_later(struct call *call, int64_t retry_ns) {
    call->state = CLOSED;
    call->retry_ns = retry_ns;
    to_open[(open_first + open_count++) % connections] = call;
}

static void hang_up(struct call *call) {
    if (call->state == CONNECTING)
        handshakes--;
    close(call->fd);
}

/* The call failed: say why once, and try again on a new connection a little later. */
static void fail(struct call *call, const char *why, const char *detail, size_t length) {
    if (counting)
        failed++;
    if (!first_fault[0])
        snprintf(first_fault, sizeof first_fault, "%s%s%.*s", why, length ? ": " : "", (int)length, detail);
    hang_up(call);
    if (once) {
        call->state = FINISHED;
        finished++;
    } else {
        open_later(call, now_ns() + RETRY_NS);
    }
}

static void watch(struct call *call, bool writing) {
    if (call->waits_to_write == writing)
        return;
    call->waits_to_write = writing;
    struct epoll_event event = {.events = EPOLLIN | (writing ? EPOLLOUT : 0), .data.ptr = call};
    epoll_ctl(poller, EPOLL_CTL_MOD, call->fd, &event);
}

static void send_rest(struct call *call) {
    while (call->sent < request_length) {
        ssize_t sent = send(call->fd, request + call->sent, request_length - call->sent, MSG_NOSIGNAL);
        if (sent < 0 && errno == EAGAIN) {
            watch(call, true);
            return;
        }
        if (sent < 0) {
            fail(call, "send", strerror(errno), strlen(strerror(errno)));
            return;
        }
        call->sent += sent;
    }
    watch(call, false);
    call->state = HEAD;
}

static void ask(struct call *call) {
    if (!once)
        call->began_ns = now_ns();
    call->state = SENDING;
    call->sent = call->head_used = call->line_used = call->length = 0;
    call->done = false;
    call->late_ns = -1;
    send_rest(call);
}

static void open_call(struct call *call, int64_t now) {
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int yes = 1;
    call->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (call->fd < 0) {
        perror("socket");
        exit(1);
    }
    setsockopt(call->fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    call->state = CONNECTING;
    call->began_ns = now;
    call->waits_to_write = true;
    handshakes++;
    connect(call->fd, (void *)&address, sizeof address); /* EINPROGRESS; the poller tells the rest */
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT, .data.ptr = call};
    epoll_ctl(poller, EPOLL_CTL_ADD, call->fd, &event);
}

/* Few handshakes at once: no listener's backlog is to overflow, which would cost its callers a second. */
static void open_some(int64_t now) {
    while (open_count && handshakes < HANDSHAKES_AT_ONCE && to_open[open_first]->retry_ns <= now) {
        struct call *call = to_open[open_first];
        open_first = (open_first + 1) % connections;
        open_count--;
        open_call(call, now);
    }
}

/* This connection has got something: a server may leave others waiting for long before it accepts them. */
static void note_served(struct call *call) {
    served += !call->served;
    call->served = true;
}

static void succeed(struct call *call, int64_t now) {
    if (!call->good) {
        fail(call, call->head, call->line, call->line_used);
        return;
    }
    if (stream && !call->done) {
        fail(call, "a stream without [DONE]", "", 0);
        return;
    }
    note_served(call);
    if (counting) {
        succeeded++;
        body_bytes += call->length;
        count_into(&latencies, now - call->began_ns);
    }
    if (once) {
        hang_up(call);
        call->state = FINISHED;
        finished++;
    } else if (call->closes) {
        hang_up(call);
        open_later(call, 0);
    } else {
        ask(call);
    }
}

/* --- answers ------------------------------------------------------------------------------ */

static void read_line(struct call *call, int64_t now) {
    call->line[call->line_used] = 0;
    if (strncmp(call->line, "data:", 5))
        return;
    if (strstr(call->line, "[DONE]"))
        call->done = true;
    const char *stamp = strstr(call->line, "sent=");
    if (!stamp)
        return;
    note_served(call);
    int64_t late = now - strtoll(stamp + 5, NULL, 10);
    if (counting) {
        events++;
        count_into(&event_delays, late);
        if (call->late_ns >= 0)
            count_into(&event_gaps, late - call->late_ns);
    }
    call->late_ns = late;
}

static void read_body(struct call *call, const char *bytes, size_t count, int64_t now) {
    call->length += count;
    if (!stream && call->good)
        return;
    /* Of each line only its beginning is looked at; of a fault, its first line is told. */
    while (count) {
        const char *end = memchr(bytes, '\n', count);
        size_t length = end ? (size_t)(end - bytes) : count, room = MOST_LINE - 1 - call->line_used;
        memcpy(call->line + call->line_used, bytes, length < room ? length : room);
        call->line_used += length < room ? length : room;
        if (!end || !call->good)
            return;
        read_line(call, now);
        call->line_used = 0;
        bytes = end + 1;
        count -= length + 1;
    }
}

/* Take from a chunked body; returns how many bytes belonged to it, and sets *ended at its end. */
static size_t read_chunks(struct call *call, const char *bytes, size_t count, int64_t now, bool *ended) {
    size_t at = 0;
    while (at < count && !*ended) {
        if (call->part == CHUNK_DATA) {
            size_t there = count - at < call->left ? count - at : call->left;
            read_body(call, bytes + at, there, now);
            at += there;
            call->left -= there;
            if (!call->left)
                call->part = CHUNK_END;
            continue;
        }
        char letter = bytes[at++];
        if (call->part == CHUNK_SIZE && letter != '\n') {
            if (letter == ';' || letter == '\r')
                call->part = CHUNK_EXTENSION;
            else
                call->left = call->left * 16 + (letter <= '9' ? letter - '0' : (letter | 32) - 'a' + 10);
        } else if (call->part == TRAILERS) {
            *ended = letter == '\n' && !call->trailer_line;
            call->trailer_line = letter == '\n' ? 0 : call->trailer_line + (letter != '\r');
        } else if (letter == '\n' && call->part == CHUNK_END) {
            call->part = CHUNK_SIZE;
            call->left = 0;
        } else if (letter == '\n') {
            call->part = call->left ? CHUNK_DATA : TRAILERS;
            call->trailer_line = 0;
        }
    }
    return at;
}

/* Take from the head; returns how many bytes belonged to it. */
static size_t read_head(struct call *call, const char *bytes, size_t count) {
    size_t before = call->head_used, room = MOST_HEAD - 1 - before, taken = count < room ? count : room;
    memcpy(call->head + before, bytes, taken);
    call->head_used += taken;
    call->head[call->head_used] = 0;
    char *end = strstr(call->head, "\r\n\r\n");
    if (!end)
        return taken;
    *end = 0;
    call->good = !strncmp(call->head, "HTTP/1.1 200", 12);
    call->closes = false;
    call->framing = TO_THE_END;
    call->left = 0;
    call->part = CHUNK_SIZE;
    for (char *line = strstr(call->head, "\r\n"); line; line = strstr(line + 2, "\r\n")) {
        if (!strncasecmp(line + 2, "content-length:", 15)) {
            call->framing = BY_LENGTH;
            call->left = strtoull(line + 17, NULL, 10);
        } else if (!strncasecmp(line + 2, "transfer-encoding: chunked", 26)) {
            call->framing = CHUNKED;
        } else if (!strncasecmp(line + 2, "connection: close", 17)) {
            call->closes = true;
        }
    }
    call->head[strcspn(call->head, "\r")] = 0; /* the status line is what a fault tells */
    call->state = BODY;
    return end + 4 - call->head - before;
}

static void read_bytes(struct call *call, const char *bytes, size_t count, int64_t now) {
    if (call->state == SENDING) {
        fail(call, "an answer before the request was sent", bytes, count < 60 ? count : 60);
        return;
    }
    size_t at = call->state == HEAD ? read_head(call, bytes, count) : 0;
    if (call->state == HEAD) {
        if (call->head_used == MOST_HEAD - 1)
            fail(call, "a head that is too long", "", 0);
        return;
    }
    bool ended = false;
    if (call->framing == CHUNKED) {
        at += read_chunks(call, bytes + at, count - at, now, &ended);
    } else {
        size_t there = count - at;
        if (call->framing == BY_LENGTH) {
            there = there < call->left ? there : call->left;
            call->left -= there;
            ended = !call->left;
        }
        read_body(call, bytes + at, there, now);
        at += there;
    }
    if (at < count)
        fail(call, "bytes after the answer", bytes + at, count - at < 60 ? count - at : 60);
    else if (ended)
        succeed(call, now);
}

static void receive(struct call *call) {
    static char bytes[1 << 18];
    ssize_t count = recv(call->fd, bytes, sizeof bytes, 0);
    if (count > 0) {
        read_bytes(call, bytes, count, now_ns());
    } else if (!count && call->state == BODY && call->framing == TO_THE_END) {
        call->closes = true;
        succeed(call, now_ns());
    } else if (!count) {
        fail(call, "the connection was closed", "", 0);
    } else if (errno != EAGAIN) {
        fail(call, "recv", strerror(errno), strlen(strerror(errno)));
    }
}

static void connected(struct call *call) {
    int fault = 0;
    socklen_t length = sizeof fault;
    getsockopt(call->fd, SOL_SOCKET, SO_ERROR, &fault, &length);
    if (fault) {
        fail(call, "connect", strerror(fault), strlen(strerror(fault)));
        return;
    }
    handshakes--;
    ask(call);
}
