/* Where ranks of a host meet before they have a comm. */
#ifndef UNIT_MEETING_H
#define UNIT_MEETING_H

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { MOST_RANKS = 7, MOST_WORD = 4096 };

/* An all-gather of threads or of processes, in memory that they share. */
typedef struct meeting_place {
  int n_ranks;
  _Atomic int n_given[8]; /* by turns, counted up for as long as the place is used */
  _Atomic int n_gave_up;  /* ranks that no longer wait for one that is late */
  int patience_s;         /* with one that does not come; 0: no end of it */
  unsigned char bytes[8][MOST_RANKS][MOST_WORD];
} meeting_place;

typedef struct visitor {
  meeting_place *place;
  int rank;
  int turn;
  int fails_at; /* answers with an error then */
} visitor;

static inline int gather_there(void *context, void *all, const void *mine, size_t n_bytes)
{
  visitor *v = context;
  meeting_place *place = v->place;
  const int turn = v->turn++;
  const time_t began = time(NULL);

  memcpy(place->bytes[turn][v->rank], mine, n_bytes);
  (void)atomic_fetch_add(&place->n_given[turn], 1);
  while (atomic_load(&place->n_given[turn]) < place->n_ranks) {
    if (place->patience_s > 0 && time(NULL) - began > place->patience_s) return 1;
    (void)usleep(100);
  }
  for (int r = 0; r < place->n_ranks; r++)
    memcpy((char *)all + (size_t)r * n_bytes, place->bytes[turn][r], n_bytes);
  return turn == v->fails_at ? 1 : 0;
}

static inline meeting_place *open_place(int n_ranks)
{
  meeting_place *place =
      mmap(NULL, sizeof *place, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

  if (place == MAP_FAILED) abort();
  place->n_ranks = n_ranks;
  return place;
}

#endif
