/* See crew.h. One semaphore per thread, so that a small problem wakes only the threads it needs. */
#include "crew.h"

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <time.h>

typedef struct member {
  crew *crew;
  pthread_t thread;
  sem_t go;
  int rank;
  bool started;
} member;

struct crew {
  member *members; /* [n_max] */
  int n_max;
  sem_t done;
  void (*work)(void *context, int rank); /* NULL: leave */
  void *context;
};

static void *member_main(void *arg)
{
  member *m = arg;
  for (;;) {
    while (sem_wait(&m->go) != 0)
      continue;
    if (m->crew->work == NULL) return NULL;
    m->crew->work(m->crew->context, m->rank);
    (void)sem_post(&m->crew->done);
  }
}

static bool member_start(crew *c, int rank)
{
  member *m = &c->members[rank];
  if (m->started) return true;
  m->crew = c;
  m->rank = rank;
  if (sem_init(&m->go, 0, 0) != 0) return false;
  m->started = pthread_create(&m->thread, NULL, member_main, m) == 0;
  return m->started;
}

crew *crew_create(int n_max)
{
  crew *c = calloc(1, sizeof *c);
  if (c == NULL) return NULL;
  c->members = calloc((size_t)n_max, sizeof *c->members);
  c->n_max = n_max;
  if (c->members == NULL || sem_init(&c->done, 0, 0) != 0) {
    free(c->members);
    free(c);
    return NULL;
  }
  return c;
}

void crew_destroy(crew *c)
{
  if (c == NULL) return;
  c->work = NULL;
  for (int r = 0; r < c->n_max; r++) {
    if (!c->members[r].started) continue;
    (void)sem_post(&c->members[r].go);
    (void)pthread_join(c->members[r].thread, NULL);
    (void)sem_destroy(&c->members[r].go);
  }
  (void)sem_destroy(&c->done);
  free(c->members);
  free(c);
}

bool crew_run(crew *c, int n, void (*work)(void *context, int rank), void *context, int seconds)
{
  struct timespec until;
  c->work = work;
  c->context = context;
  for (int r = 0; r < n; r++) {
    if (r >= c->n_max || !member_start(c, r)) abort();
  }
  for (int r = 0; r < n; r++)
    (void)sem_post(&c->members[r].go);
  (void)clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += seconds;
  for (int r = 0; r < n; r++) {
    while (sem_timedwait(&c->done, &until) != 0) {
      if (errno == ETIMEDOUT) return false;
    }
  }
  return true;
}
