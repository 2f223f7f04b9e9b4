/*
 * The life of a plan on N ranks, for SPIN: create, commit, runs over the direct lane, waits, and
 * what happens when calls are refused, deadlines pass and ranks die. check.py runs it.
 *
 * Each rank copies into the memory of the next. A rank is two processes: its host, which makes
 * the calls, and its stream, which carries out what the host has enqueued (src/run/direct/direct_run.c)
 * and whose waits an alarm ends at the run's deadline. What a call makes of a plan's state is read
 * from the table in src/run/state.c.
 *
 * Assumed: a copy that was let go ends within the time that a leaving rank waits for it
 * (ABORT_MS of run.c).
 *
 * Proven for all orders: no rank and no stream is left waiting for ever; a wait that says OK on any
 * rank finds every rank's data complete, of this version; a version is committed only when all
 * ranks are done; memory is written only between the owner's READY and the end of its wait.
 */
#include "ranks.pml"
#include "states.pml" /* made by check.py */

/* A word of a page: a run's number with two bits above it. */
#define VOID 64
#define LATE 32
#define RUN_OF(word) ((word) & 31)
#define IS_VOID(word, run) (((word) & VOID) != 0 && RUN_OF(word) <= (run))

/* Which guard is left out. */
#define NO_GUARD 3         /* copies do not look whether their peer has left */
#define NO_REST 4          /* who leaves does not wait for copies that have started */
#define NO_LEFT 5          /* who leaves says nothing on its peers' pages */
#define NO_ALARM 6         /* nobody ends waits at the deadline */
#define ALARM_SAYS_READY 7 /* the alarm stores the run's number, as if the peer had */
#define NO_OUTCOME 8       /* a wait that ended is taken for a signal that came */
#define STALE_WORDS 9      /* any earlier run's word ends a wait */
#define NO_DRAIN 10        /* who leaves does not wait for its own stream */
#define STARTED_LATE 11    /* STARTED is said after the guard has looked */

/* Pages. */
byte ready[N];    /* about NEXT: its memory may be written */
byte started[N];  /* about BEFORE: it may be writing */
byte done[N];     /* about BEFORE: it has written */
byte left[N * N]; /* row r is rank r's page: the peer takes no part any more */

/* Ranks. */
byte epoch[N];
byte committed[N]; /* xfer_plan_report_data.committed_version */
bool late[N];      /* the alarm gave up a wait */
byte armed[N];     /* the run that the alarm watches; 0: none */

/* Streams: five commands are enqueued in order, or fewer if the host failed between. */
#define TELL 0
#define AWAIT_READY 1
#define COPY 2
#define SET_DONE 3
#define AWAIT_DONE 4
#define N_COMMANDS 5
byte enqueued[N];
bool over[N];     /* nothing more of this run will be enqueued */
bool finished[N]; /* the event at its end */

/* What is proven of. */
bool in_run[N]; /* between the call of run and the end of wait */
bool open[N];   /* between READY and the end of wait */
byte holds[N];  /* version of the data in each rank's memory; 0: none, or parts of two */
byte part[N];   /* version whose part is done on this rank, by its own word */

/* A stream's waits are over: words that are still below the run's number become void. */
inline give_up()
{
  d_step {
    if
    :: ready[r] < epoch[r] ->
       late[r] = true;
       ready[r] = (without == ALARM_SAYS_READY -> epoch[r] : epoch[r] | VOID | LATE)
    :: else
    fi;
    if
    :: done[r] < epoch[r] ->
       late[r] = true;
       done[r] = (without == ALARM_SAYS_READY -> epoch[r] : epoch[r] | VOID | LATE)
    :: else
    fi
  }
}

/* Others may have gone on to the next run. */
#define HOLDS(x)                                                                                   \
  (dead[x] || committed[x] >= version[r] || (holds[x] == version[r] && part[x] == version[r]))

/* xfi_run_start() and the enqueueing of xfi_direct_start() and xfi_direct_finish(). What only one
 * process can see is one step. */
