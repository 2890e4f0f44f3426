#include <levin/core/data/chats/chat_formats.h>

#include <levin/core/base/error.h>

#include <fmt/format.h>

#include <array>
#include <utility>

namespace levin::data {

namespace {

/// Characters beyond ASCII that are white space: U+0085, U+00A0, U+1680, U+2000 to U+200A, U+2028, U+2029, U+202F,
/// U+205F and U+3000.
constexpr std::array<std::string_view, 19> kWideSpaces = {
    "\xc2\x85",     "\xc2\xa0",     "\xe1\x9a\x80", "\xe2\x80\x80", "\xe2\x80\x81", "\xe2\x80\x82", "\xe2\x80\x83",
    "\xe2\x80\x84", "\xe2\x80\x85", "\xe2\x80\x86", "\xe2\x80\x87", "\xe2\x80\x88", "\xe2\x80\x89", "\xe2\x80\x8a",
    "\xe2\x80\xa8", "\xe2\x80\xa9", "\xe2\x80\xaf", "\xe2\x81\x9f", "\xe3\x80\x80"};
constexpr std::string_view kNarrowSpaces = "\t\n\v\f\r\x1c\x1d\x1e\x1f ";

std::string_view without_line_ends(std::string_view text, bool at_begin, bool at_end) {
  while (at_begin && text.starts_with('\n')) text.remove_prefix(1);
  while (at_end && text.ends_with('\n')) text.remove_suffix(1);
  return text;
}

[[noreturn]] void fail_role(size_t place, const ChatMessage& message, std::string_view what) {
  throw Error("data", fmt::format("message {} of the chat has the role '{}', {}", place + 1, message.role, what));
}

/// A text that is written piece by piece.
class ChatWriter {
 public:
  ChatWriter& operator<<(std::string_view piece) {
    chat_.text += piece;
    return *this;
  }
  void begin_answer() { chat_.answers.emplace_back(chat_.text.size(), chat_.text.size()); }
  void end_answer() { chat_.answers.back().second = chat_.text.size(); }
  ChatText take() { return std::move(chat_); }

 private:
  ChatText chat_;
};

void require_known_roles(std::span<const ChatMessage> chat) {
  for (size_t i = 0; i < chat.size(); ++i)
    if (chat[i].role != "system" && chat[i].role != "user" && chat[i].role != "assistant")
      fail_role(i, chat[i], "which the template lacks; valid: system, user, assistant");
}

/// A system message, where `takes_system` says that there may be one, then user and assistant in turn.
void require_turns(std::span<const ChatMessage> chat, bool takes_system) {
  require_known_roles(chat);
  const size_t first = takes_system && !chat.empty() && chat[0].role == "system" ? 1 : 0;
  for (size_t i = first; i < chat.size(); ++i) {
    const std::string_view due = (i - first) % 2 == 0 ? "user" : "assistant";
    if (chat[i].role != due)
      fail_role(i, chat[i],
                fmt::format("where the template has '{}'{}", due, takes_system ? "" : "; it has no system messages"));
  }
}

/// <|im_start|>ROLE\nCONTENT<|im_end|>\n: SmolLM, Qwen 2 and 2.5, and many others.
class ChatMlFormat : public ChatFormat {
 public:
  explicit ChatMlFormat(std::string system) : system_(std::move(system)) {}

  ChatText format(std::span<const ChatMessage> chat, bool begins_answer) const override {
    require_known_roles(chat);
    ChatWriter out;
    if (!system_.empty() && !chat.empty() && chat[0].role != "system")
      out << "<|im_start|>system\n" << system_ << "<|im_end|>\n";
    for (const ChatMessage& message : chat) {
      out << "<|im_start|>" << message.role << "\n";
      const bool is_answer = message.role == "assistant";
      if (is_answer) out.begin_answer();
      out << message.content << "<|im_end|>";
      if (is_answer) out.end_answer();
      out << "\n";
    }
    if (begins_answer) out << "<|im_start|>assistant\n";
    return out.take();
  }

