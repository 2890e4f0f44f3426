#include <levin/core/data/tokens/tokenizer.h>

#include <levin/core/base/error.h>
#include <levin/core/base/file_system.h>
#include <levin/core/base/mutex.h>
#include <levin/core/base/tree_budget.h>
#include <levin/core/data/tokens/added_tokens.h>
#include <levin/core/data/tokens/byte_pair_model.h>
#include <levin/core/data/tokens/normalizers.h>
#include <levin/core/data/tokens/post_processors.h>
#include <levin/core/data/tokens/pre_tokenizers.h>
#include <levin/core/data/tokens/token_decoders.h>
#include <levin/core/data/tokens/tokenizer_file.h>
#include <levin/core/data/tokens/unicode_text.h>
#include <levin/core/data/tokens/unigram_model.h>
#include <levin/core/data/tokens/word_cache.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <span>
#include <utility>

namespace levin::data {

namespace {

using Json = nlohmann::json;

/// Caches that no call uses. A call takes one, or begins one.
class WordCaches {
 public:
  std::unique_ptr<WordCache> take() {
    const MutexLock lock(mutex_);
    if (caches_.empty()) return std::make_unique<WordCache>();
    auto cache = std::move(caches_.back());
    caches_.pop_back();
    return cache;
  }
  void give_back(std::unique_ptr<WordCache> cache) {
    const MutexLock lock(mutex_);
    caches_.push_back(std::move(cache));
  }

 private:
  Mutex mutex_;
  std::vector<std::unique_ptr<WordCache>> caches_ LEVIN_GUARDED_BY(mutex_);
};

}  // namespace

struct Tokenizer::Parts {
  explicit Parts(const std::string& path) : file(path) {}

  TokenizerFile file;
  Normalizers normalizers;
  PreTokenizers pre_tokenizers;
  Vocabulary vocabulary;
  std::unique_ptr<const TokenModel> model;
  AddedTokens added;
  PostProcessors post_processors;
  TokenDecoders decoders;
  mutable WordCaches caches;

  void read(const Json& json);
  void encode(std::string_view text, std::vector<int32_t>& ids) const;
  void encode_word(std::string_view word, WordCache& cache, std::vector<int32_t>& ids) const;
};

void Tokenizer::Parts::read(const Json& json) {
  if (!json.is_object() || !json.contains("model") || !json["model"].is_object())
    file.fail("is no tokenizer.json; hint: Tokenizer.save of `tokenizers` writes one");
  for (const char* key : {"truncation", "padding"})
    if (json.contains(key) && !json[key].is_null()) file.refuse(key, json[key], "null");
  normalizers = Normalizers(json.value("normalizer", Json()), file);
  pre_tokenizers = PreTokenizers(json.value("pre_tokenizer", Json()), file);
  const Json& description = json["model"];
  if (const auto type = description.value("type", "BPE"); type == "BPE")
    model = std::make_unique<BytePairModel>(description, pre_tokenizers.gives_bytes(), vocabulary, file);
  else if (type == "Unigram" && !pre_tokenizers.gives_bytes())
    model = std::make_unique<UnigramModel>(description, vocabulary, file);
  else
    file.refuse(fmt::format("the model {}{}", type, pre_tokenizers.gives_bytes() ? " of bytes" : ""), type,
                "BPE; without ByteLevel also Unigram");
  added = AddedTokens(json.value("added_tokens", Json::array()), normalizers, vocabulary, file);
  post_processors = PostProcessors(json.value("post_processor", Json()), file);
  decoders = TokenDecoders(json.value("decoder", Json()), pre_tokenizers.gives_bytes(), file);
}

void Tokenizer::Parts::encode_word(std::string_view word, WordCache& cache, std::vector<int32_t>& ids) const {
  while (!word.empty()) {
    const size_t end = model->end_of_part(word);
    const std::string_view part = word.substr(0, end);
    word.remove_prefix(end);
    if (const auto known = cache.find(part)) {
      ids.insert(ids.end(), known->begin(), known->end());
      continue;
    }
    const size_t before = ids.size();
    model->append_ids(part, ids);
    cache.add(part, std::span(ids).subspan(before));
  }
}

void Tokenizer::Parts::encode(std::string_view text, std::vector<int32_t>& ids) const {
  if (const size_t invalid = find_invalid_utf8(text); invalid != std::string_view::npos)
    throw Error("data", fmt::format("the text is not UTF-8 at byte {}", invalid));
  std::unique_ptr<WordCache> cache = caches.take();
  const auto take_word = [&](std::string_view word, bool /*is_first*/) { encode_word(word, *cache, ids); };
  const auto encode_normalized = [&](std::string_view part, bool is_first) {
    size_t at = 0;
    added.split(part, AddedTokens::Stage::kNormalized, [&](std::string_view between, int32_t id) {
      if (id >= 0)
        ids.push_back(id);
      else
        pre_tokenizers.split(between, is_first && at == 0, take_word);
      at += between.size();
    });
  };
  size_t at = 0;
  added.split(text, AddedTokens::Stage::kAsItIs, [&](std::string_view part, int32_t id) {
    const bool is_first = at == 0;
    at += part.size();
    if (id >= 0) {
      ids.push_back(id);
    } else if (normalizers.empty()) {
      encode_normalized(part, is_first);
    } else {
      NormalizedText normalized(part, is_first);
      normalizers.apply(normalized);
      encode_normalized(normalized.text, normalized.is_first);
    }
  });
  caches.give_back(std::move(cache));
}

Tokenizer::Tokenizer(const std::string& path) {
  auto parts = std::make_unique<Parts>(path);
  open_regular_file(path, "data");
  const std::string text = FileSystem::current().read_file(path);
  if (is_too_deep_json(text)) parts->file.fail("is damaged: its lists and objects lie too deep inside each other");
  try {
    parts->read(Json::parse(text));
  } catch (const Json::exception& error) {
    parts->file.fail(fmt::format("is damaged: {}", error.what()));
  }
  parts_ = std::move(parts);
}

Tokenizer::~Tokenizer() = default;

std::vector<int64_t> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  std::vector<int32_t> ids;
  parts_->encode(text, ids);
  if (options.add_special_tokens) parts_->post_processors.apply(ids);
  return {ids.begin(), ids.end()};
}

void Tokenizer::append_ids(std::string_view text, std::vector<int32_t>& ids) const { parts_->encode(text, ids); }

std::string Tokenizer::decode(const std::vector<int64_t>& ids, const DecodeOptions& options) const {
  std::vector<std::string> tokens;
  for (const int64_t id : ids) {
    const auto found = parts_->vocabulary.tokens.find(id);
    if (found == parts_->vocabulary.tokens.end()) continue;
    if (options.skip_special_tokens && is_special(id)) continue;
    tokens.push_back(found->second);
  }
  return parts_->decoders.decode(std::move(tokens), options.skip_incomplete);
}

int64_t Tokenizer::size() const { return parts_->vocabulary.size; }

int64_t Tokenizer::id(const std::string& token) const {
  const auto found = parts_->vocabulary.ids.find(token);
  if (found == parts_->vocabulary.ids.end()) parts_->file.fail(fmt::format("has no token '{}'", token));
  return found->second;
}

bool Tokenizer::is_special(int64_t id) const {
  const auto found = parts_->vocabulary.tokens.find(id);
  return found != parts_->vocabulary.tokens.end() && parts_->added.is_special(found->second);
}

}  // namespace levin::data
