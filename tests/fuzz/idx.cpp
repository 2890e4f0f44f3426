#include "tests/fuzz/fuzz.h"

#include <levin/core/data/idx_file.h>

// A file of MNIST's format, plain or compressed: labels have one dimension, images three.
void levin::fuzzing::fuzz(std::string_view input) {
  const std::string path = write_file("idx", input);
  for (const int64_t dimensions : {1, 3}) reads([&] { data::read_idx(path, dimensions); });
}
