#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>

namespace levin::testing {

/// A tokenizer of bytes with two merges, "th" and "the", and a special token: ids are 0 to 255 in the order of bytes.
inline nlohmann::json small_tokenizer() {
  nlohmann::json vocab = nlohmann::json::object();
  uint32_t next = 256;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool is_visible = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    const uint32_t point = is_visible ? byte : next++;
    std::string character(1, static_cast<char>(point));
    if (point >= 0x80) character = {static_cast<char>(0xc0 | point >> 6), static_cast<char>(0x80 | (point & 0x3f))};
    vocab[character] = byte;
  }
  vocab["th"] = 256;
  vocab["the"] = 257;
  return {{"version", "1.0"},
          {"added_tokens",
           {{{"id", 258},
             {"content", "<end>"},
             {"single_word", false},
             {"lstrip", false},
             {"rstrip", false},
             {"special", true},
             {"normalized", false}}}},
          {"normalizer", nullptr},
          {"pre_tokenizer",
           {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}}},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", {"t h", "th e"}}}}};
}

}  // namespace levin::testing
