#!/bin/bash
# Everything that needs GPUs, on as many as there are: tests/gpu/run.sh [BUILD_FOLDER] [NAME...]
# Prints a table last, whatever happens. A skipped test is a failure here, except those for more GPUs than there are,
# which are listed. Ends within XFER_GPU_SECONDS (default 1800): what has not begun by then is listed too. Each program
# has a process group of its own, which is killed whole at its limit. XFER_GPU_FACTOR scales the long tests (default 100,
# per cent); $OUT, if set, receives gpu.log.
cd "$(dirname "$0")/../.." || exit 2
build=${1:-build/cuda}
shift
only=("$@")
factor=${XFER_GPU_FACTOR:-100}
bin=$build/tests/bin
log=${OUT:-/tmp}/gpu.log
text=$(mktemp)
: >"$log"
ends=$((SECONDS + ${XFER_GPU_SECONDS:-1800}))

# NCCL and the CUDA runtime may live beside torch; what the tests were linked with may have been carried along.
nccl=$(python3 -c 'import nvidia.nccl as m; print(list(m.__path__)[0] + "/lib")' 2>/dev/null)
export LD_LIBRARY_PATH=$build/lib:$build/carried:/usr/local/cuda/lib64${nccl:+:$nccl}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')
echo "$gpus GPUs: $(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | sort | uniq -c | tr '\n' ';')"
if ((gpus == 0)); then
  echo "SKIPPED: no GPU here, nothing was run"
  exit 77
fi

failed=0
rows=()
group= guard= name=
finish() {
  if [ -n "$group" ]; then
    kill -KILL -- "-$group" "$guard" 2>/dev/null
    rows+=("$(printf '%-34s not finished: interrupted' "$name")")
  fi
  printf '\n%s\n' "gpu tests:"
  printf '%s\n' "${rows[@]}"
  if ((failed)); then echo "gpu FAILED"; else echo "gpu ok"; fi
  rm -f "$text"
}
trap finish EXIT
trap 'failed=1; exit 1' INT TERM HUP

