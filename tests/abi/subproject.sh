#!/usr/bin/env bash
# subproject.sh SOURCE WORK CC CMAKE GENERATOR...: SOURCE as a part of another project, which is to get the libraries and
# what compiling with them wants, and neither programs nor documents.
set -euo pipefail
source=$1 work=$2 cc=$3 cmake=$4
shift 4

rm -rf "$work"
mkdir -p "$work"
cat > "$work/CMakeLists.txt" << END
cmake_minimum_required(VERSION 3.25)
project(user LANGUAGES C)
find_package(Threads REQUIRED)
set(CMAKE_UNITY_BUILD ON)
add_subdirectory($source xfer)
add_executable(user $source/examples/01_one_process.c)
target_link_libraries(user PRIVATE xfer::xfer_static Threads::Threads)
END
configure() {
  "$cmake" -G "$*" -S "$work" -B "$work/build" "-DCMAKE_C_COMPILER=$cc" -DXFER_STATIC=ON -DXFER_MPI="$mpi" -DXFER_CUDA=0 \
    -DCMAKE_INSTALL_PREFIX="$work/prefix" -DCMAKE_INSTALL_LIBDIR="$work/elsewhere/lib" > "$work/configure.log" 2>&1
}
if mpi=maybe configure "$@" || ! grep -q 'XFER_MPI=maybe: want AUTO, ON or OFF' "$work/configure.log"; then
  echo "XFER_MPI=maybe is not refused"
  exit 1
fi
mpi=No configure "$@" || { cat "$work/configure.log"; exit 1; }
grep -q '^CMAKE_BUILD_TYPE:[A-Z]*=$' "$work/build/CMakeCache.txt" || { echo "the project's build type was set"; exit 1; }
"$cmake" --build "$work/build" --parallel 2 > "$work/build.log" 2>&1 || { tail -50 "$work/build.log"; exit 1; }
"$work/build/user"
"$cmake" --install "$work/build" > "$work/install.log"
for name in elsewhere/lib/libxfer.a prefix/include/xfer/xfer.h elsewhere/lib/cmake/xfer/xfer-config.cmake; do
  [ -f "$work/$name" ] || { echo "not installed: $name"; exit 1; }
done
[ ! -e "$work/elsewhere/lib/libxfer_mpi.so" ] || { echo "XFER_MPI=No: libxfer_mpi is built"; exit 1; }
# What xfer.pc says, from where it lies.
folder=$work/elsewhere/lib/pkgconfig
eval "$(sed -n "s|\\\${pcfiledir}|$folder|; /^[a-z]*=/p" "$folder/xfer.pc")"
[ -f "$libdir/libxfer.a" ] && [ -f "$includedir/xfer/xfer.h" ] || { cat "$folder/xfer.pc"; exit 1; }
for folder in bin share; do
  [ ! -e "$work/prefix/$folder" ] || { echo "installed for nobody: $folder"; exit 1; }
done
