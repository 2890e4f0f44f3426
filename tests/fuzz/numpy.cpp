#include "tests/fuzz/fuzz.h"

#include <levin/core/data/arrays/numpy_file.h>
#include <levin/core/data/batch.h>

// An array that NumPy saved, and an archive of several.
void levin::fuzzing::fuzz(std::string_view input) {
  reads([&] { data::parse_npy(input, "array.npy").clone(); });
  const std::string path = write_file("arrays.npz", input);
  reads([&] { data::map_npy(path).clone(); });
  reads([&] { data::read_npz(path); });
}
