#pragma once

#include <levin/core/data/chats/chat_format.h>

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace levin::data {

/// How a family of models writes chats: texts are those of transformers' `apply_chat_template`, without tools.
/// Thread-safe.
class ChatTemplate {
 public:
  /// Returns the format that a Jinja template of a model's tokenizer describes. Formats are recognised, nothing is run:
  /// whatever does not have the form of one that is known here is refused. Throws levin::Error naming what was in the
  /// template; `place` leads it.
  static ChatTemplate recognise(std::string_view jinja, const ChatTokens& tokens, const std::string& place);
  /// Returns that of a folder of Hugging Face: of its chat_template.jinja, else of its tokenizer_config.json. Throws
  /// levin::Error where there is none, and for what `recognise` refuses.
  static ChatTemplate of_folder(const std::string& folder);
  /// Returns the format of a name, one of names(). Throws levin::Error for others.
  static ChatTemplate named(const std::string& name, const ChatTokens& tokens);
  static std::vector<std::string> names();

  /// Returns the name of the format.
  const std::string& name() const { return name_; }
  /// Returns a chat's text, see ChatFormat::format.
  ChatText format(std::span<const ChatMessage> chat, bool begins_answer = false) const;

 private:
  ChatTemplate(std::string name, std::shared_ptr<const ChatFormat> format)
      : name_(std::move(name)), format_(std::move(format)) {}

  std::string name_;
  std::shared_ptr<const ChatFormat> format_;
};

/// Returns the special tokens of a folder's tokenizer_config.json; empty ones where it has none.
ChatTokens special_tokens_of(const std::string& folder);

}  // namespace levin::data
