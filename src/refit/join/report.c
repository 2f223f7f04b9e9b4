#include "report.h"

#include "dtype.h"

#include <string.h>

static uint64_t payload(const xfi_entry *entry)
{
  uint64_t n = xfi_dtype_size((int)entry->dtype);

  for (int d = 0; d < entry->n_dims; d++)
    n *= (uint64_t)entry->shape[d];
  return n;
}

/* Returns the bytes of all parts on all ranks. Ranks are the product of the axes, and no two dims
 * share an axis, so the sum over ranks of a product over dims is a product of sums. */
static uint64_t sharded_bytes(const xfer_layout *layout)
{
  uint64_t n = (uint64_t)layout->elem_bytes * (uint64_t)layout->n_replicas;

  for (int d = 0; d < layout->n_dims; d++) {
    uint64_t sum = 0;

    for (int64_t part = 0; part < layout->dims[d].n_parts; part++) {
      sum += (uint64_t)xfi_dim_length(&layout->dims[d], part);
    }
    n *= sum;
  }
  return n;
}

static void add_tensor(const xfer_refit *refit, size_t i, const xfer_layout **last,
                       uint64_t *last_bytes, xfer_refit_report_data *r)
{
  const xfi_entry *entry = &refit->model->entries[refit->origins[i].entry];
  const xfi_joined_side *gen = &refit->sides[XFER_REFIT_GEN];
  const xfi_held_entry *held = gen->side == NULL ? NULL : &gen->held[refit->origins[i].entry];
  const xfer_layout *dst = refit->tensors[i].dst;
  uint64_t bytes = payload(entry);

  r->hf_tensors += (uint64_t)(entry->packed.index == 0) *
                   (uint64_t)(entry->n_experts > 0 ? entry->n_experts : 1);
  r->payload_bytes += bytes;
  if (bytes > r->largest_bytes) r->largest_bytes = bytes;
  if (held != NULL && held->misc) {
    r->misc_bytes += bytes;
  } else if (held != NULL) {
    r->ruled_bytes += bytes;
  }
  if (held != NULL) r->hooks += held->hook;
  if (dst != NULL) {
    if (dst != *last) *last_bytes = sharded_bytes(dst); /* layers of a stage share one */
    *last = dst;
    r->delivered_bytes += *last_bytes;
  }
}

void xfi_refit_report(const xfer_refit *refit, xfer_refit_report_data *report)
{
  const xfer_layout *last = NULL;
  uint64_t last_bytes = 0;
  const xfer_side *train = refit->sides[XFER_REFIT_TRAIN].side;

  report->tensors = refit->n_tensors;
  report->ignored = refit->n_ignored;
  for (size_t i = 0; i < refit->n_tensors; i++)
    add_tensor(refit, i, &last, &last_bytes, report);
  for (size_t e = 0; train != NULL && e < refit->model->n_entries; e++)
    report->duplicates += refit->sides[XFER_REFIT_TRAIN].held[e].mapping.last != NULL;
}

int xfi_refit_ranks(const xfer_refit *refit)
{
  int n = 0;

  for (int s = 0; s < 2; s++) {
    const xfer_side *side = refit->sides[s].side;

    if (side != NULL && side->mesh->max_rank >= n) n = side->mesh->max_rank + 1;
  }
  return n;
}

void xfi_refit_tensor(const xfer_refit *refit, size_t i, xfer_refit_tensor *tensor)
{
  const xfi_entry *entry = &refit->model->entries[refit->origins[i].entry];
  const xfi_joined_side *gen = &refit->sides[XFER_REFIT_GEN];

  memset(tensor, 0, sizeof *tensor);
  tensor->hf =
      refit->origins[i].hf_name != NULL ? refit->origins[i].hf_name : refit->tensors[i].name;
  tensor->n_experts = entry->n_experts;
  tensor->first_expert = entry->first_expert;
  tensor->offset = entry->in_checkpoint.offset;
  memcpy(tensor->strides, entry->in_checkpoint.strides, sizeof tensor->strides);
  tensor->n_dims = entry->n_dims;
  tensor->half_dim = -1;
  tensor->half_step = 1;
  if (entry->packed.n > 1) {
    tensor->half_dim = xfi_entry_row_dim(entry);
    tensor->half_step = entry->packed.alternate ? entry->packed.n : 1;
    tensor->half_first = entry->packed.first_row;
  }
  tensor->layer = xfi_entry_layer(entry, refit->origins[i].place);
  tensor->misc = gen->side != NULL && gen->held[refit->origins[i].entry].misc;
  tensor->hook = gen->side != NULL && gen->held[refit->origins[i].entry].hook;
}
