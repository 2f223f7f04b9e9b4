#!/usr/bin/env bash
# site.sh MKDOCS SOURCE OUT: the site of docs/. Links out of it lead to files of the source, which check_docs.py looks at;
# here they become text, since a site has no such pages.
set -euo pipefail
mkdocs=$1 source=$2 out=$3

rm -rf "$out"
mkdir -p "$out/docs"
cp "$source/mkdocs.yml" "$out/"
cp -r "$source/docs/pictures" "$out/docs/"
for page in "$source"/docs/*.md; do
  sed -E 's#\[([^]]*)\]\(\.\./[^)]*\)#\1#g' "$page" > "$out/docs/$(basename "$page")"
done
cp "$source/SECURITY.md" "$out/docs/security.md"
"$mkdocs" build --strict --quiet --config-file "$out/mkdocs.yml" --site-dir "$out/html"
[ "$(find "$out/html" -name index.html | wc -l)" -ge 12 ]
