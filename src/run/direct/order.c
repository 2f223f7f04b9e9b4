/*
 * In which order a rank visits its peers: a rotation in which each rank begins with another peer,
 * wherever the lists of visitors allow one. Pure arithmetic on lists of ranks that both ends know;
 * direct.c calls it at commit.
 */
#include "order.h"

#include <stdlib.h>
#include <string.h>

/* Where a rank's peers differ in their visitors, ranks still seldom meet if at most so many of the
 * peers have a visitor besides, one each. That is the case where the destination cuts a dim in
 * other places than the source: each part then comes from neighbouring ranks. */
enum { ENDS = 2 };

/* First values of xfi_visit.turn: the rank goes there for much; for little; it is the rank itself.
 */
enum { MUCH, LITTLE, KEPT };

/* Is a rank in the list? */
static bool have(const xfi_ranks *ranks, int rank)
{
  for (size_t i = 0; i < ranks->n; i++)
    if (ranks->at[i] == rank) return true;
  return false;
}

static int by_turn(const void *a, const void *b)
{
  const xfi_visit *x = a;
  const xfi_visit *y = b;

  if (x->turn != y->turn) return x->turn < y->turn ? -1 : 1;
  return (x->rank > y->rank) - (x->rank < y->rank);
}

static void sort(xfi_visit *visits, size_t n)
{
  qsort(visits, n, sizeof *visits, by_turn);
}

/* Have all of n visits the same visitors? */
static bool share_visitors(const xfi_visit *visits, size_t n)
{
  const xfi_ranks *first = visits->visitors;
  size_t i = 1;

  while (i < n && visits[i].visitors->n == first->n &&
         memcmp(visits[i].visitors->at, first->at, first->n * sizeof *first->at) == 0)
    i++;
  return i == n;
}

/* The index of a rank among those that are visited; n: it is not among them. */
static size_t find(const xfi_visit *visits, size_t n, int rank)
{
  size_t i = 0;

  while (i < n && visits[i].rank != rank)
    i++;
  return i;
}

/* The visit with which a rank begins, if all visits have the same visitors. A rank that is visited
 * itself begins with the one after itself; the others, by rank, with those with which none of these
 * begins, and if there are more of them, with any in turn. All visitors find the same assignment.
 */
static size_t find_first(const xfi_visit *visits, size_t n, int rank)
{
  const xfi_ranks *visitors = visits->visitors;
  const size_t own = find(visits, n, rank);
  size_t n_before = 0;

  if (own < n) return (own + 1) % n;
  for (size_t i = 0; visitors->at[i] != rank; i++)
    n_before += find(visits, n, visitors->at[i]) == n;
  for (size_t i = 0; i < n; i++)
    if (!have(visitors, visits[(i + n - 1) % n].rank) && n_before-- == 0) return i;
  return n_before % n;
}

/* Put n visits in order, beginning with `first` and going round. True: visitors that begin with
 * different ones do not meet, or as many meet everywhere. */
static bool begin_with(xfi_visit *visits, size_t n, size_t first, size_t n_visitors)
{
  for (size_t i = 0; i < n; i++)
    visits[i].turn = (i + n - first % n) % n;
  sort(visits, n);
  return n_visitors <= n || n_visitors % n == 0;
}

/* How many ranks go there for much, besides the visited rank and this one. */
static size_t count_others(const xfi_visit *visit, int rank)
{
  return visit->visitors->n - have(visit->visitors, visit->rank) - have(visit->visitors, rank);
}

/* Have two visits the same visitors, apart from the two visited ranks themselves? */
static bool share_others(const xfi_visit *a, const xfi_visit *b)
{
  const xfi_ranks *x = a->visitors;
  const xfi_ranks *y = b->visitors;
  size_t i = 0;
  size_t k = 0;

  for (;; i++, k++) {
    i += i < x->n && x->at[i] == a->rank;
    k += k < y->n && y->at[k] == b->rank;
    if (i == x->n || k == y->n) return i == x->n && k == y->n;
    if (x->at[i] != y->at[k]) return false;
  }
}

/* Order n visits, all for much and by rising rank, that differ in their visitors. */
static bool order_mixed(xfi_visit *visits, size_t n, int rank)
{
  size_t n_shared = 0;
  size_t n_alike = 0;
  size_t most = 0;                /* the highest count_others() */
  const xfi_visit *shared = NULL; /* the first visit that has any */

  for (size_t i = 0; i < n; i++) {
    const size_t n_others = count_others(&visits[i], rank);

    if (n_others > most) most = n_others;
    if (n_others == 0) continue;
    if (n_shared == 0) shared = &visits[i];
    n_alike += share_others(shared, &visits[i]);
    n_shared++;
  }
  if (n_shared > 1 && n_alike == n_shared) { /* as of replicas that each keep a part */
    const xfi_ranks *visitors = shared->visitors;
    const int own = shared->rank;
    size_t n_before = 0;

    while (n_before < visitors->n && visitors->at[n_before] < rank)
      n_before++;
    n_before -= own < rank && have(visitors, own);
    for (size_t i = 0; i < n; i++)
      visits[i].turn = count_others(&visits[i], rank) == 0; /* those without others come last */
    sort(visits, n);
    return begin_with(visits, n_shared, n_before, most + 1);
  }
  return n_shared <= ENDS && most <= 1;
}

bool xfi_order_visits(xfi_visit *visits, size_t n, int rank)
{
  size_t n_much = 0;

  for (size_t i = 0; i < n; i++) {
    const bool much = have(visits[i].visitors, rank);

    visits[i].turn = much ? MUCH : LITTLE;
    n_much += much;
  }
  sort(visits, n);
  if (n_much == 0) return true;
  if (!share_visitors(visits, n_much)) { /* perhaps they do without the visit to itself */
    const size_t own = find(visits, n_much, rank);

    if (own < n_much) {
      visits[own].turn = KEPT;
      sort(visits, n);
      n_much--;
    }
    if (!share_visitors(visits, n_much)) return order_mixed(visits, n_much, rank);
  }
  return begin_with(visits, n_much, find_first(visits, n_much, rank), visits->visitors->n);
}
