/* Asks a server over many connections at once, and tells how fast and how well it answered.
 *
 *     load --port N --body FILE [--path /generate] [--connections 64] [--stream 0] [--warm-ms 1000] [--for-ms 4000]
 *          [--once 0]
 *
 * Each connection asks, waits for the whole answer, and asks again. Counted is what ends after the warm-up and
 * within the time; "begin" is printed when that begins. The warm-up is longer, up to 15 s, until every connection
 * has got something; "callers" tells how many have. With --once 1 each connection asks one time, everything counts,
 * connecting too, and the end is the last answer's. With --stream 1 connections begin one after the other, all
 * through the warm-up, and answers are server-sent events with the worker's "sent=<ns>;": counted are how long each
 * was under way, and how much more it was late than the one before it, which is what the reader sees between the two.
 *
 * One thread, one epoll. Prints one JSON object; times in µs, from histograms with buckets 1.6 % wide. */
#define _GNU_SOURCE
#include "calls.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>

enum { BATCH = 512, WARM_AT_MOST_MS = 15000 };

static long warm_ms = 1000, for_ms = 4000;
static const char *path = "/generate", *body_file;

static void read_options(int count, char **words) {
    const struct {
        const char *name;
        long *value;
        const char **text;
    } options[] = {{"--port", &port, NULL},     {"--connections", &connections, NULL}, {"--stream", &stream, NULL},
                   {"--once", &once, NULL},     {"--warm-ms", &warm_ms, NULL},         {"--for-ms", &for_ms, NULL},
                   {"--path", NULL, &path},     {"--body", NULL, &body_file}};
    for (int word = 1; word < count; word += 2) {
        size_t option = 0, known = sizeof options / sizeof *options;
        while (option < known && strcmp(options[option].name, words[word]))
            option++;
        if (option == known || word + 1 == count) {
            fprintf(stderr, "load: %s is no option, or has no value\n", words[word]);
            exit(2);
        }
        if (options[option].value)
            *options[option].value = atol(words[word + 1]);
        else
            *options[option].text = words[word + 1];
    }
    if (!port || !body_file || connections < 1) {
        fprintf(stderr, "load: --port, --body and at least one connection are needed\n");
        exit(2);
    }
}

static void make_request(void) {
    FILE *file = fopen(body_file, "rb");
    if (!file || fseek(file, 0, SEEK_END)) {
        perror(body_file);
        exit(1);
    }
    size_t length = ftell(file);
    rewind(file);
    request = malloc(length + 1024);
    int head = snprintf(request, 1024,
                        "POST %s HTTP/1.1\r\nHost: 127.0.0.1:%ld\r\nAccept: */*\r\nUser-Agent: rolecall-load\r\n"
                        "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n",
                        path, port, length);
    if (fread(request + head, 1, length, file) != length) {
        perror(body_file);
        exit(1);
    }
    fclose(file);
    request_length = head + length;
}

static void turn(void) {
    struct epoll_event ready[BATCH];
    open_some(now_ns());
    int there = epoll_wait(poller, ready, BATCH, open_count && handshakes < HANDSHAKES_AT_ONCE ? 1 : 10);
    for (int place = 0; place < there; place++) {
        struct call *call = ready[place].data.ptr;
        if (call->state == CONNECTING)
            connected(call);
        else if (call->state == SENDING && ready[place].events & EPOLLOUT)
            send_rest(call);
        else if (call->state != CLOSED && call->state != FINISHED)
            receive(call);
    }
}

static void print_result(double seconds) {
    for (char *letter = first_fault; *letter; letter++)
        if (*letter == '"' || *letter == '\\' || (unsigned char)*letter < 32 || (unsigned char)*letter > 126)
            *letter = '\'';
    printf("{\"seconds\":%.6f,\"succeeded\":%llu,\"failed\":%llu,\"body_bytes\":%llu,\"events\":%llu,\"callers\":%llu,",
           seconds,
           (unsigned long long)succeeded, (unsigned long long)failed, (unsigned long long)body_bytes,
           (unsigned long long)events, (unsigned long long)served);
    const struct {
        const char *name;
        const struct histogram *of;
    } times[] = {{"", &latencies}, {"event_", &event_delays}, {"gap_", &event_gaps}};
    for (size_t time = 0; time < sizeof times / sizeof *times; time++)
        printf("\"%sp50_us\":%.1f,\"%sp99_us\":%.1f,", times[time].name, percentile_us(times[time].of, 0.5),
               times[time].name, percentile_us(times[time].of, 0.99));
    printf("\"first_fault\":\"%s\"}\n", first_fault);
}

int main(int count, char **words) {
    read_options(count, words);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    make_request();
    poller = epoll_create1(0);
    calls = calloc(connections, sizeof *calls);
    to_open = calloc(connections, sizeof *to_open);
    if (!calls || !to_open) {
        perror("calloc");
        return 1;
    }
    int64_t start = now_ns();
    /* Streams last equally long: those that begin together end together, and their callers would for ever ask
     * all at once, which is another work than streaming. */
    int64_t apart = stream && !once ? warm_ms * 1000000 / connections : 0;
    for (long call = 0; call < connections; call++)
        open_later(&calls[call], start + call * apart);
    while (!once && now_ns() < start + (served < (uint64_t)connections ? WARM_AT_MOST_MS : warm_ms) * 1000000)
        turn();
    counting = true;
    printf("begin\n");
    fflush(stdout);
    int64_t began = once ? start : now_ns();
    while (now_ns() < began + for_ms * 1000000 && finished < (uint64_t)connections)
        turn();
    int64_t ended = now_ns();
    if (once)
        failed += connections - finished; /* not answered within the time */
    if (once && finished < (uint64_t)connections && !first_fault[0])
        snprintf(first_fault, sizeof first_fault, "no answer within %ld ms", for_ms);
    print_result((ended - began) / 1e9);
}
