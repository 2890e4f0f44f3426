#include <levin/core/data/tokens/tokenizer_file.h>

#include <levin/core/base/error.h>
#include <levin/core/base/json_integer.h>
#include <levin/core/base/utf8.h>

#include <fmt/format.h>

#include <algorithm>
#include <functional>

namespace levin::data {

void TokenizerFile::fail(const std::string& what) const {
  throw Error("data", fmt::format("the tokenizer {} {}", path_, what));
}

void TokenizerFile::refuse(const std::string& what, const nlohmann::json& got, std::string_view valid) const {
  constexpr size_t kMostShown = 80;
  fail(fmt::format("has {}, which is not supported; got {}; valid: {}", what, shown_text(got.dump(), kMostShown),
                   valid));
}

int32_t TokenizerFile::id(const nlohmann::json& number, const std::string& token) const {
  constexpr int64_t kMostIds = int64_t{1} << 28;
  const int64_t id = integer_of(number);
  if (id < 0 || id >= kMostIds) fail(fmt::format("is damaged: '{}' has the id {}", token, id));
  return static_cast<int32_t>(id);
}

std::vector<const nlohmann::json*> TokenizerFile::elements(const nlohmann::json& part, const char* key) const {
  // Each may make a text twice as long.
  constexpr size_t kMost = 24;
  std::vector<const nlohmann::json*> all;
  const std::function<void(const nlohmann::json&)> add = [&](const nlohmann::json& element) {
    if (element.is_null()) return;
    if (element.at("type") != "Sequence") {
      all.push_back(&element);
      if (all.size() > kMost) fail(fmt::format("has more than {} {}", kMost, key));
      return;
    }
    for (const nlohmann::json& inner : element.at(key)) add(inner);
  };
  add(part);
  return all;
}

void Vocabulary::add(const std::string& token, int32_t id) {
  ids.insert_or_assign(token, id);
  tokens.insert_or_assign(id, token);
  size = std::max<int64_t>(size, id + 1);
}

}  // namespace levin::data
