#include <levin/core/data/tokens/decode_stream.h>

#include <algorithm>
#include <string_view>
#include <utility>

namespace levin::data {

namespace {

constexpr std::string_view kUnknownCharacter = "\xef\xbf\xbd";
/// Ids that may lack bytes of one character.
constexpr size_t kMostPending = 3;
/// Ids that are kept; more only where what the next ones mean depends on them.
constexpr size_t kMostIds = 64;

}  // namespace

DecodeStream::DecodeStream(const Tokenizer& tokenizer, const DecodeOptions& options)
    : tokenizer_(&tokenizer), options_(options) {
  options_.skip_incomplete = false;
}

std::string DecodeStream::whole_text(const std::vector<int64_t>& ids) const {
  return tokenizer_->decode(ids, {.skip_special_tokens = options_.skip_special_tokens, .skip_incomplete = true});
}

std::string DecodeStream::add(int64_t id) {
  if (options_.skip_special_tokens && tokenizer_->is_special(id)) return {};
  ids_.push_back(id);
  ++new_ids_;
  std::string text = whole_text(ids_);
  if (!text.starts_with(given_)) {  // bytes that were a character are none with those that followed
    ids_.assign(1, id);
    new_ids_ = 1;
    given_.clear();
    text = whole_text(ids_);
  }
  std::string added = text.substr(given_.size());
  given_ = std::move(text);
  if (tokenizer_->decode(ids_, options_) != given_) {  // a character lacks bytes
    if (!added.empty()) new_ids_ = std::min(new_ids_, kMostPending);
    if (ids_.size() > kMostIds) forget_given();
    return added;
  }
  // The next id follows the new ones, if their text is the same without those before them.
  std::vector<int64_t> last(ids_.end() - static_cast<std::ptrdiff_t>(ids_.size() > kMostIds ? 1 : new_ids_),
                            ids_.end());
  std::string last_text = whole_text(last);
  if ((!last_text.empty() && given_.ends_with(last_text)) || ids_.size() > kMostIds) {
    ids_ = std::move(last);
    given_ = std::move(last_text);
  }
  new_ids_ = 0;
  return added;
}

/// Where tokens end inside of characters again and again, there may be no moment at which all text is whole.
void DecodeStream::forget_given() {
  constexpr std::ptrdiff_t kContext = 16;
  std::vector<int64_t> last(ids_.end() - kContext, ids_.end());
  std::string text = whole_text(last);
  std::string_view known = text;
  while (known.starts_with(kUnknownCharacter)) known.remove_prefix(kUnknownCharacter.size());
  if (known.empty() || !given_.ends_with(known)) return;
  ids_ = std::move(last);
  given_ = std::move(text);
}

std::string DecodeStream::finish() {
  std::string text = tokenizer_->decode(ids_, options_);
  if (text.starts_with(given_))
    text.erase(0, given_.size());
  else  // with the bytes that are left, those given are no character
    text = tokenizer_->decode({ids_.end() - static_cast<std::ptrdiff_t>(new_ids_), ids_.end()}, options_);
  ids_.clear();
  new_ids_ = 0;
  given_.clear();
  return text;
}

}  // namespace levin::data
