#include <levin/core/data/documents/token_documents.h>

#include <levin/core/base/error.h>
#include <levin/core/base/utf8.h>

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

namespace levin::data {

namespace {

const nlohmann::json& require_column(const nlohmann::json& row, const std::string& name) {
  const auto found = row.find(name);
  if (found != row.end() && !found->is_null()) return *found;
  std::vector<std::string> names;
  for (const auto& item : row.items()) names.push_back(item.key());
  throw Error("data", fmt::format("the row has no '{}'; it has {}", name, shown_names(names)));
}

std::string text_in(const nlohmann::json& row, const std::string& name) {
  const nlohmann::json& value = require_column(row, name);
  if (value.is_string()) return value.get<std::string>();
  throw Error("data",
              fmt::format("'{}' must be a text; got {} {}", name, value.type_name(), shown_text(value.dump(), 60)));
}

std::string text_of_message(const nlohmann::json& message, size_t place, const char* name) {
  const auto found = message.is_object() ? message.find(name) : message.end();
  if (message.is_object() && found != message.end() && found->is_string()) return found->get<std::string>();
  throw Error("data", fmt::format("message {} of the chat needs a text '{}'; got {}", place + 1, name,
                                  shown_text(message.dump(), 60)));
}

/// How many tokens two lists begin with that are the same.
size_t common_tokens(const std::vector<int64_t>& a, const std::vector<int64_t>& b) {
  const size_t count = std::min(a.size(), b.size());
  return static_cast<size_t>(std::mismatch(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(count), b.begin()).first -
                             a.begin());
}

}  // namespace

TokenDocuments::TokenDocuments(std::shared_ptr<const JsonRows> rows, RowSelection selection, DocumentFormat format)
    : rows_(std::move(rows)), selection_(selection), format_(std::move(format)) {
  if (!format_.end.empty()) end_ = static_cast<int32_t>(format_.tokenizer->id(format_.end));
}

TokenDocument TokenDocuments::get(int64_t index) const {
  const int64_t row = selection_.row(index);
  const nlohmann::json object = rows_->row(row);
  try {
    return of_row(object);
  } catch (const Error& error) {
    std::string_view message = error.what();
    constexpr std::string_view kComponent = "[data] ";
    if (message.starts_with(kComponent)) message.remove_prefix(kComponent.size());
    throw Error("data", fmt::format("{}: {}", rows_->place(row), message));
  }
}

TokenDocument TokenDocuments::of_row(const nlohmann::json& row) const {
  if (format_.columns.text) return of_text(text_in(row, *format_.columns.text));
  const std::vector<ChatMessage> chat = chat_in(row);
  if (std::none_of(chat.begin(), chat.end(), [](const ChatMessage& message) { return message.role == "assistant"; }))
    throw Error("data", fmt::format("the chat has no answer, a message of the role assistant; it has {}",
                                    counted(static_cast<int64_t>(chat.size()), "message")));
  if (format_.chat) return of_chat(format_.chat->format(chat));
  ChatText plain;  // a prompt and an answer
  for (const ChatMessage& message : chat) {
    const size_t begin = plain.text.size();
    plain.text += message.content;
    if (message.role != "assistant") continue;
    plain.text += format_.end;
    plain.answers.emplace_back(begin, plain.text.size());
  }
  return of_chat(plain);
}

TokenDocument TokenDocuments::of_text(const std::string& text) const {
  TokenDocument document;
  const std::vector<int64_t> ids = format_.tokenizer->encode(text, {.add_special_tokens = true});
  document.tokens.assign(ids.begin(), ids.end());
  if (end_ && (document.tokens.empty() || document.tokens.back() != *end_)) document.tokens.push_back(*end_);
  document.is_learned.assign(document.tokens.size(), true);
  return document;
}

// The tokens of the whole text are those that the model sees. An answer begins with the first of them that the text
// before it, encoded alone as a prompt is, does not give.
TokenDocument TokenDocuments::of_chat(const ChatText& chat) const {
  const std::vector<int64_t> ids = format_.tokenizer->encode(chat.text);
  TokenDocument document;
  document.tokens.assign(ids.begin(), ids.end());
  document.is_learned.assign(ids.size(), false);
  const auto tokens_before = [&](size_t byte) {
    if (byte == chat.text.size()) return ids.size();
    return common_tokens(ids, format_.tokenizer->encode(std::string_view(chat.text).substr(0, byte)));
  };
  for (size_t i = format_.learned == LearnedAnswers::kLast ? chat.answers.size() - 1 : 0; i < chat.answers.size();
       ++i) {
    const size_t begin = tokens_before(chat.answers[i].first);
    const size_t end = tokens_before(chat.answers[i].second);
    for (size_t token = begin; token < end; ++token) document.is_learned[token] = true;
  }
  return document;
}

std::vector<ChatMessage> TokenDocuments::chat_in(const nlohmann::json& row) const {
  const DocumentColumns& columns = format_.columns;
  std::vector<ChatMessage> chat;
  if (!columns.messages) {
    if (columns.system)
      if (const auto found = row.find(*columns.system); found != row.end() && !found->is_null())
        if (std::string system = text_in(row, *columns.system); !system.empty()) chat.push_back({"system", system});
    chat.push_back({"user", text_in(row, *columns.prompt)});
    chat.push_back({"assistant", text_in(row, *columns.answer)});
    return chat;
  }
  const nlohmann::json& messages = require_column(row, *columns.messages);
  if (!messages.is_array() || messages.empty())
    throw Error("data", fmt::format("'{}' must be a list of messages, {{\"role\": ..., \"content\": ...}}; got {}",
                                    *columns.messages, shown_text(messages.dump(), 60)));
  for (size_t i = 0; i < messages.size(); ++i)
    chat.push_back({text_of_message(messages[i], i, "role"), text_of_message(messages[i], i, "content")});
  return chat;
}

DocumentColumns find_document_columns(DocumentColumns given, const nlohmann::json& row, const std::string& place) {
  const int kinds = (given.text ? 1 : 0) + (given.prompt || given.answer ? 1 : 0) + (given.messages ? 1 : 0);
  if (kinds > 1)
    throw ConfigError("data.text, data.prompt with data.answer, and data.messages exclude each other; hint: name one");
  if (given.prompt.has_value() != given.answer.has_value())
    throw ConfigError("data.prompt and data.answer go together; hint: name both columns");
  if (given.system && !given.prompt && (kinds == 1))
    throw ConfigError("data.system is a column beside data.prompt and data.answer; hint: leave it out");
  if (kinds == 1) return given;
  if (row.contains("messages")) {
    given.messages = "messages";
  } else if (row.contains("prompt") && (row.contains("answer") || row.contains("completion"))) {
    given.prompt = "prompt";
    given.answer = row.contains("answer") ? "answer" : "completion";
  } else if (row.contains("text")) {
    given.text = "text";
  } else {
    std::vector<std::string> names;
    for (const auto& item : row.items()) names.push_back(item.key());
    throw Error("data", fmt::format("{}: none of the columns messages, prompt with answer, and text is there; got {}; "
                                    "hint: data.messages, data.prompt and data.answer, or data.text name them",
                                    place, shown_names(names)));
  }
  return given;
}

}  // namespace levin::data
