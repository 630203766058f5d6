# The host: an unmodified llama.cpp checkout, built by its own CMake in its own tree so that none of our flags reach
# it. Defines the imported targets condense::ggml_base, condense::ggml, condense::ggml_cpu and condense::llama.
#
# CONDENSE_LLAMA_CPP_DIR    any llama.cpp source; default: the pinned one, build/llama.cpp
# CONDENSE_LLAMA_BUILD_DIR  where it was built with shared libraries, or is to be built; default: build/llama for the
#                           pinned source, else llama/ in this build tree. What is not there, this build makes.
set(CONDENSE_LLAMA_CPP_DIR "${PROJECT_SOURCE_DIR}/build/llama.cpp" CACHE PATH "A llama.cpp source tree")
set(CONDENSE_LLAMA_BUILD_DIR "" CACHE PATH "Where llama.cpp was built, or is to be built (empty: chosen)")

get_filename_component(CONDENSE_LLAMA_SOURCE "${CONDENSE_LLAMA_CPP_DIR}" REALPATH BASE_DIR ${CMAKE_BINARY_DIR})
set(header ${CONDENSE_LLAMA_SOURCE}/ggml/src/ggml-backend-impl.h)
if(NOT EXISTS ${header})
  message(FATAL_ERROR "no llama.cpp source at ${CONDENSE_LLAMA_SOURCE}: run `python3 scripts/fetch.py source`, or "
    "pass -DCONDENSE_LLAMA_CPP_DIR=DIR (the source tree, not an installation: the plug-in needs ggml-backend-impl.h)")
endif()
file(STRINGS ${header} CONDENSE_GGML_API REGEX "define GGML_BACKEND_API_VERSION")
string(REGEX REPLACE "[^0-9]*([0-9]+).*" "\\1" CONDENSE_GGML_API "${CONDENSE_GGML_API}")
if(NOT CONDENSE_GGML_API MATCHES "^(2|3)$")
  message(WARNING "ggml's backend API ${CONDENSE_GGML_API} is untried: Condense knows 2 and 3")
endif()

if(CONDENSE_LLAMA_BUILD_DIR)
  get_filename_component(CONDENSE_LLAMA_BUILT "${CONDENSE_LLAMA_BUILD_DIR}" ABSOLUTE BASE_DIR ${CMAKE_BINARY_DIR})
elseif(CONDENSE_LLAMA_SOURCE STREQUAL "${PROJECT_SOURCE_DIR}/build/llama.cpp")
  set(CONDENSE_LLAMA_BUILT ${PROJECT_SOURCE_DIR}/build/llama)
else()
  set(CONDENSE_LLAMA_BUILT ${CMAKE_BINARY_DIR}/llama)
endif()
if(EXISTS ${CONDENSE_LLAMA_BUILT}/CMakeCache.txt)
  file(STRINGS ${CONDENSE_LLAMA_BUILT}/CMakeCache.txt built_from REGEX "^CMAKE_HOME_DIRECTORY:")
  string(REGEX REPLACE "^[^=]*=" "" built_from "${built_from}")
  get_filename_component(built_from "${built_from}" REALPATH)
  if(NOT built_from STREQUAL CONDENSE_LLAMA_SOURCE)
    message(FATAL_ERROR "${CONDENSE_LLAMA_BUILT} was built from ${built_from}, not from ${CONDENSE_LLAMA_SOURCE}: "
      "pass another -DCONDENSE_LLAMA_BUILD_DIR=DIR")
  endif()
endif()
message(STATUS "llama.cpp: ${CONDENSE_LLAMA_SOURCE}, built in ${CONDENSE_LLAMA_BUILT}, backend API ${CONDENSE_GGML_API}")

set(llama_libraries "")
set(llama_missing FALSE)
foreach(lib ggml-base ggml ggml-cpu llama)
  string(REPLACE "-" "_" id ${lib})
  set(path ${CONDENSE_LLAMA_BUILT}/bin/lib${lib}.so)
  list(APPEND llama_libraries ${path})
  if(NOT EXISTS ${path})
    set(llama_missing TRUE)
  endif()
  add_library(condense::${id} SHARED IMPORTED GLOBAL)
  set_target_properties(condense::${id} PROPERTIES
    IMPORTED_LOCATION ${path}
    INTERFACE_INCLUDE_DIRECTORIES "${CONDENSE_LLAMA_SOURCE}/include;${CONDENSE_LLAMA_SOURCE}/ggml/include")
endforeach()
set_property(TARGET condense::llama PROPERTY INTERFACE_LINK_LIBRARIES condense::ggml condense::ggml_base)

if(llama_missing OR EXISTS ${CMAKE_BINARY_DIR}/.builds-llama-cpp)
  # Once ours to build, always ours to keep up to date.
  file(TOUCH ${CMAKE_BINARY_DIR}/.builds-llama-cpp)
  add_custom_target(condense_llama_cpp
    COMMAND ${CMAKE_COMMAND} -DSOURCE=${CONDENSE_LLAMA_SOURCE} -DBUILD=${CONDENSE_LLAMA_BUILT}
      -DWITH_TESTS=${CONDENSE_BUILD_TESTS} -P ${PROJECT_SOURCE_DIR}/cmake/BuildLlamaCpp.cmake
    BYPRODUCTS ${llama_libraries} USES_TERMINAL VERBATIM
    COMMENT "Building llama.cpp in ${CONDENSE_LLAMA_BUILT}")
  foreach(id ggml_base ggml ggml_cpu llama)
    add_dependencies(condense::${id} condense_llama_cpp)
  endforeach()
endif()
