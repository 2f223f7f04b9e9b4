#!/usr/bin/env bash
# build.sh BUILD OUT: the site in OUT/html, by Doxygen and Sphinx, warnings as errors. Pages are README, those of docs/,
# the public headers, the Python package, the examples, and the manual pages of the programs in BUILD/bin.
set -euo pipefail
build=$(realpath "$1")
mkdir -p "$2"
out=$(realpath "$2")
here=$(dirname "$(realpath "$0")")
source=$(realpath "$here/../..")
pages=$out/pages
export XFER_SOURCE=$source XFER_OUT=$out XFER_LIBRARY=$build/lib/libxfer.so PYTHONDONTWRITEBYTECODE=1

# Links to what has a page lead there; other files of the source, which check_docs.py looks at, become text.
page() {
  sed -E 's#\]\(docs/#](#g; s#\]\((\.\./)?examples/[^)]*\.c\)#](examples.md)#g
    s#\]\((\.\./)?include/xfer/(xfer\.h)?\)#](c.rst)#g
    s#\[([^]]*)\]\((\.\./|[A-Z]+\.md|examples/|tests/)[^)]*\)#\1#g' "$1"
}

rm -rf "$pages" "$out/html" "$out/xml"
mkdir -p "$pages"
cp -r "$here"/{*.rst,conf.py,site.css,examples.md} "$source/docs/pictures" "$pages/"
for file in "$source"/docs/*.md "$source/SECURITY.md"; do
  page "$file" > "$pages/$(basename "${file,,}")"
done
page "$source/README.md" > "$pages/index.md"
cat "$here/contents.md" >> "$pages/index.md"
for program in "$build"/bin/xfer_{plan,refit,perf,info}; do
  if [ -x "$program" ]; then
    "$program" --generate man | sed -E -f "$here/manual.sed" > "$pages/$(basename "$program").md"
  fi
done
for header in status dtype layout view comm conversion plan redistribute exchange refit mpi nccl; do
  printf '# xfer/%s.h\n\n```{doxygenfile} %s.h\n```\n' $header $header > "$pages/c-$header.md"
done
for example in "$source"/examples/*.c "$source"/examples/python/*.py; do
  printf '\n## %s\n\n```%s\n%s\n```\n' "$(basename "$example")" "${example##*.}" "$(cat "$example")"
done >> "$pages/examples.md"

doxygen "$here/Doxyfile"
sphinx-build -q -W --keep-going -b html "$pages" "$out/html"