 private:
  std::string system_;
};

/// The same, with what an answer was thought of before it: kept in answers behind the last question alone.
class Qwen3Format : public ChatFormat {
 public:
  ChatText format(std::span<const ChatMessage> chat, bool begins_answer) const override {
    require_known_roles(chat);
    size_t last_question = chat.empty() ? 0 : chat.size() - 1;
    for (size_t i = chat.size(); i-- > 0;)
      if (chat[i].role == "user" && !is_tool_response(chat[i].content)) {
        last_question = i;
        break;
      }
    ChatWriter out;
    for (size_t i = 0; i < chat.size(); ++i) {
      const ChatMessage& message = chat[i];
      out << "<|im_start|>" << message.role << "\n";
      if (message.role != "assistant") {
        out << message.content << "<|im_end|>\n";
        continue;
      }
      const auto [thoughts, content] = parts_of(message.content);
      out.begin_answer();
      if (i > last_question && (i + 1 == chat.size() || !thoughts.empty()))
        out << "<think>\n"
            << without_line_ends(thoughts, true, true) << "\n</think>\n\n"
            << without_line_ends(content, true, false);
      else
        out << content;
      out << "<|im_end|>";
      out.end_answer();
      out << "\n";
    }
    if (begins_answer) out << "<|im_start|>assistant\n";
    return out.take();
  }

 private:
  static bool is_tool_response(std::string_view content) {
    return content.starts_with("<tool_response>") && content.ends_with("</tool_response>");
  }
  static std::pair<std::string_view, std::string_view> parts_of(std::string_view content) {
    constexpr std::string_view kBegin = "<think>";
    constexpr std::string_view kEnd = "</think>";
    const size_t end = content.find(kEnd);
    if (end == std::string_view::npos) return {"", content};
    std::string_view thoughts = without_line_ends(content.substr(0, end), false, true);
    if (const size_t begin = thoughts.rfind(kBegin); begin != std::string_view::npos)
      thoughts.remove_prefix(begin + kBegin.size());
    return {without_line_ends(thoughts, true, false),
            without_line_ends(content.substr(content.rfind(kEnd) + kEnd.size()), true, false)};
  }
};

/// Llama 3, and 3.1 to 3.3, whose chats all begin with a system message that has dates.
class Llama3Format : public ChatFormat {
 public:
  Llama3Format(std::string bos, bool has_dates) : bos_(std::move(bos)), has_dates_(has_dates) {}

  ChatText format(std::span<const ChatMessage> chat, bool begins_answer) const override {
    require_known_roles(chat);
    ChatWriter out;
    if (has_dates_ || !chat.empty()) out << bos_;
    size_t first = 0;
    if (has_dates_) {
      out << header("system") << "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n";
      if (!chat.empty() && chat[0].role == "system") out << stripped(chat[first++].content);
      out << kEnd;
    }
    for (const ChatMessage& message : chat.subspan(first)) {
      out << header(message.role);
      const bool is_answer = message.role == "assistant";
      if (is_answer) out.begin_answer();
      out << stripped(message.content) << kEnd;
      if (is_answer) out.end_answer();
    }
    if (begins_answer) out << header("assistant");
    return out.take();
  }

 private:
  static constexpr std::string_view kEnd = "<|eot_id|>";
  static std::string header(std::string_view role) {
    return fmt::format("<|start_header_id|>{}<|end_header_id|>\n\n", role);
  }

  std::string bos_;
  bool has_dates_;
};

/// [INST] QUESTION [/INST] ANSWER: Llama 2 and Mistral.
class InstFormat : public ChatFormat {
 public:
  struct Form {
    bool takes_system = false;
    bool begins_each = false;  ///< bos before each question, not once
    bool strips = false;
    std::string_view before_question = "[INST] ";
    std::string_view before_system = {};
    std::string_view after_system = {};
    std::string_view before_answer = {};
    std::string_view before_end = {};  ///< eos
    std::string_view after_end = {};
  };
  InstFormat(const Form& form, ChatTokens tokens) : form_(form), tokens_(std::move(tokens)) {}

  ChatText format(std::span<const ChatMessage> chat, bool /*begins_answer*/) const override {
    require_turns(chat, form_.takes_system);
    ChatWriter out;
    if (!form_.begins_each) out << tokens_.bos;
    std::string before;
    for (const ChatMessage& message : chat) {
      if (message.role == "system") {
        before = fmt::format("{}{}{}", form_.before_system, message.content, form_.after_system);
        continue;
      }
      const std::string whole = std::exchange(before, {}) + message.content;
      const std::string_view content = form_.strips ? stripped(whole) : whole;
      if (message.role == "user") {
        if (form_.begins_each) out << tokens_.bos;
        out << form_.before_question << content << " [/INST]";
        continue;
      }
      out.begin_answer();
      out << form_.before_answer << content << form_.before_end << tokens_.eos;
      out.end_answer();
      out << form_.after_end;
    }
    return out.take();
  }

