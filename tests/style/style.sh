#!/usr/bin/env bash
# style.sh format CLANG_FORMAT SOURCE | fix CLANG_FORMAT SOURCE | tidy CLANG_TIDY SOURCE BUILD DIR | skip WHY
set -euo pipefail
mode=$1
shift

case $mode in
  skip)
    echo "skipped: $1"
    exit 77
    ;;
  format | fix) # tests/data is written by programs
    cd "$2"
    how=(--dry-run --Werror)
    [ "$mode" = format ] || how=(-i)
    find include src kernels tools examples tests -path tests/data -prune -o '(' -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' ')' -print 2> /dev/null \
      | xargs -r "$1" "${how[@]}"
    # What a function with `done:` has to free would be lost where it returns at once.
    find src kernels -name '*.c' -print0 | xargs -0 awk '
      /^\{/ { returns = "" }
      /XFI_(TRY|CHECK|CUDA_TRY)\(/ { returns = FILENAME ":" FNR }
      /^done:/ && returns != "" { print returns ": returns past the label done"; n++ }
      END { exit n > 0 }'
    ;;
  tidy)
    cd "$2"
    # Only what this build compiles: clang-tidy needs the file's command line.
    mapfile -t files < <(find "$4" -name '*.c' | sort | while read -r file; do
      ! grep -q "\"file\": \"$PWD/$file\"" "$3/compile_commands.json" || echo "$file"
    done)
    if [ ${#files[@]} -eq 0 ]; then
      echo "nothing of $4 is compiled here"
      exit 0
    fi
    # One file a run: in a run of several, version 14 takes every va_list after the first file's for uninitialised.
    # The analyzer looks at 10,000 states of a function: twenty times as many find nothing more and take eight times as long.
    limit=(--extra-arg=-Xclang --extra-arg=-analyzer-config --extra-arg=-Xclang --extra-arg=max-nodes=10000)
    printf '%s\n' "${files[@]}" | xargs -n 1 -P "$(nproc)" "$1" -p "$3" --quiet "${limit[@]}" 2> /dev/null
    ;;
esac
