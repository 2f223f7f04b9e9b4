#include "order.h"

#include <stdlib.h>
#include <string.h>

/* So many of a rank's peers may have other visitors, where not all have the same: as where a dim is
 * cut otherwise at the destination, whose parts come from neighbours, by rising rank. */
enum { ENDS = 2 };

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

/* Do all of these have the same visitors? */
static bool share_visitors(const xfi_visit *visits, size_t n)
{
  const xfi_ranks *first = visits->visitors;
  size_t i = 1;

  while (i < n && visits[i].visitors->n == first->n &&
         memcmp(visits[i].visitors->at, first->at, first->n * sizeof *first->at) == 0)
    i++;
  return i == n;
}

/* The place of a rank among those that are visited; n: it is not. */
static size_t find(const xfi_visit *visits, size_t n, int rank)
{
  size_t i = 0;

  while (i < n && visits[i].rank != rank)
    i++;
  return i;
}

/* With which a rank begins: who is visited itself with the one after itself, the others with those
 * that are left, and then with all again. All visitors find the same. */
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

bool xfi_order_visits(xfi_visit *visits, size_t n, int rank)
{
  size_t n_much = 0;
  size_t n_shared = 0;

  for (size_t i = 0; i < n; i++) {
    const xfi_ranks *visitors = visits[i].visitors;
    const bool much = have(visitors, rank);

    visits[i].turn = !much; /* little comes last */
    n_much += much;
    n_shared += much && visits[i].rank != rank && visitors->n - have(visitors, visits[i].rank) > 1;
  }
  sort(visits, n);
  if (n_much == 0) return true;
  if (share_visitors(visits, n_much)) {
    const size_t n_visitors = visits->visitors->n;
    const size_t first = find_first(visits, n_much, rank);

    for (size_t i = 0; i < n_much; i++)
      visits[i].turn = (i + n_much - first) % n_much;
    sort(visits, n_much);
    return n_visitors <= n_much || n_visitors % n_much == 0;
  }
  return n_shared <= ENDS; /* the last of one, which is the first of the next */
}
