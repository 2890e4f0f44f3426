# levin_add_python_module(NAME SOURCE...) adds the target NAME: an extension module for Python of the sources, one of which
# has LEVIN_PYTHON_MODULE (docs/python.md). It becomes two files, NAME.py and _NAME with the suffix that Python gives
# extension modules, in the folder `python` of the build; `import NAME` finds both where they lie together.
#
# It needs Python's headers (python3-dev) and the LibTorch of a Python package, as a wheel or a virtual environment has it:
# the process that imports NAME has that LibTorch already.

# Finds the Python that LibTorch is a package of, as `Python`. Sets `missing` to what is not there, in words, or to nothing.
# (A macro: Python_add_library reads variables of find_package.)
macro(levin_find_python missing)
  set(${missing} "")
  if(EXISTS "${LibTorch_ROOT_DIR}/version.py" AND EXISTS "${LibTorch_ROOT_DIR}/lib/libtorch_python.so")
    file(STRINGS "${LibTorch_ROOT_DIR}/version.py" _levin_torch_version REGEX "^__version__ = ")
    string(REGEX REPLACE ".*['\"]([^'\"]+)['\"].*" "\\1" _levin_torch_version "${_levin_torch_version}")
    # LibTorch is in ENVIRONMENT/lib/pythonX.Y/site-packages/torch.
    set(_levin_python_version "")
    if(LibTorch_ROOT_DIR MATCHES "/python(3\\.[0-9]+)/[a-z]+-packages/")
      set(_levin_python_version ${CMAKE_MATCH_1} EXACT)
    endif()
    if(NOT Python_EXECUTABLE AND NOT Python_ROOT_DIR)
      find_program(_levin_python_program NAMES python3 PATHS "${LibTorch_ROOT_DIR}/../../../../bin" NO_DEFAULT_PATH NO_CACHE)
      if(_levin_python_program)
        set(Python_EXECUTABLE "${_levin_python_program}")
      endif()
    endif()
    find_package(Python ${_levin_python_version} QUIET COMPONENTS Interpreter Development.Module)
    if(NOT Python_Development.Module_FOUND)
      string(REPLACE ";EXACT" "" _levin_python_version "${_levin_python_version}")
      set(${missing} "the headers of Python ${_levin_python_version} were not found; hint: apt-get install python3-dev, or \
-DPython_ROOT_DIR=DIR")
    endif()
  else()
    set(${missing} "the LibTorch in ${LibTorch_ROOT_DIR} is not that of a Python package (it has no libtorch_python.so); \
hint: -DLEVIN_LIBTORCH=DIR with a virtual environment that has torch")
  endif()
endmacro()

# What all extension modules of a project share: the trainer's half.
function(_levin_add_python_library sources)
  if(TARGET levin_python)
    return()
  endif()
  add_library(levin_python STATIC "${sources}/python_module.cpp" "${sources}/python_options.cpp")
  target_link_libraries(levin_python PUBLIC levin::levin Python::Module "${LibTorch_ROOT_DIR}/lib/libtorch_python.so")
  # As PyTorch compiles extensions; hidden, as pybind11 wants its users' symbols.
  target_compile_definitions(levin_python PUBLIC TORCH_API_INCLUDE_EXTENSION_H USE_DISTRIBUTED USE_C10D)
  set_target_properties(levin_python PROPERTIES POSITION_INDEPENDENT_CODE ON CXX_VISIBILITY_PRESET hidden
    VISIBILITY_INLINES_HIDDEN ON)
endfunction()

function(levin_add_python_module name)
  levin_find_python(_missing)
  if(_missing)
    message(FATAL_ERROR "levin: ${name} cannot be built for Python: ${_missing}")
  endif()
  set(_sources "${CMAKE_CURRENT_FUNCTION_LIST_DIR}/python")  # installed
  if(NOT EXISTS "${_sources}")
    set(_sources "${CMAKE_CURRENT_FUNCTION_LIST_DIR}/../core/python")
  endif()
  _levin_add_python_library("${_sources}")
  Python_add_library(${name} MODULE WITH_SOABI ${ARGN})
  target_link_libraries(${name} PRIVATE levin_python)
  # Levin's symbols stay inside, where no other extension module meets them.
  target_link_options(${name} PRIVATE LINKER:--exclude-libs,ALL)
  target_compile_definitions(${name} PRIVATE LEVIN_PYTHON_EXTENSION=_${name})
  set_target_properties(${name} PROPERTIES OUTPUT_NAME _${name} CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON
    LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/python" BUILD_RPATH "${LibTorch_ROOT_DIR}/lib"
    INSTALL_RPATH "${LibTorch_ROOT_DIR}/lib")
  set(NAME ${name})
  set(TORCH_VERSION ${_levin_torch_version})
  set(PYTHON_VERSION ${Python_VERSION_MAJOR}.${Python_VERSION_MINOR})
  configure_file("${_sources}/module.py.in" "${CMAKE_BINARY_DIR}/python/${name}.py" @ONLY)
endfunction()
