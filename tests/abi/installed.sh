#!/usr/bin/env bash
# installed.sh core|mpi SOURCE BUILD WORK CC CXX CMAKE [PKG_CONFIG]
# Installs BUILD under WORK and builds an example against that tree alone, as a user would, in two ways, and against BUILD;
# over MPI a program of C++ too, unless CXX is empty.
set -euo pipefail
part=$1 source=$2 build=$3 work=$4 cc=$5 cxx=$6 cmake=$7 pkg_config=${8:-}

case $part in
  core) example=01_one_process package=xfer run=() hidden=(-DCMAKE_DISABLE_FIND_PACKAGE_MPI=ON) ;;
  mpi) example=02_two_meshes_mpi package=xfer_mpi run=(mpiexec --oversubscribe -n 6) hidden=() ;;
esac
file=$source/examples/$example.c
if [ ! -f "$file" ]; then
  echo "skipped: there is no examples/$example.c yet"
  exit 77
fi

rm -rf "$work"
mkdir -p "$work"
"$cmake" --install "$build" --prefix "$work/prefix" > "$work/install.log"
for file_of in share/xfer/models/qwen3-4b.json share/xfer/rules/sides/vllm.json share/man/man1/xfer_plan.1 \
  share/bash-completion/completions/xfer_refit share/doc/xfer/LICENSE share/doc/xfer/examples/01_one_process.c; do
  [ -f "$work/prefix/$file_of" ] || { echo "not installed: $file_of"; exit 1; }
done
"$work/prefix/bin/xfer_plan" --model qwen3-4b --train full --gen vllm:tp2 \
  --rules "$work/prefix/share/xfer/rules/sides" > /dev/null
libdir=$(dirname "$(find "$work/prefix" -name libxfer.so)")
export PKG_CONFIG_PATH=$libdir/pkgconfig${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}
declare -A std=([C]=c11 [CXX]=c++17)

# use C|CXX COMPILER FILE [LAUNCHER...]: builds FILE in both ways, and runs it.
use() {
  local language=$1 compiler=$2 file=$3 user=$work/user_$1 flags
  shift 3
  mkdir -p "$user"
  cp "$file" "$user/"
  cp "$source/tests/abi/user.cmake" "$user/CMakeLists.txt"
  for where in CMAKE_PREFIX_PATH="$work/prefix" xfer_DIR="$build"; do
    echo "== find_package, $language, $where"
    "$cmake" -S "$user" -B "$user/${where%%=*}" "-DCMAKE_${language}_COMPILER=$compiler" "-D$where" \
      -DUSER_LANGUAGE="$language" -DFILE="${file##*/}" -DPART="$part" "${hidden[@]}" > "$work/configure.log" 2>&1 ||
      { cat "$work/configure.log"; exit 1; }
    "$cmake" --build "$user/${where%%=*}"
    "$@" "$user/${where%%=*}/user"
  done
  if [ -z "$pkg_config" ]; then
    echo "pkg-config is not installed: that half is skipped"
    return
  fi
  echo "== pkg-config, $language"
  read -r -a flags <<< "$("$pkg_config" --cflags --libs "$package")"
  "$compiler" "-std=${std[$language]}" "$file" -o "$user/by_pkg_config" "${flags[@]}" -Wl,-rpath,"$libdir" -lpthread
  "$@" "$user/by_pkg_config"
}

use C "$cc" "$file" "${run[@]}"
[ "$part" = mpi ] && [ -n "$cxx" ] || exit 0
cat > "$work/refused.cpp" << 'END'
#include <mpi.h>

#include <xfer/mpi.h>

int main()
{
  xfer_comm *comm = nullptr;

  return xfer_comm_create_mpi(&comm, MPI_COMM_WORLD) == XFER_ERR_STATE ? 0 : 1; // MPI is not initialized
}
END
use CXX "$cxx" "$work/refused.cpp"
