/* Random numbers for tests: splitmix64 (Steele, Lea, Flood 2014). The same seed gives the same case
 * on any machine. */
#ifndef RNG_H
#define RNG_H

#include <stdbool.h>
#include <stdint.h>

typedef struct rng {
  uint64_t state;
} rng;

static inline uint64_t rng_mix(uint64_t z)
{
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

static inline uint64_t rng_next(rng *r)
{
  r->state += 0x9e3779b97f4a7c15u;
  return rng_mix(r->state);
}

/* A generator for one purpose (`stream`) of one case, independent of the others. */
static inline rng rng_of(uint64_t seed, uint64_t number, uint64_t stream)
{
  rng r = {rng_mix(seed + 0x632be59bd9b4e019u) ^
           rng_mix(number + 0x9e3779b97f4a7c15u * (stream + 1))};
  (void)rng_next(&r);
  return r;
}

/* 0 .. n-1; n >= 1. */
static inline int64_t rng_below(rng *r, int64_t n)
{
  return (int64_t)((rng_next(r) >> 1) % (uint64_t)n);
}

static inline int rng_int(rng *r, int lo, int hi) /* both included */
{
  return lo + (int)rng_below(r, (int64_t)hi - lo + 1);
}

static inline bool rng_percent(rng *r, int percent)
{
  return rng_below(r, 100) < percent;
}

static inline void rng_shuffle(rng *r, int *a, int n)
{
  for (int i = n - 1; i > 0; i--) {
    int j = rng_int(r, 0, i);
    int t = a[i];
    a[i] = a[j];
    a[j] = t;
  }
}

#endif
