# find_package(xfer [COMPONENTS mpi nccl]) and pkg-config xfer, xfer_mpi, xfer_nccl. With -Dxfer_DIR=BUILD the former finds
# what is built, and not installed.
include(CMakePackageConfigHelpers)

set(xfi_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/xfer)
# From a .pc file to its prefix and on, so that an installed tree can be moved; folders may be absolute.
file(RELATIVE_PATH xfi_pc_to_prefix ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
file(RELATIVE_PATH xfi_libdir ${CMAKE_INSTALL_PREFIX} ${CMAKE_INSTALL_FULL_LIBDIR})
file(RELATIVE_PATH xfi_includedir ${CMAKE_INSTALL_PREFIX} ${CMAKE_INSTALL_FULL_INCLUDEDIR})

# What is installed falls into components, which are also Debian packages (packages.cmake): core, mpi and nccl have a
# library each, dev what compiling wants, tools the programs and what they read.
function(xfi_install_library component)
  cmake_parse_arguments(PARSE_ARGV 1 I "" "PC;LIB;DESCRIPTION;REQUIRES;CFLAGS;LIBS;LIBS_PRIVATE" "TARGETS;HEADERS")
  install(TARGETS ${I_TARGETS} EXPORT xfer-${component}
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT ${component} NAMELINK_COMPONENT dev
    ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT dev)
  install(EXPORT xfer-${component} NAMESPACE xfer:: DESTINATION ${xfi_package_dir} COMPONENT dev)
  export(EXPORT xfer-${component} NAMESPACE xfer:: FILE ${PROJECT_BINARY_DIR}/xfer-${component}.cmake)
  foreach(header IN LISTS I_HEADERS)
    install(FILES ${PROJECT_SOURCE_DIR}/include/xfer/${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/xfer OPTIONAL
      COMPONENT dev)
  endforeach()
  set(PC_NAME ${I_PC})
  set(PC_LIB ${I_LIB})
  set(PC_DESCRIPTION ${I_DESCRIPTION})
  set(PC_REQUIRES ${I_REQUIRES})
  set(PC_CFLAGS ${I_CFLAGS})
  set(PC_LIBS ${I_LIBS})
  set(PC_LIBS_PRIVATE ${I_LIBS_PRIVATE})
  configure_file(${PROJECT_SOURCE_DIR}/cmake/xfer.pc.in ${PROJECT_BINARY_DIR}/${I_PC}.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/${I_PC}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT dev)
endfunction()

# What plain gcc wants of a vendor: -I of its folders, the paths of its libraries as they are.
function(xfi_vendor_flags cflags libs)
  cmake_parse_arguments(PARSE_ARGV 2 V "" "" "INCLUDES;LIBRARIES")
  list(REMOVE_DUPLICATES V_INCLUDES)
  list(REMOVE_ITEM V_INCLUDES /usr/include)
  list(TRANSFORM V_INCLUDES PREPEND -I)
  list(JOIN V_INCLUDES " " V_INCLUDES)
  list(JOIN V_LIBRARIES " " V_LIBRARIES)
  set(${cflags} "${V_INCLUDES}" PARENT_SCOPE)
  set(${libs} "${V_LIBRARIES}" PARENT_SCOPE)
endfunction()

set(xfi_core xfer)
if(XFER_STATIC)
  list(APPEND xfi_core xfer_static)
endif()
xfi_install_library(core TARGETS ${xfi_core} HEADERS ${XFER_CORE_HEADERS} PC xfer LIB xfer
  DESCRIPTION "${PROJECT_DESCRIPTION}" LIBS_PRIVATE "-ljansson -lpthread -lm")
if(TARGET xfer_mpi)
  xfi_vendor_flags(cflags libs INCLUDES ${MPI_C_INCLUDE_DIRS} LIBRARIES ${MPI_C_LIBRARIES})
  list(JOIN XFER_MPI_DEFINITIONS " -D" definitions)
  xfi_install_library(mpi TARGETS xfer_mpi HEADERS mpi.h PC xfer_mpi LIB xfer_mpi
    DESCRIPTION "xfer over MPI" REQUIRES "xfer" CFLAGS "${cflags} -D${definitions}" LIBS "${libs}")
endif()
if(TARGET xfer_nccl)
  xfi_install_library(nccl TARGETS xfer_nccl HEADERS nccl.h PC xfer_nccl LIB xfer_nccl
    DESCRIPTION "xfer over CUDA and NCCL" REQUIRES "xfer")
endif()

if(XFER_INSTALL_DATA)
  install(DIRECTORY models rules DESTINATION ${CMAKE_INSTALL_DATADIR}/xfer COMPONENT tools)
  install(DIRECTORY examples/ DESTINATION ${CMAKE_INSTALL_DOCDIR}/examples COMPONENT dev
    PATTERN CMakeLists.txt EXCLUDE)
  install(DIRECTORY docs/ DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT dev FILES_MATCHING PATTERN *.md PATTERN *.svg PATTERN site EXCLUDE)
  install(FILES README.md CHANGELOG.md SECURITY.md DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT dev)
  install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT core)
endif()

configure_package_config_file(cmake/xfer-config.cmake.in ${PROJECT_BINARY_DIR}/xfer-config.cmake
  INSTALL_DESTINATION ${xfi_package_dir} NO_CHECK_REQUIRED_COMPONENTS_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/xfer-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/xfer-config.cmake ${PROJECT_BINARY_DIR}/xfer-config-version.cmake
  DESTINATION ${xfi_package_dir} COMPONENT dev)