# run NAME GPUS SECONDS COMMAND...: one row of the table
run() {
  local needs=$2 limit=$3 began code status=ok
  name=$1
  shift 3
  if ((${#only[@]})) && [[ ! " ${only[*]} " =~ " ${name%%:*} " ]]; then return; fi
  if ((gpus < needs)); then
    rows+=("$(printf '%-34s not run: needs %d GPUs' "$name" "$needs")")
    return
  fi
  if ((SECONDS + limit > ends)); then limit=$((ends - SECONDS)); fi
  if ((limit < 1)); then
    failed=1
    rows+=("$(printf '%-34s not run: no time was left' "$name")")
    return
  fi
  began=$EPOCHREALTIME
  setsid "$@" >"$text" 2>&1 & # to a file: a child that lives on would hold a pipe open
  group=$!
  (sleep "$limit" && kill -KILL -- "-$group") >/dev/null 2>&1 & # its sleep outlives it, and would hold a pipe open
  guard=$!
  wait "$group"
  code=$?
  kill -KILL -- "-$group" 2>/dev/null # what it may have left
  kill "$guard" 2>/dev/null
  wait "$guard" 2>/dev/null
  group=
  if ((code == 137)); then status="FAILED: over $limit s"; elif ((code)); then status="FAILED: status $code"; fi
  if ((code == 0 || code == 77)) && grep -q SKIPPED "$text"; then status="FAILED: skipped"; fi
  # Two GPUs' worth of tests inside a program that also runs on one
  if [[ $status == "FAILED: skipped" && $code == 0 && $gpus -lt 2 && $name == device* ]]; then status="ok (some need 2 GPUs)"; fi
  { echo "==== $name: $status"; cat "$text"; } >>"$log"
  if [[ $status == FAILED* ]]; then
    failed=1
    echo "==== $name: $status"
    tail -n 25 "$text"
  fi
  echo "$name: $status" # so that a run that is cut short shows how far it came
  rows+=("$(printf '%-34s %-22s %7.1f s' "$name" "$status" "$(awk "BEGIN { print $EPOCHREALTIME - $began }")")")
}
times() { echo $(($1 * factor / 100 > 0 ? $1 * factor / 100 : 1)); }

run kernels 1 120 env XFER_GPU_CASES="$(times 3000)" "$bin/test_kernels_cuda"
run digest 1 120 env XFER_GPU_CASES="$(times 3000)" "$bin/test_digest_cuda"
run device 1 120 "$bin/test_device_cuda"
run device:connections 1 120 env CUDA_DEVICE_MAX_CONNECTIONS=1 "$bin/test_device_cuda"
run device:peers 1 120 "$bin/test_peers_cuda"
run device:peers:connections 1 120 env CUDA_DEVICE_MAX_CONNECTIONS=1 "$bin/test_peers_cuda"
run conversions 1 120 "$bin/test_convert_cuda"
run blocks 1 120 "$bin/test_blocks_cuda"
run rates 1 100 "$bin/bench_kernels"
run rates:calls 1 100 "$bin/bench_device"
run rates:digest 1 100 "$bin/bench_digest"
sed -n '/^==== rates/,/^==== share/p' "$log"

# The kernels under the sanitizer.
for tool in memcheck racecheck initcheck; do
  run "sanitizer:$tool" 1 150 env XFER_GPU_CASES="$(times 40)" compute-sanitizer --tool $tool --error-exitcode 9 \
    "$bin/test_kernels_cuda" --small
  run "sanitizer:digest:$tool" 1 150 env XFER_GPU_CASES="$(times 40)" compute-sanitizer --tool $tool --error-exitcode 9 \
    "$bin/test_digest_cuda" --small
done
run "sanitizer:conversions" 1 150 compute-sanitizer --tool memcheck --error-exitcode 9 "$bin/test_convert_cuda" --small

# Ranks that share what GPUs there are: the direct lane alone, without NCCL.
for n in 1 2 8; do
  run "share:random:$n" 1 150 "$bin/test_ranks" random $n gather "$(times 60)" $n
done
run share:repeat:8 1 150 "$bin/test_ranks" repeat 8 gather "$(times 300)"
run share:connections:8 1 150 env CUDA_DEVICE_MAX_CONNECTIONS=1 "$bin/test_ranks" repeat 8 gather "$(times 100)"
for n in 2 4 16; do
  run "share:threads:$n" 1 100 "$bin/test_threads" $n
  run "share:threads:connections:$n" 1 100 env CUDA_DEVICE_MAX_CONNECTIONS=1 "$bin/test_threads" $n
done
run share:redistribute:8 1 150 "$bin/test_ranks" redistribute 8 gather "$(times 200)"
run share:domains:8 1 150 "$bin/test_ranks" domains 8 gather "$(times 60)"
run share:remap:4 1 100 "$bin/test_ranks" remap 4 gather 6
run share:chunks:1 1 100 "$bin/test_ranks" chunks 1 gather 3
run share:chunks:4 1 100 "$bin/test_ranks" chunks 4 gather 3
run share:errors:3 1 100 "$bin/test_ranks" errors 3 gather
run share:late:3 1 100 "$bin/test_ranks" late 3 gather
run share:calls:3 1 100 "$bin/test_ranks" calls 3 gather
run share:crash:3 1 100 "$bin/test_ranks" crash 3 gather
run share:waits:3 1 100 "$bin/test_ranks" waits 3 gather
run share:captures:2 1 150 "$bin/test_ranks" captures 2 gather "$(times 1000)"
run share:kill:4 1 100 "$bin/test_ranks" kill 4 gather 1
run share:kill_before:4 1 100 "$bin/test_ranks" kill 4 gather 0
run share:kill_connections:4 1 100 env CUDA_DEVICE_MAX_CONNECTIONS=1 "$bin/test_ranks" kill 4 gather 0

# Ranks with a GPU each.
for n in 1 2 4 8; do
  run "nccl:random:$n" $n 200 "$bin/test_ranks" random $n nccl "$(times 160)" $n
  run "nccl:borrowed:$n" $n 100 "$bin/test_ranks" random $n borrowed "$(times 12)" 7
  run "nccl:errors:$n" $n 100 "$bin/test_ranks" errors $n nccl
  run "nccl:remap:$n" $n 100 "$bin/test_ranks" remap $n nccl 6
  run "nccl:chunks:$n" $n 100 "$bin/test_ranks" chunks $n nccl 3
  run "nccl:redistribute:$n" $n 100 "$bin/test_ranks" redistribute $n nccl "$(times 2000)"
done
for n in 2 3 4 8; do
  run "nccl:domains:$n" $n 150 "$bin/test_ranks" domains $n nccl "$(times 100)"
done
for n in 2 4 8; do
  run "nccl:late:$n" $n 100 "$bin/test_ranks" late $n nccl
  run "nccl:calls:$n" $n 100 "$bin/test_ranks" calls $n nccl
  run "nccl:stopped:$n" $n 60 "$bin/test_ranks" stopped $n nccl
  run "nccl:crash:$n" $n 100 "$bin/test_ranks" crash $n nccl
  run "nccl:waits:$n" $n 100 "$bin/test_ranks" waits $n nccl
  run "nccl:captures:$n" $n 200 "$bin/test_ranks" captures $n nccl 1000
  run "nccl:queue:$n" $n 100 "$bin/test_ranks" queue $n nccl
  run "nccl:kill:$n" $n 100 "$bin/test_ranks" kill $n nccl 1
  run "nccl:kill_before:$n" $n 100 "$bin/test_ranks" kill $n nccl 0
done
most=$((gpus >= 8 ? 8 : gpus >= 4 ? 4 : 2))
run "nccl:repeat:$most" $most 300 "$bin/test_ranks" repeat $most nccl "$(times 100000)"
run "nccl:connections:$most" $most 200 env CUDA_DEVICE_MAX_CONNECTIONS=1 "$bin/test_ranks" repeat $most nccl "$(times 20000)"

# The reduced models: where ranks share GPUs, and those that have a GPU for each rank.
refits() { run "refits:$1" "$3" 200 python3 tests/refit/run_refits.py --bin "$build/bin" --gpus "$1" --ranks "$2"; }
refits cuda 16 1
refits nccl "$gpus" 4

# What a user would start with.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
run examples:refit 4 120 mpirun -n 4 "$build/bin/03_refit_nccl_mpi" models/qwen3-4b.json megatron:tp2 vllm:tp2,loaded
run examples:parity 2 60 mpirun -n 2 "$build/bin/04_moe_parity"
run examples:xfer_refit 4 120 mpirun -n 4 "$build/bin/xfer_refit" --comm nccl --model models/qwen3-30b-a3b.json \
  --layers 0-1 --train megatron:tp2,ep2 --gen vllm:tp2

# From Python: a whole update of Qwen3-30B-A3B through the engine pair for vLLM, beside vLLM's own way and xfer_perf;
# DTensors, single tensors and checkpoints beside what torch itself does with them.
if python3 -c 'import torch' 2>/dev/null; then
  run vllm:pair 1 290 env PYTHONPATH=python XFER_LIBRARY="$build/lib/libxfer.so.0" \
    python3 tests/python/gpu_vllm.py "$build/bin"
  run torch:beside 2 120 env PYTHONPATH=python XFER_LIBRARY="$build/lib/libxfer.so.0" \
    python3 tests/python/gpu_torch.py
  run torch:collectives 2 120 env PYTHONPATH=python XFER_LIBRARY="$build/lib/libxfer.so.0" \
    python3 tests/python/gpu_collectives.py
  run torch:checkpoints 1 120 env PYTHONPATH=python XFER_LIBRARY="$build/lib/libxfer.so.0" \
    python3 -W ignore tests/python/gpu_dcp.py
  run vllm:trouble 1 290 env PYTHONPATH=python XFER_LIBRARY="$build/lib/libxfer.so.0" python3 tests/python/gpu_trouble.py
  if [ -e "$build/carried/cumem/cumem_allocator.abi3.so" ]; then # of vLLM's wheel: tests/python/vllm_cumem.py
    run vllm:sleep 1 120 env PYTHONPATH=python XFER_LIBRARY="$build/lib/libxfer.so.0" \
      XFER_VLLM_CUMEM="$build/carried/cumem" python3 tests/python/gpu_sleep.py
  fi
  if [ -e "$build/carried/megatron/megatron/core" ]; then # what the wheel of Megatron-Core holds
    run megatron:swap 2 200 env PYTHONPATH="python:$build/carried/megatron" XFER_LIBRARY="$build/lib/libxfer.so.0" \
      python3 -W ignore tests/frameworks/megatron_swap.py
  fi
  sed -n '/^==== \(vllm\|torch\|megatron\)/,/^==== /p' "$log"
fi

exit $failed
