#!/bin/sh
# Compiles, then writes OUTPUT.sum: a sum of the contents of all files that the dependency file names, without their paths.
#
#   hash_precompiled_header.sh COMPILER... -MF DEPENDENCIES -o OUTPUT ...
set -eu

"$@"
while [ $# -gt 1 ]; do
  case $1 in
    -MF) dependencies=$2 ;;
    -o) output=$2 ;;
  esac
  shift
done
case $output in
  *.pch)
    sed -e 's/^[^:]*://' -e 's/\\$//' "$dependencies" | xargs sha256sum | cut -c1-64 | sha256sum >"$output.sum"
    ;;
esac
