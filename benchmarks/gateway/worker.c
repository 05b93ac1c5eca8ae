/* A worker that has the shape of SGLang's HTTP server and no model: what proxies are measured against.
 *
 *     worker [--port 0] [--size 1788] [--delay-ms 0] [--events 100] [--pace-us 20000] [--event-bytes 256]
 *
 * POST /generate and /v1/chat/completions answer JSON of exactly --size bytes after --delay-ms, or, for a body
 * with "stream": true, --events server-sent events --pace-us apart and [DONE]. Each event carries "sent=<ns of
 * CLOCK_MONOTONIC>;", taken when it is written, so a reader on this machine knows how long it was under way.
 * Streams that begin together are out of step on purpose: an event must not wait for the others of its tick.
 *
 * One thread, one epoll, HTTP/1.1 with keep-alive; a connection that does not speak it (a router's probe for
 * HTTP/2) is closed. GET /stats tells the counters. Prints "port N" when it listens; ends with its parent. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "answers.h"
#include "timers.h"

enum { MOST_REQUEST = 1 << 26, BATCH = 512 };
enum state { READING, DELAYED, STREAMING };

struct connection {
    struct timer timer; /* first, so a timer is its connection */
    int fd;
    enum state state;
    bool chat, waits_to_write;
    struct buffer in, out;
    const char *answer; /* what is left of a prepared answer, sent after `out` */
    size_t answer_left;
    int events_left;
};

static long port = 0, size = 1788, delay_ms = 0, events = 100, pace_us = 20000, event_bytes = 256;
static uint64_t requests, answered, streams, events_sent, refused;
static long open_now, open_most;
static int poller;

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

/* --- writing ---------------------------------------------------------------------------- */

static void watch(struct connection *connection, bool writing) {
    if (connection->waits_to_write == writing)
        return;
    connection->waits_to_write = writing;
    struct epoll_event event = {.events = EPOLLIN | (writing ? EPOLLOUT : 0), .data.ptr = connection};
    epoll_ctl(poller, EPOLL_CTL_MOD, connection->fd, &event);
}

/* Send what is there. False when the connection is broken. */
static bool flush(struct connection *connection) {
    while (connection->out.used || connection->answer_left) {
        bool own = connection->out.used > 0;
        ssize_t sent = send(connection->fd, own ? connection->out.bytes : connection->answer,
                            own ? connection->out.used : connection->answer_left, MSG_NOSIGNAL);
        if (sent < 0) {
            watch(connection, true);
            return errno == EAGAIN;
        }
        if (own) {
            drop_front(&connection->out, sent);
        } else {
            connection->answer += sent;
            connection->answer_left -= sent;
        }
    }
    watch(connection, false);
    return true;
}

static bool send_json(struct connection *connection, const char *status, const char *json) {
    char head[256];
    int length = snprintf(head, sizeof head,
                          "HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %zu\r\n\r\n", status,
                          strlen(json));
    append(&connection->out, head, length);
    append(&connection->out, json, strlen(json));
    return flush(connection);
}

static bool answer(struct connection *connection) {
    const struct buffer *prepared = connection->chat ? &chat_answer : &generate_answer;
    connection->state = READING;
    connection->answer = prepared->bytes;
    connection->answer_left = prepared->used;
    answered++;
    return flush(connection);
}

static bool send_event(struct connection *connection) {
    char event[MOST_EVENT + 1], frame[16];
    int used = write_event(event, connection->chat, now_ns(), events - connection->events_left + 1, event_bytes);
    append(&connection->out, frame, snprintf(frame, sizeof frame, "%x\r\n", used));
    append(&connection->out, event, used);
    append(&connection->out, "\r\n", 2);
    connection->events_left--;
    events_sent++;
    return flush(connection);
}

static bool end_stream(struct connection *connection) {
    static const char end[] = "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n";
    connection->state = READING;
    append(&connection->out, end, sizeof end - 1);
    return flush(connection);
}

static bool begin_stream(struct connection *connection) {
    static const char head[] =
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n";
    double turns = ++streams * 0.6180339887498949; /* the golden ratio spreads any number of them evenly */
    connection->state = STREAMING;
    connection->events_left = events;
    wake_at(&connection->timer, now_ns() + (int64_t)((turns - (uint64_t)turns) * pace_us * 1000));
    append(&connection->out, head, sizeof head - 1);
    return flush(connection);
}

