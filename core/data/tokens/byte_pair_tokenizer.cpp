#include <levin/core/data/tokens/byte_pair_tokenizer.h>

#include <levin/core/base/error.h>
#include <levin/core/base/file_system.h>
#include <levin/core/base/json_integer.h>
#include <levin/core/base/tree_budget.h>
#include <levin/core/data/tokens/word_splitter.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <optional>
#include <queue>
#include <tuple>
#include <unordered_map>
#include <utility>

namespace levin::data {

namespace {

using Json = nlohmann::json;

// Radford et al., "Language models are unsupervised multitask learners", 2019: their encoder's pattern.
constexpr const char* kGpt2Words = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr int64_t kMostIds = int64_t{1} << 28;

std::string to_utf8(uint32_t point) {
  std::string text;
  if (point < 0x80) {
    text += static_cast<char>(point);
  } else {
    text += static_cast<char>(0xc0 | point >> 6);
    text += static_cast<char>(0x80 | (point & 0x3f));
  }
  return text;
}

/// The characters that stand for bytes in a byte-level vocabulary: those that can be seen for themselves, the others
/// from U+0100 on in their order.
std::array<std::string, 256> byte_characters() {
  std::array<std::string, 256> characters;
  uint32_t next = 256;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool is_visible = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    characters[byte] = to_utf8(is_visible ? byte : next++);
  }
  return characters;
}

struct Merge {
  int32_t rank = 0;
  int32_t id = 0;
};

uint64_t pair_key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

struct AddedToken {
  std::string text;
  int32_t id = 0;
  bool takes_more = false;   ///< spaces beside it, or a word's boundaries
  bool comes_first = false;  ///< is looked for before those that are normalised
};

}  // namespace

struct BytePairTokenizer::Model {
  std::string path;
  std::vector<std::unique_ptr<WordSplitter>> splitters;
  bool adds_space = false;
  bool takes_whole_words = false;  ///< a word that is a token is not made of merges
  std::array<int32_t, 256> byte_ids{};
  std::unordered_map<uint64_t, Merge> merges;
  std::unordered_map<std::string, int32_t> ids;       ///< by the spelling in the file
  std::unordered_map<std::string, int32_t> word_ids;  ///< by bytes; where whole words are taken
  std::vector<AddedToken> added;                      ///< longest first
  std::unordered_map<int64_t, std::string> texts;     ///< bytes of each id
  int64_t size = 0;

  [[noreturn]] void fail(const std::string& what) const {
    throw Error("data", fmt::format("the tokenizer {} {}", path, what));
  }
  void refuse(const std::string& what, const Json& got) const {
    std::string text = got.dump();
    if (text.size() > 80) text = text.substr(0, 80) + "...";
    fail(fmt::format("has {}, which is not supported; got {}; valid: byte-level BPE as GPT-2's", what, text));
  }

  void read_model(const Json& model);
  void read_pre_tokenizer(const Json& description);
  void read_added(const Json& tokens);
  void merge_word(std::string_view word, std::vector<int32_t>& ids) const;
  using Cache = std::unordered_map<std::string, std::vector<int32_t>>;
  void encode_segment(std::string_view text, std::vector<int32_t>& ids, Cache& cache) const;
  void encode_between(std::string_view text, bool first, std::vector<int32_t>& ids, Cache& cache) const;
};

void BytePairTokenizer::Model::read_model(const Json& model) {
  if (model.value("type", "BPE") != "BPE") refuse("another model", model.at("type"));
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
    if (model.contains(key) && !model[key].is_null() && model[key] != "") refuse(key, model[key]);
  if (model.value("byte_fallback", false)) refuse("byte_fallback", true);
  if (model.contains("dropout") && !model["dropout"].is_null() && model["dropout"] != 0.0)
    refuse("dropout", model["dropout"]);
  takes_whole_words = model.value("ignore_merges", false);

  const std::array<std::string, 256> characters = byte_characters();
  std::unordered_map<std::string, unsigned char> bytes;
  for (size_t byte = 0; byte < characters.size(); ++byte)
    bytes.emplace(characters[byte], static_cast<unsigned char>(byte));
  for (const auto& [token, number] : model.at("vocab").items()) {
    const int64_t id = integer_of(number);
    if (id < 0 || id >= kMostIds) fail(fmt::format("is damaged: '{}' has the id {}", token, id));
    ids.emplace(token, static_cast<int32_t>(id));
    size = std::max(size, id + 1);
    std::string text;
    for (size_t i = 0; i < token.size();) {
      const size_t length = static_cast<unsigned char>(token[i]) < 0x80 ? 1 : 2;
      const auto byte = bytes.find(token.substr(i, length));
      if (byte == bytes.end()) {
        text = token;  // a token that no bytes are merged to
        break;
      }
      text += static_cast<char>(byte->second);
      i += length;
    }
    if (takes_whole_words) word_ids.emplace(text, static_cast<int32_t>(id));
    texts.emplace(id, std::move(text));
  }
  for (size_t byte = 0; byte < characters.size(); ++byte) {
    const auto found = ids.find(characters[byte]);
    if (found == ids.end())
      fail(
          fmt::format("has no token for the byte {}; hint: train it with initial_alphabet=ByteLevel.alphabet()", byte));
    byte_ids[byte] = found->second;
  }
  int32_t rank = 0;
  for (const Json& merge : model.at("merges")) {
    std::string left;
    std::string right;
    if (merge.is_array() && merge.size() == 2) {
      left = merge[0].get<std::string>();
      right = merge[1].get<std::string>();
    } else {
      const auto both = merge.get<std::string>();
      const size_t space = both.find(' ');
      if (space == std::string::npos) fail(fmt::format("is damaged: the merge '{}' has no two parts", both));
      left = both.substr(0, space);
      right = both.substr(space + 1);
    }
    const auto id_of = [&](const std::string& token) {
      const auto found = ids.find(token);
      if (found == ids.end()) fail(fmt::format("is damaged: a merge has '{}', which is no token", token));
      return found->second;
    };
    const int32_t merged = id_of(left + right);
    // As there, of two merges of one pair the last one holds.
    merges.insert_or_assign(pair_key(id_of(left), id_of(right)), Merge{.rank = rank++, .id = merged});
  }
}

