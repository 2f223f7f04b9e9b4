/*
 * Contexts: each takes half a gigabyte of its GPU, so the library makes none but on its own, from
 * whichever thread it is called, and leaves a thread the one that it had.
 */
#include "device.h"

#include "world.h"

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <string.h>
#include <xfer/nccl.h>

enum { OWN = 1, N = 1000 };

static xfer_comm *comm;
static xfer_plan *plan;

/* Of a thread that has not used CUDA, or has another device. */
static void *use_plan(void *with_device)
{
  const bool has_one = with_device != NULL;
  int device = -1;

  if (has_one) NEED(cudaSetDevice(0) == cudaSuccess);
  OK(xfer_plan_commit(plan));
  OK(xfer_plan_run(plan, has_one ? 2 : 1, NULL));
  OK(xfer_plan_wait(plan, 0));
  NEED(cudaGetDevice(&device) == cudaSuccess && device == 0);
  return NULL;
}

static void go(void *(*work)(void *), void *argument)
{
  pthread_t thread;

  NEED(pthread_create(&thread, NULL, work, argument) == 0);
  NEED(pthread_join(thread, NULL) == 0);
}

static void with_a_comm(bool of_nccl)
{
  unsigned char id[XFER_NCCL_ID_BYTES];
  void *memory = NULL;
  xfer_layout *src = NULL;
  xfer_layout *dst = NULL;

  world_clear(2, (sim_config){.eager = true});
  NEED(cudaSetDevice(OWN) == cudaSuccess);
  if (of_nccl) {
    OK(xfer_nccl_id(id));
    OK(xfer_comm_create_nccl_id(&comm, id, 0, 1));
  } else {
    OK(xfer_comm_create_cuda(&comm, world_gather_alone, NULL, 0, 1));
  }
  NEED(cudaMalloc(&memory, 2 * N * sizeof(float)) == cudaSuccess);
  const xfer_view from = xfer_view_dense(memory);
  const xfer_view to = xfer_view_dense((float *)memory + N);
  OK(xfer_problem_parse(&src, &dst, "f32[1000] (1):S0 -> (1):S0"));
  const xfer_tensor weights = {.name = "w", .src = src, .dst = dst};
  OK(xfer_plan_create(&plan, comm, &weights, 1, NULL));
  OK(xfer_plan_bind(plan, 0, &from, &to));
  go(use_plan, NULL);
  NEED(sim_contexts() == UINT64_C(1) << OWN);
  go(use_plan, &comm);
  xfer_plan_destroy(plan);
  xfer_comm_destroy(comm);
  xfer_layout_destroy(src);
  xfer_layout_destroy(dst);
  NEED(cudaFree(memory) == cudaSuccess);
}

static void test_no_context_on_another_gpu_nccl(void)
{
  with_a_comm(true);
}

static void test_no_context_on_another_gpu_gather(void)
{
  with_a_comm(false);
}

static void test_a_comm_that_is_not_made_leaves_no_context(void)
{
  const sim_fault full = {
      .name = "cudaMalloc", .rank = SIM_NO_RANK, .percent = 100, .code = cudaErrorMemoryAllocation};
  unsigned char id[XFER_NCCL_ID_BYTES];

  world_clear(2, (sim_config){.eager = true});
  NEED(cudaSetDevice(OWN) == cudaSuccess);
  OK(xfer_nccl_id(id));
  sim_fault_add(&full);
  NEED(xfer_comm_create_nccl_id(&comm, id, 0, 1) == XFER_ERR_NOMEM);
  sim_fault_clear();
  NEED(sim_contexts() == UINT64_C(1) << OWN);
}

static void *give_back(void *memory)
{
  const xfi_host_memory *of = ((void **)memory)[0];

  of->free(((void **)memory)[1]);
  return NULL;
}

/* What a list of a refit's tensors has for its callback goes with the list: when the device is
 * gone, on any thread, and while another captures. */
static void test_memory_of_the_host_is_given_back_anywhere(void)
{
  xfi_device *device = NULL;
  void *given[2] = {NULL, NULL};
  cudaStream_t stream = NULL;
  cudaGraph_t graph = NULL;

  world_clear(2, (sim_config){.eager = true});
  NEED(cudaSetDevice(OWN) == cudaSuccess);
  OK(xfi_device_create_cuda(&device));
  given[0] = (void *)(uintptr_t)&device->ops->host_memory; /* only read */
  const uint64_t pinned = sim_count().pinned;
  OK(device->ops->host_memory.alloc(&given[1], N));
  device->ops->destroy(device);
  NEED(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
  NEED(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal) == cudaSuccess);
  go(give_back, given);
  NEED(sim_contexts() == UINT64_C(1) << OWN);
  NEED(sim_count().pinned == pinned);
  NEED(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
  NEED(cudaGraphDestroy(graph) == cudaSuccess);
  NEED(cudaStreamDestroy(stream) == cudaSuccess);
}

int main(int argc, char **argv)
{
  static const world_test tests[] = {
      {"no_context_on_another_gpu_nccl", test_no_context_on_another_gpu_nccl},
      {"no_context_on_another_gpu_gather", test_no_context_on_another_gpu_gather},
      {"a_comm_that_is_not_made_leaves_no_context", test_a_comm_that_is_not_made_leaves_no_context},
      {"memory_of_the_host_is_given_back_anywhere", test_memory_of_the_host_is_given_back_anywhere},
  };

  return world_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
