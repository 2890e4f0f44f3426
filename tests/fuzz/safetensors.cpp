#include "tests/fuzz/fuzz.h"

#include <levin/core/checkpoint/safetensors.h>

// A file of tensors.
void levin::fuzzing::fuzz(std::string_view input) {
  const std::string path = write_file("model.safetensors", input);
  reads([&] {
    const SafetensorsFile file(path);
    for (const std::string& name : file.names()) file.read(name);
  });
}
