#pragma once

#include <levin/core/data/tokens/tokenizer_file.h>

#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace levin::data {

/// The tokens that are added to those of a text, such as "<s>" before them.
class PostProcessors {
 public:
  PostProcessors() = default;
  /// Reads the part `post_processor` of a tokenizer.json. Throws levin::Error for what is not known.
  PostProcessors(const nlohmann::json& part, const TokenizerFile& file);

  void apply(std::vector<int32_t>& ids) const;

 private:
  void read_template(const nlohmann::json& part, const TokenizerFile& file);

  std::vector<int32_t> before_;
  std::vector<int32_t> after_;
};

}  // namespace levin::data
