// Chats as models see them: transformers' texts, templates that are recognised, and one message for each mistake.

#include <levin/core/data/chats/chat_template.h>

#include <levin/core/data/chats/chat_formats.h>

#include "../loggers/test_python.h"
#include "../support/run_program.h"
#include "../support/torch_python.h"
#include "../support/tree.h"
#include "reader_checks.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace levin::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::message_of;

constexpr const char* kTemplates = "tests/data/chat_templates";

std::string template_named(const std::string& name) {
  std::ifstream file(testing::source_path(fmt::format("{}/{}.jinja", kTemplates, name)), std::ios::binary);
  EXPECT_TRUE(file) << name;
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

ChatTemplate recognised(const std::string& jinja) {
  return ChatTemplate::recognise(jinja, {.bos = "<s>", .eos = "</s>"}, "model/chat_template.jinja");
}

TEST(ChatTemplate, PublishedTemplatesAreRecognised) {
  for (const std::string& name : ChatTemplate::names()) EXPECT_EQ(recognised(template_named(name)).name(), name);
}

TEST(ChatTemplate, TextsAreThoseOfTransformers) {
  if (const std::string missing = testing::missing_module("transformers"); !missing.empty()) GTEST_SKIP() << missing;
  const TemporaryFolder folder;
  const std::string out = folder.path("chats.json");
  const auto run = testing::run_program(
      {testing::test_python(), "-W", "ignore", testing::source_path("tests/data/chat_templates.py"),
       testing::source_path(kTemplates), out},
      {.environment = {{"PYTHONPATH", testing::torch_packages()}, {"HF_HUB_OFFLINE", "1"}}});
  ASSERT_EQ(run.status, 0) << run.out << run.err;
  const auto all = nlohmann::json::parse(std::ifstream(out));
  EXPECT_EQ(all.size(), ChatTemplate::names().size());
  for (const auto& [name, chats] : all.items()) {
    SCOPED_TRACE(name);
    const ChatTemplate chat_template = recognised(template_named(name));
    ASSERT_EQ(chats.size(), 200U);
    for (const auto& one : chats) {
      std::vector<ChatMessage> messages;
      size_t answers = 0;
      for (const auto& message : one["messages"]) {
        messages.push_back({message["role"], message["content"]});
        if (messages.back().role == "assistant") ++answers;
      }
      const ChatText text = chat_template.format(messages);
      ASSERT_EQ(text.text, one["text"].get<std::string>()) << one["messages"].dump();
      ASSERT_EQ(chat_template.format(messages, /*begins_answer=*/true).text, one["prompt"].get<std::string>());
      EXPECT_EQ(text.answers.size(), answers);
    }
  }
}

TEST(ChatTemplate, AnswersBeginBehindThePromptAndHaveTheirEnd) {
  const std::vector<ChatMessage> question{{"user", "Q"}};
  const std::vector<ChatMessage> chat{{"user", "Q"}, {"assistant", "one"}, {"user", "R"}, {"assistant", "two"}};
  for (const std::string& name : ChatTemplate::names()) {
    SCOPED_TRACE(name);
    const ChatTemplate chat_template = recognised(template_named(name));
    const ChatText text = chat_template.format(chat);
    ASSERT_EQ(text.answers.size(), 2U);
    const std::string prompt = chat_template.format(question, /*begins_answer=*/true).text;
    EXPECT_EQ(text.text.substr(0, text.answers[0].first), prompt) << "what a model would go on with";
    for (size_t i = 0; i < 2; ++i) {
      const auto [begin, end] = text.answers[i];
      const std::string answer = text.text.substr(begin, end - begin);
      EXPECT_THAT(answer, HasSubstr(i == 0 ? "one" : "two"));
      EXPECT_THAT(answer, ::testing::AnyOf(::testing::EndsWith("<|im_end|>"), ::testing::EndsWith("<|eot_id|>"),
                                           ::testing::EndsWith("</s>"), ::testing::EndsWith("<end_of_turn>")));
    }
  }
}

TEST(ChatTemplate, SpellingDoesNotMatterAndMeaningDoes) {
  EXPECT_EQ(recognised("{%- for message in messages -%}{# a comment #}{{- \"<|im_start|>\"+message[\"role\"]+\"\n\" + "
                       "message['content']+'<|im_end|>'+'\\n' -}}\n {%- endfor %}{%if add_generation_prompt%}"
                       "{{'<|im_start|>assistant\n'}}{%endif%}\n")
                .name(),
            "chatml");
  // Another system message is that of the template.
  std::string other = template_named("qwen2");
  other.replace(other.find("You are a helpful assistant."), 28, "Be \\'brief\\'.");
  const ChatTemplate brief = recognised(other);
  const std::vector<ChatMessage> question{{"user", "Q"}};
  EXPECT_EQ(brief.name(), "chatml");
  EXPECT_EQ(brief.format(question).text, "<|im_start|>system\nBe 'brief'.<|im_end|>\n<|im_start|>user\nQ<|im_end|>\n");

  const auto refused = [&](std::string jinja) { return message_of([&] { recognised(jinja); }); };
  for (const std::string& name : ChatTemplate::names()) {
    SCOPED_TRACE(name);
    const std::string jinja = template_named(name);
    EXPECT_THAT(refused("Hello. " + jinja), HasSubstr("the chat template is none that is known here")) << "more text";
    // Another way with contents is another template.
    std::string changed = jinja;
    for (const auto& [from, to] :
         {std::pair<std::string, std::string>{"message['content']", "message['content'] | upper"},
          {"message.content + '<|im_end|>'", "message.content | upper + '<|im_end|>'"},
          {"'\\n' + content + '<|im_end|>'", "'\\n' + content | upper + '<|im_end|>'"}})
      for (size_t at = changed.find(from); at != std::string::npos; at = changed.find(from, at + to.size()))
        changed.replace(at, from.size(), to);
    ASSERT_NE(changed, jinja);
    EXPECT_THAT(refused(changed), HasSubstr("the chat template is none that is known here"));
  }
  EXPECT_THAT(refused("{{ '<|start|>' }}{{ '<|stop|>' }}"),
              HasSubstr("model/chat_template.jinja: the chat template is none that is known here; it has <|start|>, "
                        "<|stop|>; valid: those of chatml"));
  EXPECT_THAT(refused("{% for"), HasSubstr("it has {% for"));
}

TEST(ChatTemplate, IsReadFromTheFolderOfAModel) {
  const TemporaryFolder folder;
  const auto name = [&] { return ChatTemplate::of_folder(folder.path()).name(); };
  EXPECT_THAT(message_of(name), HasSubstr("has no chat template, neither chat_template.jinja nor in"));
  nlohmann::json config{
      {"bos_token", {{"content", "<b>"}}}, {"eos_token", "<e>"}, {"chat_template", template_named("olmo2")}};
  folder.write("tokenizer_config.json", config.dump());
  EXPECT_EQ(name(), "olmo2");
  const std::vector<ChatMessage> chat{{"user", "Q"}, {"assistant", "A"}};
  EXPECT_EQ(ChatTemplate::of_folder(folder.path()).format(chat).text, "<b><|user|>\nQ\n<|assistant|>\nA<e>");
  config["chat_template"] = {{{"name", "tool_use"}, {"template", "x"}},
                             {{"name", "default"}, {"template", template_named("gemma3")}}};
  folder.write("tokenizer_config.json", config.dump());
  EXPECT_EQ(name(), "gemma3");
  folder.write("chat_template.jinja", template_named("llama3"));
  EXPECT_EQ(name(), "llama3");
  folder.write("tokenizer_config.json", "[");
  EXPECT_THAT(message_of(name), HasSubstr("tokenizer_config.json is not an object of JSON"));
}

TEST(ChatTemplate, EveryMistakeIsOneMessage) {
  const auto error = [](const std::string& name, const std::vector<ChatMessage>& chat) {
    return message_of([&] { ChatTemplate::named(name, {.bos = "<s>", .eos = "</s>"}).format(chat); });
  };
  EXPECT_THAT(error("qwen3", {{"user", "Q"}, {"tool", "T"}}),
              HasSubstr("message 2 of the chat has the role 'tool', which the template lacks; valid: system, user, "
                        "assistant"));
  EXPECT_THAT(error("llama2", {{"system", "S"}, {"assistant", "A"}}),
              HasSubstr("message 2 of the chat has the role 'assistant', where the template has 'user'"));
  EXPECT_THAT(error("mistral-v0.1", {{"system", "S"}, {"user", "Q"}}),
              HasSubstr("has the role 'system', where the template has 'user'; it has no system messages"));
  EXPECT_THAT(error("gemma3", {{"user", "Q"}, {"user", "Q"}}), HasSubstr("where the template has 'assistant'"));
  EXPECT_THAT(message_of([] { ChatTemplate::named("llama4", {}); }),
              HasSubstr("there is no chat template 'llama4'; valid: chatml, gemma3"));
}

TEST(ChatTemplate, StripsAsPythonDoes) {
  EXPECT_EQ(stripped(" \xe3\x80\x80\xc2\xa0\x1f\n a \xe2\x80\xa8"), "a");
  EXPECT_EQ(stripped("\xe2\x80\xa9"), "");
  EXPECT_EQ(stripped("\xe2\x80\x8b"), "\xe2\x80\x8b") << "of no width, and no space";
}

}  // namespace
}  // namespace levin::data