void BytePairTokenizer::Model::read_pre_tokenizer(const Json& description) {
  const auto type = description.is_null() ? std::string() : description.at("type").get<std::string>();
  if (type == "ByteLevel") {
    adds_space = description.value("add_prefix_space", true);
    if (description.value("use_regex", true)) splitters.push_back(std::make_unique<WordSplitter>(kGpt2Words, path));
    return;
  }
  const Json* parts = type == "Sequence" ? &description.at("pretokenizers") : nullptr;
  if (parts == nullptr || parts->empty() || parts->back().value("type", "") != "ByteLevel")
    refuse("another pre_tokenizer", description);
  for (size_t i = 0; i + 1 < parts->size(); ++i) {
    const Json& part = (*parts)[i];
    if (part.value("type", "") != "Split" || part.value("behavior", "") != "Isolated" || part.value("invert", false) ||
        !part.at("pattern").contains("Regex"))
      refuse("another pre_tokenizer", part);
    splitters.push_back(std::make_unique<WordSplitter>(part["pattern"]["Regex"].get<std::string>(), path));
  }
  if (parts->back().value("add_prefix_space", true)) refuse("add_prefix_space behind a Split", parts->back());
  read_pre_tokenizer(parts->back());
}

void BytePairTokenizer::Model::read_added(const Json& tokens) {
  for (const Json& token : tokens) {
    const int64_t id = integer_of(token.at("id"));
    AddedToken added{
        .text = token.at("content").get<std::string>(),
        .id = static_cast<int32_t>(id),
        .takes_more = token.value("lstrip", false) || token.value("rstrip", false) || token.value("single_word", false),
        .comes_first = !token.value("normalized", false)};
    if (added.text.empty() || id < 0 || id >= kMostIds)
      fail(fmt::format("is damaged: the added token '{}' has the id {}", added.text, id));
    size = std::max(size, id + 1);
    texts.insert_or_assign(added.id, added.text);
    ids.insert_or_assign(added.text, added.id);
    this->added.push_back(std::move(added));
  }
  std::stable_sort(added.begin(), added.end(),
                   [](const AddedToken& a, const AddedToken& b) { return a.text.size() > b.text.size(); });
}

/// Merges the pair of the lowest rank, the leftmost of several, until none is left.
void BytePairTokenizer::Model::merge_word(std::string_view word, std::vector<int32_t>& result) const {
  struct Symbol {
    int32_t id;
    int32_t before;
    int32_t after;
  };
  const auto length = static_cast<int32_t>(word.size());
  std::vector<Symbol> symbols(word.size());
  for (int32_t i = 0; i < length; ++i)
    symbols[static_cast<size_t>(i)] = {byte_ids[static_cast<unsigned char>(word[static_cast<size_t>(i)])], i - 1,
                                       i + 1 < length ? i + 1 : -1};
  using Candidate = std::tuple<int32_t, int32_t, int32_t, int32_t>;  // rank, place, the two ids
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  const auto consider = [&](int32_t place) {
    if (place < 0) return;
    const Symbol& symbol = symbols[static_cast<size_t>(place)];
    if (symbol.after < 0) return;
    const int32_t right = symbols[static_cast<size_t>(symbol.after)].id;
    if (const auto merge = merges.find(pair_key(symbol.id, right)); merge != merges.end())
      queue.emplace(merge->second.rank, place, symbol.id, right);
  };
  constexpr int32_t kGone = -1;
  for (int32_t i = 0; i < length; ++i) consider(i);
  while (!queue.empty()) {
    const auto [rank, place, left, right] = queue.top();
    queue.pop();
    Symbol& symbol = symbols[static_cast<size_t>(place)];
    if (symbol.id != left || symbol.after < 0 || symbols[static_cast<size_t>(symbol.after)].id != right) continue;
    Symbol& second = symbols[static_cast<size_t>(symbol.after)];
    symbol.id = merges.at(pair_key(left, right)).id;
    second.id = kGone;
    symbol.after = second.after;
    if (symbol.after >= 0) symbols[static_cast<size_t>(symbol.after)].before = place;
    consider(place);
    consider(symbol.before);
  }
  for (const Symbol& symbol : symbols)
    if (symbol.id != kGone) result.push_back(symbol.id);
}

