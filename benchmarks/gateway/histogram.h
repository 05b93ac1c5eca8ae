/* Counts of times in logarithmic buckets: 64 to each doubling, so a percentile is right within 1.6 %. */
#include <stdint.h>

enum { TO_A_DOUBLING = 64, BUCKETS = 59 * TO_A_DOUBLING };

struct histogram {
    uint64_t counts[BUCKETS], total;
};

static void count_into(struct histogram *histogram, int64_t ns) {
    uint64_t value = ns < 0 ? 0 : ns;
    int shift = value < TO_A_DOUBLING ? 0 : 63 - __builtin_clzll(value) - 6; /* leaves 64 to 127 */
    histogram->counts[(value >> shift) + shift * TO_A_DOUBLING]++;
    histogram->total++;
}

/* The time below which `part` of them are, in µs; 0 when there are none. */
static double percentile_us(const struct histogram *histogram, double part) {
    uint64_t wanted = histogram->total * part, seen = 0;
    for (int bucket = 0; histogram->total && bucket < BUCKETS; bucket++) {
        seen += histogram->counts[bucket];
        if (seen <= wanted && seen < histogram->total)
            continue;
        int shift = bucket < 2 * TO_A_DOUBLING ? 0 : bucket / TO_A_DOUBLING - 1;
        double least = (double)((uint64_t)(bucket - shift * TO_A_DOUBLING) << shift);
        return (least + ((uint64_t)1 << shift) / 2.0) / 1000;
    }
    return 0;
}
