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
add_subdirectory($source xfer)
add_executable(user $source/examples/01_one_process.c)
target_link_libraries(user PRIVATE xfer::xfer_static Threads::Threads)
END
"$cmake" -G "$*" -S "$work" -B "$work/build" "-DCMAKE_C_COMPILER=$cc" -DXFER_STATIC=ON -DXFER_MPI=OFF -DXFER_CUDA=OFF \
  > "$work/configure.log" 2>&1 || { cat "$work/configure.log"; exit 1; }
"$cmake" --build "$work/build" --parallel 2 > "$work/build.log" 2>&1 || { tail -50 "$work/build.log"; exit 1; }
"$work/build/user"
"$cmake" --install "$work/build" --prefix "$work/prefix" > "$work/install.log"
for name in libxfer.a xfer.h xfer-config.cmake; do
  [ -n "$(find "$work/prefix" -name "$name")" ] || { echo "not installed: $name"; exit 1; }
done
for folder in bin share; do
  [ ! -e "$work/prefix/$folder" ] || { echo "installed for nobody: $folder"; exit 1; }
done
