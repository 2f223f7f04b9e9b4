/*
 * The oracle: which elements every rank holds, by brute force.
 *
 * It writes out the list of all global indices of a dim and cuts that list, axis by axis, as the
 * words of xfer.h and torch's own chunk, tensor_split and _StridedShard say. No closed form, no
 * run, no inverse: it shares no code and no idea with src/layout and src/plan, so that both cannot
 * be wrong alike.
 */
#ifndef ORACLE_H
#define ORACLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { ORC_MAX_DIMS = 8, ORC_MAX_RANKS = 64, ORC_ZERO = -1 };

/* Memory that is taken piece by piece and given back all at once. Zero-initialise. */
typedef struct orc_arena {
  struct orc_block *blocks;
} orc_arena;

void *orc_alloc(orc_arena *arena, size_t n_bytes);
void orc_reset(orc_arena *arena); /* all pieces are gone; the memory is kept for the next ones */
void orc_free(orc_arena *arena);

typedef enum orc_kind {
  ORC_REPLICATE,
  ORC_CHUNK,
  ORC_BALANCED,
  ORC_EVEN,
  ORC_STRIDED,
  ORC_TABLE
} orc_kind;

typedef struct orc_run {
  int64_t global, length, local;
} orc_run;

/* Coordinate i holds runs[first[i]] .. runs[first[i+1]-1] in a part of lengths[i] indices. */
typedef struct orc_table {
  int64_t n_coords;
  orc_run *runs;
  int64_t *first;   /* [n_coords + 1] */
  int64_t *lengths; /* [n_coords] */
} orc_table;

typedef struct orc_place {
  orc_kind kind;
  int dim;
  int64_t factor; /* ORC_STRIDED */
  const orc_table *table;
} orc_place;

/* One side of a problem: a mesh and what each of its axes does to a tensor. */
typedef struct orc_side {
  int n_dims;
  int64_t shape[ORC_MAX_DIMS];
  int64_t padded[ORC_MAX_DIMS]; /* the sizes that are split */
  int n_axes;
  int mesh[ORC_MAX_DIMS];
  int n_ranks; /* product of mesh */
  int ranks[ORC_MAX_RANKS];
  orc_place places[ORC_MAX_DIMS]; /* [n_axes] */
  int order[ORC_MAX_DIMS];        /* [n_axes] the first splits first */
} orc_side;

/* The global index of each local index of one dim, or ORC_ZERO. */
typedef struct orc_list {
  int64_t n;
  int64_t *index;
} orc_list;

typedef struct orc_part {
  int n_dims;
  orc_list dims[ORC_MAX_DIMS];
} orc_part;

typedef enum orc_verdict {
  ORC_FINE,
  ORC_OUTSIDE, /* the rank is not in the mesh */
  ORC_UNEVEN,  /* EVEN does not divide */
  ORC_UNFIT    /* a run reaches past the part that is cut, or its table is for another number of
                  coordinates */
} orc_verdict;

/* What `rank` holds. `part` lies in `arena`. */
orc_verdict orc_part_of(orc_part *part, const orc_side *side, int rank, orc_arena *arena);

/* The first verdict over all ranks of the mesh that is not ORC_FINE. */
orc_verdict orc_check(const orc_side *side, orc_arena *arena);

/* Does an axis have a run table? */
bool orc_has_table(const orc_side *side);

/* Local elements, ZERO ones included. */
int64_t orc_n_elems(const orc_part *part);

/* Of these, how many are ZERO. */
int64_t orc_n_zeros(const orc_part *part);

/* Of the elements of `dst` that are not ZERO, how many `src` holds too. */
int64_t orc_n_common(const orc_part *dst, const orc_part *src, orc_arena *arena);

/* Does some rank of `src` hold each element that some rank of `dst` wants? */
bool orc_covers(const orc_side *src, const orc_side *dst, orc_arena *arena);

/* The maximal runs of a list, ascending in `local`. Writes at most `capacity`, returns how many
 * there are. */
size_t orc_runs(orc_run *runs, size_t capacity, const orc_list *list);

typedef struct orc_owner {
  int64_t local[ORC_MAX_DIMS];
  int rank;
} orc_owner;

/* Every place where the element `index` is held: ascending in rank, then in local. */
size_t orc_owners(orc_owner *owners, size_t capacity, const orc_side *side, const int64_t *index,
                  orc_arena *arena);

#endif
