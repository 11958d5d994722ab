# di_add_library(base SOURCES a.cc b.cc DEPS di_tensor PRIVATE_DEPS OpenSSL::Crypto)
#   Static library di_<name>, headers reached as "<name>/header.h" from src/.
# di_add_test(status_test SOURCES status_test.cc DEPS di_base LABEL unit)
#   One GoogleTest binary, one ctest entry.
# di_add_fuzzer(json_fuzzer)
#   Source <name>.cc, seeds in tests/fuzz/seeds/<name>/. EXPECT_REPORT: the run must end in a
#   sanitizer report.

function(di_add_library name)
  cmake_parse_arguments(ARG "NO_CONVERSION_WARNINGS" "" "SOURCES;DEPS;PRIVATE_DEPS" ${ARGN})
  add_library(di_${name} STATIC ${ARG_SOURCES})
  set_property(GLOBAL APPEND PROPERTY DEEPINFER_LIBRARIES di_${name})
  target_include_directories(di_${name} PUBLIC ${CMAKE_SOURCE_DIR}/src)
  target_link_libraries(di_${name} PUBLIC ${ARG_DEPS} PRIVATE ${ARG_PRIVATE_DEPS})
  if(NOT ARG_NO_CONVERSION_WARNINGS)
    target_compile_options(di_${name} PRIVATE -Wconversion)
  endif()
endfunction()

# Under a sanitizer everything takes longer.
set(DEEPINFER_TIMEOUT_FACTOR 1)
if(DEEPINFER_SANITIZE)
  set(DEEPINFER_TIMEOUT_FACTOR 6)
endif()

function(di_add_test name)
  cmake_parse_arguments(ARG "" "LABEL;TIMEOUT" "SOURCES;DEPS" ${ARGN})
  if(NOT ARG_LABEL)
    set(ARG_LABEL unit)
  endif()
  # Ends a test that hangs; generous, because a busy machine must not fail a slow one.
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 600)
  endif()
  math(EXPR ARG_TIMEOUT "${ARG_TIMEOUT} * ${DEEPINFER_TIMEOUT_FACTOR}")
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} di_test_source_dir GTest::gtest
                                        GTest::gtest_main)
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR}/tests)
  # A test file is compiled more often than its loops would pay for: optimising it costs a third of
  # the time of a build. What is tested is in libraries and keeps its flags.
  target_compile_options(${name} PRIVATE $<$<NOT:$<CONFIG:Debug>>:-O1>)
  # Data-driven suites would otherwise start one process per case.
  add_test(NAME ${name} COMMAND ${name} --gtest_brief=1)
  set_tests_properties(${name} PROPERTIES LABELS ${ARG_LABEL} TIMEOUT ${ARG_TIMEOUT})
endfunction()

# In the fuzz preset: the fuzzer itself. With DEEPINFER_FUZZ_TESTS: ctest entries that build the
# fuzz preset and run the fuzzer for a few seconds from its seeds.
function(di_add_fuzzer name)
  cmake_parse_arguments(ARG "EXPECT_REPORT" "" "" ${ARGN})
  if(DEEPINFER_FUZZ)
    add_executable(${name} ${name}.cc)
    target_link_libraries(${name} PRIVATE di_fuzzed)
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
    if(NOT TARGET fuzzers)
      add_custom_target(fuzzers)
    endif()
    add_dependencies(fuzzers ${name})
  endif()
  if(NOT DEEPINFER_FUZZ_TESTS)
    return()
  endif()

  set(fuzz_folder ${CMAKE_SOURCE_DIR}/build/fuzz/tests/fuzz)
  if(NOT TEST fuzz.build)
    add_test(NAME fuzz.build COMMAND ${CMAKE_SOURCE_DIR}/scripts/build fuzz fuzzers)
    set_tests_properties(fuzz.build PROPERTIES LABELS fuzz FIXTURES_SETUP fuzz_build
                         PROCESSORS 2 TIMEOUT 1200)
  endif()
  # New inputs go to the first folder, crashing ones beside it; the seeds are only read. A fixed
  # number of inputs bounds the run, the time limit only guards a slow machine.
  file(MAKE_DIRECTORY ${fuzz_folder}/found/${name})
  add_test(NAME fuzz.${name}
           COMMAND ${fuzz_folder}/${name} -seed=1 -runs=100000 -max_total_time=8 -timeout=10
                   -rss_limit_mb=4096 -verbosity=0 -artifact_prefix=${fuzz_folder}/${name}-
                   ${fuzz_folder}/found/${name} ${CMAKE_SOURCE_DIR}/tests/fuzz/seeds/${name})
  set_tests_properties(fuzz.${name} PROPERTIES LABELS fuzz FIXTURES_REQUIRED fuzz_build
                       TIMEOUT 120)
  if(ARG_EXPECT_REPORT)
    set_tests_properties(fuzz.${name} PROPERTIES PASS_REGULAR_EXPRESSION
                         "AddressSanitizer: heap-buffer-overflow")
  endif()
endfunction()

# di_add_python_test(openai_client SCRIPT openai_client_test.py ARGS $<TARGET_FILE:deepinfer>)
#   Runs in the virtual environment that scripts/test makes from tools/requirements-test.txt.
function(di_add_python_test name)
  cmake_parse_arguments(ARG "" "SCRIPT;LABEL;TIMEOUT" "ARGS" ${ARGN})
  if(NOT ARG_LABEL)
    set(ARG_LABEL integration)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 600)
  endif()
  add_test(NAME ${name} COMMAND ${CMAKE_SOURCE_DIR}/.venv/bin/python3
           ${CMAKE_CURRENT_SOURCE_DIR}/${ARG_SCRIPT} ${ARG_ARGS})
  set_tests_properties(${name} PROPERTIES LABELS ${ARG_LABEL} TIMEOUT ${ARG_TIMEOUT})
endfunction()
