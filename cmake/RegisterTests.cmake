# Writes OUTPUT, a file for ctest with entries for the GoogleTest suites of EXECUTABLE. Suites that TABLE
# (tests/suites.txt) names have an entry each; the others of a folder run in as many processes as there are SHARDS. Where
# ctest runs with LEVIN_TEST_ENTRIES=suites in its environment (test preset `suites`), each of these has an entry too.
#
# Run after the executable is built, with EXECUTABLE, PREFIX, LABELS, ENVIRONMENT, TIMEOUT, TABLE, SHARDS and OUTPUT defined.

execute_process(COMMAND "${EXECUTABLE}" --gtest_list_tests OUTPUT_VARIABLE listing RESULT_VARIABLE result)
if(NOT result EQUAL 0)
  message(FATAL_ERROR "${EXECUTABLE} --gtest_list_tests failed: ${result}")
endif()
file(STRINGS "${TABLE}" rows REGEX "^[^#]")

# The labels and locks of the first row that has a suite; `is_apart` says whether any has.
function(look_up suite)
  set(is_apart OFF PARENT_SCOPE)
  set(labels "" PARENT_SCOPE)
  set(locks "" PARENT_SCOPE)
  foreach(row ${rows})
    string(REGEX MATCHALL "[^ ]+" words "${row}")
    list(POP_FRONT words pattern kinds)
    if("${PREFIX}.${suite}" MATCHES "^(${pattern})$")
      set(is_apart ON PARENT_SCOPE)
      string(REPLACE "," ";" kinds "${kinds}")
      list(REMOVE_ITEM kinds apart)
      set(labels "${kinds}" PARENT_SCOPE)
      set(locks "${words}" PARENT_SCOPE)
      return()
    endif()
  endforeach()
endfunction()

# The shared processes, which take longest, have the higher cost: they begin before the others.
# GoogleTest exits with 0 when it skipped every test; ctest is to say "skipped" then, and only then.
function(add_entry name labels locks cost environment)
  set(content "${content}add_test([==[${name}]==] [==[${EXECUTABLE}]==] [==[--gtest_filter=${ARGN}]==])
set_tests_properties([==[${name}]==] PROPERTIES LABELS [==[${labels}]==] TIMEOUT ${TIMEOUT}
  RESOURCE_LOCK [==[${locks}]==] COST ${cost} ENVIRONMENT [==[${environment}]==]
  SKIP_REGULAR_EXPRESSION [==[PASSED  \\] 0 tests\\.[^F]*SKIPPED \\] [0-9]+ tests?, listed below:\n(\\[  SKIPPED \\][^\n]*\n?)+$]==])
" PARENT_SCOPE)
endfunction()

# Suites stand at the line's beginning ("Suite." or "Suite/0.  # TypeParam = ..."), their tests are indented.
set(content "")
set(apart "")
set(together "")
string(REPLACE ";" "\\;" listing "${listing}")
string(REPLACE "\n" ";" lines "${listing}")
foreach(line ${lines})
  if(NOT line MATCHES "^([A-Za-z0-9_/]+)\\.( |$)")
    continue()
  endif()
  set(suite "${CMAKE_MATCH_1}")
  if(PREFIX STREQUAL "gpu" AND NOT suite MATCHES "Gpu")
    continue()  # It has sources of other folders, whose other suites run there.
  endif()
  look_up("${suite}")
  set(all_labels "${LABELS};${labels}")
  if(suite MATCHES "Gpu")
    list(APPEND all_labels gpu)
    set(is_apart ON)
  endif()
  if(is_apart)
    add_entry("${PREFIX}.${suite}" "${all_labels}" "${locks}" 0 "${ENVIRONMENT}" "${suite}.*")
    list(APPEND apart "${suite}.*")
  else()
    list(APPEND together "${suite}")
  endif()
endforeach()

if(together)
  string(APPEND content "if(\"\$ENV{LEVIN_TEST_ENTRIES}\" STREQUAL suites)\n")
  foreach(suite ${together})
    add_entry("${PREFIX}.${suite}" "${LABELS}" "" 0 "${ENVIRONMENT}" "${suite}.*")
  endforeach()
  string(APPEND content "else()\n")
  set(filter "*")
  if(apart)
    string(REPLACE ";" ":" filter "*-${apart}")
  endif()
  math(EXPR last "${SHARDS} - 1")
  foreach(index RANGE ${last})
    math(EXPR number "${index} + 1")
    add_entry("${PREFIX}.${number}_of_${SHARDS}" "${LABELS}" "" 50
      "${ENVIRONMENT};GTEST_TOTAL_SHARDS=${SHARDS};GTEST_SHARD_INDEX=${index}" "${filter}")
  endforeach()
  string(APPEND content "endif()\n")
endif()
file(WRITE "${OUTPUT}" "${content}")
