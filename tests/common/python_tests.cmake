# condense_python_tests(PREFIX FILE [LABELS …] [TIMEOUT SECONDS] [ENVIRONMENT …] [FIXTURE NAME]): every test case of a
# Python unittest file is a CTest case of its own, PREFIX.Class.test_name. What a case needs and does not find is its
# failure, never a skip; cases that may be skipped say why, and CTest shows them as skipped.
function(condense_python_tests prefix file)
  cmake_parse_arguments(ARG "" "TIMEOUT;FIXTURE" "LABELS;ENVIRONMENT" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  set(path ${CMAKE_CURRENT_SOURCE_DIR}/${file})
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${path})
  file(STRINGS ${path} lines REGEX "^class [A-Z]|^    def test_")
  foreach(line ${lines})
    if(line MATCHES "^class ([A-Za-z0-9]+)")
      set(class ${CMAKE_MATCH_1})
    elseif(line MATCHES "def (test_[a-z0-9_]+)")
      set(case ${class}.${CMAKE_MATCH_1})
      add_test(NAME ${prefix}.${case} COMMAND ${CONDENSE_PYTHON} ${path} -v ${case})
      set_tests_properties(${prefix}.${case} PROPERTIES
        LABELS "${ARG_LABELS}" RUN_SERIAL TRUE TIMEOUT ${ARG_TIMEOUT}
        ENVIRONMENT "CONDENSE_BUILD=${CMAKE_BINARY_DIR};CONDENSE_LLAMA=${CONDENSE_LLAMA_BUILT};CONDENSE_LLAMA_SOURCE=${CONDENSE_LLAMA_SOURCE};CONDENSE_GGML_API=${CONDENSE_GGML_API};PYTHONDONTWRITEBYTECODE=1;${ARG_ENVIRONMENT}"
        SKIP_REGULAR_EXPRESSION "\\.\\.\\. skipped")
      if(ARG_FIXTURE)
        set_tests_properties(${prefix}.${case} PROPERTIES FIXTURES_REQUIRED ${ARG_FIXTURE})
      endif()
    endif()
  endforeach()
endfunction()
