#pragma once

#include <levin/core/data/chats/chat_template.h>
#include <levin/core/data/documents/document_options.h>
#include <levin/core/data/json/json_rows.h>
#include <levin/core/data/tokens/tokenizer.h>

#include <nlohmann/json.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace levin::data {

/// A text as tokens, with those that a model learns to give.
struct TokenDocument {
  std::vector<int32_t> tokens = {};
  std::vector<bool> is_learned = {};  ///< of each token
};

/// Columns of JSON lines that texts are made of: `messages`, or `prompt` and `answer`, or `text` alone.
struct DocumentColumns {
  std::optional<std::string> text = {};
  std::optional<std::string> prompt = {};
  std::optional<std::string> answer = {};
  std::optional<std::string> system = {};  ///< beside prompt and answer; rows may lack it
  std::optional<std::string> messages = {};
};

/// How rows of JSON lines become tokens.
struct DocumentFormat {
  std::shared_ptr<const Tokenizer> tokenizer = {};
  DocumentColumns columns = {};
  std::optional<ChatTemplate> chat = {};  ///< nullopt: prompts and answers as they are
  std::string end = {};                   ///< token behind a text, and behind answers without a template; empty: none
  LearnedAnswers learned = LearnedAnswers::kAll;
};

/// Rows of JSON lines as tokens. Of texts all tokens are learned; of chats answers with the token that ends each.
/// Thread-safe.
class TokenDocuments {
 public:
  TokenDocuments(std::shared_ptr<const JsonRows> rows, RowSelection selection, DocumentFormat format);

  int64_t size() const { return selection_.size(); }
  /// Throws levin::Error naming file and line for a row that lacks a column, a chat without an answer, and one with
  /// roles that the template lacks.
  TokenDocument get(int64_t index) const;
  /// Returns a row's file and line.
  std::string place(int64_t index) const { return rows_->place(selection_.row(index)); }

 private:
  TokenDocument of_row(const nlohmann::json& row) const;
  TokenDocument of_text(const std::string& text) const;
  TokenDocument of_chat(const ChatText& chat) const;
  std::vector<ChatMessage> chat_in(const nlohmann::json& row) const;

  std::shared_ptr<const JsonRows> rows_;
  RowSelection selection_;
  DocumentFormat format_;
  std::optional<int32_t> end_;
};

/// Completes columns that were not named from a row's: `messages`; `prompt` with `answer` or `completion`; `text`.
/// Throws levin::Error, led by `place`, where some exclude each other and where none are there.
DocumentColumns find_document_columns(DocumentColumns given, const nlohmann::json& row, const std::string& place);

}  // namespace levin::data