void BytePairTokenizer::Model::encode_segment(std::string_view text, std::vector<int32_t>& result, Cache& cache) const {
  std::string with_space;
  if (adds_space && !text.starts_with(' ')) {
    with_space = " " + std::string(text);
    text = with_space;
  }
  const std::function<void(std::string_view, size_t)> split = [&](std::string_view part, size_t next) {
    if (next < splitters.size()) {
      splitters[next]->split(part, [&](std::string_view word) { split(word, next + 1); });
      return;
    }
    constexpr size_t kMostCached = size_t{1} << 16;
    constexpr size_t kLongestCached = 64;
    const std::string word(part);
    if (takes_whole_words) {
      if (const auto whole = word_ids.find(word); whole != word_ids.end()) {
        result.push_back(whole->second);
        return;
      }
    }
    if (const auto known = cache.find(word); known != cache.end()) {
      result.insert(result.end(), known->second.begin(), known->second.end());
      return;
    }
    const auto before = static_cast<std::ptrdiff_t>(result.size());
    merge_word(part, result);
    if (cache.size() < kMostCached && word.size() <= kLongestCached)
      cache.emplace(word, std::vector<int32_t>(result.begin() + before, result.end()));
  };
  split(text, 0);
}

/// Encodes what lies between added tokens: first those that are looked for in the text as it is, then the others.
void BytePairTokenizer::Model::encode_between(std::string_view text, bool first, std::vector<int32_t>& result,
                                              Cache& cache) const {
  const auto rest = [&](std::string_view part) {
    if (part.empty()) return;
    if (first)
      encode_between(part, false, result, cache);
    else
      encode_segment(part, result, cache);
  };
  std::array<bool, 256> begins{};
  for (const AddedToken& token : added)
    if (token.comes_first == first) begins[static_cast<unsigned char>(token.text.front())] = true;
  size_t done = 0;
  for (size_t place = 0; place < text.size();) {
    const AddedToken* found = nullptr;
    if (begins[static_cast<unsigned char>(text[place])])
      for (const AddedToken& token : added)
        if (token.comes_first == first && text.substr(place).starts_with(token.text)) {
          found = &token;
          break;
        }
    if (found == nullptr) {
      ++place;
      continue;
    }
    if (found->takes_more)
      fail(
          fmt::format("has the token '{}' with lstrip, rstrip or single_word, and a text has it; hint: only tokens "
                      "without these are supported in texts",
                      found->text));
    rest(text.substr(done, place - done));
    result.push_back(found->id);
    place += found->text.size();
    done = place;
  }
  rest(text.substr(done));
}

BytePairTokenizer::BytePairTokenizer(const std::string& path) {
  auto model = std::make_unique<Model>();
  model->path = path;
  open_regular_file(path, "data");
  const std::string text = FileSystem::current().read_file(path);
  if (is_too_deep_json(text)) model->fail("is damaged: its lists and objects lie too deep inside each other");
  try {
    const Json file = Json::parse(text);
    if (!file.is_object() || !file.contains("model"))
      model->fail("is no tokenizer.json; hint: Tokenizer.save of `tokenizers` writes one");
    if (file.contains("normalizer") && !file["normalizer"].is_null()) model->refuse("a normalizer", file["normalizer"]);
    for (const char* key : {"truncation", "padding"})
      if (file.contains(key) && !file[key].is_null()) model->refuse(key, file[key]);
    model->read_pre_tokenizer(file.value("pre_tokenizer", Json()));
    model->read_model(file["model"]);
    model->read_added(file.value("added_tokens", Json::array()));
  } catch (const Json::exception& error) {
    model->fail(fmt::format("is damaged: {}", error.what()));
  }
  model_ = std::move(model);
}

BytePairTokenizer::~BytePairTokenizer() = default;

std::vector<int32_t> BytePairTokenizer::encode(std::string_view text) const {
  std::vector<int32_t> ids;
  Model::Cache cache;
  model_->encode_between(text, true, ids, cache);
  return ids;
}

std::string BytePairTokenizer::decode(const std::vector<int64_t>& ids) const {
  std::string text;
  for (const int64_t id : ids)
    if (const auto found = model_->texts.find(id); found != model_->texts.end()) text += found->second;
  return text;
}

int64_t BytePairTokenizer::size() const { return model_->size; }

int64_t BytePairTokenizer::id(const std::string& token) const {
  const auto found = model_->ids.find(token);
  if (found == model_->ids.end()) model_->fail(fmt::format("has no token '{}'", token));
  return found->second;
}

}  // namespace levin::data
