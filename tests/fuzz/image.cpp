#include "tests/fuzz/fuzz.h"

#include <levin/core/data/images/image_file.h>

// A photograph. JPEG, PNG and WebP are told apart by their first bytes.
void levin::fuzzing::fuzz(std::string_view input) {
  reads([&] { data::decode_image(input, "image", /*max_pixels=*/1 << 16); });
}
