# condense_library(NAME SOURCES … [DEPS …]): one OBJECT library per folder of src/. OBJECT, not STATIC: the
# registrars of policies would vanish from a static library at link.
# condense_test(NAME SOURCES … [DEPS …] [LABELS …] [DEFINITIONS …] [SHARDS N]): a GoogleTest program, its cases known to
# CTest one by one; with SHARDS, where a process a case costs more than the case, every N-th case to one process
# (scripts/count_tests.py counts the cases). Those labelled `fast`, the default, may run beside each other: their OpenMP
# threads do not spin.
include(GoogleTest)

function(condense_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_library(condense_${name} OBJECT ${ARG_SOURCES})
  target_include_directories(condense_${name} PUBLIC ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/include)
  target_link_libraries(condense_${name} PUBLIC ${ARG_DEPS})
  target_compile_options(condense_${name} PRIVATE ${CONDENSE_WARNINGS})
endfunction()

# Object libraries do not pass their objects on: `objects` lists every room whose objects a program needs.
function(condense_link_rooms target)
  foreach(room ${ARGN})
    target_link_libraries(${target} PRIVATE condense_${room})
  endforeach()
endfunction()

function(condense_test name)
  if(NOT CONDENSE_BUILD_TESTS)
    return()
  endif()
  cmake_parse_arguments(ARG "" "SHARDS" "SOURCES;DEPS;LABELS;DEFINITIONS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} GTest::gtest GTest::gmock GTest::gtest_main)
  target_compile_options(${name} PRIVATE ${CONDENSE_WARNINGS})
  target_compile_definitions(${name} PRIVATE ${ARG_DEFINITIONS})
  if(CONDENSE_ASAN AND NOT ARG_SHARDS) # half the time to compile; what runs long is in shards
    target_compile_options(${name} PRIVATE -O0)
  endif()
  if(NOT ARG_LABELS)
    set(ARG_LABELS fast)
  endif()
  set(properties LABELS "${ARG_LABELS}" RUN_SERIAL TRUE)
  set(environment "")
  if(ARG_LABELS STREQUAL fast)
    set(environment OMP_WAIT_POLICY=passive)
    set(properties LABELS fast ENVIRONMENT ${environment})
  endif()
  if(NOT ARG_SHARDS)
    gtest_discover_tests(${name} TEST_PREFIX "${name}." DISCOVERY_TIMEOUT 120 PROPERTIES ${properties})
    return()
  endif()
  math(EXPR last "${ARG_SHARDS} - 1")
  foreach(shard RANGE ${last})
    add_test(NAME ${name}.shard_${shard} COMMAND ${name} --gtest_brief=1)
    set_tests_properties(${name}.shard_${shard} PROPERTIES ${properties}
      ENVIRONMENT "${environment};GTEST_TOTAL_SHARDS=${ARG_SHARDS};GTEST_SHARD_INDEX=${shard}")
  endforeach()
endfunction()
