#!/usr/bin/env bash
# abi.sh diff LIBRARY BASELINE: fails on any difference. abi.sh write LIBRARY BASELINE: makes the baseline.
set -euo pipefail
here=$(dirname "$0")
mode=$1 library=$2 baseline=$3

if ! command -v abidw > /dev/null || ! command -v abidiff > /dev/null; then
  echo "skipped: abidw and abidiff (package abigail-tools) are not installed"
  [ "$mode" = diff ] && exit 77
  exit 1
fi
# No paths of this machine: the baseline must be the same everywhere.
write() {
  local root
  root=$(cd "$here/../.." && pwd)
  abidw --suppressions "$here/abi.suppr" --headers-dir "$here/../../include" --drop-private-types --no-corpus-path --no-comp-dir-path \
    --no-show-locs --no-elf-needed --out-file "$1" "$library"
  # Whether a maker that is exported counts as inline depends on the optimisation: debug builds say it of none.
  sed -i "s#path='$root/#path='#; s# declared-inline='yes'##" "$1"
}

if [ "$mode" = write ]; then
  mkdir -p "$(dirname "$baseline")"
  write "$baseline"
  exit 0
fi
if [ ! -f "$baseline" ]; then
  echo "skipped: there is no baseline $(basename "$baseline") yet"
  exit 77
fi
now=$(mktemp --suffix=.abi)
trap 'rm -f "$now"' EXIT
write "$now"
# abidiff's exit status has a bit for each kind of finding; every one of them is a failure here.
abidiff --no-show-locs "$baseline" "$now"
