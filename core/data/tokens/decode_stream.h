#pragma once

#include <levin/core/data/tokens/tokenizer.h>

#include <cstdint>
#include <string>
#include <vector>

namespace levin::data {

/// Decodes ids that come one by one, as a model generates them. What it gives together is what Tokenizer::decode gives
/// of all of them, except where bytes that are UTF-8 are followed by others that are not: they were given by then.
class DecodeStream {
 public:
  /// The tokenizer must live as long.
  explicit DecodeStream(const Tokenizer& tokenizer, const DecodeOptions& options = {});

  /// Takes the next id, and returns the text that is whole with it: nothing while a character lacks bytes.
  std::string add(int64_t id);
  /// Returns what is left, a character that lacks bytes as U+FFFD, and begins anew.
  std::string finish();

 private:
  /// Without the bytes of a character that lacks some.
  std::string whole_text(const std::vector<int64_t>& ids) const;
  void forget_given();

  const Tokenizer* tokenizer_;
  DecodeOptions options_;
  std::vector<int64_t> ids_;  ///< the last ones: what the next one means may depend on those before it
  size_t new_ids_ = 0;        ///< of ids_, those of which not all is given
  std::string given_;         ///< of the text of ids_
};

}  // namespace levin::data
