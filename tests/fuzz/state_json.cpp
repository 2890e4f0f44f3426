#include "tests/fuzz/fuzz.h"

#include <levin/core/checkpoint/state_json.h>

#include <ATen/ops/empty.h>

// The tree of a checkpoint. What was read and can be written is the same text when it is read and written again.
void levin::fuzzing::fuzz(std::string_view input) {
  const auto encoded = [](std::string_view text) {
    const State tree = decode_state(text, "state.json", [](const TensorReference&) { return State(at::empty({0})); });
    TensorsByFile tensors;
    return encode_state(tree, tensors);
  };
  reads([&] {
    const std::string first = encoded(input);
    if (encoded(first) != first) fail("encode_state gives another tree");
  });
}
