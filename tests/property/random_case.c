#include "random_case.h"

#include <stdlib.h>
#include <string.h>

static const char *const names[] = {"boxes", "exchanges"};

bool case_kind_parse(case_kind *kind, const char *name)
{
  for (int k = CASE_BOXES; k <= CASE_EXCHANGES; k++) {
    if (strcmp(names[k], name) != 0) continue;
    *kind = (case_kind)k;
    return true;
  }
  return false;
}

bool random_case_settings(case_kind *kind, uint64_t *cases, const case_setting *known, size_t n,
                          int argc, char **argv)
{
  if (argc < 2 || !case_kind_parse(kind, argv[1])) return false;
  for (int i = 2; i + 1 < argc; i += 2) {
    size_t k = 0;

    while (k < n && strcmp(known[k].name, argv[i]) != 0)
      k++;
    if (k == n) return false;
    *known[k].value = strtoull(argv[i + 1], NULL, 10);
    if (strcmp(argv[i], "--only") == 0) *cases = 1;
  }
  return true;
}

bool random_case_make(random_case *c, uint64_t seed, uint64_t number, int most)
{
  c->seed = seed;
  c->number = number;
  if (c->kind == CASE_BOXES)
    box_case_make(&c->boxes, seed, number);
  else
    ex_case_make(&c->exchange, seed, number, most);
  c->n_ranks = c->kind == CASE_BOXES ? c->boxes.p.n_ranks : c->exchange.n_ranks;
  return c->n_ranks <= most;
}

void random_case_free(random_case *c)
{
  box_case_free(&c->boxes);
}

void random_case_print(FILE *file, const random_case *c)
{
  fprintf(file, "%s: case %llu of seed %llu, %d ranks\n", names[c->kind],
          (unsigned long long)c->number, (unsigned long long)c->seed, c->n_ranks);
  if (c->kind == CASE_BOXES) box_case_print(file, &c->boxes);
}

bool random_case_is_refused(const random_case *c)
{
  for (int t = 0; c->kind == CASE_BOXES && t < c->boxes.p.n_tensors; t++)
    if (!c->boxes.is_covered[t]) return true;
  return false;
}

void random_case_leave_rounds(random_case *c)
{
  xfer_plan_options *o = c->kind == CASE_BOXES ? &c->boxes.p.options : &c->exchange.options;

  if (o->lane != XFER_LANE_DIRECT) o->lane = XFER_LANE_AUTO;
}

bool random_case_check(const random_case *c, char *why, size_t n_why)
{
  return c->kind != CASE_BOXES || box_case_same_moves(&c->boxes, why, n_why);
}

bool random_case_rank(const random_case *c, xfer_comm *comm, const rank_device *device,
                      bool corrupt, char *why, size_t n_why)
{
  why[0] = '\0';
  return c->kind == CASE_BOXES ? box_case_rank(&c->boxes, comm, device, corrupt, why, n_why)
                               : ex_case_rank(&c->exchange, comm, device, corrupt, why, n_why);
}
