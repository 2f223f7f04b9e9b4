/* Small redistributions between ranks whose memory a told_device.h keeps book of: which elements
 * each rank holds, spelt out; where they lie in its arenas; and calls after which every byte of
 * the arenas is looked at.
 */
#ifndef TOLD_JOB_H
#define TOLD_JOB_H

#include "object.h"
#include "told_device.h"

enum { POISON = 0xAB, ELEM = 4, MOST_ROWS = 16 };

/* ---- a problem, and which of it each rank holds: torch.chunk, spelt out -------------------- */

typedef struct problem {
  const char *line;
  int rows;
  int columns;
  int src_dim; /* over ranks 0 and 1 */
  int dst_dim; /* over ranks 1, 2 and 3 */
} problem;

static const problem problems[] = {
    {"i32[7,5] (2)@0-1:S0 -> (3)@1-3:S1", 7, 5, 0, 1},
    {"i32[7,5] (2)@0-1:S1 -> (3)@1-3:S0", 7, 5, 1, 0},
    {"i32[7,5] (2)@0-1:S0 -> (3)@1-3:S0", 7, 5, 0, 0}, /* one side of each of those above */
    {"i32[7,5] (2)@0-1:S1 -> (3)@1-3:S1", 7, 5, 1, 1},
    {"i32[4,5] (2)@0-1:S0 -> (3)@1-3:S0", 4, 5, 0, 0}, /* rank 3 gets nothing */
    {"i32[2,1] (2)@0-1:S1 -> (3)@1-3:S0", 2, 1, 1, 0}, /* rank 1 gives, rank 3 gets nothing */
    {"i32[0,5] (2)@0-1:S0 -> (3)@1-3:S1", 0, 5, 0, 1}, /* no bytes at all */
};
enum { N_PROBLEMS = sizeof problems / sizeof problems[0], N_FULL = 4 /* each part has bytes */ };

typedef struct part {
  int lo[2];
  int hi[2];
} part;

static inline part part_of(const problem *p, int side, int rank)
{
  const int first = side == SRC ? 0 : 1;
  const int n = side == SRC ? 2 : 3;
  const int dim = side == SRC ? p->src_dim : p->dst_dim;
  part is = {{0, 0}, {p->rows, p->columns}};
  const int size = is.hi[dim];
  const int chunk = (size + n - 1) / n;
  const int at = (rank - first) * chunk;

  if (rank < first || rank >= first + n) return (part){{0, 0}, {0, 0}};
  is.lo[dim] = at < size ? at : size;
  is.hi[dim] = at + chunk < size ? at + chunk : size;
  return is;
}

static inline bool holds(const part *is, int row, int column)
{
  return row >= is->lo[0] && row < is->hi[0] && column >= is->lo[1] && column < is->hi[1];
}

static inline bool is_empty(const part *is)
{
  return is->hi[0] == is->lo[0] || is->hi[1] == is->lo[1];
}

static inline uint32_t value_of(const problem *p, int row, int column, int version)
{
  return (uint32_t)(version * 1000000 + (int)(p - problems) * 10000 + row * 100 + column + 1);
}

/* What ranks must get from others. */
static inline uint64_t wire_bytes(const problem *p)
{
  uint64_t n = 0;

  for (int to = 0; to < N_RANKS; to++)
    for (int i = 0; i < p->rows * p->columns; i++) {
      const part gets = part_of(p, DST, to);
      const part has = part_of(p, SRC, to);
      const int row = i / p->columns;
      const int column = i % p->columns;

      if (holds(&gets, row, column) && !holds(&has, row, column)) n += ELEM;
    }
  return n;
}

/* ---- where a part lies -------------------------------------------------------------------- */

typedef enum form {
  DENSE,   /* from the start of the arena */
  SHIFTED, /* dense, inside it */
  STRIDED, /* inside it, with gaps */
  PIECES,  /* row by row from the end, with gaps */
  SCATTER, /* likewise, odd rows in the spare arena */
  N_FORMS
} form;

