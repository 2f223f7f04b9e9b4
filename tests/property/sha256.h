/* SHA-256 (FIPS 180-4), for comparing long texts with published hashes. */
#ifndef SHA256_H
#define SHA256_H

#include <stddef.h>

/* Write the 64 hex digits of the hash of `text` and a final 0. */
void sha256_hex(char hex[65], const char *text, size_t n);

#endif
