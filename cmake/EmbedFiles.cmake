# Writes OUTPUT, a C++ source that defines constants of <HEADER> holding whole files.
# Run with OUTPUT, HEADER, NAMESPACE and FILES (a list of NAME=PATH) defined.

set(content "// Written by cmake/EmbedFiles.cmake.\n#include <${HEADER}>\n\nnamespace ${NAMESPACE} {\n")
foreach(file IN LISTS FILES)
  string(REGEX MATCH "^([A-Za-z]+)=(.+)$" matched "${file}")
  if(NOT matched)
    message(FATAL_ERROR "FILES are NAME=PATH; got '${file}'")
  endif()
  set(name "${CMAKE_MATCH_1}")
  file(READ "${CMAKE_MATCH_2}" text)
  # Browsers would look for the files that these comments name.
  string(REGEX REPLACE "(//|/\\*)# sourceMappingURL=[A-Za-z0-9._]+( \\*/)?" "" text "${text}")
  if(text MATCHES "\\)levin_file\"")
    message(FATAL_ERROR "${CMAKE_MATCH_2} holds what ends a raw string")
  endif()
  string(APPEND content "const std::string_view ${name} = R\"levin_file(${text})levin_file\";\n")
endforeach()
file(WRITE "${OUTPUT}" "${content}}  // namespace ${NAMESPACE}\n")
