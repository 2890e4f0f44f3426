# The libraries beside LibTorch that Levin's own code links, as targets. The build and the installed package both include
# this file, so that the two cannot differ. LEVIN_STATIC_DEPS takes the static ones, for binaries carried elsewhere.

# A library that has no CMake package everywhere, as the target levin::NAME. SHARED: always the shared one.
function(_levin_find_library name header)
  if(TARGET levin::${name})
    return()
  endif()
  set(file_name ${name})
  if(LEVIN_STATIC_DEPS AND NOT "SHARED" IN_LIST ARGN)
    set(file_name lib${name}.a)
  endif()
  find_library(LEVIN_${name}_LIBRARY NAMES ${file_name})
  find_path(LEVIN_${name}_INCLUDE_DIR ${header})
  mark_as_advanced(LEVIN_${name}_LIBRARY LEVIN_${name}_INCLUDE_DIR)
  if(NOT LEVIN_${name}_LIBRARY OR NOT LEVIN_${name}_INCLUDE_DIR)
    message(FATAL_ERROR "levin: ${name} (${header}, ${file_name}) was not found; scripts/bootstrap installs it on Debian")
  endif()
  add_library(levin::${name} UNKNOWN IMPORTED)
  set_target_properties(levin::${name} PROPERTIES IMPORTED_LOCATION "${LEVIN_${name}_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${LEVIN_${name}_INCLUDE_DIR}")
endfunction()

if(LEVIN_STATIC_DEPS)
  set(ZLIB_USE_STATIC_LIBS ON)
endif()
find_package(Threads REQUIRED)
find_package(ZLIB REQUIRED)
# Always shared: a static libcurl needs a dozen libraries more, and certificates are the system's.
find_package(CURL 7.85 REQUIRED)
find_package(OpenSSL 3.0 REQUIRED COMPONENTS Crypto)
_levin_find_library(png png.h)
_levin_find_library(jpeg jpeglib.h)
_levin_find_library(webp webp/decode.h)
_levin_find_library(webpdemux webp/demux.h)
_levin_find_library(yaml-cpp yaml-cpp/yaml.h)
_levin_find_library(csv csv.h)
_levin_find_library(minizip minizip/unzip.h)
_levin_find_library(pcre2-8 pcre2.h)
_levin_find_library(xxhash xxhash.h)
# Boost's own target defines a macro, which the precompiled header's other users would have to define as well.
_levin_find_library(boost_program_options boost/program_options.hpp)
# A static libdw needs libelf and four libraries for compressed sections.
if(LEVIN_SOURCE_LINES)
  _levin_find_library(dw elfutils/libdwfl.h SHARED)
endif()
