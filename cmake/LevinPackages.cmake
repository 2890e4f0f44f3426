# `cpack` in the build folder makes a Debian package and an archive of what `cmake --install` installs. LibTorch is in
# neither: levinConfig.cmake finds the one that -DLEVIN_LIBTORCH=DIR names, or the one that this build had.
set(CPACK_GENERATOR "DEB;TGZ")
set(CPACK_PACKAGE_NAME levin)
set(CPACK_PACKAGE_VENDOR "The Levin developers")
set(CPACK_PACKAGE_CONTACT "The Levin developers <levin@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
set(CPACK_PACKAGE_VERSION "${PROJECT_VERSION}")
set(CPACK_RESOURCE_FILE_LICENSE "${PROJECT_SOURCE_DIR}/LICENSE")
set(CPACK_PACKAGE_FILE_NAME "levin-${PROJECT_VERSION}-${CMAKE_SYSTEM_NAME}-${CMAKE_SYSTEM_PROCESSOR}")
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION libdevel)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
# What LevinDependencies.cmake looks for, by the names of scripts/system-packages.txt.
file(STRINGS "${PROJECT_SOURCE_DIR}/scripts/system-packages.txt" _libraries REGEX "^(lib[a-z0-9.+-]+|zlib1g)-dev$")
list(FILTER _libraries EXCLUDE REGEX "^lib(benchmark|gmock|gtest)-dev$")
list(JOIN _libraries ", " CPACK_DEBIAN_PACKAGE_DEPENDS)
include(CPack)
