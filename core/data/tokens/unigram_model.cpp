#include <levin/core/data/tokens/unigram_model.h>

#include <levin/core/base/json_integer.h>
#include <levin/core/data/tokens/unicode_text.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

namespace levin::data {

namespace {

/// Returns a score as `tokenizers` reads it, whose JSON library rounds the digits first and their quotient by a power
/// of ten then: of two ways whose sums are the same but for the last bit, the larger one is the one that it takes.
double score_as_there(double score) {
  uint64_t digits = 0;
  int exponent = 0;
  bool is_fraction = false;
  const std::string text = fmt::format("{}", std::abs(score));
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == 'e') {
      exponent += std::stoi(text.substr(i + 1));
      break;
    }
    if (text[i] == '.') {
      is_fraction = true;
      continue;
    }
    digits = 10 * digits + static_cast<uint64_t>(text[i] - '0');
    if (is_fraction) --exponent;
  }
  const double power = std::pow(10.0, std::abs(exponent));
  const double size = exponent < 0 ? static_cast<double>(digits) / power : static_cast<double>(digits) * power;
  return std::copysign(size, score);
}

}  // namespace

UnigramModel::UnigramModel(const nlohmann::json& model, Vocabulary& vocabulary, const TokenizerFile& file)
    : file_(file) {
  double least = std::numeric_limits<double>::infinity();
  for (const nlohmann::json& entry : model.at("vocab")) {
    const auto token = entry.at(0).get<std::string>();
    const double score = score_as_there(entry.at(1).get<double>());
    if (!std::isfinite(score)) file.fail(fmt::format("is damaged: '{}' has the score {}", token, score));
    ids_.insert_or_assign(token, file.id(static_cast<int64_t>(scores_.size()), token));
    scores_.push_back(score);
    least = std::min(least, score);
    vocabulary.add(token, ids_.at(token));
  }
  constexpr double kPenalty = 10;  // SentencePiece's
  unknown_score_ = least - kPenalty;
  if (model.contains("unk_id") && !model["unk_id"].is_null()) {
    const int64_t id = integer_of(model["unk_id"]);
    if (id < 0 || id >= std::ssize(scores_))
      file.fail(fmt::format("is damaged: unk_id is {}, of {} tokens", id, scores_.size()));
    unknown_ = static_cast<int32_t>(id);
  }
  if (model.value("byte_fallback", false)) {
    bytes_.emplace();
    for (size_t byte = 0; byte < bytes_->size(); ++byte) {
      const auto found = ids_.find(fmt::format("<0x{:02X}>", byte));
      (*bytes_)[byte] = found == ids_.end() ? -1 : found->second;
    }
  }
  trie_ = ByteTrie(std::vector<std::pair<std::string_view, int32_t>>(ids_.begin(), ids_.end()));
}

void UnigramModel::append_unknown(std::string_view text, std::vector<int32_t>& ids) const {
  if (const auto found = ids_.find(std::string(text)); found != ids_.end()) {
    ids.push_back(found->second);
    return;
  }
  const auto id_of = [&](char byte) { return (*bytes_)[static_cast<unsigned char>(byte)]; };
  if (bytes_ && std::all_of(text.begin(), text.end(), [&](char byte) { return id_of(byte) >= 0; }))
    for (const char byte : text) ids.push_back(id_of(byte));
  else
    ids.push_back(*unknown_);
}

void UnigramModel::append_ids(std::string_view word, std::vector<int32_t>& ids) const {
  struct Best {
    double score = 0;
    int32_t id = 0;
    int32_t length = 0;  ///< of the last token; 0: not reached
  };
  std::vector<Best> best(word.size() + 1);  // of the ways to each place
  const auto consider = [&](size_t begin, size_t length, double score, int32_t id) {
    Best& end = best[begin + length];
    const double whole = best[begin].score + score;
    if (end.length == 0 || whole > end.score) end = {whole, id, static_cast<int32_t>(length)};
  };
  for (size_t at = 0; at < word.size();) {
    size_t next = at;
    take_code_point(word, next);
    bool has_character = false;
    trie_.for_each_prefix(word.substr(at), [&](size_t length, int32_t id) {
      consider(at, length, scores_[static_cast<size_t>(id)], id);
      has_character |= length == next - at;
    });
    if (!has_character) {
      if (!unknown_)
        file_.fail(fmt::format("has no token for '{}', and none for what is unknown", word.substr(at, next - at)));
      consider(at, next - at, unknown_score_, *unknown_);
    }
    at = next;
  }
  // From the end: what is unknown and follows each other is one.
  const size_t before = ids.size();
  std::vector<int32_t> unknown;
  const auto append_backwards = [&](size_t begin, size_t end) {
    unknown.clear();
    append_unknown(word.substr(begin, end - begin), unknown);
    ids.insert(ids.end(), unknown.rbegin(), unknown.rend());
  };
  for (size_t end = word.size(); end > 0;) {
    size_t begin = end - static_cast<size_t>(best[end].length);
    if (unknown_ && best[end].id == *unknown_) {
      while (begin > 0 && best[begin].id == *unknown_) begin -= static_cast<size_t>(best[begin].length);
      append_backwards(begin, end);
    } else {
      ids.push_back(best[end].id);
    }
    end = begin;
  }
  std::reverse(ids.begin() + static_cast<std::ptrdiff_t>(before), ids.end());
}

}  // namespace levin::data
