#pragma once

#include <levin/core/data/tokens/tokenizer_file.h>

#include <nlohmann/json.hpp>

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace levin::data {

/// Of one text.
struct DecodingLimits {
  size_t most_bytes;     ///< of what one step makes
  bool skip_incomplete;  ///< see DecodeOptions
};

/// What makes a text of tokens.
class TokenDecoders {
 public:
  TokenDecoders() = default;
  /// Reads the part `decoder` of a tokenizer.json. Where it has none, tokens of bytes are put together again, and
  /// others are joined by spaces. Throws levin::Error for what is not known.
  TokenDecoders(const nlohmann::json& part, bool of_bytes, const TokenizerFile& file);

  /// `skip_incomplete`: see DecodeOptions.
  std::string decode(std::vector<std::string> tokens, bool skip_incomplete) const;

 private:
  std::vector<std::function<void(std::vector<std::string>& tokens, const DecodingLimits& limits)>> steps_;
  bool joins_by_spaces_ = false;
};

}  // namespace levin::data
