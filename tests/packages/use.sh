#!/bin/sh
# use.sh: what a user does first with the packages, in a root that has them, gcc and pkg-config: compiles the examples
# by plain gcc, moves a first tensor, runs the programs. Without MPI's own headers and without /proc a part is left out.
set -eu
export HOME=/root OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_plm_rsh_agent=false # a root may have no ssh: nothing is started elsewhere
. /etc/os-release
model=qwen3-30b-a3b # found beside the program, which asks /proc where that is
if [ ! -e /proc/self/exe ]; then
  echo "left out: models by their names, which want /proc"
  model=/usr/share/xfer/models/$model.json
fi

cd /usr/share/doc/xfer/examples
gcc 01_one_process.c -o /one $(pkg-config --cflags --libs xfer) -lpthread
/one
if command -v mpirun > /dev/null && pkg-config --exists xfer_mpi; then
  gcc 02_two_meshes_mpi.c -o /two $(pkg-config --cflags --libs xfer_mpi)
  mpirun --oversubscribe -n 2 /two
else
  echo "left out: MPI, which is not here"
fi
if ldd /usr/bin/xfer_refit | grep -q 'not found'; then
  echo "left out: xfer_info and xfer_refit, which want MPI's library"
else
  xfer_info
  xfer_refit --problem 'bf16[4096,11008] (2,4)@0-7:S0,R -> (4)@8-11:S1'
fi
if pkg-config --exists xfer_nccl && ! ls /dev/nvidia[0-9]* > /dev/null 2>&1; then
  # It links and loads without NVIDIA's files, and says in words what is not there.
  cat > /gpu.c << 'END'
#include <stdio.h>
#include <string.h>
#include <xfer/nccl.h>

static int alone(void *context, void *all, const void *mine, size_t n_bytes)
{
  (void)context;
  memcpy(all, mine, n_bytes);
  return 0;
}

int main(void)
{
  unsigned char id[XFER_NCCL_ID_BYTES];
  xfer_comm *comm = NULL;
  xfer_status st = xfer_nccl_id(id);

  printf("%s: %s\n", xfer_status_name(st), xfer_last_error());
  st = xfer_comm_create_cuda(&comm, alone, NULL, 0, 1);
  printf("%s: %s\n", xfer_status_name(st), xfer_last_error());
  return 0;
}
END
  gcc /gpu.c -o /gpu $(pkg-config --cflags --libs xfer_nccl)
  /gpu > /said
  xfer_info >> /said
  cat /said
  grep -q '^XFER_ERR_UNSUPPORTED: NCCL was not found: libnccl.so.2: ' /said
  grep -q '^XFER_ERR_CUDA: there is no CUDA driver here' /said
  grep -q 'nccl: not found: libnccl.so.2: ' /said
  grep -q '^gpus: none: libcuda.so.1' /said
fi
xfer_plan --model "$model" --train megatron:tp2,ep4,dp2 --gen vllm:tp4 | sed -n 1,5p
xfer_plan --model "$model" --train megatron:tp2,ep4,dp2 --sweep 8 | sed -n 1,5p
for table in /usr/share/xfer/models/*.json; do # each by its name, dots included
  [ -e /proc/self/exe ] || break
  xfer_plan --model "$(basename "$table" .json)" --layers 0 --train full --gen vllm > /dev/null
done
echo "packages used: $PRETTY_NAME, $(gcc --version | sed -n 1p), $(ldd --version | sed -n 1p)"
