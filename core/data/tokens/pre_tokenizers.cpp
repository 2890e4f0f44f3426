#include <levin/core/data/tokens/pre_tokenizers.h>

#include <levin/core/data/tokens/byte_level.h>
#include <levin/core/data/tokens/unicode_text.h>
#include <levin/core/data/tokens/word_splitter.h>

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

namespace levin::data {

namespace {

// Radford et al., "Language models are unsupervised multitask learners", 2019: their encoder's pattern.
constexpr const char* kGpt2Words = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kKnownPreTokenizers =
    "ByteLevel, Split, Metaspace, Digits, Whitespace, WhitespaceSplit, Sequence";

/// What becomes of the matches that a text is split by.
enum class SplitBehavior { kIsolated, kRemoved, kContiguous, kMergedWithPrevious, kMergedWithNext };

/// Makes parts of the matches of a text and of what lies between them.
class MatchJoiner {
 public:
  MatchJoiner(std::string_view text, bool is_first, SplitBehavior behavior, TakePart take)
      : text_(text), is_first_(is_first), behavior_(behavior), take_(take) {}

  /// Adds what follows, up to this place.
  void add(size_t end, bool is_match) {
    const bool follows_match = std::exchange(was_match_, is_match);
    const size_t begin = std::exchange(end_, end);
    switch (behavior_) {
      case SplitBehavior::kIsolated:
        give(begin, end);
        return;
      case SplitBehavior::kRemoved:
        if (!is_match) give(begin, end);
        return;
      case SplitBehavior::kContiguous:
        if (has_pending_ && is_match != follows_match) give_pending(begin);
        break;
      case SplitBehavior::kMergedWithPrevious:
        if (has_pending_ && (!is_match || follows_match)) give_pending(begin);
        break;
      case SplitBehavior::kMergedWithNext:
        if (has_pending_ && (is_match || !follows_match)) give_pending(begin);
        break;
    }
    if (!has_pending_) pending_ = begin;
    has_pending_ = true;
  }
  void finish() {
    if (has_pending_) give_pending(end_);
  }

 private:
  void give(size_t begin, size_t end) {
    if (begin < end) take_(text_.substr(begin, end - begin), is_first_ && begin == 0);
  }
  void give_pending(size_t end) {
    give(pending_, end);
    has_pending_ = false;
  }

  std::string_view text_;
  bool is_first_;
  SplitBehavior behavior_;
  TakePart take_;
  size_t end_ = 0;
  size_t pending_ = 0;
  bool has_pending_ = false;
  bool was_match_ = false;
};

/// Splits by characters: each that `is_match` says is a match of its own.
template <class IsMatch>
void split_by_character(std::string_view text, bool is_first, SplitBehavior behavior, TakePart take,
                        const IsMatch& is_match) {
  MatchJoiner joiner(text, is_first, behavior, take);
  size_t done = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    if (!is_match(take_code_point(text, at))) continue;
    if (begin > done) joiner.add(begin, false);
    joiner.add(at, true);
    done = at;
  }
  if (done < text.size()) joiner.add(text.size(), false);
  joiner.finish();
}

class ExpressionSplit : public PreTokenizer {
 public:
  ExpressionSplit(const std::string& pattern, WordSplitter::Pattern kind, SplitBehavior behavior, bool is_inverted,
                  const TokenizerFile& file)
      : splitter_(pattern, file.path(), kind), behavior_(behavior), is_inverted_(is_inverted) {}
  void split(std::string_view text, bool is_first, TakePart take) const override {
    MatchJoiner joiner(text, is_first, behavior_, take);
    size_t end = 0;
    splitter_.split(text, [&](std::string_view part, bool is_match) {
      end += part.size();
      joiner.add(end, is_match != is_inverted_);
    });
    joiner.finish();
  }

 private:
  WordSplitter splitter_;
  SplitBehavior behavior_;
  bool is_inverted_;
};

class SpacePrefix : public PreTokenizer {
 public:
  void split(std::string_view text, bool is_first, TakePart take) const override {
    if (text.front() == ' ') {
      take(text, is_first);
      return;
    }
    std::string spaced = " ";
    spaced += text;
    take(spaced, is_first);
  }
};

class ByteMapping : public PreTokenizer {
 public:
  void split(std::string_view text, bool is_first, TakePart take) const override {
    const auto& characters = byte_characters();
    std::string mapped;
    for (const char byte : text) mapped += characters[static_cast<unsigned char>(byte)];
    take(mapped, is_first);
  }
};

class Metaspace : public PreTokenizer {
 public:
  Metaspace(const nlohmann::json& part, const TokenizerFile& file)
      : replacement_(part.at("replacement").get<std::string>()), splits_(part.value("split", true)) {
    size_t end = 0;
    if (!replacement_.empty()) point_ = take_code_point(replacement_, end);
    if (replacement_.empty() || end != replacement_.size())
      file.refuse("a Metaspace of another replacement", part, "one character");
    const auto scheme = part.value("prepend_scheme", part.value("add_prefix_space", true) ? "always" : "never");
    if (scheme != "always" && scheme != "first" && scheme != "never")
      file.refuse("another prepend_scheme", part, "always, first, never");
    prepends_ = scheme != "never";
    prepends_first_only_ = scheme == "first";
  }
  void split(std::string_view text, bool is_first, TakePart take) const override {
    std::string replaced;
    replaced.reserve(text.size() + text.size() / 2 + replacement_.size());
    const bool has_prefix = text.front() == ' ' || text.starts_with(replacement_);
    if (!has_prefix && prepends_ && (!prepends_first_only_ || is_first)) replaced += replacement_;
    for (size_t at = 0; at < text.size();) {
      const size_t space = std::min(text.find(' ', at), text.size());
      replaced += text.substr(at, space - at);
      if (space < text.size()) replaced += replacement_;
      at = space + 1;
    }
    if (!splits_) {
      take(replaced, is_first);
      return;
    }
    split_by_character(replaced, is_first, SplitBehavior::kMergedWithNext, take,
                       [&](uint32_t point) { return point == point_; });
  }

