# cmake -DSOURCE=DIR -DBUILD=DIR [-DWITH_TESTS=ON] [-DJOBS=N] -P BuildLlamaCpp.cmake
# Builds a llama.cpp checkout unmodified, in its own tree with its own flags, and nothing when all is up to date. The
# tree's stamp holds what a rebuild must follow and ninja cannot see: the pin, the flags, the compiler and the
# processor (GGML_NATIVE). With another stamp the tree is made anew.
cmake_minimum_required(VERSION 3.22)
foreach(needed SOURCE BUILD)
  if(NOT ${needed})
    message(FATAL_ERROR "BuildLlamaCpp.cmake needs -D${needed}=DIR")
  endif()
endforeach()

set(targets ggml llama llama-bench llama-server llama-cli llama-completion llama-perplexity llama-tokenize)
if(WITH_TESTS)
  list(APPEND targets test-backend-ops test-save-load-state test-state-restore-fragmented test-thread-safety
    test-llama-archs)
endif()
if(NOT JOBS)
  include(ProcessorCount)
  ProcessorCount(JOBS)
endif()

set(compiler c++)
if(DEFINED ENV{CXX})
  set(compiler $ENV{CXX})
endif()
separate_arguments(compiler UNIX_COMMAND "${compiler}")
execute_process(COMMAND ${compiler} --version OUTPUT_VARIABLE compiler_version RESULT_VARIABLE failed ERROR_QUIET)
if(failed)
  message(FATAL_ERROR "no C++ compiler: '${compiler}' does not run; install g++ or set CC and CXX")
endif()

set(flags -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON -DGGML_NATIVE=ON -DLLAMA_OPENSSL=OFF
  -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_TOOLS=ON
  -DLLAMA_BUILD_SERVER=ON -DLLAMA_BUILD_COMMON=ON -DLLAMA_BUILD_TESTS=ON)
# With AVX-512 FP16, llama.cpp's dot products for head size 64 end in a scalar tail and decode at depth 3 to 4 times
# slower. Only x86 compilers from GCC 12 and Clang 14 on know the flag.
file(WRITE ${BUILD}/.probe.cc "int probe;\n")
execute_process(COMMAND ${compiler} -mno-avx512fp16 -c ${BUILD}/.probe.cc -o ${BUILD}/.probe.o
  RESULT_VARIABLE unknown_flag OUTPUT_QUIET ERROR_QUIET)
file(REMOVE ${BUILD}/.probe.cc ${BUILD}/.probe.o)
if(NOT unknown_flag)
  list(APPEND flags -DCMAKE_C_FLAGS=-mno-avx512fp16 -DCMAKE_CXX_FLAGS=-mno-avx512fp16)
endif()

set(processor "")
if(EXISTS /proc/cpuinfo)
  file(STRINGS /proc/cpuinfo processor REGEX "^(flags|Features)[ \t]*:" LIMIT_COUNT 1)
endif()
set(pin "")
if(EXISTS ${SOURCE}/.condense-source)
  file(READ ${SOURCE}/.condense-source pin)
endif()
string(SHA256 stamp "${SOURCE};${pin};${flags};${compiler_version};${processor}")
set(stamp_file ${BUILD}/.condense-stamp)
set(found_stamp "")
if(EXISTS ${stamp_file})
  file(READ ${stamp_file} found_stamp)
  if(NOT found_stamp STREQUAL stamp)
    message(STATUS "llama.cpp: source, flags, compiler or processor changed: building anew")
    file(REMOVE_RECURSE ${BUILD})
  endif()
endif()

if(NOT found_stamp STREQUAL stamp OR NOT EXISTS ${BUILD}/build.ninja)
  message(STATUS "llama.cpp: configuring ${BUILD}")
  execute_process(COMMAND ${CMAKE_COMMAND} -S ${SOURCE} -B ${BUILD} -G Ninja ${flags}
    RESULT_VARIABLE failed OUTPUT_FILE ${BUILD}.configure.log ERROR_FILE ${BUILD}.configure.log)
  if(failed)
    message(FATAL_ERROR "llama.cpp does not configure; see ${BUILD}.configure.log")
  endif()
  file(WRITE ${stamp_file} "${stamp}")
endif()

# The pinned source never changes, so what was built of it stays built; any other checkout is for ninja to judge.
string(SHA256 built_stamp "${stamp};${targets}")
set(built_file ${BUILD}/.condense-built)
if(pin AND EXISTS ${built_file})
  file(STRINGS ${built_file} built)
  if(built_stamp IN_LIST built)
    return()
  endif()
endif()

# Two checkouts at different paths share their objects in ccache; objects of -march=native stay with the processor.
string(SHA256 native "${processor}")
string(SUBSTRING "${native}" 0 12 native)
get_filename_component(base ${BUILD} DIRECTORY)
# Thousands of lines of others' warnings go to the log; every tenth step shows that something happens.
execute_process(
  COMMAND ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${base} CCACHE_NAMESPACE=native-${native}
    ${CMAKE_COMMAND} --build ${BUILD} --parallel ${JOBS} --target ${targets}
  COMMAND tee ${BUILD}.build.log
  COMMAND grep --line-buffered -oE "^\\[[0-9]*0/.*"
  RESULTS_VARIABLE results)
list(GET results 0 failed)
if(failed)
  execute_process(COMMAND grep -m 20 -E "FAILED:|error|Killed|No space" ${BUILD}.build.log)
  message(FATAL_ERROR "llama.cpp does not build; see ${BUILD}.build.log")
endif()
file(APPEND ${built_file} "${built_stamp}\n")
