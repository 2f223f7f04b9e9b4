/*
 * What both models have: N ranks that fail and die, and their all-gathers.
 *
 * `most_faults` refused calls, failed launches and deadlines that pass early may happen at any
 * place, and `most_deaths` ranks may stop for good at any step. A rank that is stopped for a while
 * is one whose steps come late, which every order of steps has.
 */
#ifndef N
#define N 2
#endif
/* From the environment, so that one program does for all. */
byte runs, most_faults, most_deaths;
byte without; /* the guard that is left out, so that the model is seen to fail; 0: none */
/* Which guard is left out. */
#define NO_AGREEMENT 1     /* a rank commits the version by its own part alone */
#define NO_VERSION_CHECK 2 /* ranks that run different versions are not told apart */

#define NEXT(r) ((r + 1) % N)
#define BEFORE(r) ((r + N - 1) % N)

/* What ranks tell each other of a call. */
#define FINE 0
#define FAILED 1
#define LOST 2 /* not heard: somebody did not come */

bool dead[N];
bool gone[N]; /* makes no more calls */
byte faults = 0;
byte deaths = 0;
byte version[N]; /* of the run in flight */

/* The comm: how often each rank has come to a gathering, and what it said there. Nobody can be two
 * gatherings ahead. */
byte came[N];
byte said[2 * N];
byte said_version[2 * N];

inline take_fault(yes)
{
  if
  :: atomic { faults < most_faults -> faults++; yes = true }
  :: yes = false
  fi
}

#define HAS_COME(x) (came[x] >= came[r])
#define IS_HERE(x) (came[x] >= came[r] || (!dead[x] && !gone[x]))
#if N == 2
#define ALL(of) (of(0) && of(1))
#define ANY(a) (a[at] != FINE || a[at + 2] != FINE)
#define DIFFER(a) (a[at] != a[at + 2])
#elif N == 3
#define ALL(of) (of(0) && of(1) && of(2))
#define ANY(a) (a[at] != FINE || a[at + 2] != FINE || a[at + 4] != FINE)
#define DIFFER(a) (a[at] != a[at + 2] || a[at] != a[at + 4])
#else
#define ALL(of) (of(0) && of(1) && of(2) && of(3))
#define ANY(a) (a[at] != FINE || a[at + 2] != FINE || a[at + 4] != FINE || a[at + 6] != FINE)
#define DIFFER(a) (a[at] != a[at + 2] || a[at] != a[at + 4] || a[at] != a[at + 6])
#endif

/* xfi_comm_agree() and the words of a run: an all-gather that a deadline ends. */
inline gather(mine)
{
  d_step {
    came[r]++;
    at = came[r] % 2;
    said[2 * r + at] = mine;
    said_version[2 * r + at] = version[r]
  }
  if
  :: atomic {
       ALL(HAS_COME) ->
       if
       :: ANY(said) -> outcome = FAILED
       :: else -> outcome = (DIFFER(said_version) && without != NO_VERSION_CHECK -> FAILED : FINE)
       fi;
       at = 0
     }
  :: !ALL(IS_HERE) -> outcome = LOST
  :: atomic { /* its deadline passed */
       !ALL(HAS_COME) && faults < most_faults ->
       faults++;
       outcome = LOST
     }
  fi
}

proctype fate()
{
  byte r = 0;

  do
  :: deaths < most_deaths ->
     select(r : 0 .. N - 1);
     atomic { dead[r] = true; deaths++; r = 0 }
  :: break
  od
}

#define SETTINGS                                                                                   \
  c_code {                                                                                         \
    now.runs = atoi(getenv("RUNS"));                                                               \
    now.most_faults = atoi(getenv("FAULTS"));                                                      \
    now.most_deaths = atoi(getenv("DEATHS"));                                                      \
    now.without = atoi(getenv("WITHOUT"));                                                         \
  }
