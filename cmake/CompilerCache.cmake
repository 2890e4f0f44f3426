# Compiles through ccache where it is installed, unless the user named a launcher or LEVIN_CCACHE=OFF. Paths below the
# source folder are hashed relative to the build folder, so that another clone of the same sources finds what this one
# compiled. Only with clang: g++ needs other options for precompiled headers.

option(LEVIN_CCACHE "compile through ccache where it is installed" ON)
find_program(LEVIN_CCACHE_PROGRAM ccache)
mark_as_advanced(LEVIN_CCACHE_PROGRAM)
set(_levin_has_ccache OFF)
if(LEVIN_CCACHE AND LEVIN_CCACHE_PROGRAM AND CMAKE_CXX_COMPILER_ID MATCHES Clang AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(_levin_has_ccache ON)
  # DEPEND: what a source includes is known from the compiler; without it each source is preprocessed as well.
  # PCH_EXTSUM: a precompiled header holds absolute paths, so its users go by the sum that hash_precompiled_header.sh writes.
  set(CMAKE_CXX_COMPILER_LAUNCHER "${CMAKE_COMMAND}" -E env "CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}" CCACHE_DEPEND=true
    CCACHE_INODECACHE=true CCACHE_PCH_EXTSUM=true
    CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime "${LEVIN_CCACHE_PROGRAM}")
  # CMake's own options also name the header's absolute path in a form that ccache does not know.
  set(CMAKE_CXX_COMPILE_OPTIONS_USE_PCH -Xclang -include-pch -Xclang <PCH_FILE>)
endif()

# For a target that only makes a precompiled header, which is compiled anew in each clone.
function(levin_cache_precompiled_header target)
  if(_levin_has_ccache)
    set_target_properties(${target} PROPERTIES CXX_COMPILER_LAUNCHER
      "${PROJECT_SOURCE_DIR}/cmake/hash_precompiled_header.sh")
  endif()
endfunction()
