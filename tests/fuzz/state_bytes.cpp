#include "tests/fuzz/fuzz.h"

#include <levin/core/checkpoint/state_bytes.h>

// A tree that another rank sends.
void levin::fuzzing::fuzz(std::string_view input) {
  reads([&] { state_from_bytes(std::string(input)); });
}
