/* What every transport must do: bodies that each rank runs with its own handle. Contents are
 * functions of the ranks, the call and the position, so that each rank checks what it got by
 * itself.
 */
#ifndef COMM_CHECKS_H
#define COMM_CHECKS_H

#include "comm.h"
#include "error.h"
#include "unit/ranks.h"

#include <string.h>

enum { CHECK_TIMEOUT_MS = 60000, MOST_MESSAGES = 256, MOST_BYTES = 6000 };

static inline xfi_deadline soon(void)
{
  return xfi_deadline_after(CHECK_TIMEOUT_MS);
}

static inline bool error_has(const char *words)
{
  if (strstr(xfer_last_error(), words) != NULL) return true;
  (void)fprintf(stderr, "\"%s\" lacks \"%s\"\n", xfer_last_error(), words);
  return false;
}

static inline uint64_t mix(uint64_t z)
{
  z += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

static inline void fill(unsigned char *bytes, size_t n, uint64_t seed)
{
  for (size_t i = 0; i < n; i++)
    bytes[i] = (unsigned char)(mix(seed) + 7 * i);
}

static inline bool is_filled(const unsigned char *bytes, size_t n, uint64_t seed)
{
  for (size_t i = 0; i < n; i++)
    if (bytes[i] != (unsigned char)(mix(seed) + 7 * i)) return false;
  return true;
}

static inline void check_gathers(xfi_comm *comm, int n_times)
{
  static const size_t sizes[] = {16, 0, 1, 100, 224, 225, 300, 5000, 8};
  unsigned char mine[5000];
  unsigned char *all = malloc((size_t)comm->size * sizeof mine);

  for (int t = 0; t < n_times; t++) {
    size_t n = sizes[t % 9];
    fill(mine, n, (uint64_t)(t * 1000 + comm->rank));
    expect(comm->ops->all_gather(comm, all, mine, n, soon()) == XFER_OK);
    memset(mine, 0, sizeof mine); /* what others read must not be ours any more */
    for (int r = 0; r < comm->size; r++)
      expect(is_filled(all + (size_t)r * n, n, (uint64_t)(t * 1000 + r)));
  }
  free(all);
}

/* Both ends find the same message, if there is one, for a call from `from` to `to`, and its length.
 */
static inline bool has_message(int call, int from, int to)
{
  return from != to && mix((uint64_t)(call * 10007 + from * 101 + to)) % 2 != 0;
}

static inline size_t bytes_of(int call, int from, int to)
{
  return 1 + mix((uint64_t)(call * 20011 + from * 211 + to * 13)) % MOST_BYTES;
}

static inline uint64_t seed_of(int call, int from, int to)
{
  return (uint64_t)call * 1000003 + (uint64_t)(from * 4099 + to * 61);
}

/* One end's messages, peer by peer, in a buffer of `arena`. Returns how many. */
static inline int make_messages(xfi_message *messages, unsigned char *arena, const xfi_comm *comm,
                                int call, bool sending)
{
  int n = 0;
  for (int peer = 0; peer < comm->size; peer++) {
    int from = sending ? comm->rank : peer;
    int to = sending ? peer : comm->rank;
    if (!has_message(call, from, to)) continue;
    xfi_message m = {arena + (size_t)n * MOST_BYTES, bytes_of(call, from, to), peer};
    if (sending) fill(m.data, m.n_bytes, seed_of(call, from, to));
    messages[n++] = m;
  }
  return n;
}

/* Random patterns; a rank without messages makes no call. */
static inline void check_random_messages(xfi_comm *comm, int n_calls, bool rounds)
{
  unsigned char *arena = malloc((size_t)2 * MOST_MESSAGES * MOST_BYTES);
  xfi_message sends[MOST_MESSAGES];
  xfi_message recvs[MOST_MESSAGES];

  for (int call = 0; call < n_calls; call++) {
    unsigned char *in = arena + (size_t)MOST_MESSAGES * MOST_BYTES;
    int n_sends = make_messages(sends, arena, comm, call, true);
    int n_recvs = make_messages(recvs, in, comm, call, false);
    if (n_sends + n_recvs == 0) continue;
    xfer_status st =
        rounds
            ? comm->ops->round(comm, &(xfi_messages){sends, n_sends, recvs, n_recvs}, NULL, soon())
            : comm->ops->exchange(comm, &(xfi_messages){sends, n_sends, recvs, n_recvs}, soon());
    expect(st == XFER_OK);
    for (int m = 0; m < n_recvs; m++)
      expect(is_filled(recvs[m].data, recvs[m].n_bytes, seed_of(call, recvs[m].peer, comm->rank)));
  }
  free(arena);
}

/* One to three messages at a time. */
static inline void check_broadcasts(xfi_comm *comm, int n_times)
{
  const size_t n = 40000;
  unsigned char *data = malloc(3 * n);
  const xfi_message messages[] = {{data, n, 0}, {data + n, 1, 0}, {data + 2 * n, n, 0}};

  for (int t = 0; t < n_times; t++) {
    const int root = t % comm->size;
    const int n_messages = 1 + t % 3;

    memset(data, 0, 3 * n);
    for (int m = 0; m < n_messages && root == comm->rank; m++)
      fill(messages[m].data, messages[m].n_bytes, (uint64_t)(t + m));
    expect(comm->ops->broadcast(comm, messages, n_messages, root, NULL, soon()) == XFER_OK);
    for (int m = 0; m < n_messages; m++)
      expect(is_filled(messages[m].data, messages[m].n_bytes, (uint64_t)(t + m)));
    expect(n_messages > 1 || data[n] == 0);
  }
  free(data);
}

static inline void check_agreement(xfi_comm *comm)
{
  expect(xfi_comm_agree(comm, XFER_OK, soon()) == XFER_OK);
  for (int failing = 0; failing < comm->size; failing++) {
    bool fails = comm->rank >= failing;
    char wanted[64];
    if (fails) xfi_set_error("bad thing %d", comm->rank);
    xfer_status st = xfi_comm_agree(comm, fails ? XFER_ERR_SHAPE : XFER_OK, soon());
    expect(st == (fails ? XFER_ERR_SHAPE : XFER_ERR_PEER));
    if (fails)
      (void)snprintf(wanted, sizeof wanted, "bad thing %d", comm->rank);
    else
      (void)snprintf(wanted, sizeof wanted, "rank %d: bad thing %d", failing, failing);
    expect(strcmp(xfer_last_error(), wanted) == 0);
  }
  expect(xfi_comm_agree(comm, XFER_OK, soon()) == XFER_OK); /* a failed call is not a failed comm */
}

/* A rank that only passes a failure on is not the one that is named. */
static inline void check_agreement_names_the_cause(xfi_comm *comm)
{
  int last = comm->size - 1;
  xfer_status mine = comm->rank == last ? XFER_ERR_NOMEM : XFER_OK;

  if (comm->size < 3) return;
  if (comm->rank == 0) mine = XFER_ERR_PEER;
  xfi_set_error("text of %d", comm->rank);
  (void)xfi_comm_agree(comm, mine, soon());
  if (comm->rank == 1) {
    char wanted[64];
    (void)snprintf(wanted, sizeof wanted, "rank %d: text of %d", last, last);
    expect(strcmp(xfer_last_error(), wanted) == 0);
  }
}

#endif
