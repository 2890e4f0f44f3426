# levin_embed_files(TARGET HEADER NAMESPACE NAME FILE [NAME FILE...]) makes whole files part of a target: HEADER declares
# `extern const std::string_view NAME` for each in NAMESPACE, and a source that is written at build time defines them.

if(NOT CMAKE_SCRIPT_MODE_FILE)
  set(_levin_embed_files_script "${CMAKE_CURRENT_LIST_FILE}")
  function(levin_embed_files target header namespace)
    set(output "${CMAKE_CURRENT_BINARY_DIR}/${target}_files.cpp")
    set(files "${ARGN}")
    set(pairs "")
    set(paths "")
    while(files)
      list(POP_FRONT files name path)
      list(APPEND pairs "${name}=${path}")
      list(APPEND paths "${path}")
    endwhile()
    add_custom_command(OUTPUT "${output}" VERBATIM DEPENDS ${paths} "${_levin_embed_files_script}"
      COMMAND "${CMAKE_COMMAND}" "-DOUTPUT=${output}" "-DHEADER=${header}" "-DNAMESPACE=${namespace}" "-DFILES=${pairs}"
        -P "${_levin_embed_files_script}")
    target_sources(${target} PRIVATE "${output}")
  endfunction()
  return()
endif()

set(content "// Written by cmake/EmbedFiles.cmake.\n#include <${HEADER}>\n\nnamespace ${NAMESPACE} {\n")
foreach(file IN LISTS FILES)
  string(REGEX MATCH "^([A-Za-z]+)=(.+)$" matched "${file}")
  set(name "${CMAKE_MATCH_1}")
  file(READ "${CMAKE_MATCH_2}" text)
  # Browsers would look for the files that these comments name.
  string(REGEX REPLACE "(//|/\\*)# sourceMappingURL=[A-Za-z0-9._]+( \\*/)?" "" text "${text}")
  if(text MATCHES "\\)levin_file\"")
    message(FATAL_ERROR "${file} holds what ends a raw string")
  endif()
  string(APPEND content "const std::string_view ${name} = R\"levin_file(${text})levin_file\";\n")
endforeach()
file(WRITE "${OUTPUT}" "${content}}  // namespace ${NAMESPACE}\n")
