/*
 * libFuzzer: bytes to what the other ranks say while plans are made. This rank makes a plan on a
 * comm on which nobody else is: what an all-gather or an exchange brings of the others is what this
 * rank said itself, as if they meant the same, with bytes of the input in its place here and there.
 * Whatever they say, the call comes back, with a plan or with an error and its text.
 *
 *   build/<preset>/tests/fuzz/fuzz_handshake -max_len=512 DIR tests/fuzz/corpus_handshake
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <xfer/exchange.h>
#include <xfer/xfer.h>

#include "alloc.h"
#include "error.h"
#include "plugin.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
__attribute__((visibility("default"))) const char *__asan_default_options(void);

/* A peer may speak of any number of bytes: who has not that much says so. */
const char *__asan_default_options(void)
{
  return "allocator_may_return_null=1:max_allocation_size_mb=64";
}

static const uint8_t *input;
static size_t n_left;

static uint8_t take(void)
{
  if (n_left == 0) return 0;
  n_left--;
  return *input++;
}

/* What a peer says in place of `own`: the same, the same but for up to eight bytes, or anything. */
static void speak(unsigned char *said, const void *own, size_t n_bytes)
{
  const uint8_t how = take();

  memcpy(said, own, n_bytes);
  if (how < 0x80) return;
  if (how < 0xc0) {
    const size_t at = (size_t)take() * 4 % n_bytes;
    for (size_t i = at; i < n_bytes && i < at + 1 + how % 8; i++)
      said[i] = take();
  } else {
    for (size_t i = 0; i < n_bytes && n_left > 0; i++)
      said[i] = take();
  }
}

static xfer_status all_gather(xfi_comm *comm, void *all, const void *mine, size_t n_bytes,
                              xfi_deadline deadline)
{
  (void)deadline;
  for (int r = 0; r < comm->size && n_bytes > 0; r++) {
    unsigned char *part = (unsigned char *)all + (size_t)r * n_bytes;

    if (r == comm->rank)
      memcpy(part, mine, n_bytes);
    else
      speak(part, mine, n_bytes);
  }
  return XFER_OK;
}

static xfer_status exchange(xfi_comm *comm, const xfi_messages *messages, xfi_deadline deadline)
{
  const xfi_message *recvs = messages->recvs;
  const size_t n_told = messages->n_sends > 0 ? messages->sends[0].n_bytes : 0;

  (void)comm;
  (void)deadline;
  for (int i = 0; i < messages->n_recvs; i++) {
    unsigned char *data = recvs[i].data;

    for (size_t b = 0; b < recvs[i].n_bytes; b++)
      data[b] = b < n_told ? ((const uint8_t *)messages->sends[0].data)[b] : take();
    if (messages->n_sends > 0 && recvs[i].n_bytes > 0)
      data[take() * 4 % recvs[i].n_bytes] ^= take();
  }
  return XFER_OK;
}

static void nothing(xfi_comm *comm)
{
  (void)comm;
}

static void abort_nothing(xfi_comm *comm, const char *why)
{
  (void)comm;
  (void)why;
}

static xfi_comm_ops ops = {
    .all_gather = all_gather, .exchange = exchange, .abort = abort_nothing, .destroy = nothing};

/* Both layouts known to all; none here, so that others tell them; this rank's own boxes only. */
static xfer_status plan_tensors(xfer_plan **plan, xfer_comm *comm, int which)
{
  static const char *const lines[] = {"u8[6,4] (3)@0-2:S0 -> (3)@0-2:S1",
                                      "f32[7] (2)@0-1:S0 -> (1)@2:R"};
  const int64_t bounds[2][4] = {{0, 0, 2, 4}, {2, 0, 4, 4}};
  const int64_t first[2] = {0, 2};
  const int64_t shape[2] = {6, 4};
  xfer_tensor tensors[2] = {{.name = "a"}, {.name = "b"}};
  xfer_layout *layouts[4];
  xfer_layout *own = NULL;
  xfer_boxes_desc desc = XFER_BOXES_DESC_INIT;
  xfer_status st;

  for (int t = 0; t < 2; t++) {
    if (xfer_problem_parse(&layouts[2 * t], &layouts[2 * t + 1], lines[t]) != XFER_OK) abort();
    tensors[t].src = layouts[2 * t];
    tensors[t].dst = which == 1 ? NULL : layouts[2 * t + 1];
  }
  desc.dtype = XFER_U8;
  desc.n_dims = 2;
  desc.shape = shape;
  desc.first = first;
  desc.bounds = &bounds[0][0];
  if (xfer_layout_create_boxes(&own, &desc) != XFER_OK) abort();
  if (which == 2) tensors[0].src = own;
  st = xfer_plan_create(plan, comm, tensors, 2, NULL);
  for (int i = 0; i < 4; i++)
    xfer_layout_destroy(layouts[i]);
  xfer_layout_destroy(own);
  return st;
}

static xfer_status plan_exchange(xfer_plan **plan, xfer_comm *comm)
{
  const xfer_operation sends[] = {xfer_operation_bytes(1, 1, 20), xfer_operation_bytes(2, 2, 8),
                                  xfer_operation_bytes(3, 0, 4)};
  const xfer_operation recvs[] = {xfer_operation_bytes(3, 0, 4), xfer_operation_bytes(1, 1, 20)};

  return xfer_plan_create_exchange(plan, comm, sends, 3, recvs, 2, NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
  xfi_comm *transport;
  xfi_device *device = NULL;
  xfer_comm *comm = NULL;
  xfer_plan *plan = NULL;
  xfer_status st;
  uint8_t which;

  input = data;
  n_left = size;
  which = take();
  transport = xfi_calloc(1, sizeof *transport);
  if (transport == NULL || xfi_device_create_host(&device) != XFER_OK) abort();
  *transport = (xfi_comm){.ops = &ops, .rank = which / 4 % 3, .size = 3};
  if (xfi_comm_wrap(&comm, transport, device) != XFER_OK) abort();
  st = which % 4 == 3 ? plan_exchange(&plan, comm) : plan_tensors(&plan, comm, which % 4);
  if ((st == XFER_OK) != (plan != NULL)) abort();
  if (strlen(xfer_last_error()) >= XFI_ERROR_BYTES) abort();
  xfer_plan_destroy(plan);
  xfer_comm_destroy(comm);
  xfi_free(transport);
  return 0;
}
