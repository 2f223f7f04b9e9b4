/* Ranks that lie, through a transport that changes what they say: each test here fails where its
 * guard is taken out. */
#include "fault/fault.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "object.h"
#include "statement.h"

static xfer_comm *comms[N_RANKS];

static const xfi_comm_ops *sound_ops;
static _Thread_local bool has_lied;

/* What rank 1 says once, and what all ranks then say of it. */
typedef struct lie {
  size_t n_bytes; /* of what is said, behind a status */
  size_t at;      /* the word of 32 bits, and its value */
  uint32_t value;
  const char *says;
} lie;

static const lie lies[] = {
    {sizeof(xfi_statement), offsetof(xfi_statement, version) / 4, 1000, "plans by version 1000"},
    /* most messages in a round: of the plan, and relayed; but nobody relays */
    {8, 0, XFI_ROUND_MESSAGES + 1, "rank 1 has 65 messages in a round"},
    {8, 1, UINT32_MAX, "rank 1 has -1 messages in a round"},
    {8, 1, 1, "rank 1 relays 1 messages in a round"},
};
static const lie *told;

static xfer_status gather_of_a_liar(xfi_comm *comm, void *all, const void *mine, size_t n_bytes,
                                    xfi_deadline deadline)
{
  uint32_t said[128];

  if (comm->rank != 1 || has_lied || n_bytes != sizeof *said + told->n_bytes ||
      n_bytes > sizeof said)
    return sound_ops->all_gather(comm, all, mine, n_bytes, deadline);
  has_lied = true;
  memcpy(said, mine, n_bytes);
  said[1 + told->at] = told->value;
  return sound_ops->all_gather(comm, all, said, n_bytes, deadline);
}

/* What rank 0 says falsely where layouts are told that rank 3 lacks: in which gathering after it
 * has said how much it has, or in that, and which word of 64 bits. */
typedef struct false_word {
  int sizes_said; /* 1: of bits and digests, after which uses come; 2: of layouts */
  int after;
  size_t at;
  uint64_t value;
  const char *says;
} false_word;

#define MALFORMED "a received list of layouts is malformed"
static const false_word false_words[] = {
    {2, 1, 0, 1 << 20, MALFORMED},               /* the number of a layout that nobody has, */
    {2, 1, 1, 1 << 20, MALFORMED},               /* more bytes than there are, */
    {2, 1, 3, XFER_I8, MALFORMED},               /* another layout than it said, */
    {1, 2, 0, 1 << 20, "that it did not say"},   /* and one that it did not; */
    {1, 1, 1, UINT64_MAX, "has a whole layout"}, /* own boxes of more sides than there are; */
    {1, 0, 0, 0, MALFORMED},                     /* nothing, */
    {1, 0, 0, UINT64_C(24) << 32, MALFORMED}     /* and half a pair (behind a status of 32 bits) */
};
static const false_word *said_falsely;
static _Thread_local int n_sizes_said;
static _Thread_local int n_after;

static xfer_status gather_of_a_teller(xfi_comm *comm, void *all, const void *mine, size_t n_bytes,
                                      xfi_deadline deadline)
{
  const bool are_sizes = n_bytes == sizeof(int32_t) + sizeof(uint64_t);
  uint64_t said[512];

  n_sizes_said += are_sizes;
  n_after = are_sizes ? 0 : n_after + 1;
  if (comm->rank != 0 || n_sizes_said != said_falsely->sizes_said || n_after != said_falsely->after)
    return sound_ops->all_gather(comm, all, mine, n_bytes, deadline);
  expect(n_bytes <= sizeof said);
  memcpy(said, mine, n_bytes);
  said[said_falsely->at] = said_falsely->value;
  return sound_ops->all_gather(comm, all, said, n_bytes, deadline);
}

static void with_liars(rank_body *body, xfi_all_gather_fn *gather)
{
  xfi_comm_ops ops;

  make_comms(comms);
  sound_ops = comms[0]->transport->ops;
  ops = *sound_ops;
  ops.all_gather = gather;
  for (int r = 0; r < N_RANKS; r++)
    comms[r]->transport->ops = &ops;
  run_ranks(N_RANKS, body, NULL);
  destroy_comms(comms);
  assert_all_as_expected();
}

static void plan_with_a_liar(int rank, void *context)
{
  input in;
  xfer_plan *plan = NULL;

  (void)context;
  has_lied = false;
  input_create(&in, rank);
  expect(xfer_plan_create(&plan, comms[rank], in.tensors, in.n_tensors, &in.options) ==
         XFER_ERR_MISMATCH);
  expect(strstr(xfer_last_error(), told->says) != NULL);
  expect(plan == NULL);
  input_destroy(&in);
}

static void test_a_rank_that_says_what_cannot_be_is_named(void **state)
{
  (void)state;
  for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
    told = &lies[i];
    print_message("%s\n", told->says);
    with_liars(plan_with_a_liar, gather_of_a_liar);
  }
}

/* Rank 3 was told one source: uses of all are as many bytes as a size. */
static void plan_by_false_words(int rank, void *context)
{
  input in;
  xfer_plan *plan = NULL;

  (void)context;
  n_sizes_said = 0;
  input_create(&in, rank);
  for (size_t t = 1; t < N_TENSORS && rank == 3; t++)
    in.tensors[t].src = NULL;
  expect(xfer_plan_create(&plan, comms[rank], in.tensors, in.n_tensors, &in.options) != XFER_OK);
  expect(strstr(xfer_last_error(), said_falsely->says) != NULL);
  expect(plan == NULL);
  input_destroy(&in);
}

static void test_layouts_of_what_is_not_there_are_refused(void **state)
{
  (void)state;
  for (size_t i = 0; i < sizeof false_words / sizeof *false_words; i++) {
    said_falsely = &false_words[i];
    with_liars(plan_by_false_words, gather_of_a_teller);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a_rank_that_says_what_cannot_be_is_named),
      cmocka_unit_test(test_layouts_of_what_is_not_there_are_refused),
  };

  return cmocka_run_group_tests(tests, NULL, NULL);
}
