/* What happens later: a binary heap, the next one at timers[1]. */
#include <stddef.h>
#include <stdint.h>

enum { MOST_TIMERS = 1 << 17 };

struct timer {
    int64_t due_ns;
    size_t place; /* in `timers`; 0 when it waits for nothing */
};

static struct timer *timers[MOST_TIMERS + 1];
static size_t timers_used;

static void put_at(size_t place, struct timer *timer) {
    timers[place] = timer;
    timer->place = place;
}

static void settle(size_t place) {
    struct timer *moved = timers[place];
    for (; place > 1 && moved->due_ns < timers[place / 2]->due_ns; place /= 2)
        put_at(place, timers[place / 2]);
    for (size_t child; (child = 2 * place) <= timers_used; place = child) {
        if (child < timers_used && timers[child + 1]->due_ns < timers[child]->due_ns)
            child++;
        if (timers[child]->due_ns >= moved->due_ns)
            break;
        put_at(place, timers[child]);
    }
    put_at(place, moved);
}

static void wake_at(struct timer *timer, int64_t due_ns) {
    timer->due_ns = due_ns;
    if (!timer->place)
        put_at(++timers_used, timer);
    settle(timer->place);
}

static void wake_never(struct timer *timer) {
    size_t place = timer->place;
    if (!place)
        return;
    timer->place = 0;
    struct timer *last = timers[timers_used--];
    if (last != timer) {
        put_at(place, last);
        settle(place);
    }
}
