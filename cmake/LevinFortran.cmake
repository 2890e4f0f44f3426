# levin_add_fortran() makes the target levin_fortran: the module `levin` for Fortran (docs/simulations.md), compiled by the
# project's own compilers, since those of Fortran agree on no form of modules. The project has the languages C and Fortran.
# Where MPI is found, create takes its communicators.
function(levin_add_fortran)
  if(TARGET levin_fortran)
    return()
  endif()
  set(_sources "${LEVIN_FORTRAN_FOLDER}")  # installed
  if(NOT _sources)
    set(_sources "${CMAKE_CURRENT_FUNCTION_LIST_DIR}/../core/c/fortran")
  endif()
  find_package(MPI QUIET COMPONENTS C)
  add_library(levin_fortran STATIC "${_sources}/levin.f90" "${_sources}/levin_fortran.c")
  target_link_libraries(levin_fortran PUBLIC levin::levin_c)
  if(MPI_C_FOUND)
    target_compile_definitions(levin_fortran PRIVATE LEVIN_WITH_MPI)
    target_link_libraries(levin_fortran PUBLIC MPI::MPI_C)
  endif()
  set(_modules "${CMAKE_CURRENT_BINARY_DIR}/levin_fortran_modules")
  set_target_properties(levin_fortran PROPERTIES Fortran_MODULE_DIRECTORY "${_modules}" C_STANDARD 11)
  target_include_directories(levin_fortran INTERFACE "$<$<COMPILE_LANGUAGE:Fortran>:${_modules}>")
endfunction()
