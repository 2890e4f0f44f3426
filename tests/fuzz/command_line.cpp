#include "tests/fuzz/fuzz.h"

#include <levin/core/cli/cli_arguments.h>

#include <vector>

// A command line, one word a line.
void levin::fuzzing::fuzz(std::string_view input) {
  std::vector<std::string> words = {"program"};
  while (!input.empty() && words.size() < 64) {
    const size_t end = std::min(input.find('\n'), input.size());
    words.emplace_back(input.substr(0, std::min(end, input.find('\0'))));
    input.remove_prefix(std::min(end + 1, input.size()));
  }
  std::vector<const char*> pointers;
  for (const std::string& word : words) pointers.push_back(word.c_str());
  reads([&] { parse_arguments(static_cast<int>(pointers.size()), pointers.data(), {"fit", "validate", "sweep"}); });
}
