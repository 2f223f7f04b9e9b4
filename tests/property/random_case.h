/*
 * Random cases of which each rank does its part by itself: by boxes, and exchanges. What programs
 * that carry them out have to know, be ranks threads, processes or devices.
 */
#ifndef RANDOM_CASE_H
#define RANDOM_CASE_H

#include "box_case.h"
#include "exchange_case.h"

typedef enum case_kind { CASE_BOXES, CASE_EXCHANGES } case_kind;

/* "boxes", "exchanges" */
bool case_kind_parse(case_kind *kind, const char *name);

/* A number that a program is told by "--name N". */
typedef struct case_setting {
  const char *name;
  uint64_t *value;
} case_setting;

/* "boxes" or "exchanges", then settings out of `known`; with "--only" there is one of `cases`.
 * False: something else is there. */
bool random_case_settings(case_kind *kind, uint64_t *cases, const case_setting *known, size_t n,
                          int argc, char **argv);

typedef struct random_case {
  case_kind kind;
  uint64_t seed;
  uint64_t number;
  int n_ranks;
  box_case boxes;
  ex_case exchange;
} random_case;

/* Case `number` of `seed`. False: it needs more than `most` ranks. Zero-initialise but for the
 * kind; what an earlier case held is given back. */
bool random_case_make(random_case *c, uint64_t seed, uint64_t number, int most);
void random_case_free(random_case *c);
void random_case_print(FILE *file, const random_case *c);

/* Is it one that the library must refuse? */
bool random_case_is_refused(const random_case *c);

/* For comms that have no rounds. */
void random_case_leave_rounds(random_case *c);

/* What can be seen without ranks. False: `why` says what is wrong. */
bool random_case_check(const random_case *c, char *why, size_t n_why);

/* One rank's part. All ranks of the comm must call it; it may have more than the case needs.
 * `device` NULL: the host's. `corrupt`: a byte is flipped before comparing. */
bool random_case_rank(const random_case *c, xfer_comm *comm, const rank_device *device,
                      bool corrupt, char *why, size_t n_why);

#endif