 private:
  Form form_;
  ChatTokens tokens_;
};

class Gemma3Format : public ChatFormat {
 public:
  explicit Gemma3Format(std::string bos) : bos_(std::move(bos)) {}

  ChatText format(std::span<const ChatMessage> chat, bool begins_answer) const override {
    require_turns(chat, /*takes_system=*/true);
    ChatWriter out;
    out << bos_;
    std::string before;
    for (const ChatMessage& message : chat) {
      if (message.role == "system") {
        before = message.content + "\n\n";
        continue;
      }
      const bool is_answer = message.role == "assistant";
      out << "<start_of_turn>" << (is_answer ? "model" : "user") << "\n" << std::exchange(before, {});
      if (is_answer) out.begin_answer();
      out << stripped(message.content) << "<end_of_turn>";
      if (is_answer) out.end_answer();
      out << "\n";
    }
    if (begins_answer) out << "<start_of_turn>model\n";
    return out.take();
  }

 private:
  std::string bos_;
};

class Olmo2Format : public ChatFormat {
 public:
  explicit Olmo2Format(ChatTokens tokens) : tokens_(std::move(tokens)) {}

  ChatText format(std::span<const ChatMessage> chat, bool begins_answer) const override {
    require_known_roles(chat);
    ChatWriter out;
    out << tokens_.bos;
    for (size_t i = 0; i < chat.size(); ++i) {
      out << "<|" << chat[i].role << "|>\n";
      if (chat[i].role != "assistant") {
        out << chat[i].content << "\n";
        continue;
      }
      out.begin_answer();
      out << chat[i].content << tokens_.eos;
      out.end_answer();
      if (i + 1 < chat.size()) out << "\n";
    }
    if (begins_answer && !chat.empty()) out << "<|assistant|>\n";
    return out.take();
  }

 private:
  ChatTokens tokens_;
};

}  // namespace

std::string_view stripped(std::string_view text) {
  const auto length_of_space = [&](bool at_end) -> size_t {
    if (text.empty()) return 0;
    if (kNarrowSpaces.find(at_end ? text.back() : text.front()) != std::string_view::npos) return 1;
    for (const std::string_view space : kWideSpaces)
      if (at_end ? text.ends_with(space) : text.starts_with(space)) return space.size();
    return 0;
  };
  while (const size_t length = length_of_space(false)) text.remove_prefix(length);
  while (const size_t length = length_of_space(true)) text.remove_suffix(length);
  return text;
}

std::shared_ptr<const ChatFormat> make_chat_format(std::string_view name, const ChatTokens& tokens,
                                                   const std::string& system) {
  if (name == "chatml") return std::make_shared<ChatMlFormat>(system);
  if (name == "qwen2") return std::make_shared<ChatMlFormat>("You are a helpful assistant.");
  if (name == "qwen2.5")
    return std::make_shared<ChatMlFormat>("You are Qwen, created by Alibaba Cloud. You are a helpful assistant.");
  if (name == "smollm2")
    return std::make_shared<ChatMlFormat>("You are a helpful AI assistant named SmolLM, trained by Hugging Face");
  if (name == "qwen3") return std::make_shared<Qwen3Format>();
  if (name == "llama3") return std::make_shared<Llama3Format>(tokens.bos, /*has_dates=*/false);
  if (name == "llama3.1") return std::make_shared<Llama3Format>(tokens.bos, /*has_dates=*/true);
  if (name == "gemma3") return std::make_shared<Gemma3Format>(tokens.bos);
  if (name == "olmo2") return std::make_shared<Olmo2Format>(tokens);
  if (name == "llama2")
    return std::make_shared<InstFormat>(InstFormat::Form{.takes_system = true,
                                                         .begins_each = true,
                                                         .strips = true,
                                                         .before_system = "<<SYS>>\n",
                                                         .after_system = "\n<</SYS>>\n\n",
                                                         .before_answer = " ",
                                                         .before_end = " "},
                                        tokens);
  if (name == "mistral")
    return std::make_shared<InstFormat>(
        InstFormat::Form{
            .takes_system = true, .before_question = " [INST] ", .after_system = "\n\n", .before_answer = " "},
        tokens);
  if (name == "mistral-v0.1") return std::make_shared<InstFormat>(InstFormat::Form{.after_end = " "}, tokens);
  if (name == "mistral-v0.2") return std::make_shared<InstFormat>(InstFormat::Form{}, tokens);
  return nullptr;
}

}  // namespace levin::data