inline begin()
{
  assert(!REFUSES_RUN(state));
  atomic {
    take_fault(fails);
    version[r] = (fails -> v + runs : v); /* the caller's mistake */
    take_fault(fails);                    /* the stream captures, memory was freed, ... */
    if
    :: fails || IS_VOID(left[r * N + NEXT(r)], epoch[r] + 1) ||
       IS_VOID(left[r * N + BEFORE(r)], epoch[r] + 1) ->
       if
       :: state = AFTER_RUN_FAILED(state)
       :: assert(!REFUSES_REFUSE(state));
          state = AFTER_REFUSE_ENDED(state) /* the caller says so itself */
       :: state = AFTER_BIND_ENDED(state); /* the caller bound and forgot the commit */
          state = AFTER_RUN_FAILED(state)
       fi;
       status = FAILED
    :: else ->
       d_step {
         state = AFTER_RUN_ENDED(state);
         in_run[r] = true;
         epoch[r]++;
         status = FINE;
         late[r] = false;
         finished[r] = false;
         armed[r] = epoch[r];
         enqueued[r] = AWAIT_READY + 1
       };
       take_fault(fails);
       if
       :: fails -> status = FAILED
       :: else
       fi
    fi;
    fails = false
  };
  if
  :: status == FINE && without != STARTED_LATE -> started[NEXT(r)] = epoch[r]
  :: else
  fi;
  atomic {
    if
    :: status == FINE ->
       if
       :: IS_VOID(left[r * N + NEXT(r)], epoch[r]) ->
          done[NEXT(r)] = epoch[r] | VOID;
          status = FAILED
       :: else ->
          enqueued[r] = SET_DONE + 1;
          take_fault(fails);
          if
          :: fails -> status = FAILED
          :: else -> enqueued[r] = N_COMMANDS
          fi;
          fails = false
       fi
    :: else
    fi;
    over[r] = (state == RUNNING)
  }
}

/* abort_run() and xfi_direct_abort(). */
inline leave()
{
  d_step {
    if
    :: state != RUNNING -> epoch[r]++
    :: else
    fi;
    if
    :: without != NO_LEFT ->
       left[NEXT(r) * N + r] = epoch[r] | VOID;
       left[BEFORE(r) * N + r] = epoch[r] | VOID
    :: else
    fi
  };
  if
  :: without != NO_LEFT -> ready[BEFORE(r)] = epoch[r] | VOID
  :: else
  fi;
  give_up();
  if
  :: state != RUNNING || without == NO_DRAIN
  :: finished[r]
  fi;
  d_step {
    armed[r] = 0;
    done[NEXT(r)] = epoch[r] | VOID
  };
  if
  :: started[r] != epoch[r] || without == NO_REST
  :: done[r] >= epoch[r] && (done[r] & LATE) == 0
  :: dead[BEFORE(r)] /* after a while it is named; what it copied has ended with it */
  fi
}

#define LEFT_ALONE                                                                                 \
  (IS_VOID(left[r * N + NEXT(r)], epoch[r]) || IS_VOID(left[r * N + BEFORE(r)], epoch[r]))

/* xfi_run_wait(). */
inline await_run()
{
  assert(!REFUSES_WAIT(state));
  if
  :: atomic {
       status == FINE && (finished[r] || LEFT_ALONE) ->
       if
       :: without == NO_OUTCOME && finished[r]
       :: else ->
          if
          :: !finished[r] || late[r] || LEFT_ALONE || IS_VOID(done[r], epoch[r]) -> status = FAILED
          :: else -> part[r] = version[r]
          fi
       fi
     }
  :: status != FINE
  fi;
  if
  :: status != FINE -> leave()
  :: else -> part[r] = version[r]
  fi;
  gather(status);
  if
  :: atomic {
       outcome == FINE || (without == NO_AGREEMENT && status == FINE) ->
       assert(ALL(HOLDS)); /* OK: every rank's data is there, of this version */
       assert(state == RUNNING);
       committed[r] = version[r];
       state = AFTER_WAIT_ENDED(state);
       outcome = FINE;
       in_run[r] = false;
       open[r] = false
     }
  :: else ->
     if
     :: status == FINE -> leave()
     :: else
     fi;
     atomic {
       state = AFTER_WAIT_FAILED(state);
       status = FINE;
       in_run[r] = false;
       open[r] = false
     }
  fi
}

