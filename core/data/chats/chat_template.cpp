#include <levin/core/data/chats/chat_template.h>

#include <levin/core/base/error.h>
#include <levin/core/base/file_system.h>
#include <levin/core/base/tree_budget.h>
#include <levin/core/base/utf8.h>
#include <levin/core/data/chats/chat_formats.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <optional>

namespace levin::data {

namespace {

constexpr size_t kMostTemplateBytes = size_t{1} << 20;

bool is_jinja_space(char letter) { return letter == ' ' || letter == '\t' || letter == '\n' || letter == '\r'; }

/// Rewrites a Jinja template so that templates that differ only in how they are spelled are the same: without comments,
/// without white space outside of texts, and with '...' for all texts, in which escaped characters are themselves.
/// White space outside of tags is nothing where transformers' environment (trim_blocks, lstrip_blocks) drops it.
class TemplateSpelling {
 public:
  explicit TemplateSpelling(std::string_view jinja) : rest_(jinja) {
    if (rest_.ends_with('\n')) rest_.remove_suffix(1);
  }

  std::string rewritten() {
    while (!rest_.empty()) {
      const size_t begin = find_tag();
      print(rest_.substr(0, begin), begin == std::string_view::npos ? std::string_view() : rest_.substr(begin, 3));
      if (begin == std::string_view::npos) break;
      rest_.remove_prefix(begin);
      tag();
    }
    return out_;
  }

  /// Returns whether text outside of tags is printed, as in none of the templates that are known here.
  bool prints_text() const { return prints_text_; }

 private:
  size_t find_tag() const {
    for (size_t at = 0; at + 1 < rest_.size(); ++at)
      if (rest_[at] == '{' && (rest_[at + 1] == '%' || rest_[at + 1] == '{' || rest_[at + 1] == '#')) return at;
    return std::string_view::npos;
  }

  void print(std::string_view text, std::string_view tag) {
    bool begins_line = out_.empty();
    if (trims_) {
      while (!text.empty() && is_jinja_space(text.front())) text.remove_prefix(1);
    } else if (after_block_ && text.starts_with('\n')) {
      text.remove_prefix(1);
      begins_line = true;
    }
    if (tag.size() == 3 && tag[2] == '-') {
      while (!text.empty() && is_jinja_space(text.back())) text.remove_suffix(1);
    } else if (tag.size() >= 2 && tag[1] != '{') {
      const size_t line = text.find_last_not_of(" \t") + 1;
      if ((line > 0 && text[line - 1] == '\n') || (line == 0 && begins_line)) text = text.substr(0, line);
    }
    if (!text.empty()) prints_text_ = true;
  }

  void tag() {
    const char kind = rest_[1];
    rest_.remove_prefix(2);
    const std::string_view end = kind == '%' ? "%}" : kind == '{' ? "}}" : "#}";
    const size_t before = out_.size();
    out_.append("{").push_back(kind);
    if (!rest_.empty() && (rest_.front() == '-' || rest_.front() == '+')) rest_.remove_prefix(1);
    char last = ' ';
    while (!rest_.empty() && !rest_.starts_with(end)) {
      last = rest_.front();
      rest_.remove_prefix(1);
      if (kind != '#' && (last == '\'' || last == '"'))
        quoted(last);
      else if (!is_jinja_space(last))
        out_.push_back(last);
    }
    trims_ = last == '-';
    if (trims_) out_.pop_back();
    after_block_ = kind != '{';
    rest_.remove_prefix(std::min(rest_.size(), end.size()));
    if (kind == '#')
      out_.resize(before);
    else
      out_.append(end);
  }

  void quoted(char quote) {
    out_.push_back('\'');
    while (!rest_.empty() && rest_.front() != quote) {
      char letter = rest_.front();
      rest_.remove_prefix(1);
      if (letter == '\\' && !rest_.empty()) {
        letter = rest_.front() == 'n' ? '\n' : rest_.front() == 't' ? '\t' : rest_.front();
        rest_.remove_prefix(1);
      }
      out_.push_back(letter);
    }
    out_.push_back('\'');
    if (!rest_.empty()) rest_.remove_prefix(1);
  }