 private:
  std::string replacement_;
  uint32_t point_ = 0;
  bool splits_;
  bool prepends_ = true;
  bool prepends_first_only_ = false;
};

class Digits : public PreTokenizer {
 public:
  explicit Digits(bool one_by_one) : behavior_(one_by_one ? SplitBehavior::kIsolated : SplitBehavior::kContiguous) {}
  void split(std::string_view text, bool is_first, TakePart take) const override {
    split_by_character(text, is_first, behavior_, take, is_number);
  }

 private:
  SplitBehavior behavior_;
};

/// Words, and what is neither word nor space.
class Whitespace : public PreTokenizer {
 public:
  void split(std::string_view text, bool is_first, TakePart take) const override {
    enum class Kind { kSpace, kWord, kOther };
    size_t begin = 0;
    Kind before = Kind::kSpace;
    const auto give = [&](size_t end) {
      if (before != Kind::kSpace) take(text.substr(begin, end - begin), is_first && begin == 0);
    };
    for (size_t at = 0; at < text.size();) {
      const size_t place = at;
      const uint32_t point = take_code_point(text, at);
      const Kind kind = is_white_space(point) ? Kind::kSpace : is_word_character(point) ? Kind::kWord : Kind::kOther;
      if (kind == before) continue;
      give(place);
      begin = place;
      before = kind;
    }
    give(text.size());
  }
};

class WhitespaceSplit : public PreTokenizer {
 public:
  void split(std::string_view text, bool is_first, TakePart take) const override {
    split_by_character(text, is_first, SplitBehavior::kRemoved, take, is_white_space);
  }
};

std::unique_ptr<const PreTokenizer> read_split(const nlohmann::json& part, const TokenizerFile& file) {
  const std::pair<const char*, SplitBehavior> behaviors[] = {{"Isolated", SplitBehavior::kIsolated},
                                                             {"Removed", SplitBehavior::kRemoved},
                                                             {"Contiguous", SplitBehavior::kContiguous},
                                                             {"MergedWithPrevious", SplitBehavior::kMergedWithPrevious},
                                                             {"MergedWithNext", SplitBehavior::kMergedWithNext}};
  std::optional<SplitBehavior> behavior;
  for (const auto& [name, value] : behaviors)
    if (part.at("behavior") == name) behavior = value;
  if (!behavior)
    file.refuse("a Split of another behavior", part,
                "Isolated, Removed, Contiguous, MergedWithPrevious, MergedWithNext");
  const nlohmann::json& pattern = part.at("pattern");
  const bool is_text = pattern.contains("String");
  if (!is_text && !pattern.contains("Regex")) file.refuse("a Split of another pattern", part, "String, Regex");
  return std::make_unique<ExpressionSplit>(pattern[is_text ? "String" : "Regex"].get<std::string>(),
                                           is_text ? WordSplitter::Pattern::kText : WordSplitter::Pattern::kExpression,
                                           *behavior, part.value("invert", false), file);
}

}  // namespace

PreTokenizers::PreTokenizers(const nlohmann::json& part, const TokenizerFile& file) {
  const auto elements = file.elements(part, "pretokenizers");
  for (size_t i = 0; i < elements.size(); ++i) {
    const nlohmann::json& element = *elements[i];
    const auto type = element.at("type").get<std::string>();
    if (type == "ByteLevel") {
      if (element.value("add_prefix_space", true)) steps_.push_back(std::make_unique<SpacePrefix>());
      if (element.value("use_regex", true))
        steps_.push_back(std::make_unique<ExpressionSplit>(kGpt2Words, WordSplitter::Pattern::kExpression,
                                                           SplitBehavior::kIsolated, false, file));
      gives_bytes_ = i + 1 == elements.size();
      if (!gives_bytes_) steps_.push_back(std::make_unique<ByteMapping>());
    } else if (type == "Split") {
      steps_.push_back(read_split(element, file));
    } else if (type == "Metaspace") {
      steps_.push_back(std::make_unique<Metaspace>(element, file));
    } else if (type == "Digits") {
      steps_.push_back(std::make_unique<Digits>(element.value("individual_digits", false)));
    } else if (type == "Whitespace") {
      steps_.push_back(std::make_unique<Whitespace>());
    } else if (type == "WhitespaceSplit") {
      steps_.push_back(std::make_unique<WhitespaceSplit>());
    } else {
      file.refuse(fmt::format("the pre_tokenizer {}", type), element, kKnownPreTokenizers);
    }
  }
}

void PreTokenizers::split_from(size_t step, std::string_view text, bool is_first, TakePart take) const {
  if (text.empty()) return;
  if (step == steps_.size()) {
    take(text, is_first);
    return;
  }
  if (step + 1 == steps_.size()) {
    steps_[step]->split(text, is_first, take);
    return;
  }
  steps_[step]->split(text, is_first, [&](std::string_view part, bool part_is_first) {
    split_from(step + 1, part, part_is_first, take);
  });
}

}  // namespace levin::data
