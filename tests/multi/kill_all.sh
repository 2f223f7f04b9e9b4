#!/usr/bin/env bash
# kill_all.sh PROGRAM kill|stop [messages]: test_killed at each of rank 1's calls of the transport in turn, until it makes
# no more; prints how many points there were and how many of them wrong. By hand: a stop takes some ten seconds.
set -u
program=$1
how=$2
points=0
wrong=0
for ((n = 0; n < 500; n++)); do
  said=$(timeout 30 mpirun ${MPIRUN_FLAGS:---oversubscribe --enable-recovery} -n 3 "$program" "$how-$n" ${3:-} 2> /dev/null)
  ! grep -q "as expected: rank 1" <<< "$said" || break # neither killed nor stopped
  points=$((points + 1))
  if grep -q WRONG <<< "$said" || [ "$(grep -c "as expected" <<< "$said")" -lt 2 ]; then
    wrong=$((wrong + 1))
    echo "$how-$n: $said"
  fi
done
echo "$how ${3:-}: $points points, $wrong wrong"
