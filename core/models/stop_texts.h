#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace levin {

namespace data {
class Tokenizer;
}  // namespace data

/// Throws levin::Error for a stop text that no tokens of the tokenizer give.
void check_stop_texts(const std::vector<std::string>& stop, const data::Tokenizer& tokenizer);

/// Looks for stop texts in a text that comes in pieces.
class StopTexts {
 public:
  explicit StopTexts(const std::vector<std::string>& stop) : stop_(&stop) {}

  /// Takes the next piece, and returns what is in front of a stop text, or cannot be the beginning of one.
  std::string add(std::string_view piece);
  /// Returns what was kept back; the text has ended.
  std::string finish() { return std::move(pending_); }
  /// Whether a stop text came: the first of them.
  bool stopped() const { return stopped_; }

 private:
  const std::vector<std::string>* stop_;
  std::string pending_ = {};
  bool stopped_ = false;
};

}  // namespace levin
