/*
 * Runs over the packed lane on N ranks, for SPIN: rounds through two slots each way, and what
 * happens when calls are refused, deadlines pass and ranks die. check.py runs it; plan.pml has the
 * rest of a plan's life.
 *
 * Each rank sends ROUNDS messages to the next. A rank is its host, which makes the calls, and its
 * streams (src/run/pipeline/pipeline.c): one gathers what goes into a slot, one calls the comm, one scatters
 * what came. The comm's call ends on a rank when its message was taken and it has taken one. A
 * message has no name, so it goes to whoever asks next.
 *
 * Proven for all orders: nothing waits for ever; what is scattered is the message of this run and
 * round; a wait that says OK finds all data on every rank, of one version; memory is read and
 * written only between the call of run and the end of wait, and after what was on the caller's
 * stream.
 */
#include "ranks.pml"

#define ROUNDS 3

/* Which guard is left out. */
#define NO_WAIT_FOR_SENT 3      /* a slot is filled again before its message was taken */
#define NO_WAIT_FOR_SCATTERED 4 /* a slot is received into before it was emptied */
#define NO_ABORT 5              /* who fails leaves the comm as it is */
#define NO_CALLERS_STREAM 6     /* gathering does not wait for the caller's stream */
#define NO_DRAIN 7              /* a failed wait does not wait for the streams */
#define NO_DEADLINE 8           /* calls of the comm do not end where a peer does not come */

#define NOTHING 255 /* in a slot: what nobody sent */
#define TAG(run, k) ((run)*ROUNDS + (k))
#define SLOT(r, k) (2 * (r) + (k) % 2)

byte number[N];   /* of the run that the streams are in */
byte total[N];    /* steps of this run */
bool updated[N];  /* the caller's stream has come to the run */
byte gathered[N]; /* steps of this run that each stream has done */
byte moved[N];
byte scattered[N];
bool calling[N]; /* in a call of the comm */
bool has_taken[N];
bool was_taken[N];
byte sends[2 * N]; /* what slots hold */
byte receives[2 * N];
bool aborted[N]; /* this rank's comm carries no more messages */
bool in_run[N];

#define IS_DONE(x) (gathered[x] == total[x] && moved[x] == total[x] && scattered[x] == total[x])
/* Others may have gone on to the next run. */
#define HAS_DATA(x)                                                                                \
  (dead[x] || number[x] > number[r] ||                                                             \
   (total[x] == ROUNDS && IS_DONE(x) && !aborted[x] && version[x] == version[r]))
/* A peer that will not come any more. */
#define IS_LOST(x) (dead[x] || gone[x] || aborted[x])

proctype host(byte r)
{
  byte outcome = FINE;
  byte status = FINE;
  byte at = 0;
  bool fails = false;

  {
    do
    :: outcome == FINE && number[r] < runs ->
       atomic {
         take_fault(fails);
         number[r]++;
         version[r] = (fails -> number[r] + runs : number[r]); /* the caller's mistake */
         take_fault(fails);
         status = (fails -> FAILED : FINE);
         total[r] = (fails -> 0 : ROUNDS);
         in_run[r] = true;
         updated[r] = false;
         gathered[r] = 0;
         moved[r] = 0;
         scattered[r] = 0;
         fails = false
       };
       if
       :: atomic { IS_DONE(r) -> status = (aborted[r] -> FAILED : status) }
       :: atomic { aborted[r] -> status = FAILED }
       fi;
       if
       :: status != FINE ->
          if
          :: without != NO_ABORT -> aborted[r] = true
          :: else
          fi;
          if
          :: without == NO_DRAIN
          :: without != NO_DRAIN && IS_DONE(r)
          fi
       :: else
       fi;
       gather(status);
       if
       :: outcome == FINE || (without == NO_AGREEMENT && status == FINE) ->
          atomic {
            assert(ALL(HAS_DATA));
            outcome = FINE
          }
       :: else
       fi;
       in_run[r] = false
    :: else -> break
    od
  }
  unless { dead[r] }
  gone[r] = true
}

/* The three streams, each of which takes its steps in order; events say how far the others are. */
proctype streams(byte r)
{
  {
    do
    :: !updated[r] && in_run[r] -> updated[r] = true
    :: atomic {
         gathered[r] < total[r] && (updated[r] || without == NO_CALLERS_STREAM) &&
         (gathered[r] < moved[r] + 2 || without == NO_WAIT_FOR_SENT) ->
         assert(in_run[r] && updated[r]);
         sends[SLOT(r, gathered[r])] = TAG(number[r], gathered[r]);
         gathered[r]++
       }
    :: atomic {
         !calling[r] && moved[r] < gathered[r] &&
         (moved[r] < scattered[r] + 2 || without == NO_WAIT_FOR_SCATTERED) ->
         if
         :: aborted[r] -> /* nothing comes of it */
            receives[SLOT(r, moved[r])] = NOTHING;
            moved[r]++
         :: else -> calling[r] = true
         fi
       }
    :: atomic {
         calling[r] && !has_taken[r] && !aborted[r] && calling[BEFORE(r)] &&
         !was_taken[BEFORE(r)] && !aborted[BEFORE(r)] ->
         receives[SLOT(r, moved[r])] = sends[SLOT(BEFORE(r), moved[BEFORE(r)])];
         was_taken[BEFORE(r)] = true;
         has_taken[r] = true
       }
    :: atomic {
         calling[r] && (aborted[r] || (has_taken[r] && was_taken[r])) ->
         if
         :: !has_taken[r] -> receives[SLOT(r, moved[r])] = NOTHING
         :: else
         fi;
         calling[r] = false;
         has_taken[r] = false;
         was_taken[r] = false;
         moved[r]++
       }
    :: atomic {
         scattered[r] < moved[r] ->
         assert(in_run[r]);
         assert(aborted[r] || receives[SLOT(r, scattered[r])] == TAG(number[r], scattered[r]));
         scattered[r]++
       }
    :: atomic {
         calling[r] && !aborted[r] && without != NO_DEADLINE &&
         (IS_LOST(NEXT(r)) || IS_LOST(BEFORE(r)) || faults < most_faults) ->
         if
         :: IS_LOST(NEXT(r)) || IS_LOST(BEFORE(r))
         :: else -> faults++ /* it passes early */
         fi;
         aborted[r] = true
       }
    :: gone[r] && IS_DONE(r) -> break
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
      run streams(r)
    }
    run fate()
  }
}
