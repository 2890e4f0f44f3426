# Finds LibTorch and makes imported targets over it; no compiler for CUDA is needed.
#
#   find_package(LibTorch 2.11...<2.12 REQUIRED)
#
# Input, in this order:
#   LEVIN_LIBTORCH           (cache or environment variable) a wheel's `torch` folder, a virtual environment or a
#                            site-packages folder with that wheel, or the root of a LibTorch zip
#   LibTorch_DEFAULT_ROOTS   list of such folders
# Result:
#   LibTorch::LibTorch       headers and libraries; with CUDA where this LibTorch has it
#   LibTorch_ROOT_DIR, LibTorch_VERSION
#   LibTorch_HAS_CUDA        libtorch_cuda is there, and so are the headers of the CUDA runtime
#   LibTorch_HAS_FMT         it ships {fmt}'s headers
#
# find_package(Torch) is not used: with a CUDA build it demands nvcc and enables the CUDA language.

include(FindPackageHandleStandardArgs)

function(_libtorch_locate folder result)
  file(GLOB site_packages "${folder}/lib/python3*/site-packages/torch")
  foreach(candidate "${folder}" "${folder}/torch" "${folder}/libtorch" ${site_packages})
    if(EXISTS "${candidate}/include/torch/csrc/api/include/torch/version.h")
      cmake_path(ABSOLUTE_PATH candidate NORMALIZE)
      set(${result} "${candidate}" PARENT_SCOPE)
      return()
    endif()
  endforeach()
  set(${result} "" PARENT_SCOPE)
endfunction()

# The header that holds the version moved in 2.9.
function(_libtorch_version root result)
  foreach(header include/torch/headeronly/version.h include/torch/csrc/api/include/torch/version.h)
    if(EXISTS "${root}/${header}")
      file(STRINGS "${root}/${header}" lines REGEX "^#define TORCH_VERSION_(MAJOR|MINOR|PATCH) [0-9]+")
      string(REGEX REPLACE "#define TORCH_VERSION_[A-Z]+ " "" numbers "${lines}")
      list(LENGTH numbers count)
      if(count EQUAL 3)
        list(JOIN numbers "." version)
        set(${result} "${version}" PARENT_SCOPE)
        return()
      endif()
    endif()
  endforeach()
  set(${result} "unknown" PARENT_SCOPE)
endfunction()

function(_libtorch_add_library name)
  if(NOT TARGET LibTorch::${name})
    add_library(LibTorch::${name} SHARED IMPORTED)
    set_target_properties(LibTorch::${name} PROPERTIES IMPORTED_LOCATION "${LibTorch_ROOT_DIR}/lib/lib${name}.so")
  endif()
endfunction()

set(LibTorch_ROOT_DIR "")
set(LibTorch_VERSION "")
set(_libtorch_given "${LEVIN_LIBTORCH}")
if(NOT _libtorch_given)
  set(_libtorch_given "$ENV{LEVIN_LIBTORCH}")
endif()
if(_libtorch_given)
  _libtorch_locate("${_libtorch_given}" LibTorch_ROOT_DIR)
  if(NOT LibTorch_ROOT_DIR)
    set(LibTorch_NOT_FOUND_REASON "LEVIN_LIBTORCH=${_libtorch_given} holds no LibTorch; give a wheel's torch folder, \
a virtual environment with it, or the root of a LibTorch zip")
  endif()
else()
  foreach(_libtorch_folder ${LibTorch_DEFAULT_ROOTS})
    if(NOT LibTorch_ROOT_DIR)
      _libtorch_locate("${_libtorch_folder}" LibTorch_ROOT_DIR)
    endif()
  endforeach()
  if(NOT LibTorch_ROOT_DIR)
    set(LibTorch_NOT_FOUND_REASON "no LibTorch in ${LibTorch_DEFAULT_ROOTS}; run scripts/bootstrap, or give \
-DLEVIN_LIBTORCH=DIR")
  endif()
endif()

if(LibTorch_ROOT_DIR)
  _libtorch_version("${LibTorch_ROOT_DIR}" LibTorch_VERSION)
  if(LibTorch_FIND_VERSION)
    find_package_check_version("${LibTorch_VERSION}" _libtorch_fits HANDLE_VERSION_RANGE)
    if(NOT _libtorch_fits)
      set(_libtorch_wanted "${LibTorch_FIND_VERSION}")
      if(LibTorch_FIND_VERSION_RANGE)
        set(_libtorch_wanted "${LibTorch_FIND_VERSION_RANGE}")
      endif()
      set(LibTorch_NOT_FOUND_REASON "found version ${LibTorch_VERSION} in ${LibTorch_ROOT_DIR}, but version \
${_libtorch_wanted} is needed; give another with -DLEVIN_LIBTORCH=DIR")
      set(LibTorch_ROOT_DIR "")
    endif()
  endif()
endif()

if(NOT LibTorch_ROOT_DIR AND LibTorch_FIND_REQUIRED)
  message(FATAL_ERROR "LibTorch: ${LibTorch_NOT_FOUND_REASON}")
