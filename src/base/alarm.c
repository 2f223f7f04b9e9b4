/*
 * Deadlines that are kept while nobody waits for them: one thread for each device, which sleeps
 * until the first of them. They are a plain list, since there is one for each run in flight. Any
 * thread may set or clear an alarm; the thread calls back without holding the lock.
 */
#include "alarm.h"

#include "alloc.h"
#include "error.h"
#include "process.h"

#include <pthread.h>

struct xfi_alarms {
  pthread_mutex_t lock; /* of all below, and of the alarms that are set */
  pthread_cond_t wake;  /* the thread: the list has changed */
  pthread_cond_t rung;  /* others: nothing is ringing */
  pthread_t thread;
  void (*begin)(void *context);
  void *context;
  xfi_alarm *first;
  xfi_alarm *ringing;
  int64_t sleeps_until_ns;
  bool stop;
};

/* The alarm that rings first; NULL: none is set. */
static xfi_alarm *find_first(const xfi_alarms *alarms)
{
  xfi_alarm *first = alarms->first;

  for (xfi_alarm *a = first; a != NULL; a = a->next)
    if (a->at_ns < first->at_ns) first = a;
  return first;
}

/* Let an alarm ring. The lock is held, and given up while the alarm's function runs. */
static void ring(xfi_alarms *alarms, xfi_alarm *alarm)
{
  int64_t next;

  alarm->at_ns = INT64_MAX; /* unless it is set meanwhile */
  alarms->ringing = alarm;
  (void)pthread_mutex_unlock(&alarms->lock);
  next = alarm->ring(alarm, xfi_now_ns());
  (void)pthread_mutex_lock(&alarms->lock);
  alarms->ringing = NULL;
  if (next < alarm->at_ns) alarm->at_ns = next;
  (void)pthread_cond_broadcast(&alarms->rung);
}

static void *alarms_main(void *argument)
{
  xfi_alarms *alarms = argument;

  if (alarms->begin != NULL) alarms->begin(alarms->context);
  (void)pthread_mutex_lock(&alarms->lock);
  while (!alarms->stop) {
    xfi_alarm *first = find_first(alarms);
    const int64_t at_ns = first == NULL ? INT64_MAX : first->at_ns;

    if (first != NULL && at_ns <= xfi_now_ns()) {
      ring(alarms, first);
      continue;
    }
    const struct timespec until = xfi_deadline_timespec((xfi_deadline){.at_ns = at_ns});
    alarms->sleeps_until_ns = at_ns;
    (void)pthread_cond_timedwait(&alarms->wake, &alarms->lock, &until);
  }
  (void)pthread_mutex_unlock(&alarms->lock);
  return NULL;
}

static void alarms_free(xfi_alarms *alarms)
{
  (void)pthread_cond_destroy(&alarms->wake);
  (void)pthread_cond_destroy(&alarms->rung);
  (void)pthread_mutex_destroy(&alarms->lock);
  xfi_free(alarms);
}

xfer_status xfi_alarms_create(xfi_alarms **out, void (*begin)(void *context), void *context)
{
  pthread_condattr_t attr;
  xfi_alarms *alarms = xfi_calloc(1, sizeof *alarms);

  XFI_CHECK(alarms != NULL, XFER_ERR_NOMEM, "a thread for deadlines");
  alarms->begin = begin;
  alarms->context = context;
  (void)pthread_condattr_init(&attr);
  (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
  (void)pthread_cond_init(&alarms->wake, &attr);
  (void)pthread_cond_init(&alarms->rung, &attr);
  (void)pthread_condattr_destroy(&attr);
  (void)pthread_mutex_init(&alarms->lock, NULL);
  if (!xfi_thread_start(&alarms->thread, alarms_main, alarms)) {
    alarms_free(alarms);
    return XFI_NO_MEMORY("a thread for deadlines");
  }
  *out = alarms;
  return XFER_OK;
}

void xfi_alarms_destroy(xfi_alarms *alarms)
{
  if (alarms == NULL) return;
  (void)pthread_mutex_lock(&alarms->lock);
  alarms->stop = true;
  (void)pthread_cond_signal(&alarms->wake);
  (void)pthread_mutex_unlock(&alarms->lock);
  (void)pthread_join(alarms->thread, NULL);
  alarms_free(alarms);
}

void xfi_alarm_set(xfi_alarms *alarms, xfi_alarm *alarm, xfi_deadline deadline)
{
  (void)pthread_mutex_lock(&alarms->lock);
  if (!alarm->is_set) {
    alarm->next = alarms->first;
    alarms->first = alarm;
    alarm->is_set = true;
  }
  alarm->at_ns = deadline.at_ns;
  if (alarm->at_ns < alarms->sleeps_until_ns) (void)pthread_cond_signal(&alarms->wake);
  (void)pthread_mutex_unlock(&alarms->lock);
}

void xfi_alarm_clear(xfi_alarms *alarms, xfi_alarm *alarm)
{
  (void)pthread_mutex_lock(&alarms->lock);
  while (alarms->ringing == alarm)
    (void)pthread_cond_wait(&alarms->rung, &alarms->lock);
  for (xfi_alarm **at = &alarms->first; alarm->is_set; at = &(*at)->next) {
    if (*at != alarm) continue;
    *at = alarm->next;
    alarm->is_set = false;
    break;
  }
  (void)pthread_mutex_unlock(&alarms->lock);
}