/* --- reading ---------------------------------------------------------------------------- */

static bool wants_stream(const char *body, size_t length) {
    const char *found = memmem(body, length, "\"stream\"", 8), *end = body + length;
    if (!found)
        return false;
    for (found += 8; found < end && (*found == ':' || *found == ' '); found++)
        ;
    return end - found >= 4 && !memcmp(found, "true", 4);
}

static bool handle(struct connection *connection, const char *path, const char *body, size_t length) {
    requests++;
    bool chat = !strcmp(path, "/v1/chat/completions");
    if (chat || !strcmp(path, "/generate")) {
        connection->chat = chat;
        if (wants_stream(body, length))
            return begin_stream(connection);
        if (!delay_ms)
            return answer(connection);
        connection->state = DELAYED;
        wake_at(&connection->timer, now_ns() + delay_ms * 1000000LL);
        return true;
    }
    for (size_t page = 0; page < sizeof pages / sizeof *pages; page++)
        if (!strcmp(path, pages[page][0]))
            return send_json(connection, "200 OK", pages[page][1]);
    if (!strcmp(path, "/stats")) {
        char json[256];
        snprintf(json, sizeof json,
                 "{\"requests\":%llu,\"answered\":%llu,\"streams\":%llu,\"events\":%llu,\"refused\":%llu,"
                 "\"open\":%ld,\"open_most\":%ld}",
                 (unsigned long long)requests, (unsigned long long)answered, (unsigned long long)streams,
                 (unsigned long long)events_sent, (unsigned long long)refused, open_now, open_most);
        return send_json(connection, "200 OK", json);
    }
    return send_json(connection, "404 Not Found", "{\"detail\":\"Not Found\"}");
}

/* Take the chunks of a body apart in place. Returns the bytes they took with their frames, 0 when more must
 * come, -1 when they are none; *length is the body's. */
static ssize_t unchunk(char *body, size_t there, size_t *length) {
    for (int pass = 0; pass < 2; pass++) { /* first to see that all is there, then to move it */
        size_t at = 0, kept = 0;
        for (bool last = false; !last;) {
            char *line_end = memmem(body + at, there - at, "\r\n", 2), *digits_end;
            if (!line_end)
                return 0;
            unsigned long chunk = strtoul(body + at, &digits_end, 16);
            if (digits_end == body + at || chunk > MOST_REQUEST)
                return -1;
            at = line_end + 2 - body;
            if (there - at < chunk + 2)
                return 0;
            if (pass)
                memmove(body + kept, body + at, chunk);
            kept += chunk;
            at += chunk + 2;
            last = !chunk;
        }
        if (pass) {
            *length = kept;
            return at;
        }
    }
    return -1;
}

/* Handle the requests that are there. False when the connection is to be closed. */
static bool serve(struct connection *connection) {
    struct buffer *in = &connection->in;
    while (connection->state == READING && in->used) {
        char *end = memmem(in->bytes, in->used, "\r\n\r\n", 4);
        if (!end)
            return in->used < READ_AT_LEAST;
        char *body = end + 4, method[16], path[512], version[16];
        size_t head = body - in->bytes, length = 0;
        *end = 0;
        if (sscanf(in->bytes, "%15s %511s %15s", method, path, version) != 3 || strncmp(version, "HTTP/1.", 7)) {
            refused++;
            return false;
        }
        bool chunked = false;
        for (char *line = strstr(in->bytes, "\r\n"); line; line = strstr(line + 2, "\r\n")) {
            if (!strncasecmp(line + 2, "content-length:", 15))
                length = strtoul(line + 17, NULL, 10);
            else if (!strncasecmp(line + 2, "transfer-encoding:", 18))
                chunked = strcasestr(line + 20, "chunked") != NULL;
        }
        *end = '\r';
        if (length > MOST_REQUEST || in->used > MOST_REQUEST)
            return false;
        ssize_t framed = length;
        if (chunked)
            framed = unchunk(body, in->used - head, &length);
        if (framed < 0)
            return false;
        if ((chunked && !framed) || in->used - head < (size_t)framed)
            return true;
        path[strcspn(path, "?")] = 0;
        if (!handle(connection, path, body, length))
            return false;
        drop_front(in, head + framed);
    }
    return true;
}