typedef struct place {
  int arena;
  int offset;
} place;

static inline place place_of(form f, int side, const part *is, int row, int column)
{
  const int r = row - is->lo[0];
  const int c = column - is->lo[1];
  const int rows = is->hi[0] - is->lo[0];
  const int columns = is->hi[1] - is->lo[1];

  switch (f) {
  case DENSE:
    return (place){side, (r * columns + c) * ELEM};
  case SHIFTED:
    return (place){side, 100 + (r * columns + c) * ELEM};
  case STRIDED:
    return (place){side, 64 + r * 48 + c * 8};
  case PIECES:
    return (place){side, 32 + (rows - 1 - r) * 64 + c * ELEM};
  case SCATTER:
  case N_FORMS:
    break;
  }
  /* Sources in the lower half of the spare arena, destinations in the upper. */
  return (place){r % 2 == 0 ? side : SPARE,
                 (r % 2 == 1 && side == DST ? ARENA_BYTES / 2 : 0) + 16 + r * 64 + c * ELEM};
}

/* A rank's view of a part; a view of nothing where that is empty. */
static inline xfer_view view_of(form f, int side, const part *is, arena *arenas, void **pieces)
{
  const int64_t strides[2] = {f == STRIDED ? 48 : 64, f == STRIDED ? 8 : ELEM};
  const int rows = is->hi[0] - is->lo[0];

  if (is_empty(is)) return xfer_view_dense(NULL);
  for (int r = 0; r < rows; r++) {
    const place at = place_of(f, side, is, is->lo[0] + r, is->lo[1]);

    pieces[r] = arenas[at.arena].base + at.offset;
  }
  if (f == DENSE || f == SHIFTED) return xfer_view_dense(pieces[0]);
  if (f == STRIDED) return xfer_view_strided(pieces[0], strides, 2);
  return xfer_view_pieces(pieces, rows, 0, strides, 2);
}

/* All bytes of a rank's arenas: parts where they lie, poison elsewhere. */
typedef struct image {
  unsigned char bytes[N_ARENAS][ARENA_BYTES];
} image;

static inline void draw(image *i, form f, int side, const problem *p, int rank, int version)
{
  const part is = part_of(p, side, rank);

  for (int row = is.lo[0]; row < is.hi[0]; row++)
    for (int column = is.lo[1]; column < is.hi[1]; column++) {
      const place at = place_of(f, side, &is, row, column);
      const uint32_t value = value_of(p, row, column, version);

      memcpy(i->bytes[at.arena] + at.offset, &value, sizeof value);
    }
}

static inline bool shows(const image *i, const arena *arenas)
{
  for (int k = 0; k < N_ARENAS; k++)
    if (memcmp(i->bytes[k], arenas[k].base, ARENA_BYTES) != 0) return false;
  return true;
}

/* ---- a job: comms over one world ---------------------------------------------------------- */

typedef struct job job;

struct job {
  world w;
  xfer_comm *comms[N_RANKS];
  told_device *devices[N_RANKS];
  void (*body)(job *j, int rank);
  /* of the test */
  int victim;
  int side;
  long n;
  xfer_status outcomes[N_RANKS];
};

static inline void job_create(job *j)
{
  xfi_comm *transports[N_RANKS];

  world_create(&j->w);
  if (xfi_comm_create_local(transports, N_RANKS) != XFER_OK) abort();
  for (int r = 0; r < N_RANKS; r++) {
    j->devices[r] = told_device_create(&j->w, r);
    if (xfi_comm_wrap(&j->comms[r], transports[r], &j->devices[r]->base) != XFER_OK) abort();
  }
}

static inline void play(int rank, void *context)
{
  job *j = context;

  j->body(j, rank);
}

