# Writes OUTPUT, a file for ctest with one entry for each GoogleTest suite of EXECUTABLE.
# Run after the executable is built, with EXECUTABLE, PREFIX, LABELS, ENVIRONMENT, TIMEOUT and OUTPUT defined.

execute_process(COMMAND "${EXECUTABLE}" --gtest_list_tests OUTPUT_VARIABLE listing RESULT_VARIABLE result)
if(NOT result EQUAL 0)
  message(FATAL_ERROR "${EXECUTABLE} --gtest_list_tests failed: ${result}")
endif()

# Suites stand at the line's beginning ("Suite." or "Suite/0.  # TypeParam = ..."), their tests are indented.
string(REPLACE ";" "\\;" listing "${listing}")
string(REPLACE "\n" ";" lines "${listing}")
set(content "")
foreach(line ${lines})
  if(NOT line MATCHES "^([A-Za-z0-9_/]+)\\.( |$)")
    continue()
  endif()
  set(suite "${CMAKE_MATCH_1}")
  if(PREFIX STREQUAL "gpu" AND NOT suite MATCHES "Gpu")
    continue()  # It has sources of other folders, whose other suites run there.
  endif()
  set(labels "${LABELS}")
  if(suite MATCHES "Gpu")
    list(APPEND labels gpu)
  endif()
  # A browser is a dozen processes, and how long a page takes to open is measured.
  set(timeout ${TIMEOUT})
  set(serial FALSE)
  if(suite MATCHES "Browser")
    set(timeout 600)
    set(serial TRUE)
  elseif(suite MATCHES "WandbLogger|BackgroundWorker")
    set(serial TRUE)  # They look at threads and times.
  elseif(suite MATCHES "^Sim[A-Za-z]+/")
    set(timeout 600)  # Every access to simulated memory opens its pages.
  elseif(suite MATCHES "MlflowServer|^Remote(CheckpointTest|Training)$|^Sweep(Runs|Endings|Halving)$")
    # A server, or dozens of programs, take long to start where others are at work.
    set(timeout 600)
  endif()
  # GoogleTest exits with 0 when it skipped every test; ctest is to say "skipped" then, and only then.
  string(APPEND content "add_test([==[${PREFIX}.${suite}]==] [==[${EXECUTABLE}]==] [==[--gtest_filter=${suite}.*]==])
set_tests_properties([==[${PREFIX}.${suite}]==] PROPERTIES LABELS [==[${labels}]==] TIMEOUT ${timeout} RUN_SERIAL ${serial}
  ENVIRONMENT [==[${ENVIRONMENT}]==]
  SKIP_REGULAR_EXPRESSION [==[PASSED  \\] 0 tests\\.[^F]*SKIPPED \\] [0-9]+ tests?, listed below:\n(\\[  SKIPPED \\][^\n]*\n?)+$]==])
")
endforeach()
file(WRITE "${OUTPUT}" "${content}")
