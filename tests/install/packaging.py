#!/usr/bin/env python3
"""Checks the vcpkg port and the conda recipe of cmake/packaging.

    packaging.py CMAKE WORK_DIR LIBTORCH [CMAKE_OPTION...]

The port's manifest is in the form that vcpkg gives manifests, its portfile runs, with the commands of vcpkg replaced: a
configure step must take the options that it gives. The recipe is read and rendered by rattler-build, where its Python
package is installed. Both name every library that the build looks for, and the versions of Levin and of LibTorch.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

SOURCE = pathlib.Path(__file__).resolve().parents[2]
PACKAGING = SOURCE / "cmake/packaging"
PORT = PACKAGING / "vcpkg/levin"

# Debian's packages, and what vcpkg and conda-forge call them.
NAMES = {
    "libboost-program-options-dev": ("boost-program-options", "libboost-devel"),
    "libcsv-dev": ("libcsv", "libcsv"),
    "libcurl4-openssl-dev": ("curl", "libcurl"),
    "libdw-dev": (None, "elfutils"),  # the port leaves out names of lines
    "libgloo-dev": ("gloo", "gloo"),
    "libjpeg-dev": ("libjpeg-turbo", "libjpeg-turbo"),
    "libminizip-dev": ("minizip", "minizip"),
    "libpcre2-dev": ("pcre2", "pcre2"),
    "libpng-dev": ("libpng", "libpng"),
    "libprotozero-dev": ("protozero", "protozero"),
    "libssl-dev": ("openssl", "openssl"),
    "libutf8proc-dev": ("utf8proc", "utf8proc"),
    "libwebp-dev": ("libwebp", "libwebp-base"),
    "libxxhash-dev": ("xxhash", "xxhash"),
    "libyaml-cpp-dev": ("yaml-cpp", "yaml-cpp"),
    "libzstd-dev": ("zstd", "zstd"),
    "nlohmann-json3-dev": ("nlohmann-json", "nlohmann_json"),
    "zlib1g-dev": ("zlib", "zlib"),
}
# In which manifests have their fields.
FIELDS = ["name", "version-semver", "description", "license", "supports", "dependencies"]


def fail(message):
    sys.exit(f"packaging: {message}")


def expect_equal(what, got, expected):
    if got != expected:
        fail(f"{what}: got {got}; valid: {expected}")


def project_version():
    return re.search(r"project\(levin VERSION ([\d.]+)", (SOURCE / "CMakeLists.txt").read_text())[1]


def libtorch_version():
    return re.search(r"^torch==(\d+\.\d+)", (SOURCE / "scripts/requirements.txt").read_text(), re.MULTILINE)[1]


def libraries():
    """Debian's packages of the libraries that Levin is built with."""
    names = (SOURCE / "scripts/system-packages.txt").read_text().split("# Tests, benchmarks")[0].split("# Libraries")[1]
    packages = {name for name in names.split() if name.endswith("-dev")}
    expect_equal("libraries of scripts/system-packages.txt that NAMES does not know", packages ^ set(NAMES), set())
    return packages


def check_manifest():
    text = (PORT / "vcpkg.json").read_text()
    manifest = json.loads(text)
    expect_equal("fields of vcpkg.json", list(manifest), FIELDS)
    expect_equal("vcpkg.json as vcpkg formats it", text, json.dumps(manifest, indent=2) + "\n")
    expect_equal("version of vcpkg.json", manifest["version-semver"], project_version())
    names = [item if isinstance(item, str) else item["name"] for item in manifest["dependencies"]]
    expect_equal("order of the dependencies", names, sorted(names))
    expected = {NAMES[package][0] for package in libraries()} - {None}
    expect_equal("dependencies of vcpkg.json", {name for name in names if not name.startswith("vcpkg-")}, expected)


