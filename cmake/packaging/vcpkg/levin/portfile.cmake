# An overlay port of the tree that it is in: vcpkg install levin --overlay-ports=cmake/packaging/vcpkg
# LibTorch is no port: vcpkg's is of another version. It is the one that the environment variable LEVIN_LIBTORCH names.
if(NOT EXISTS "$ENV{LEVIN_LIBTORCH}")
  message(FATAL_ERROR "levin: LEVIN_LIBTORCH is '$ENV{LEVIN_LIBTORCH}'; valid: the folder of a LibTorch, a wheel's torch \
folder or the root of a zip; hint: export LEVIN_LIBTORCH=...")
endif()
set(VCPKG_BUILD_TYPE release) # as LibTorch is
cmake_path(SET SOURCE_PATH NORMALIZE "${CMAKE_CURRENT_LIST_DIR}/../../../..")

vcpkg_cmake_configure(
  SOURCE_PATH "${SOURCE_PATH}"
  OPTIONS
    "-DLEVIN_LIBTORCH=$ENV{LEVIN_LIBTORCH}"
    -DLEVIN_BUILD_TESTS=OFF
    -DLEVIN_BUILD_TOOLS=OFF
    -DLEVIN_BUILD_EXAMPLES=OFF
    -DLEVIN_BUILD_BENCHMARKS=OFF
    -DLEVIN_SOURCE_LINES=OFF
    -DLEVIN_WERROR=OFF
)
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(CONFIG_PATH lib/cmake/levin)
file(INSTALL "${CMAKE_CURRENT_LIST_DIR}/usage" DESTINATION "${CURRENT_PACKAGES_DIR}/share/${PORT}")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")
