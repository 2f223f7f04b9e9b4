/* What mpi_peers moves: tensors of a problem's line, cut into the boxes that ranks hold. */
#ifndef MPI_WORKLOAD_H
#define MPI_WORKLOAD_H

#include <stddef.h>
#include <stdint.h>
#include <xfer/xfer.h>

enum { MAX_RANKS = 64, MAX_DIMS = 3, SRC = 0, DST = 1 };

/* What a rank holds of a tensor on one side, one box; empty: nothing. */
typedef struct box {
  int64_t lo[MAX_DIMS];
  int64_t hi[MAX_DIMS];
} box;

/* n_tensors tensors of float of one shape, each element of whose source is on one rank. */
typedef struct workload {
  const char *name;
  char line[512];
  int n_tensors;
  int rank;
  int size;
  int n_dims;
  xfer_layout *layouts[2];
  box boxes[2][MAX_RANKS];
  size_t part_bytes[2]; /* of this rank's part of a tensor */
  char *arrays[2];      /* [n_tensors] of them */
} workload;

/* Ends all ranks where a call failed. */
void workload_need(xfer_status st, const char *what);
/* Memory of zeros; ends all ranks where there is none. */
void *workload_room(size_t n_bytes);

/* The tensors that the line says, and memory for this rank's parts; rank, size and number are the
 * caller's. */
void workload_hold(workload *w);
void workload_free(workload *w);

int64_t workload_elems(const workload *w, const box *b);
/* What a rank sends to another one. */
box workload_common(const workload *w, int from, int to);
/* Elements of `part` between two dense boxes that hold it, in as few runs as there are. */
void workload_copy(const workload *w, const box *part, char *dst, const box *in_dst,
                   const char *src, const box *in_src);
/* Set this rank's part of one side, or count what differs there. */
int workload_visit(const workload *w, int side, uint64_t round);

#endif