static bool receive(struct connection *connection) {
    make_room(&connection->in, READ_AT_LEAST);
    struct buffer *in = &connection->in;
    ssize_t got = recv(connection->fd, in->bytes + in->used, in->room - in->used, 0);
    if (got < 0)
        return errno == EAGAIN;
    in->used += got;
    return got && serve(connection);
}

static bool continue_after_wait(struct connection *connection) {
    if (connection->state == STREAMING && connection->events_left) {
        wake_at(&connection->timer, connection->timer.due_ns + pace_us * 1000);
        return send_event(connection);
    }
    wake_never(&connection->timer);
    return (connection->state == STREAMING ? end_stream(connection) : answer(connection)) && serve(connection);
}

/* --- connections ------------------------------------------------------------------------ */

static void accept_all(int listener) {
    for (int fd, yes = 1; (fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0;) {
        struct connection *connection = calloc(1, sizeof *connection);
        if (!connection || open_now == MOST_TIMERS)
            die("too many connections");
        connection->fd = fd;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = connection};
        epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event);
        if (++open_now > open_most)
            open_most = open_now;
    }
}

static void close_connection(struct connection *connection) {
    wake_never(&connection->timer);
    close(connection->fd);
    free(connection->in.bytes);
    free(connection->out.bytes);
    free(connection);
    open_now--;
}

static int listen_on_loopback(void) {
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (bind(listener, (void *)&address, length) || listen(listener, 4096))
        die("listen");
    getsockname(listener, (void *)&address, &length);
    printf("port %d\n", ntohs(address.sin_port));
    fflush(stdout);
    return listener;
}

static void read_options(int count, char **words) {
    const struct {
        const char *name;
        long *value;
    } options[] = {{"--port", &port},     {"--size", &size},       {"--delay-ms", &delay_ms},
                   {"--events", &events}, {"--pace-us", &pace_us}, {"--event-bytes", &event_bytes}};
    for (int word = 1; word < count; word += 2) {
        size_t option = 0, known = sizeof options / sizeof *options;
        while (option < known && strcmp(options[option].name, words[word]))
            option++;
        if (option == known || word + 1 == count) {
            fprintf(stderr, "worker: %s is no option, or has no value\n", words[word]);
            exit(2);
        }
        *options[option].value = atol(words[word + 1]);
    }
    if (pace_us < 1 || event_bytes > MOST_EVENT) {
        fprintf(stderr, "worker: --pace-us must be at least 1, --event-bytes at most %d\n", MOST_EVENT);
        exit(2);
    }
}

static int wait_for_events(struct epoll_event *ready) {
    if (!timers_used)
        return epoll_wait(poller, ready, BATCH, -1);
    int64_t left = timers[1]->due_ns - now_ns();
    if (left < 0)
        left = 0;
    struct timespec timeout = {left / 1000000000, left % 1000000000};
    return epoll_pwait2(poller, ready, BATCH, &timeout, NULL);
}

int main(int count, char **words) {
    read_options(count, words);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    prepare_answers(size);
    poller = epoll_create1(0);
    int listener = listen_on_loopback();
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL}, ready[BATCH];
    epoll_ctl(poller, EPOLL_CTL_ADD, listener, &event);
    for (;;) {
        int there = wait_for_events(ready);
        if (there < 0 && errno != EINTR)
            die("epoll");
        for (int place = 0; place < there; place++) {
            struct connection *connection = ready[place].data.ptr;
            if (!connection) {
                accept_all(listener);
                continue;
            }
            bool fine = !(ready[place].events & (EPOLLERR | EPOLLHUP));
            if (fine && ready[place].events & EPOLLOUT)
                fine = flush(connection);
            if (fine && ready[place].events & EPOLLIN)
                fine = receive(connection);
            if (!fine)
                close_connection(connection);
        }
        for (int64_t now = now_ns(); timers_used && timers[1]->due_ns <= now;) {
            struct connection *connection = (struct connection *)timers[1];
            if (!continue_after_wait(connection))
                close_connection(connection);
        }
    }
}
