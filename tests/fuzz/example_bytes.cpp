#include "tests/fuzz/fuzz.h"

#include <levin/core/data/cache/example_bytes.h>

#include <algorithm>
#include <memory>

// An example as a cache keeps it in a file.
void levin::fuzzing::fuzz(std::string_view input) {
  const std::shared_ptr<char[]> memory(new char[input.size()]);
  std::copy(input.begin(), input.end(), memory.get());
  const auto example = data::example_of_bytes(memory, 0, input.size());
  if (!example) return;
  for (const auto& [name, tensor] : example->items()) tensor.clone();
  data::num_bytes(*example);
}
