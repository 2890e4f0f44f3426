#include <levin/core/data/tokens/post_processors.h>

#include <fmt/format.h>

#include <algorithm>

namespace levin::data {

namespace {

constexpr std::string_view kKnownPostProcessors =
    "ByteLevel, TemplateProcessing, BertProcessing, RobertaProcessing, Sequence";

}  // namespace

void PostProcessors::read_template(const nlohmann::json& part, const TokenizerFile& file) {
  std::vector<int32_t> before;
  std::vector<int32_t> after;
  bool has_text = false;
  for (const nlohmann::json& piece : part.at("single")) {
    if (piece.contains("Sequence")) {
      if (has_text || piece["Sequence"].at("id") != "A")
        file.refuse("another template", part.at("single"), "tokens, and $A once");
      has_text = true;
      continue;
    }
    const auto name = piece.at("SpecialToken").at("id").get<std::string>();
    const nlohmann::json& tokens = part.at("special_tokens");
    if (!tokens.contains(name)) file.fail(fmt::format("is damaged: its template has '{}', which is no token", name));
    for (const nlohmann::json& id : tokens[name].at("ids")) (has_text ? after : before).push_back(file.id(id, name));
  }
  if (!has_text) file.refuse("another template", part.at("single"), "tokens, and $A once");
  // Each one of a sequence goes around what those before it have made.
  before_.insert(before_.begin(), before.begin(), before.end());
  after_.insert(after_.end(), after.begin(), after.end());
}

PostProcessors::PostProcessors(const nlohmann::json& part, const TokenizerFile& file) {
  for (const nlohmann::json* const element : file.elements(part, "processors")) {
    const auto type = element->at("type").get<std::string>();
    if (type == "TemplateProcessing") {
      read_template(*element, file);
    } else if (type == "BertProcessing" || type == "RobertaProcessing") {
      const auto id_of = [&](const char* key) {
        return file.id(element->at(key).at(1), element->at(key).at(0).get<std::string>());
      };
      before_.insert(before_.begin(), id_of("cls"));
      after_.push_back(id_of("sep"));
    } else if (type != "ByteLevel") {  // which only moves offsets
      file.refuse(fmt::format("the post_processor {}", type), *element, kKnownPostProcessors);
    }
  }
}

void PostProcessors::apply(std::vector<int32_t>& ids) const {
  ids.insert(ids.begin(), before_.begin(), before_.end());
  ids.insert(ids.end(), after_.begin(), after_.end());
}

}  // namespace levin::data
