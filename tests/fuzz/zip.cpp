#include "tests/fuzz/fuzz.h"

#include <levin/core/interchange/zip_file.h>

// The directory of a zip archive.
void levin::fuzzing::fuzz(std::string_view input) {
  reads([&] {
    const ZipFile zip(input, "model.pt");
    for (const auto& [name, member] : zip.members()) reads([&, &name = name] { zip.checked(name); });
  });
}
