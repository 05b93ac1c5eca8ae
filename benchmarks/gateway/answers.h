/* What the worker says: pages, whole answers prepared once, and events; and the buffers they are put in. */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { READ_AT_LEAST = 1 << 14, MOST_EVENT = 8000 };

struct buffer {
    char *bytes;
    size_t used, room;
};

static struct buffer generate_answer, chat_answer; /* head and body */

#define SERVER_INFO \
    "{\"model_path\":\"m\",\"served_model_name\":\"m\",\"version\":\"0.5.15\",\"tp_size\":1,\"dp_size\":1," \
    "\"disaggregation_mode\":\"null\",\"max_running_requests\":65536}"
#define MODEL_INFO \
    "{\"model_path\":\"m\",\"tokenizer_path\":\"m\",\"is_generation\":true,\"weight_version\":\"default\"}"

static const char *const pages[][2] = {
    {"/health", "{\"status\":\"ok\"}"},
    {"/health_generate", "{\"status\":\"ok\"}"},
    {"/v1/models", "{\"object\":\"list\",\"data\":[{\"id\":\"m\",\"object\":\"model\",\"created\":1700000000,"
                   "\"owned_by\":\"sglang\",\"root\":\"m\",\"max_model_len\":131072}]}"},
    {"/server_info", SERVER_INFO},
    {"/get_server_info", SERVER_INFO},
    {"/model_info", MODEL_INFO},
    {"/get_model_info", MODEL_INFO},
    {"/get_load", "[{\"dp_rank\":0,\"num_reqs\":0,\"num_waiting_reqs\":0,\"num_tokens\":0}]"},
    {"/abort_request", "{}"},
};

static void die(const char *what) {
    perror(what);
    exit(1);
}

static void make_room(struct buffer *buffer, size_t more) {
    if (buffer->room - buffer->used >= more)
        return;
    size_t room = buffer->room ? buffer->room : READ_AT_LEAST;
    while (room - buffer->used < more)
        room *= 2;
    buffer->bytes = realloc(buffer->bytes, room);
    if (!buffer->bytes)
        die("realloc");
    buffer->room = room;
}

static void append(struct buffer *buffer, const char *bytes, size_t count) {
    make_room(buffer, count);
    memcpy(buffer->bytes + buffer->used, bytes, count);
    buffer->used += count;
}

static void drop_front(struct buffer *buffer, size_t count) {
    buffer->used -= count;
    if (buffer->used)
        memmove(buffer->bytes, buffer->bytes + count, buffer->used);
}

static void prepare(struct buffer *prepared, long size, const char *before, const struct buffer *after) {
    char head[128];
    long body = strlen(before) + after->used, padding = size > body ? size - body : 0;
    append(prepared, head,
           snprintf(head, sizeof head,
                    "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %ld\r\n\r\n", body + padding));
    append(prepared, before, strlen(before));
    for (long place = 0; place < padding; place++)
        append(prepared, place % 6 == 5 ? " " : "w", 1);
    append(prepared, after->bytes, after->used);
}

/* About 40 bytes a token, as SGLang writes them with log-probabilities; the text takes what is left. */
static void prepare_answers(long size) {
    struct buffer after = {0};
    char part[256];
    long tokens = size > 400 ? (size - 300) / 41 : 1;
    append(&after, part, sprintf(part, "\",\"output_ids\":["));
    for (long token = 0; token < tokens; token++)
        append(&after, part, sprintf(part, "%s%ld", token ? "," : "", 1000 + token * 7919 % 90000));
    append(&after, part,
           sprintf(part,
                   "],\"meta_info\":{\"id\":\"r\",\"finish_reason\":{\"type\":\"length\",\"length\":%ld},\"prompt_tokens\":16,"
                   "\"completion_tokens\":%ld,\"cached_tokens\":0,\"output_token_logprobs\":[",
                   tokens, tokens));
    for (long token = 0; token < tokens; token++)
        append(&after, part,
               sprintf(part, "%s[-%.16f,%ld,null]", token ? "," : "", (token * 37 % 101 + 1) / 127.0,
                       1000 + token * 7919 % 90000));
    append(&after, "]}}", 3);
    prepare(&generate_answer, size, "{\"text\":\"", &after);
    after.used = 0;
    append(&after, part,
           sprintf(part, "\"},\"logprobs\":null,\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":16,"
                         "\"completion_tokens\":%ld,\"total_tokens\":%ld}}",
                   tokens, tokens + 16));
    prepare(&chat_answer, size,
            "{\"id\":\"r\",\"object\":\"chat.completion\",\"created\":1700000000,\"model\":\"m\",\"choices\":[{\"index\":0,"
            "\"message\":{\"role\":\"assistant\",\"content\":\"",
            &after);
    free(after.bytes);
}

/* Write one event of `bytes` bytes, more if it needs them; return how many. `event` has room for MOST_EVENT. */
static int write_event(char *event, bool chat, int64_t sent_ns, long tokens, long bytes) {
    int used = chat ? snprintf(event, MOST_EVENT,
                               "data: {\"id\":\"r\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,"
                               "\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"sent=%lld; \"},"
                               "\"finish_reason\":null}],\"usage\":{\"completion_tokens\":%ld,\"pad\":\"",
                               (long long)sent_ns, tokens)
                    : snprintf(event, MOST_EVENT,
                               "data: {\"text\":\"sent=%lld; \",\"meta_info\":{\"id\":\"r\",\"finish_reason\":null,"
                               "\"prompt_tokens\":16,\"completion_tokens\":%ld,\"pad\":\"",
                               (long long)sent_ns, tokens);
    while (used < bytes - 5)
        event[used++] = 'x';
    memcpy(event + used, "\"}}\n\n", 5);
    return used + 5;
}
