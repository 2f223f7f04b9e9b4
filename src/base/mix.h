/* A number whose every bit depends on every bit of another, for hashes: the finalizer of
 * SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014). */
#ifndef XFI_MIX_H
#define XFI_MIX_H

#include <stdint.h>

static inline uint64_t xfi_mix(uint64_t x)
{
  x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
  x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
  return x ^ x >> 31;
}

#endif
