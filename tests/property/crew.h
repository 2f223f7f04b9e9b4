/* A crew of threads that are started once and play the ranks of one problem after the other. */
#ifndef CREW_H
#define CREW_H

#include <stdbool.h>

typedef struct crew crew;

/* Threads are started when first needed. NULL: out of memory. */
crew *crew_create(int n_max);

/* Stop and join the threads; not after crew_run() returned false. */
void crew_destroy(crew *c);

/* Call work(context, rank) for rank 0 to n-1, each on a thread of its own, and wait for all. False:
   some of them did not come back within `seconds`; the crew is then of no more use. */
bool crew_run(crew *c, int n, void (*work)(void *context, int rank), void *context, int seconds);

#endif
