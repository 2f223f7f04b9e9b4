/*
 * Joins copies that are adjacent on both sides into fewer and larger ones for the copy engine:
 * experts that lie in one tensor, say, or tensors that a caching allocator placed one behind the
 * other. Only within one allocation on each side, since the driver checks the whole span of a copy.
 */
#include "cuda_device.h"

#include "vec.h"

/* The order by destination, which is strict: no two copies write the same bytes. */
static int by_dst(const void *a, const void *b)
{
  const xfi_copy *x = a;
  const xfi_copy *y = b;

  return (x->dst > y->dst) - (x->dst < y->dst);
}

static bool is_run(const xfi_copy *c)
{
  return c->src != NULL && c->convert == NULL && c->n_dims == 0;
}

static bool continues(const xfi_copy *c, const xfi_copy *next)
{
  return is_run(next) && next->src == c->src + c->run_bytes && next->dst == c->dst + c->run_bytes;
}

/* The allocation, or mapping, that holds the byte; empty: it is not known. */
static xfi_cuda_span span_of(const xfi_cuda_device *device, const xfi_batch_spec *spec,
                             const char *pointer)
{
  const xfi_cuda_span mapped = xfi_cuda_mapped(device, pointer);
  const xfi_allocation *known = xfi_allocation_at(spec->known, spec->n_known, pointer);
  xfi_cuda_pointer found;

  if (mapped.n_bytes > 0) return mapped;
  if (known != NULL && !xfi_cuda_has_several_chunks(known))
    return (xfi_cuda_span){known->base, known->n_bytes};
  if (xfi_cuda_inspect(device, pointer, &found) != XFER_OK) return mapped;
  return (xfi_cuda_span){found.base, found.n_bytes};
}

/* How many of at[0] to at[n - 1] are one run; at least 1. */
static size_t join_run(const xfi_cuda_device *device, const xfi_batch_spec *spec, xfi_copy *at,
                       size_t n)
{
  xfi_copy c = at[0];
  size_t n_joined = 1;
  xfi_cuda_span src;
  xfi_cuda_span dst;

  if (n < 2 || !is_run(&c) || !continues(&c, &at[1])) return 1;
  src = span_of(device, spec, c.src);
  dst = span_of(device, spec, c.dst);
  while (n_joined < n && continues(&c, &at[n_joined]) &&
         xfi_cuda_is_in(&src, at[n_joined].src + at[n_joined].run_bytes - 1) &&
         xfi_cuda_is_in(&dst, at[n_joined].dst + at[n_joined].run_bytes - 1))
    c.run_bytes += at[n_joined++].run_bytes;
  *at = c;
  return n_joined;
}

size_t xfi_cuda_join(const xfi_cuda_device *device, const xfi_batch_spec *spec, size_t n)
{
  xfi_copy *copies = spec->copies;
  size_t n_left = 0;
  size_t n_joined;

  xfi_sort(copies, n, sizeof *copies, by_dst);
  for (size_t i = 0; i < n; i += n_joined) {
    n_joined = join_run(device, spec, &copies[i], n - i);
    copies[n_left++] = copies[i];
  }
  return n_left;
}