  std::string_view rest_;
  std::string out_;
  bool trims_ = false;
  bool after_block_ = false;
  bool prints_text_ = false;
};

/// A template that is known as a whole, in the spelling above.
struct KnownTemplate {
  std::string_view name;
  std::string_view text;
};

constexpr std::string_view kAlternates =
    "{%if(message['role']=='user')!=(loop.index0%2==0)%}{{raise_exception('Conversation roles must alternate "
    "user/assistant/user/assistant/...')}}{%endif%}";

std::string with_alternation(std::string_view text) {
  constexpr std::string_view kMark = "@ALTERNATES@";
  std::string whole(text);
  if (const size_t at = whole.find(kMark); at != std::string::npos) whole.replace(at, kMark.size(), kAlternates);
  return whole;
}

constexpr std::array<KnownTemplate, 7> kKnown = {{
    {"chatml",
     "{%formessageinmessages%}{{'<|im_start|>'+message['role']+'\n'+message['content']+'<|im_end|>'+'\n'}}{%endfor%}"
     "{%ifadd_generation_prompt%}{{'<|im_start|>assistant\n'}}{%endif%}"},
    {"llama3",
     "{%setloop_messages=messages%}{%formessageinloop_messages%}{%setcontent='<|start_header_id|>'+message['role']+"
     "'<|end_header_id|>\n\n'+message['content']|trim+'<|eot_id|>'%}{%ifloop.index0==0%}{%setcontent=bos_token+content"
     "%}{%endif%}{{content}}{%endfor%}{%ifadd_generation_prompt%}{{'<|start_header_id|>assistant<|end_header_id|>"
     "\n\n'}}{%endif%}"},
    {"llama2",
     "{%ifmessages[0]['role']=='system'%}{%setloop_messages=messages[1:]%}{%setsystem_message=messages[0]['content']%}"
     "{%else%}{%setloop_messages=messages%}{%setsystem_message=false%}{%endif%}{%formessageinloop_messages%}"
     "@ALTERNATES@{%ifloop.index0==0andsystem_message!=false%}{%setcontent='<<SYS>>\n'+system_message+"
     "'\n<</SYS>>\n\n'+message['content']%}{%else%}{%setcontent=message['content']%}{%endif%}"
     "{%ifmessage['role']=='user'%}{{bos_token+'[INST] '+content|trim+' [/INST]'}}"
     "{%elifmessage['role']=='assistant'%}{{' '+content|trim+' '+eos_token}}{%endif%}{%endfor%}"},
    {"mistral-v0.1",
     "{{bos_token}}{%formessageinmessages%}@ALTERNATES@{%ifmessage['role']=='user'%}{{'[INST] '+message['content']+"
     "' [/INST]'}}{%elifmessage['role']=='assistant'%}{{message['content']+eos_token+' '}}{%else%}"
     "{{raise_exception('Only user and assistant roles are supported!')}}{%endif%}{%endfor%}"},
    {"mistral-v0.2",
     "{{bos_token}}{%formessageinmessages%}@ALTERNATES@{%ifmessage['role']=='user'%}{{'[INST] '+message['content']+"
     "' [/INST]'}}{%elifmessage['role']=='assistant'%}{{message['content']+eos_token}}{%else%}"
     "{{raise_exception('Only user and assistant roles are supported!')}}{%endif%}{%endfor%}"},
    {"mistral",
     "{%ifmessages[0]['role']=='system'%}{%setsystem_message=messages[0]['content']%}{%setloop_messages=messages[1:]%}"
     "{%else%}{%setloop_messages=messages%}{%endif%}{{bos_token}}{%formessageinloop_messages%}"
     "{%if(message['role']=='user')!=(loop.index0%2==0)%}{{raise_exception('After the optional system message, "
     "conversation roles must alternate user/assistant/user/assistant/...')}}{%endif%}{%ifmessage['role']=='user'%}"
     "{%ifloop.firstandsystem_messageisdefined%}{{' [INST] '+system_message+'\n\n'+message['content']+' [/INST]'}}"
     "{%else%}{{' [INST] '+message['content']+' [/INST]'}}{%endif%}{%elifmessage['role']=='assistant'%}{{' '+"
     "message['content']+eos_token}}{%else%}{{raise_exception('Only user and assistant roles are supported, with the "
     "exception of an initial optional system message!')}}{%endif%}{%endfor%}"},
    {"olmo2",
     "{{bos_token}}{%formessageinmessages%}{%ifmessage['role']=='system'%}{{'<|system|>\n'+message['content']+'\n'}}"
     "{%elifmessage['role']=='user'%}{{'<|user|>\n'+message['content']+'\n'}}{%elifmessage['role']=='assistant'%}"
     "{%ifnotloop.last%}{{'<|assistant|>\n'+message['content']+eos_token+'\n'}}{%else%}{{'<|assistant|>\n'+"
     "message['content']+eos_token}}{%endif%}{%endif%}{%ifloop.lastandadd_generation_prompt%}{{'<|assistant|>\n'}}"
     "{%endif%}{%endfor%}"},
}};

/// A template that is known by parts that say all of a chat without tools; `system`, if any, is followed by the system
/// message of chats without one.
struct MarkedTemplate {
  std::string_view name;
  std::array<std::string_view, 6> marks;
  std::string_view system = {};
  bool is_whole = false;  ///< the template is the first two marks with the system message between them
};

constexpr std::string_view kSystemEnd = "<|im_end|>\n'}}{%endif%}";

constexpr std::array<MarkedTemplate, 6> kMarked = {{
    {"chatml",
     {"{%formessageinmessages%}{%ifloop.firstandmessages[0]['role']!='system'%}{{'<|im_start|>system\n",
      "<|im_end|>\n'}}{%endif%}{{'<|im_start|>'+message['role']+'\n'+message['content']+'<|im_end|>'+'\n'}}{%endfor%}"
      "{%ifadd_generation_prompt%}{{'<|im_start|>assistant\n'}}{%endif%}"},
     "{%ifloop.firstandmessages[0]['role']!='system'%}{{'<|im_start|>system\n",
     /*is_whole=*/true},
    {"chatml",
     {"{%ifmessages[0]['role']=='system'%}{{'<|im_start|>system\n'+messages[0]['content']+'<|im_end|>\n'}}{%else%}"
      "{{'<|im_start|>system\n",
      "{%formessageinmessages%}{%if(message.role=='user')or(message.role=='system'andnotloop.first)or"
      "(message.role=='assistant'andnotmessage.tool_calls)%}{{'<|im_start|>'+message.role+'\n'+message.content+"
      "'<|im_end|>'+'\n'}}{%elif",
      "{%ifadd_generation_prompt%}{{'<|im_start|>assistant\n'}}{%endif%}"},
     "{{'<|im_start|>system\n'+messages[0]['content']+'<|im_end|>\n'}}{%else%}{{'<|im_start|>system\n"},
    {"qwen3",
     {"{%ifmessages[0].role=='system'%}{{'<|im_start|>system\n'+messages[0].content+'<|im_end|>\n'}}{%endif%}",
      "{%if(message.role=='user')or(message.role=='system'andnotloop.first)%}{{'<|im_start|>'+message.role+'\n'+"
      "content+'<|im_end|>'+'\n'}}{%elif",
      "{%ifloop.index0>ns.last_query_index%}{%ifloop.lastor(notloop.lastandreasoning_content)%}{{'<|im_start|>'+"
      "message.role+'\n<think>\n'+reasoning_content.strip('\n')+'\n</think>\n\n'+content.lstrip('\n')}}{%else%}"
      "{{'<|im_start|>'+message.role+'\n'+content}}{%endif%}{%else%}{{'<|im_start|>'+message.role+'\n'+content}}"
      "{%endif%}",
      "{{'<|im_end|>\n'}}{%elifmessage.role=='tool'%}", "{%ifadd_generation_prompt%}{{'<|im_start|>assistant\n'}}"}},
    {"qwen3",
     {"{%ifmessages[0].role=='system'%}{{'<|im_start|>system\n'+messages[0].content+'<|im_end|>\n'}}{%endif%}",
      "{%if(message.role=='user')or(message.role=='system'andnotloop.first)%}{{'<|im_start|>'+message.role+'\n'+"
      "message.content+'<|im_end|>'+'\n'}}{%elif",
      "{%ifloop.index0>ns.last_query_index%}{%ifloop.lastor(notloop.lastandreasoning_content)%}{{'<|im_start|>'+"
      "message.role+'\n<think>\n'+reasoning_content.strip('\n')+'\n</think>\n\n'+content.lstrip('\n')}}{%else%}"
      "{{'<|im_start|>'+message.role+'\n'+content}}{%endif%}{%else%}{{'<|im_start|>'+message.role+'\n'+content}}"
      "{%endif%}",
      "{{'<|im_end|>\n'}}{%elifmessage.role=='tool'%}", "{%ifadd_generation_prompt%}{{'<|im_start|>assistant\n'}}"}},
    {"llama3.1",
     {"{{bos_token}}{%if", "{%setsystem_message=messages[0]['content']|trim%}{%setmessages=messages[1:]%}",
      "{{'<|start_header_id|>system<|end_header_id|>\n\n'}}",
      "{{'Cutting Knowledge Date: December 2023\n'}}{{'Today Date: '+date_string+'\n\n'}}",
      "{{system_message}}{{'<|eot_id|>'}}",
      "{{'<|start_header_id|>'+message['role']+'<|end_header_id|>\n\n'+message['content']|trim+'<|eot_id|>'}}"}},
    {"gemma3",
     {"{{bos_token}}{%if", "{%setfirst_user_prefix=messages[0]['content']+'\n\n'%}",
      "{%if(message['role']=='user')!=(loop.index0%2==0)%}", "{%setrole='model'%}",
      "{{'<start_of_turn>'+role+'\n'+(first_user_prefixifloop.firstelse'')}}{%ifmessage['content']isstring%}"
      "{{message['content']|trim}}",
      "{{'<end_of_turn>\n'}}{%endfor%}{%ifadd_generation_prompt%}{{'<start_of_turn>model\n'}}{%endif%}"}},
}};

bool has_marks(std::string_view text, const MarkedTemplate& known) {
  if (known.is_whole)
    return text.starts_with(known.marks[0]) && text.ends_with(known.marks[1]) &&
           text.find(kSystemEnd, known.marks[0].size()) == text.size() - known.marks[1].size();
  size_t from = 0;
  for (const std::string_view mark : known.marks) {
    const size_t at = text.find(mark, from);
    if (at == std::string_view::npos) return false;
    from = at;
  }
  return true;
}

std::string system_in(std::string_view text, const MarkedTemplate& known) {
  if (known.system.empty()) return {};
  const size_t begin = text.find(known.system) + known.system.size();
  return std::string(text.substr(begin, text.find(kSystemEnd, begin) - begin));
}

/// What tells a template from others: the tokens that it writes.
std::string tokens_in(std::string_view jinja) {
  std::vector<std::string> found;
  for (size_t at = jinja.find('<'); at != std::string_view::npos && found.size() < 5; at = jinja.find('<', at + 1)) {
    const size_t end = jinja.find_first_of("> \n'\"", at);
    if (end == std::string_view::npos || jinja[end] != '>' || end < at + 2) continue;
    std::string token = shown_text(jinja.substr(at, end - at + 1), 40);
    if (std::find(found.begin(), found.end(), token) == found.end()) found.push_back(std::move(token));
  }
  return found.empty() ? shown_text(jinja, 60) : join(found);
}

nlohmann::json read_json(const std::string& path) {
  const std::string text = FileSystem::current().read_file(path);
  if (!is_too_deep_json(text)) {
    const nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (json.is_object()) return json;
  }
  throw Error("data", fmt::format("{} is not an object of JSON", path));
}

std::string token_of(const nlohmann::json& config, const char* name) {
  const auto found = config.find(name);
  if (found == config.end()) return {};
  if (found->is_string()) return found->get<std::string>();
  if (found->is_object() && found->contains("content") && (*found)["content"].is_string())
    return (*found)["content"].get<std::string>();
  return {};
}

/// The template of a tokenizer_config.json: a text, or the one named "default" of several.
std::optional<std::string> template_in(const nlohmann::json& config) {
  const auto found = config.find("chat_template");
  if (found == config.end()) return std::nullopt;
  if (found->is_string()) return found->get<std::string>();
  if (!found->is_array()) return std::nullopt;
  for (const nlohmann::json& one : *found)
    if (one.is_object() && one.value("name", nlohmann::json()) == "default" && one.contains("template") &&
        one["template"].is_string())
      return one["template"].get<std::string>();
  return std::nullopt;
}

}  // namespace

std::vector<std::string> ChatTemplate::names() {
  return {"chatml",       "gemma3", "llama2", "llama3",  "llama3.1", "mistral", "mistral-v0.1",
          "mistral-v0.2", "olmo2",  "qwen2",  "qwen2.5", "qwen3",    "smollm2"};
}

ChatText ChatTemplate::format(std::span<const ChatMessage> chat, bool begins_answer) const {
  return format_->format(chat, begins_answer);
}

ChatTemplate ChatTemplate::named(const std::string& name, const ChatTokens& tokens) {
  auto format = make_chat_format(name, tokens);
  if (format == nullptr)
    throw Error("data", fmt::format("there is no chat template '{}'; valid: {}", name, join(names())));
  return {name, std::move(format)};
}

ChatTemplate ChatTemplate::recognise(std::string_view jinja, const ChatTokens& tokens, const std::string& place) {
  TemplateSpelling spelling(jinja.substr(0, kMostTemplateBytes));
  const std::string text = spelling.rewritten();
  if (jinja.size() <= kMostTemplateBytes && !spelling.prints_text()) {
    for (const KnownTemplate& known : kKnown)
      if (text == with_alternation(known.text)) return named(std::string(known.name), tokens);
    for (const MarkedTemplate& known : kMarked) {
      if (!has_marks(text, known)) continue;
      const std::string system = system_in(text, known);
      if (system.empty()) return named(std::string(known.name), tokens);
      for (const char* name : {"qwen2", "qwen2.5", "smollm2"}) {
        const auto format = make_chat_format(name, tokens);
        const ChatMessage question{.role = "user"};
        if (format->format({&question, 1}, false).text ==
            make_chat_format("chatml", tokens, system)->format({&question, 1}, false).text)
          return {name, format};
      }
      return {std::string(known.name), make_chat_format(known.name, tokens, system)};
    }
  }
  throw Error("data", fmt::format("{}: the chat template is none that is known here; it has {}; valid: those of {}; "
                                  "hint: `chat_template` names the one to use",
                                  place, tokens_in(jinja), join(names())));
}

ChatTokens special_tokens_of(const std::string& folder) {
  const std::string path = folder + "/tokenizer_config.json";
  if (!FileSystem::current().exists(path)) return {};
  const nlohmann::json config = read_json(path);
  return {.bos = token_of(config, "bos_token"), .eos = token_of(config, "eos_token")};
}

ChatTemplate ChatTemplate::of_folder(const std::string& folder) {
  const ChatTokens tokens = special_tokens_of(folder);
  const std::string jinja = folder + "/chat_template.jinja";
  if (FileSystem::current().exists(jinja)) return recognise(FileSystem::current().read_file(jinja), tokens, jinja);
  const std::string path = folder + "/tokenizer_config.json";
  if (FileSystem::current().exists(path))
    if (const auto text = template_in(read_json(path))) return recognise(*text, tokens, path);
  throw Error("data", fmt::format("{} has no chat template, neither chat_template.jinja nor in tokenizer_config.json; "
                                  "hint: `chat_template`, one of {}, or none for prompts and answers as they are",
                                  folder, join(names())));
}

}  // namespace levin::data
