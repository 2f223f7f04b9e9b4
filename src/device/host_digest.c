/* Digests on the host: the boxes are kept, and added up by kernels/ref when they are asked for. */
#include "host_digest.h"

#include "alloc.h"
#include "error.h"

#include <string.h>

struct xfi_digest {
  xfi_digest_box *boxes;
  size_t n_boxes;
  xfi_sum *sums;
  size_t n_slots;
};

void xfi_host_digest_destroy(xfi_device *device, xfi_digest *digest)
{
  (void)device;
  if (digest == NULL) return;
  xfi_free(digest->boxes);
  xfi_free(digest->sums);
  xfi_free(digest);
}

xfer_status xfi_host_digest_create(xfi_device *device, xfi_digest **digest,
                                   const xfi_digest_box *boxes, size_t n_boxes, size_t n_slots)
{
  xfer_status st = XFER_OK;
  xfi_digest *made = xfi_calloc(1, sizeof *made);

  XFI_CHECK_DONE(made != NULL, XFER_ERR_NOMEM, "a digest of %zu boxes", n_boxes);
  made->boxes = xfi_calloc(n_boxes, sizeof *made->boxes);
  made->sums = xfi_calloc(n_slots, sizeof *made->sums);
  XFI_CHECK_DONE(made->boxes != NULL && made->sums != NULL, XFER_ERR_NOMEM, "a digest of %zu boxes",
                 n_boxes);
  made->n_boxes = n_boxes;
  made->n_slots = n_slots;
  for (size_t i = 0; i < n_boxes; i++) {
    made->boxes[i] = boxes[i];
    xfi_copy_simplify(&made->boxes[i].copy);
  }
  *digest = made;
  made = NULL;
done:
  xfi_host_digest_destroy(device, made);
  return st;
}

xfer_status xfi_host_digest_launch(xfi_device *device, xfi_digest *digest, xfer_stream stream)
{
  (void)device, (void)stream;
  memset(digest->sums, 0, digest->n_slots * sizeof *digest->sums);
  xfi_ref_digest(digest->sums, digest->boxes, digest->n_boxes);
  return XFER_OK;
}

const xfi_sum *xfi_host_digest_sums(const xfi_digest *digest)
{
  return digest->sums;
}
