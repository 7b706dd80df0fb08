#include "lg.h"

/* 64 steps in each power of two: a bucket is at most 1/64 wider than its lower end. */
#define SUB_BITS 6
#define SUB      (1u << SUB_BITS)

static size_t bucket_of(uint64_t ns)
{
    if (ns < SUB) {
        return (size_t)ns;
    }
    unsigned shift = 63u - (unsigned)__builtin_clzll(ns) - SUB_BITS;
    return (size_t)((shift + 1) * SUB + ((ns >> shift) & (SUB - 1)));
}

static double middle_of(size_t bucket)
{
    if (bucket < SUB) {
        return (double)bucket;
    }
    unsigned shift = (unsigned)(bucket / SUB) - 1;
    double low = (double)((uint64_t)(SUB + bucket % SUB) << shift);
    return low + (double)(1ull << shift) / 2;
}

void lg_hist_add(struct lg_hist *hist, uint64_t ns, uint64_t times)
{
    size_t bucket = bucket_of(ns);
    if (bucket >= LG_HIST_BUCKETS) {
        bucket = LG_HIST_BUCKETS - 1;
    }
    hist->counts[bucket] += times;
    hist->total += times;
}

double lg_hist_at(const struct lg_hist *hist, double share)
{
    uint64_t wanted = (uint64_t)((double)hist->total * share);
    uint64_t seen = 0;
    for (size_t i = 0; i < LG_HIST_BUCKETS; i++) {
        seen += hist->counts[i];
        if (seen > wanted) {
            return middle_of(i);
        }
    }
    return 0;
}
