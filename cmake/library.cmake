# libxfer, and the plug-in libraries libxfer_mpi and libxfer_nccl, which link it and use the few xfi_ symbols that it
# exports under XFER_PRIVATE_ with its version (src/xfer.map), so that no plug-in of another version is loaded with it.

function(xfi_shared target map)
  target_link_libraries(${target} PRIVATE xfi_flags)
  target_link_options(${target} PRIVATE LINKER:--version-script=${map})
  if(NOT XFER_SANITIZE)
    target_link_options(${target} PRIVATE LINKER:--no-undefined) # clang's sanitizers live in the program alone
  endif()
  set_target_properties(${target} PROPERTIES
    VERSION ${PROJECT_VERSION} SOVERSION ${XFER_ABI} LINK_DEPENDS ${map}
    INSTALL_RPATH $ORIGIN)
  target_include_directories(${target} INTERFACE
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
endfunction()

add_library(xfer SHARED)
add_library(xfer::xfer ALIAS xfer)
configure_file(${PROJECT_SOURCE_DIR}/src/xfer.map ${PROJECT_BINARY_DIR}/xfer.map @ONLY)
xfi_shared(xfer ${PROJECT_BINARY_DIR}/xfer.map)
target_link_options(xfer PRIVATE LINKER:-Bsymbolic) # a process may have two of it, as of two Python packages
set_target_properties(xfer PROPERTIES LINKER_LANGUAGE C)
foreach(layer IN LISTS XFER_LAYERS)
  target_sources(xfer PRIVATE $<TARGET_OBJECTS:xfi_${layer}>)
  get_target_property(libs xfi_${layer} XFER_PRIVATE_LIBS)
  target_link_libraries(xfer PRIVATE "$<BUILD_INTERFACE:${libs}>")
endforeach()
target_link_libraries(xfer PRIVATE $<BUILD_INTERFACE:Threads::Threads> m)

if(XFER_STATIC)
  add_library(xfer_static STATIC)
  add_library(xfer::xfer_static ALIAS xfer_static)
  set_target_properties(xfer_static PROPERTIES OUTPUT_NAME xfer LINKER_LANGUAGE C)
  target_include_directories(xfer_static INTERFACE
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  foreach(layer IN LISTS XFER_LAYERS)
    target_sources(xfer_static PRIVATE $<TARGET_OBJECTS:xfi_${layer}>)
  endforeach()
  target_link_libraries(xfer_static INTERFACE ${XFER_JANSSON_LIBRARY} Threads::Threads m)
endif()

# A plug-in is an object library first, so that tests can link it with layer objects and see the insides.
#   xfi_plugin(mpi LAYERS comm device SOURCES src/comm/mpi.c LIBS MPI::MPI_C)  ->  xfi_mpi (objects), xfer_mpi (library)
function(xfi_plugin name)
  cmake_parse_arguments(PARSE_ARGV 1 P "" "" "LAYERS;SOURCES;LIBS;PRIVATE_LIBS")
  list(TRANSFORM P_SOURCES PREPEND ${PROJECT_SOURCE_DIR}/)
  add_library(xfi_${name} OBJECT ${P_SOURCES})
  target_include_directories(xfi_${name} PUBLIC ${PROJECT_SOURCE_DIR}/src/api) # plugin.h
  foreach(layer IN LISTS P_LAYERS)
    target_include_directories(xfi_${name} PUBLIC $<TARGET_PROPERTY:xfi_${layer},INTERFACE_INCLUDE_DIRECTORIES>)
  endforeach()
  target_link_libraries(xfi_${name} PRIVATE xfi_flags PUBLIC ${P_LIBS} ${P_PRIVATE_LIBS})
  add_library(xfer_${name} SHARED $<TARGET_OBJECTS:xfi_${name}>)
  add_library(xfer::${name} ALIAS xfer_${name})
  set_target_properties(xfer_${name} PROPERTIES LINKER_LANGUAGE C EXPORT_NAME ${name})
  xfi_shared(xfer_${name} ${PROJECT_SOURCE_DIR}/src/xfer_${name}.map)
  target_link_libraries(xfer_${name} PUBLIC xfer ${P_LIBS} PRIVATE ${P_PRIVATE_LIBS})
endfunction()

# A vendor's files are those named after it: src/comm/mpi*.c; src/base/cuda*.c, src/device/cuda*.c, src/comm/nccl*.c and
# kernels/cuda/.
if(XFER_HAVE_MPI)
  file(GLOB xfi_mpi_sources RELATIVE ${PROJECT_SOURCE_DIR} CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/comm/mpi*.c)
  if(xfi_mpi_sources)
    xfi_plugin(mpi LAYERS comm device SOURCES ${xfi_mpi_sources} LIBS MPI::MPI_C)
    # In C++ mpi.h would ask for MPI's bindings of C++, which lie in another library.
    set(XFER_MPI_DEFINITIONS OMPI_SKIP_MPICXX MPICH_SKIP_MPICXX)
    target_compile_definitions(xfer_mpi INTERFACE ${XFER_MPI_DEFINITIONS})
  endif()
endif()

if(XFER_HAVE_CUDA)
  file(GLOB xfi_cuda_sources RELATIVE ${PROJECT_SOURCE_DIR} CONFIGURE_DEPENDS
    ${PROJECT_SOURCE_DIR}/src/base/cuda*.c ${PROJECT_SOURCE_DIR}/src/device/cuda*.c
    ${PROJECT_SOURCE_DIR}/src/comm/nccl*.c
    ${PROJECT_SOURCE_DIR}/src/comm/cuda_create.c
    ${PROJECT_SOURCE_DIR}/kernels/cuda/*.c ${PROJECT_SOURCE_DIR}/kernels/cuda/*.cu)
  if(xfi_cuda_sources)
    xfi_plugin(nccl LAYERS device comm kernels SOURCES ${xfi_cuda_sources} PRIVATE_LIBS CUDA::cudart_static)
    target_include_directories(xfi_nccl SYSTEM PUBLIC ${NCCL_INCLUDE_DIR})
    target_include_directories(xfi_nccl PUBLIC ${PROJECT_SOURCE_DIR}/kernels/cuda)
  endif()
endif()