/* xfi_plan_commit(): new pages. */
inline commit()
{
  assert(!REFUSES_COMMIT(state));
  atomic { take_fault(fails) };
  gather(fails);
  if
  :: outcome == FINE ->
     d_step {
       epoch[r] = 0;
       armed[r] = 0;
       ready[r] = 0;
       started[r] = 0;
       done[r] = 0;
       for (x : 0 .. N - 1) {
         left[r * N + x] = 0
       }
       x = 0
     }
     atomic { take_fault(fails) };
     gather(fails)
  :: else
  fi;
  state = (outcome == FINE -> AFTER_COMMIT_ENDED(state) : AFTER_COMMIT_FAILED(state))
}

proctype host(byte r)
{
  byte state = UNCOMMITTED;
  byte v = 1;
  byte status = FINE;
  byte outcome = FINE;
  byte at = 0;
  byte x = 0;
  bool fails = false;

  {
    atomic { take_fault(fails) };
    gather(fails); /* create */
    if
    :: outcome == FINE -> commit()
    :: else
    fi;
    do
    :: outcome == FINE && v <= runs ->
       begin();
       await_run();
       v++;
       if /* one that failed, though all were heard, goes on with a commit */
       :: outcome == FAILED && v <= runs ->
          assert(state == TORN);
          commit()
       :: else
       fi
    :: else -> break
    od
  }
  unless { dead[r] }
  gone[r] = true
}

/* A peer that will not come any more. */
#define HELD_UP (dead[NEXT(r)] || gone[NEXT(r)] || dead[BEFORE(r)] || gone[BEFORE(r)])

/* What the host has enqueued; and the alarm, which comes between any two commands. */
proctype stream(byte r)
{
  byte next = TELL;
  bool go = false;

  {
    do
    :: next < enqueued[r] && next == TELL ->
       d_step {
         assert(in_run[r]);
         open[r] = true;
         ready[BEFORE(r)] = epoch[r];
         next++
       }
    :: next < enqueued[r] && next == AWAIT_READY &&
       (ready[r] >= epoch[r] || (without == STALE_WORDS && ready[r] > 0)) ->
       next++
    :: next < enqueued[r] && next == COPY ->
       go = (ready[r] & VOID) == 0;
       go = (go && (left[r * N + NEXT(r)] & VOID) == 0) || without == NO_GUARD;
       if
       :: without == STARTED_LATE -> started[NEXT(r)] = epoch[r]
       :: else
       fi;
       if
       :: go ->
          atomic {
            assert(in_run[r]);
            assert(dead[NEXT(r)] || open[NEXT(r)]); /* only what its owner has said READY for */
            holds[NEXT(r)] = 0
          };
          atomic {
            assert(in_run[r]);
            assert(dead[NEXT(r)] || open[NEXT(r)]);
            holds[NEXT(r)] = version[r]
          }
       :: else
       fi;
       next++
    :: next < enqueued[r] && next == SET_DONE ->
       d_step {
         done[NEXT(r)] = (go -> epoch[r] : epoch[r] | VOID);
         go = false;
         next++
       }
    :: next < enqueued[r] && next == AWAIT_DONE &&
       (done[r] >= epoch[r] || (without == STALE_WORDS && done[r] > 0)) ->
       next++
    :: atomic { armed[r] != 0 && without != NO_ALARM && (HELD_UP || faults < most_faults) ->
         if
         :: HELD_UP
         :: else -> faults++ /* it passes early */
         fi;
         armed[r] = 0;
         give_up()
       }
    :: over[r] && next == enqueued[r] ->
       d_step {
         next = TELL;
         enqueued[r] = 0;
         over[r] = false;
         finished[r] = true
       }
    :: gone[r] && enqueued[r] == 0 -> break
    od
  }
  unless { dead[r] }
}

init
{
  byte r = 0;

  SETTINGS;
  atomic {
    for (r : 0 .. N - 1) {
      run host(r);
      run stream(r)
    }
    run fate()
  }
}
