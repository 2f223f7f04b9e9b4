#!/usr/bin/env bash
# installed.sh core|mpi SOURCE BUILD WORK CC CMAKE [PKG_CONFIG]
# Installs BUILD under WORK and builds an example against that tree alone, as a user would, in two ways.
set -euo pipefail
part=$1 source=$2 build=$3 work=$4 cc=$5 cmake=$6 pkg_config=${7:-}

case $part in
  core) example=01_one_process package=xfer run=() ;;
  mpi) example=02_two_meshes_mpi package=xfer_mpi run=(mpiexec --oversubscribe -n 6) ;;
esac
file=$source/examples/$example.c
if [ ! -f "$file" ]; then
  echo "skipped: there is no examples/$example.c yet"
  exit 77
fi

rm -rf "$work"
mkdir -p "$work/user"
"$cmake" --install "$build" --prefix "$work/prefix" > "$work/install.log"
for file_of in share/xfer/models/qwen3-4b.json share/xfer/rules/sides/vllm.json share/man/man1/xfer_plan.1 \
  share/bash-completion/completions/xfer_refit share/doc/xfer/LICENSE share/doc/xfer/examples/01_one_process.c; do
  [ -f "$work/prefix/$file_of" ] || { echo "not installed: $file_of"; exit 1; }
done
"$work/prefix/bin/xfer_plan" --model qwen3-4b --train full --gen vllm:tp2 \
  --rules "$work/prefix/share/xfer/rules/sides" > /dev/null
cp "$file" "$work/user/"
cp "$source/tests/abi/user.cmake" "$work/user/CMakeLists.txt"
libdir=$(dirname "$(find "$work/prefix" -name libxfer.so)")

echo "== find_package"
"$cmake" -S "$work/user" -B "$work/user/build" -DCMAKE_C_COMPILER="$cc" -DCMAKE_PREFIX_PATH="$work/prefix" \
  -DEXAMPLE="$example" -DPART="$part" > "$work/configure.log" || { cat "$work/configure.log"; exit 1; }
"$cmake" --build "$work/user/build"
"${run[@]}" "$work/user/build/$example"

if [ -z "$pkg_config" ]; then
  echo "pkg-config is not installed: that half is skipped"
  exit 0
fi
echo "== pkg-config"
export PKG_CONFIG_PATH=$libdir/pkgconfig${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}
read -r -a flags <<< "$("$pkg_config" --cflags --libs "$package")"
"$cc" -std=c11 "$file" -o "$work/user/by_pkg_config" "${flags[@]}" -Wl,-rpath,"$libdir" -lpthread
"${run[@]}" "$work/user/by_pkg_config"