static inline void run_job(job *j, void (*body)(job *j, int rank))
{
  job_create(j);
  j->body = body;
  run_ranks(N_RANKS, play, j);
  for (int r = 0; r < N_RANKS; r++)
    xfer_comm_destroy(j->comms[r]);
  world_destroy(&j->w);
  assert_all_as_expected();
}

/* On all ranks; a number of each. */
static inline uint64_t sum(const job *j, int rank, uint64_t mine)
{
  uint64_t all[N_RANKS] = {0};
  uint64_t n = 0;

  expect(xfer_comm_all_gather(j->comms[rank], all, &mine, sizeof mine) == XFER_OK);
  for (int r = 0; r < N_RANKS; r++)
    n += all[r];
  return n;
}

static inline void meet(const job *j, int rank)
{
  (void)sum(j, rank, 0);
}

/* Redistribute, and look at every byte. */
static inline xfer_status move(job *j, int rank, const problem *p, form f, int version)
{
  arena *arenas = j->w.arenas[rank];
  const part has = part_of(p, SRC, rank);
  const part gets = part_of(p, DST, rank);
  void *pieces[2][MOST_ROWS];
  const xfer_view src_view = view_of(f, SRC, &has, arenas, pieces[0]);
  const xfer_view dst_view = view_of(f, DST, &gets, arenas, pieces[1]);
  xfer_layout *src = NULL;
  xfer_layout *dst = NULL;
  xfer_status st;
  image before;
  image after;

  memset(&before, POISON, sizeof before);
  draw(&before, f, SRC, p, rank, version);
  after = before;
  draw(&after, f, DST, p, rank, version);
  for (int k = 0; k < N_ARENAS; k++)
    memcpy(arenas[k].base, before.bytes[k], ARENA_BYTES);
  if (xfer_problem_parse(&src, &dst, p->line) != XFER_OK) abort();
  st = xfer_redistribute(j->comms[rank], src, &src_view, dst, &dst_view, NULL);
  expect(shows(st == XFER_OK ? &after : &before, arenas));
  xfer_layout_destroy(src);
  xfer_layout_destroy(dst);
  return st;
}

/* How many bytes went straight from rank to rank. */
static inline uint64_t direct_bytes(job *j, int rank, const problem *p, form f, int version)
{
  const uint64_t before = j->devices[rank]->peer_bytes;

  expect(move(j, rank, p, f, version) == XFER_OK);
  return sum(j, rank, j->devices[rank]->peer_bytes - before);
}

#define expect_direct(j, rank, p, f, version)                                                      \
  expect(direct_bytes(j, rank, p, f, version) == wire_bytes(p))
#define expect_packed(j, rank, p, f, version) expect(direct_bytes(j, rank, p, f, version) == 0)

/* What a rank registers in the call for `side`: what it needs for the first problem, by a pointer
 * into the middle. */
static inline void *memory_of(job *j, int rank, int side)
{
  const part is = part_of(&problems[0], side, rank);

  return is_empty(&is) ? NULL : j->w.arenas[rank][side].base + 200;
}

static inline void register_both(job *j, int rank)
{
  for (int side = SRC; side <= DST; side++)
    expect(xfer_comm_register(j->comms[rank], memory_of(j, rank, side)) == XFER_OK);
}

static inline void unregister(job *j, int rank, int side)
{
  expect(xfer_comm_unregister(j->comms[rank], memory_of(j, rank, side)) == XFER_OK);
}

static inline int count_cached(const job *j, int rank)
{
  int n = 0;

  for (int k = 0; k < XFI_CACHE_SIZE; k++)
    n += j->comms[rank]->cache.at[k].plan != NULL;
  return n;
}

/* One rank says `st`, with these words; the others that a peer did. */
static inline void expect_one(int rank, int one, xfer_status is, xfer_status st, const char *words)
{
  expect(is == (rank == one ? st : XFER_ERR_PEER));
  if (rank == one) expect(strstr(xfer_last_error(), words) != NULL);
}

#endif
