# A layer is an object library whose include path holds its own directory and those of the layers it uses, nothing
# else, so that a wrong #include does not compile. tests/layers.py proves it.

set(XFER_LAYERS "")

function(xfer_add_directory_if_present dir)
  if(EXISTS ${PROJECT_SOURCE_DIR}/${dir}/CMakeLists.txt)
    add_subdirectory(${PROJECT_SOURCE_DIR}/${dir} ${PROJECT_BINARY_DIR}/${dir})
  endif()
endfunction()

# xfer_layer(plan USES layout base SOURCES plan.c moves.c [PRIVATE_LIBS xfi_xxhash])
# Called in the layer's own CMakeLists.txt; sources are relative to it.
function(xfer_layer name)
  cmake_parse_arguments(PARSE_ARGV 1 L "" "" "USES;SOURCES;PRIVATE_LIBS")
  add_library(xfi_${name} OBJECT ${L_SOURCES})
  target_include_directories(xfi_${name} PUBLIC ${CMAKE_CURRENT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include)
  target_link_libraries(xfi_${name} PRIVATE xfi_flags ${L_PRIVATE_LIBS})
  set(closure ${name})
  foreach(used IN LISTS L_USES)
    if(NOT TARGET xfi_${used})
      message(FATAL_ERROR "layer ${name} uses ${used}, which is not there (yet), or stands above it")
    endif()
    target_link_libraries(xfi_${name} PUBLIC xfi_${used})
    get_target_property(below xfi_${used} XFER_CLOSURE)
    list(APPEND closure ${below})
  endforeach()
  list(REMOVE_DUPLICATES closure)
  set_target_properties(xfi_${name} PROPERTIES
    XFER_CLOSURE "${closure}" XFER_PRIVATE_LIBS "${L_PRIVATE_LIBS}" XFER_DIR ${CMAKE_CURRENT_SOURCE_DIR})
  set_property(GLOBAL APPEND PROPERTY XFER_LAYERS ${name})
endfunction()

# Links `target` with the objects of `layers` and of all that they use: objects are not passed on by themselves.
function(xfer_link_layers target)
  set(all "")
  foreach(layer IN LISTS ARGN)
    if(NOT TARGET xfi_${layer})
      message(FATAL_ERROR "${target}: no layer ${layer}")
    endif()
    get_target_property(closure xfi_${layer} XFER_CLOSURE)
    list(APPEND all ${closure})
  endforeach()
  list(REMOVE_DUPLICATES all)
  foreach(layer IN LISTS all)
    get_target_property(libs xfi_${layer} XFER_PRIVATE_LIBS)
    target_link_libraries(${target} PRIVATE xfi_${layer} ${libs})
  endforeach()
  target_link_libraries(${target} PRIVATE xfi_flags Threads::Threads m)
endfunction()

# From the ground up: a layer uses only earlier ones.
foreach(dir IN ITEMS src/base src/layout src/plan kernels src/device src/comm src/run src/refit src/api)
  xfer_add_directory_if_present(${dir})
endforeach()
get_property(XFER_LAYERS GLOBAL PROPERTY XFER_LAYERS)
