#include "tests/fuzz/fuzz.h"

#include <levin/core/data/tokens/decode_stream.h>
#include <levin/core/data/tokens/tokenizer.h>

// A tokenizer.json, and texts that it takes apart and puts together again.
void levin::fuzzing::fuzz(std::string_view input) {
  const std::string path = write_file("tokenizer.json", input);
  reads([&] {
    const data::Tokenizer tokenizer(path);
    reads([&] {
      const auto ids =
          tokenizer.encode("It's 3.5 o'clock, low\n lower  lowest \xc3\xa9t\xc3\xa9", {.add_special_tokens = true});
      tokenizer.decode(ids);
      data::DecodeStream stream(tokenizer, {.skip_special_tokens = true});
      for (const int64_t id : ids) stream.add(id);
      stream.finish();
    });
    reads([&] { tokenizer.encode(input.substr(0, 64)); });
  });
}
