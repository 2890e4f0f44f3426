#include "tests/fuzz/fuzz.h"

#include <levin/core/data/tokens/byte_pair_tokenizer.h>

// A tokenizer.json, and texts that it takes apart.
void levin::fuzzing::fuzz(std::string_view input) {
  const std::string path = write_file("tokenizer.json", input);
  reads([&] {
    const data::BytePairTokenizer tokenizer(path);
    reads([&] {
      const auto ids = tokenizer.encode("It's 3.5 o'clock, low\n lower  lowest \xc3\xa9t\xc3\xa9");
      tokenizer.decode({ids.begin(), ids.end()});
    });
    reads([&] { tokenizer.encode(input.substr(0, 64)); });
  });
}