endif()
find_package_handle_standard_args(LibTorch REQUIRED_VARS LibTorch_ROOT_DIR
  VERSION_VAR LibTorch_VERSION HANDLE_VERSION_RANGE)

if(LibTorch_FOUND)
  foreach(_libtorch_library c10 torch_cpu)
    _libtorch_add_library(${_libtorch_library})
  endforeach()

  # The wheel's own dependencies carry the headers of CUDA's libraries; a LibTorch zip needs an installed toolkit's.
  file(GLOB _libtorch_cuda_folders "${LibTorch_ROOT_DIR}/../nvidia/cu[0-9]*/include"
    "${LibTorch_ROOT_DIR}/../nvidia/cuda_runtime/include")
  find_path(LibTorch_CUDA_INCLUDE_DIR cuda_runtime_api.h HINTS ${_libtorch_cuda_folders}
    PATHS /usr/local/cuda/include)
  # Packages of their own (nvidia-cuda-crt, nvidia-cuda-cccl), which the wheel does not ask for.
  find_path(LibTorch_CUDA_CRT_INCLUDE_DIR crt/host_defines.h HINTS ${_libtorch_cuda_folders}
    PATHS /usr/local/cuda/include)
  find_path(LibTorch_CUDA_CCCL_INCLUDE_DIR nv/target HINTS ${_libtorch_cuda_folders}
    PATHS /usr/local/cuda/include /usr/local/cuda/include/cccl)
  mark_as_advanced(LibTorch_CUDA_INCLUDE_DIR LibTorch_CUDA_CRT_INCLUDE_DIR LibTorch_CUDA_CCCL_INCLUDE_DIR)
  set(LibTorch_HAS_CUDA FALSE)
  set(_libtorch_cuda_includes "")
  set(_libtorch_cuda_link "")
  if(EXISTS "${LibTorch_ROOT_DIR}/lib/libtorch_cuda.so")
    # No symbol of these is referred to: loading them is what registers the CUDA kernels.
    set(_libtorch_cuda_link "-Wl,--push-state,--no-as-needed,${LibTorch_ROOT_DIR}/lib/libtorch_cuda.so,\
${LibTorch_ROOT_DIR}/lib/libc10_cuda.so,--pop-state")
    if(LibTorch_CUDA_INCLUDE_DIR AND LibTorch_CUDA_CRT_INCLUDE_DIR AND LibTorch_CUDA_CCCL_INCLUDE_DIR)
      set(LibTorch_HAS_CUDA TRUE)
      set(_libtorch_cuda_includes "${LibTorch_CUDA_INCLUDE_DIR}" "${LibTorch_CUDA_CRT_INCLUDE_DIR}"
        "${LibTorch_CUDA_CCCL_INCLUDE_DIR}")
      list(REMOVE_DUPLICATES _libtorch_cuda_includes)
      foreach(_libtorch_folder nccl cudnn)
        if(EXISTS "${LibTorch_ROOT_DIR}/../nvidia/${_libtorch_folder}/include")
          cmake_path(SET _libtorch_folder NORMALIZE "${LibTorch_ROOT_DIR}/../nvidia/${_libtorch_folder}/include")
          list(APPEND _libtorch_cuda_includes "${_libtorch_folder}")
        endif()
      endforeach()
    else()
      message(WARNING "${LibTorch_ROOT_DIR} is a CUDA build, but no cuda_runtime_api.h, crt/host_defines.h and nv/target were found: GPUs can "
        "be used, Levin's own calls of CUDA are left out. -DLibTorch_CUDA_INCLUDE_DIR=DIR says where the header is.")
    endif()
  endif()

  set(LibTorch_HAS_FMT FALSE)
  if(EXISTS "${LibTorch_ROOT_DIR}/include/fmt/format-inl.h")
    set(LibTorch_HAS_FMT TRUE)
  endif()

  if(NOT TARGET LibTorch::LibTorch)
    find_package(Threads REQUIRED)
    add_library(LibTorch::LibTorch INTERFACE IMPORTED)
    set_target_properties(LibTorch::LibTorch PROPERTIES
      INTERFACE_INCLUDE_DIRECTORIES "${LibTorch_ROOT_DIR}/include;\
${LibTorch_ROOT_DIR}/include/torch/csrc/api/include;${_libtorch_cuda_includes}"
      INTERFACE_LINK_LIBRARIES "LibTorch::torch_cpu;LibTorch::c10;${_libtorch_cuda_link};Threads::Threads"
      # LibTorch's wheels are made with g++, whose mangling of constrained templates clang left in version 18.
      INTERFACE_COMPILE_OPTIONS "$<$<AND:$<CXX_COMPILER_ID:Clang>,$<VERSION_GREATER_EQUAL:$<CXX_COMPILER_VERSION>,18>>:\
-fclang-abi-compat=17>"
      INTERFACE_COMPILE_FEATURES cxx_std_17)
  endif()
endif()
