# Compiler flags. `xfi_flags` is linked by everything that we compile and never exported.

if(PROJECT_IS_TOP_LEVEL AND NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Debug, Release, RelWithDebInfo" FORCE)
endif()

set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_CXX_STANDARD 17)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_UNITY_BUILD OFF) # a file's static names are its own, whatever the project around asks for
set(CMAKE_EXPORT_COMPILE_COMMANDS ON) # clang-tidy reads them
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)
set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)

add_library(xfi_flags INTERFACE)
set(xfi_warnings -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Wvla)
target_compile_options(xfi_flags INTERFACE
  "$<$<COMPILE_LANGUAGE:C>:${xfi_warnings};-Wstrict-prototypes;-Wmissing-prototypes>"
  "$<$<COMPILE_LANGUAGE:CXX>:${xfi_warnings}>"
  "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra>")
# -std=c11 hides POSIX; this brings back clocks and memory mapping, and no GNU extension.
target_compile_definitions(xfi_flags INTERFACE _DEFAULT_SOURCE)

if(XFER_SANITIZE)
  # Without -fno-sanitize-recover the undefined-behaviour sanitizer prints, and the test passes.
  set(xfi_sanitize -fsanitize=${XFER_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_compile_options(xfi_flags INTERFACE "$<$<COMPILE_LANGUAGE:C,CXX>:${xfi_sanitize}>")
  target_link_options(xfi_flags INTERFACE ${xfi_sanitize})
endif()
if(XFER_COVERAGE)
  # Updates are atomic because ranks are threads; NDEBUG, since an assert's failing side is no branch to test; no _exit(),
  # which leaves out what the process came by.
  target_compile_options(xfi_flags INTERFACE
    "$<$<COMPILE_LANGUAGE:C>:--coverage;-O0;-fprofile-update=atomic;-DNDEBUG;-D_exit=exit>")
  target_link_options(xfi_flags INTERFACE --coverage)
endif()
