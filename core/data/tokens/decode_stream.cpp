#include <levin/core/data/tokens/decode_stream.h>

#include <algorithm>
#include <string_view>
#include <utility>

namespace levin::data {

namespace {

/// Returns how much of a text no later id changes: a character of four bytes that lacks some is up to three U+FFFD.
size_t whole_bytes(std::string_view text) {
  constexpr std::string_view kReplacementCharacter = "\xef\xbf\xbd";
  constexpr int kMost = 3;
  std::string_view whole = text;
  for (int i = 0; i < kMost && whole.ends_with(kReplacementCharacter); ++i)
    whole.remove_suffix(kReplacementCharacter.size());
  return whole.size();
}

}  // namespace

std::string DecodeStream::add(int64_t id) {
  constexpr size_t kMostIds = 64;  // where all bytes are of no character
  if (options_.skip_special_tokens && tokenizer_->is_special(id)) return {};
  ids_.push_back(id);
  ++new_ids_;
  std::string text = tokenizer_->decode(ids_, options_);
  if (!text.starts_with(given_)) {  // bytes that were a character are none with those that followed
    ids_.assign(1, id);
    new_ids_ = 1;
    given_.clear();
    text = tokenizer_->decode(ids_, options_);
  }
  const size_t whole = ids_.size() > kMostIds ? text.size() : std::max(whole_bytes(text), given_.size());
  std::string added = text.substr(given_.size(), whole - given_.size());
  given_ = text.substr(0, whole);
  if (whole < text.size()) return added;
  // The next id follows the new ones, if their text is the same without those before them.
  std::vector<int64_t> last(ids_.end() - static_cast<std::ptrdiff_t>(ids_.size() > kMostIds ? 1 : new_ids_),
                            ids_.end());
  std::string last_text = tokenizer_->decode(last, options_);
  if ((!last_text.empty() && text.ends_with(last_text)) || ids_.size() > kMostIds) {
    ids_ = std::move(last);
    given_ = std::move(last_text);
    new_ids_ = 0;
  }
  return added;
}

std::string DecodeStream::finish() {
  const std::string text = tokenizer_->decode(ids_, options_);
  std::string rest = text.substr(std::min(given_.size(), text.size()));
  ids_.clear();
  new_ids_ = 0;
  given_.clear();
  return rest;
}

}  // namespace levin::data
