/*
 * 2-D copies as one graph with a condition. In the body of a condition copies are done by
 * multiprocessors, without the pause of 2.5 us that the copy engine makes after each, so that
 * pieces of 2 MiB move at the speed of the link; and where the condition does not hold none is
 * done, which nothing else can do to copies that are enqueued (docs/performance.md).
 */
#include "cuda_device.h"

#include "error.h"
#include "launch.h"

/* Copies in a row, so many rows side by side. */
enum { BRANCHES = 4 };

static xfer_status add_copies(cudaGraph_t graph, const xfi_cuda_ops *ops)
{
  xfer_status st = XFER_OK;
  cudaGraphNode_t last[BRANCHES] = {NULL};

  for (size_t i = 0; i < ops->n; i++) {
    const xfi_cuda_op *op = &ops->at[i];
    const size_t src_pitch = op->height == 1 ? op->width : op->src_pitch;
    const size_t dst_pitch = op->height == 1 ? op->width : op->dst_pitch;
    cudaGraphNode_t *before = &last[i % BRANCHES];
    cudaGraphNode_t node = NULL;
    const struct cudaMemcpy3DParms copy = {
        .srcPtr = {(void *)op->src, src_pitch, op->width, op->height}, /* it is only read */
        .dstPtr = {op->dst, dst_pitch, op->width, op->height},
        .extent = {op->width, op->height, 1},
        .kind = cudaMemcpyDefault};

    XFI_CUDA_TRY(cudaGraphAddMemcpyNode, (&node, graph, before, *before == NULL ? 0 : 1, &copy));
    *before = node;
  }
done:
  return st;
}

xfer_status xfi_cuda_graph_create(cudaGraphExec_t *out, const xfi_cuda_device *device,
                                  const xfi_cuda_ops *ops, const xfi_guard *guard)
{
  xfer_status st = XFER_OK;
  cudaGraph_t graph = NULL;
  cudaGraphConditionalHandle condition = 0;
  cudaGraphNode_t first = NULL;
  cudaGraphNode_t node = NULL;
  struct cudaGraphNodeParams branch = {.type = cudaGraphNodeTypeConditional};

  if (ops->n == 0) return XFER_OK;
  XFI_CUDA_TRY(cudaGraphCreate, (&graph, 0));
  XFI_CUDA_TRY(cudaGraphConditionalHandleCreate,
               (&condition, graph, 1, cudaGraphCondAssignDefault)); /* 1 unless a guard says no */
  if (guard != NULL)
    XFI_TRY(xfi_cuda_guard_node(graph, &first, condition, xfi_cuda_guard_go(guard)));
  branch.conditional.handle = condition;
  branch.conditional.type = cudaGraphCondTypeIf;
  branch.conditional.size = 1;
  XFI_CUDA_TRY(cudaGraphAddNode, (&node, graph, &first, NULL, first == NULL ? 0 : 1, &branch));
  XFI_TRY(add_copies(branch.conditional.phGraph_out[0], ops));
  XFI_CUDA_TRY(cudaGraphInstantiate, (out, graph, 0));
  XFI_CUDA_TRY(cudaGraphUpload, (*out, device->aside)); /* so that a launch allocates nothing */
  XFI_CUDA_TRY(cudaStreamSynchronize, (device->aside));
done:
  if (graph != NULL) (void)cudaGraphDestroy(graph);
  return st;
}
