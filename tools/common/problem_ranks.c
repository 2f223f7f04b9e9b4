#include "problem_ranks.h"

#include <limits.h>
#include <string.h>

/* More ranks than the language can say; parsing then tells in which column. */
static const int64_t UNSAYABLE = INT64_C(1) << 32;
enum { MOST = 1 << 24 };

static int64_t least(int64_t a, int64_t b)
{
  return a < b ? a : b;
}

/* The number at *at, which moves past it. */
static int64_t number(const char **at)
{
  int64_t n = 0;

  for (; **at >= '0' && **at <= '9'; ++*at)
    n = least(n * 10 + (**at - '0'), UNSAYABLE);
  return n;
}

/* The highest rank of "@0-7,9,20-30/5". */
static int64_t last_listed(const char *at)
{
  int64_t last = 0;

  do {
    at++; /* '@' or ',' */
    const int64_t first = number(&at);
    int64_t stop = first, step = 1;

    if (*at == '-') at++, stop = number(&at);
    if (*at == '/') at++, step = number(&at);
    if (step > 0) stop -= (stop - first) % step;
    if (stop > last) last = stop;
  } while (*at == ',');
  return last;
}

/* Of "(2,4)" or "(2,4)@0-7". */
static int64_t ranks_of_mesh(const char *at)
{
  int64_t n = 1;

  do {
    at++; /* '(' or ',' */
    n = least(n * number(&at), UNSAYABLE);
  } while (*at == ',');
  return at[0] == ')' && at[1] == '@' ? last_listed(at + 1) + 1 : n;
}

/* Of "{0=[0:2];1=[2:4]}". */
static int64_t ranks_of_boxes(const char *at)
{
  int64_t last = 0;

  do {
    at++; /* '{' or ';' */
    const int64_t rank = number(&at);

    if (rank > last) last = rank;
    at += strcspn(at, ";}");
  } while (*at == ';');
  return last + 1;
}

int64_t problem_ranks(const char *line)
{
  int64_t n_ranks = 0;

  for (const char *at = strpbrk(line, "({"); at != NULL; at = strpbrk(at + 1, "({")) {
    const int64_t n = *at == '(' ? ranks_of_mesh(at) : ranks_of_boxes(at);

    if (n > n_ranks) n_ranks = n;
  }
  return n_ranks;
}

bool problem_is_too_large(int64_t n_ranks)
{
  return n_ranks > MOST && n_ranks < UNSAYABLE;
}
