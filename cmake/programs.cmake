# Programs and tests, one function each.

file(RELATIVE_PATH XFER_BIN_TO_LIB ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR})

# xfer_program(xfer_plan SOURCES plan.c [LAYERS plan ...] [LIBS xfer::mpi ...]): a program in <build>/bin, over the
# public headers and libxfer. With LAYERS it is linked with those layers' objects instead and may include their headers.
function(xfer_program name)
  cmake_parse_arguments(PARSE_ARGV 1 P "" "" "SOURCES;LAYERS;LIBS")
  add_executable(${name} ${P_SOURCES})
  target_link_libraries(${name} PRIVATE xfi_flags ${P_LIBS})
  if(P_LAYERS)
    xfer_link_layers(${name} ${P_LAYERS})
  else()
    target_link_libraries(${name} PRIVATE xfer::xfer)
  endif()
  set_target_properties(${name} PROPERTIES INSTALL_RPATH $ORIGIN/${XFER_BIN_TO_LIB})
endfunction()

# One environment for all tests. Open MPI refuses root without two words, and more ranks than cores without a third;
# copying through the kernel (vader) is forbidden in containers; the last one keeps waiting ranks from starving others.
set(XFER_TEST_ENVIRONMENT
  OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
  OMPI_MCA_btl_vader_single_copy_mechanism=none OMPI_MCA_mpi_yield_when_idle=1
  UBSAN_OPTIONS=print_stacktrace=1 TSAN_OPTIONS=atexit_sleep_ms=100) # 1 s without

# xfer_test_properties(name LABEL unit [TIMEOUT seconds] [PROCESSORS n] [LEAKS 0|1] [COST seconds])
function(xfer_test_properties name)
  cmake_parse_arguments(PARSE_ARGV 1 T "" "LABEL;TIMEOUT;PROCESSORS;LEAKS;COST" "")
  if(NOT T_TIMEOUT)
    set(T_TIMEOUT 300) # seconds are enough where nothing else runs
  endif()
  if(NOT T_PROCESSORS)
    set(T_PROCESSORS 1)
  endif()
  if(NOT DEFINED T_LEAKS)
    set(T_LEAKS 1)
  endif()
  # Freed memory is kept from reuse up to 16 MB, not 256: a test of large tensors would do little but have pages made.
  set(asan allocator_may_return_null=1:quarantine_size_mb=16:malloc_context_size=10)
  set_tests_properties(${name} PROPERTIES LABELS ${T_LABEL} TIMEOUT ${T_TIMEOUT} PROCESSORS ${T_PROCESSORS}
    ENVIRONMENT "${XFER_TEST_ENVIRONMENT};ASAN_OPTIONS=${asan}:detect_leaks=${T_LEAKS}" SKIP_RETURN_CODE 77)
  if(T_COST) # begins before the others, so as not to be left alone at the end
    set_tests_properties(${name} PROPERTIES COST ${T_COST})
  endif()
endfunction()

function(xfi_test_program name)
  cmake_parse_arguments(PARSE_ARGV 1 T "" "" "SOURCES;LAYERS;LIBS")
  if(NOT T_SOURCES)
    set(T_SOURCES ${name}.c)
  endif()
  add_executable(${name} ${T_SOURCES})
  target_include_directories(${name} SYSTEM PRIVATE ${XFER_CMOCKA_INCLUDE})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests ${PROJECT_SOURCE_DIR}/include)
  target_link_libraries(${name} PRIVATE xfi_flags ${XFER_CMOCKA_LIBRARY} ${T_LIBS})
  if(T_LAYERS)
    xfer_link_layers(${name} ${T_LAYERS})
  else()
    target_link_libraries(${name} PRIVATE xfer::xfer Threads::Threads)
  endif()
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests/bin)
endfunction()

# xfer_test(test_region LABEL unit LAYERS layout [SOURCES test_region.c more.c] [LIBS ...] [ARGS ...]
#           [PROCESSORS n])
# One CMocka program, linked with the objects of the layers and of what they use (their insides can be tested);
# without LAYERS with libxfer, as a user would. Exit status 77 means skipped.
function(xfer_test name)
  cmake_parse_arguments(PARSE_ARGV 1 T "" "LABEL;PROCESSORS" "SOURCES;LAYERS;LIBS;ARGS")
  xfi_test_program(${name} SOURCES ${T_SOURCES} LAYERS ${T_LAYERS} LIBS ${T_LIBS})
  add_test(NAME ${name} COMMAND ${name} ${T_ARGS})
  xfer_test_properties(${name} LABEL ${T_LABEL} PROCESSORS ${T_PROCESSORS})
endfunction()

# xfer_mpi_test(test_mpi_x LABEL multi [RANKS 1 2 3 ...] [LAYERS ...] [SOURCES ...] [LIBS ...] [ARGS ...])
# The same under mpiexec, once for each number of ranks; with LAYERS the objects of libxfer_mpi are linked too, else
# the library. Nothing happens where MPI was not found.
function(xfer_mpi_test name)
  cmake_parse_arguments(PARSE_ARGV 1 T "" "LABEL" "RANKS;SOURCES;LAYERS;LIBS;ARGS")
  if(NOT TARGET xfer_mpi)
    return()
  endif()
  if(NOT T_RANKS)
    set(T_RANKS 1 2 3 4 5 7)
  endif()
  if(T_LAYERS)
    list(APPEND T_LIBS xfi_mpi)
  else()
    list(APPEND T_LIBS xfer::mpi)
  endif()
  xfi_test_program(${name} SOURCES ${T_SOURCES} LAYERS ${T_LAYERS} LIBS ${T_LIBS})
  foreach(n IN LISTS T_RANKS)
    xfer_add_mpi_run(${name}_${n} ${n} LABEL ${T_LABEL} COMMAND $<TARGET_FILE:${name}> ${T_ARGS})
  endforeach()
endfunction()

# xfer_add_mpi_run(name n_ranks LABEL multi COMMAND program args...): any program under mpiexec, as a test.
function(xfer_add_mpi_run name n_ranks)
  cmake_parse_arguments(PARSE_ARGV 2 T "" "LABEL" "COMMAND")
  add_test(NAME ${name} COMMAND ${MPIEXEC_EXECUTABLE} ${XFER_MPIEXEC_FLAGS} ${MPIEXEC_NUMPROC_FLAG} ${n_ranks} ${T_COMMAND})
  # Open MPI itself leaks, from modules that are unloaded when leaks are named, so that no list could excuse them.
  xfer_test_properties(${name} LABEL ${T_LABEL} PROCESSORS ${n_ranks} LEAKS 0)
endfunction()

if(XFER_HAVE_MPI)
  execute_process(COMMAND ${MPIEXEC_EXECUTABLE} --version OUTPUT_VARIABLE xfi_mpiexec_version ERROR_QUIET)
  if(xfi_mpiexec_version MATCHES "Open MPI|OpenRTE|PRRTE")
    set(XFER_MPIEXEC_FLAGS --oversubscribe)
  endif()
endif()
