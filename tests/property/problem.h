/*
 * A whole problem of a test: ranks, tensors with their two sides, options, and what goes wrong on
 * purpose.
 *
 * It is made at random from (seed, number), always the same one, or read from a line in the problem
 * language by a reader of its own.
 */
#ifndef PROBLEM_H
#define PROBLEM_H

#include <stdio.h>
#include <xfer/xfer.h>

#include "oracle.h"

enum { SRC = 0, DST = 1, MAX_TENSORS = 5 };

/* How a destination shares a buffer with that of the tensor before it. */
typedef enum fusion {
  APART,
  CONCATENATED, /* its indices of fuse_dim follow those of the other */
  INTERLEAVED,  /* every other index of fuse_dim is its own */
  TIED          /* the same view, and the same values */
} fusion;

/* How the elements of a tensor change on the way. */
typedef enum change { NO_CHANGE, CAST, SCALED, SHIFTED } change;

typedef struct problem_tensor {
  xfer_dtype dtypes[2];
  change change;
  float by; /* SCALED, SHIFTED */
  orc_side sides[2];
  bool
      has_order[2]; /* say the order in the layout's description, although it may be 0, 1, 2, ... */
  bool has_pad[2];
  fusion fused[2];
  int fuse_dim;
  int value_of;       /* the tensor whose values it has: itself, or the one that it is tied to */
  bool from_line;     /* its layouts are made by xfer_problem_parse() */
  uint64_t giving[2]; /* bit r: rank r knows that side's layout */
} problem_tensor;

/* What is wrong on purpose, so that every rank must be told. */
typedef enum mischief {
  NO_MISCHIEF,
  OTHER_NAME,    /* one rank calls a tensor something else */
  OTHER_WINDOW,  /* one rank asks for another window */
  OTHER_DTYPE,   /* the two sides differ in dtype */
  RANK_TOO_HIGH, /* a mesh names a rank that the comm does not have */
  NOT_BOUND      /* one rank does not bind a part that is not empty */
} mischief;

typedef struct problem {
  uint64_t seed;
  uint64_t number;
  int n_ranks;
  int n_tensors;
  problem_tensor tensors[MAX_TENSORS];
  xfer_plan_options options;
  bool null_options;
  bool one_call; /* by xfer_redistribute(), tensor by tensor */
  int n_runs;
  bool release_between; /* release and commit between two runs */
  bool rebind_between;  /* other views, then commit, between two runs */
  bool simulate;        /* compare with xfer_plan_simulate() */
  bool queries;         /* compare the layouts' answers */
  bool plain_views;     /* dense, apart */
  mischief mischief;
  int culprit; /* the rank that does it */
  orc_arena arena;
} problem;

/* Make problem `number` of `seed`. What an earlier one held is given back. */
void problem_random(problem *p, uint64_t seed, uint64_t number);

/* Make a problem of one tensor from a line, in which a run table may stand as problem_print()
   writes it: "S0x[2: 0+1@0 3+1@1][1: 2+1@0]". Returns false if the line does not parse. */
bool problem_read(problem *p, const char *line);

/* Read "(2,2):S0f2,S0" and the like; `side` has its shape already. Returns what follows, or NULL.
 */
const char *problem_read_side(orc_side *side, const char *text, orc_arena *arena);

/* One tensor in the problem language; 'x' stands for a whole run table. */
size_t problem_line(char *text, size_t n_bytes, const problem_tensor *tensor);

/* Everything about it, for a person. */
void problem_print(FILE *file, const problem *p);

/* Bytes of an element on its way. */
uint64_t problem_wire_bytes(const problem_tensor *tensor);

xfer_conversion problem_conversion(const problem_tensor *tensor);

/* Random bits as an element of one side. */
uint64_t problem_element(const problem_tensor *tensor, int side, uint64_t bits);

void problem_free(problem *p);

#endif
