/* What the tests and benchmarks know of an H200. */
#ifndef H200_H
#define H200_H

/* Blocks of a launch that has one to itself. */
enum { BLOCKS_ALONE = 264 };

#endif