STAND_IN = """
cmake_minimum_required(VERSION 3.25)
set(PORT levin)
set(CURRENT_PACKAGES_DIR "@WORK@/packages")
function(vcpkg_cmake_configure)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" SOURCE_PATH OPTIONS)
  if(arg_UNPARSED_ARGUMENTS OR NOT EXISTS "${arg_SOURCE_PATH}/CMakeLists.txt")
    message(FATAL_ERROR "vcpkg_cmake_configure: ${ARGV}")
  endif()
  execute_process(COMMAND "${CMAKE_COMMAND}" -S "${arg_SOURCE_PATH}" -B "@WORK@/build" ${arg_OPTIONS} @OPTIONS@
    OUTPUT_QUIET ERROR_VARIABLE said COMMAND_ERROR_IS_FATAL ANY)
  if(said MATCHES "not used by the project")
    message(FATAL_ERROR "${said}")
  endif()
endfunction()
function(vcpkg_cmake_install)
endfunction()
function(vcpkg_cmake_config_fixup)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" CONFIG_PATH "")
  file(READ "@WORK@/build/cmake_install.cmake" rules)
  if(NOT rules MATCHES "/${arg_CONFIG_PATH}\\"")
    message(FATAL_ERROR "nothing is installed into ${arg_CONFIG_PATH}")
  endif()
endfunction()
function(vcpkg_install_copyright)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "" FILE_LIST)
  file(SHA256 "${arg_FILE_LIST}" ignored)
endfunction()
include("@PORT@/portfile.cmake")
"""


def check_portfile(cmake, work, libtorch, options):
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    script = STAND_IN
    quoted = " ".join(f'"{option}"' for option in options)
    for name, value in {"WORK": work, "PORT": PORT, "OPTIONS": quoted}.items():
        script = script.replace(f"@{name}@", str(value))
    (work / "port.cmake").write_text(script)

    def run(folder):
        environment = {**os.environ, "LEVIN_LIBTORCH": folder}
        return subprocess.run([cmake, "-P", work / "port.cmake"], env=environment, capture_output=True, text=True)

    refused = run("")
    if refused.returncode == 0 or "export LEVIN_LIBTORCH" not in refused.stderr:
        fail(f"the portfile without LEVIN_LIBTORCH says: {refused.stderr}")
    done = run(libtorch)
    if done.returncode != 0:
        fail(f"the portfile fails:\n{done.stdout}{done.stderr}")
    if not (work / "packages/share/levin/usage").exists():
        fail("the portfile installs no usage")


RENDER = """
import pathlib, rattler_build, sys
folder = pathlib.Path(sys.argv[1])
recipe = rattler_build.Stage0Recipe.from_yaml((folder / "recipe.yaml").read_text(), recipe_dir=folder)
for variant in recipe.render(rattler_build.VariantConfig({"c_stdlib": ["sysroot"]}), rattler_build.RenderConfig()):
    print(variant.recipe.package.name, variant.recipe.package.version)
"""


def check_recipe():
    text = (PACKAGING / "conda/recipe.yaml").read_text()
    expect_equal("version of recipe.yaml", re.search(r'^  version: "(.*)"', text, re.MULTILINE)[1], project_version())
    expect_equal("LibTorch of recipe.yaml", re.search(r'libtorch: "(.*)\.\*"', text)[1], libtorch_version())
    host = text.split("  host:\n")[1].split("  run:\n")[0]
    names = re.findall(r"^    - (\S+)", host, re.MULTILINE)
    expect_equal("order of the host requirements", names, sorted(names))
    others = {"cuda-nvml-dev", "libtorch"}
    expect_equal("host requirements of recipe.yaml", set(names) - others, {NAMES[package][1] for package in libraries()})
    python = os.environ.get("LEVIN_TEST_PYTHON", str(SOURCE / ".deps/test-venv/bin/python"))
    if not shutil.which(python) or subprocess.run([python, "-c", "import rattler_build"], capture_output=True).returncode:
        print("skipped: rattler-build's Python package is not there; recipe.yaml was not rendered")
        return False
    rendered = subprocess.run([python, "-c", RENDER, str(PACKAGING / "conda")], capture_output=True, text=True)
    if rendered.returncode != 0:
        fail(f"rattler-build refuses recipe.yaml: {rendered.stderr}")
    expect_equal("rendered packages", rendered.stdout.split(), ["levin", project_version()])
    return True


def main():
    cmake, work, libtorch, *options = sys.argv[1:]
    check_manifest()
    check_portfile(cmake, pathlib.Path(work), libtorch, options)
    if not check_recipe():
        return 77
    print("packaging: as vcpkg, CMake and rattler-build have it")
    return 0


if __name__ == "__main__":
    sys.exit(main())
