#include <levin/core/data/tokens/decode_stream.h>

#include <algorithm>
#include <string_view>
#include <utility>

namespace levin::data {

namespace {

constexpr std::string_view kUnknownCharacter = "\xef\xbf\xbd";
/// Bytes that a character of UTF-8 may lack and have: as many U+FFFD, of as many ids.
constexpr size_t kMostPending = 3;
/// Ids that are kept; more only where what the next ones mean depends on them.
constexpr size_t kMostIds = 64;

/// Returns how much of a text no later id changes: a character of four bytes that lacks some is up to three U+FFFD.
size_t whole_bytes(std::string_view text) {
  std::string_view whole = text;
  for (size_t i = 0; i < kMostPending && whole.ends_with(kUnknownCharacter); ++i)
    whole.remove_suffix(kUnknownCharacter.size());
  return whole.size();
}

}  // namespace

std::string DecodeStream::add(int64_t id) {
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
  // Ids that never make a character do not wait for ever.
  const size_t whole = new_ids_ > kMostIds ? text.size() : std::max(whole_bytes(text), given_.size());
  std::string added = text.substr(given_.size(), whole - given_.size());
  given_ = text.substr(0, whole);
  if (whole < text.size()) {
    if (!added.empty()) new_ids_ = std::min(new_ids_, kMostPending);
    if (ids_.size() > kMostIds) forget_given(text.substr(whole));
    return added;
  }
  // The next id follows the new ones, if their text is the same without those before them.
  std::vector<int64_t> last(ids_.end() - static_cast<std::ptrdiff_t>(ids_.size() > kMostIds ? 1 : new_ids_),
                            ids_.end());
  std::string last_text = tokenizer_->decode(last, options_);
  if ((!last_text.empty() && text.ends_with(last_text)) || ids_.size() > kMostIds) {
    ids_ = std::move(last);
    given_ = std::move(last_text);
  }
  new_ids_ = 0;
  return added;
}

/// Where tokens end inside of characters again and again, there may be no moment at which all text is whole.
void DecodeStream::forget_given(const std::string& pending) {
  constexpr std::ptrdiff_t kContext = 16;
  std::vector<int64_t> last(ids_.end() - kContext, ids_.end());
  const std::string text = tokenizer_->decode(last, options_);
  const size_t whole = whole_bytes(text);
  std::string_view known = std::string_view(text).substr(0, whole);
  while (known.starts_with(kUnknownCharacter)) known.remove_prefix(kUnknownCharacter.size());
  if (known.empty() || !given_.ends_with(known) || text.substr(whole) != pending) return;
  ids_ = std::move(last);
  given_ = text.substr(0, whole);
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
