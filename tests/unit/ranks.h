/* Threads as ranks. CMocka's asserts work on the main thread alone, so a rank's body returns what
 * the test is to assert, and `expect` notes a failure where it happens.
 */
#ifndef RANKS_H
#define RANKS_H

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#define MAX_RANKS 64

typedef void rank_body(int rank, void *context);

typedef struct rank_thread {
  pthread_t thread;
  int rank;
  rank_body *body;
  void *context;
} rank_thread;

static inline void *rank_main(void *argument)
{
  rank_thread *self = argument;
  self->body(self->rank, self->context);
  return NULL;
}

static inline void run_ranks(int n_ranks, rank_body *body, void *context)
{
  rank_thread threads[MAX_RANKS];

  for (int r = 0; r < n_ranks; r++) {
    threads[r] = (rank_thread){.rank = r, .body = body, .context = context};
    if (pthread_create(&threads[r].thread, NULL, rank_main, &threads[r]) != 0) abort();
  }
  for (int r = 0; r < n_ranks; r++)
    if (pthread_join(threads[r].thread, NULL) != 0) abort();
}

static _Atomic int n_unexpected; /* asserted to be 0 at the end of a test */

#define expect(cond)                                                                               \
  do {                                                                                             \
    if (!(cond)) {                                                                                 \
      (void)fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #cond);                     \
      atomic_fetch_add(&n_unexpected, 1);                                                          \
    }                                                                                              \
  } while (0)

#define assert_all_as_expected() assert_int_equal(atomic_exchange(&n_unexpected, 0), 0)

#endif
