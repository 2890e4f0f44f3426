// Texts, prompts with answers and chats as rows of tokens, packed and padded, and one message for each mistake.

#include <levin/core/data/instruction_data.h>

#include <levin/core/data/documents/packed_rows.h>

#include "reader_checks.h"
#include "small_tokenizer.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace levin::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::message_of;

/// A folder of a model whose chats are ChatML, with a file of JSON lines.
class InstructionDataTest : public ::testing::Test {
 protected:
  void SetUp() override {
    nlohmann::json tokenizer = testing::small_tokenizer();
    int64_t id = 259;
    for (const char* token : {"<|im_start|>", "<|im_end|>"})
      tokenizer["added_tokens"].push_back({{"id", id++}, {"content", token}, {"special", true}, {"normalized", false}});
    folder_.write("tokenizer.json", tokenizer.dump());
    folder_.write("tokenizer_config.json",
                  nlohmann::json{{"eos_token", "<end>"},
                                 {"chat_template",
                                  "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + "
                                  "message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}"
                                  "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"}}
                      .dump());
  }
  std::string write(const std::vector<nlohmann::json>& rows) const {
    std::string text;
    for (const auto& row : rows) text += row.dump() + "\n";
    return folder_.write("rows.jsonl", text);
  }
  InstructionDataOptions options(const std::vector<nlohmann::json>& rows) const {
    return {
        .files = {write(rows)}, .tokenizer = folder_.path(), .cache_folder = folder_.path("cache"), .shuffle = false};
  }
  static std::shared_ptr<InstructionData> made(const InstructionDataOptions& options) {
    auto data = make<InstructionData>(options);
    data->prepare_data();
    data->setup(Stage::kFit);
    return data;
  }
  static Batch first_batch(const InstructionDataOptions& options) {
    return testing::all_batches(made(options)->train_dataloader()).at(0);
  }
  static std::string error(const InstructionDataOptions& options) {
    return message_of([&] { testing::all_batches(made(options)->train_dataloader()); });
  }
  /// The text of the tokens that a row learns.
  std::string learned(const Batch& batch, int64_t row) const {
    const at::Tensor next = batch["next"][row];
    const at::Tensor kept = next.masked_select(next.ne(-100)).contiguous();
    return Tokenizer(folder_.path("tokenizer.json"))
        .decode(std::vector<int64_t>(kept.const_data_ptr<int64_t>(), kept.const_data_ptr<int64_t>() + kept.numel()));
  }
  std::string seen(const Batch& batch, int64_t row) const {
    const at::Tensor tokens = batch["tokens"][row].masked_select(batch["positions"][row].ge(0)).contiguous();
    return Tokenizer(folder_.path("tokenizer.json"))
        .decode(
            std::vector<int64_t>(tokens.const_data_ptr<int64_t>(), tokens.const_data_ptr<int64_t>() + tokens.numel()));
  }

  TemporaryFolder folder_;
};

const nlohmann::json kChat{{"messages",
                            {{{"role", "system"}, {"content", "Be the best."}},
                             {{"role", "user"}, {"content", "Name the sea."}},
                             {{"role", "assistant"}, {"content", "the North"}},
                             {{"role", "user"}, {"content", "And?"}},
                             {{"role", "assistant"}, {"content", "the South"}}}}};

TEST_F(InstructionDataTest, LearnsAnswersOfChatsAlone) {
  auto options = this->options({kChat, {{"messages", {{{"role", "assistant"}, {"content", "a"}}}}}});
  options.pack = false;
  const Batch batch = first_batch(options);
  EXPECT_EQ(learned(batch, 0), "the North<|im_end|>the South<|im_end|>");
  EXPECT_EQ(learned(batch, 1), "a<|im_end|>");
  EXPECT_EQ(seen(batch, 1), "<|im_start|>assistant\na<|im_end|>") << "the last token is followed by none";
  // Each token is followed by the one that `next` names.
  const at::Tensor tokens = batch["tokens"][0];
  const at::Tensor next = batch["next"][0];
  const at::Tensor counts = next.ne(-100).narrow(0, 0, next.size(0) - 1);
  EXPECT_TRUE(next.narrow(0, 0, next.size(0) - 1)
                  .masked_select(counts)
                  .equal(tokens.narrow(0, 1, tokens.size(0) - 1).masked_select(counts)));
  EXPECT_TRUE(batch["positions"][0].equal(torch::arange(tokens.size(0))));

  options.loss_on = LearnedAnswers::kLast;
  EXPECT_EQ(learned(first_batch(options), 0), "the South<|im_end|>");
  options.pack = true;
  EXPECT_EQ(learned(first_batch(options), 0), "the South<|im_end|>a<|im_end|>");
}

TEST_F(InstructionDataTest, ReadsPromptsWithAnswersAndTexts) {
  auto options = this->options(
      {{{"prompt", "1+1="}, {"completion", "2"}, {"s", "Add."}}, {{"prompt", "the"}, {"completion", "n"}}});
  options.pack = false;
  options.system = "s";
  Batch batch = first_batch(options);
  EXPECT_EQ(learned(batch, 0), "2<|im_end|>");
  EXPECT_THAT(seen(batch, 0), HasSubstr("<|im_start|>system\nAdd.<|im_end|>\n<|im_start|>user\n1+1=<|im_end|>"));
  EXPECT_THAT(seen(batch, 1), ::testing::StartsWith("<|im_start|>user\nthe<|im_end|>"));
  options.system.reset();
  options.chat_template = "none";
  batch = first_batch(options);
  EXPECT_EQ(learned(batch, 0), "2<end>");
  EXPECT_EQ(seen(batch, 0), "1+1=2");
  // "the" + "n" is two tokens, of which the first is the prompt's.
  EXPECT_TRUE(
      batch["next"][1].equal(torch::tensor({int64_t{'n'}, int64_t{258}, int64_t{-100}, int64_t{-100}, int64_t{-100}})));
  options.end = "";
  EXPECT_EQ(learned(first_batch(options), 0), "2");

  auto texts = this->options({{{"t", "the cat"}}, {{"t", "a"}}});
  texts.text = "t";
  texts.pack = false;
  batch = first_batch(texts);
  EXPECT_EQ(seen(batch, 0), "the cat");
  EXPECT_EQ(learned(batch, 0), " cat<end>") << "all but the first token";
}

/// Documents of numbers of tokens: row i has the id 'a' + i % 26, so often.
std::vector<nlohmann::json> documents_of(const std::vector<int64_t>& lengths) {
  std::vector<nlohmann::json> rows;
  for (size_t i = 0; i < lengths.size(); ++i)
    rows.push_back({{"text", std::string(static_cast<size_t>(lengths[i]), static_cast<char>('a' + i % 26))}});
  return rows;
}

/// The documents in rows: of each its token and its places, by what `positions` says.
std::multiset<std::pair<int64_t, int64_t>> documents_in(const std::vector<Batch>& batches) {
  std::multiset<std::pair<int64_t, int64_t>> found;
  for (const Batch& batch : batches)
    for (int64_t row = 0; row < batch.size(); ++row) {
      const auto tokens = batch["tokens"][row], next = batch["next"][row], positions = batch["positions"][row];
      int64_t length = 0;
      for (int64_t i = 0; i < tokens.size(0); ++i) {
        const auto position = positions[i].item<int64_t>();
        const auto following = i + 1 < tokens.size(0) ? positions[i + 1].item<int64_t>() : -1;
        if (position < 0) {
          EXPECT_EQ(next[i].item<int64_t>(), -100);
          continue;
        }
        EXPECT_EQ(position, length++);
        if (following > 0) {
          EXPECT_EQ(next[i].item<int64_t>(), tokens[i + 1].item<int64_t>());
          continue;
        }
        found.emplace(tokens[i].item<int64_t>(), length);
        length = 0;
      }
    }
  return found;
}

TEST_F(InstructionDataTest, PacksDocumentsIntoRows) {
  Generator random(5, 0);
  std::vector<int64_t> lengths;
  for (int i = 0; i < 700; ++i) lengths.push_back(1 + random.below(i % 20 == 0 ? 150 : 20));
  for (const LongDocuments long_documents : {LongDocuments::kTruncate, LongDocuments::kSplit}) {
    auto options = this->options(documents_of(lengths));
    options.context = 64;
    options.pack_window = 100;
    options.long_documents = long_documents;
    const auto data = made(options);
    const auto batches = testing::all_batches(data->train_dataloader());
    std::multiset<std::pair<int64_t, int64_t>> expected;
    int64_t places = 0;
    for (size_t i = 0; i < lengths.size(); ++i) {
      // A text of n tokens and its end have n places that something follows.
      int64_t left = long_documents == LongDocuments::kSplit ? lengths[i] : std::min<int64_t>(lengths[i], 64);
      places += left;
      for (; left > 0; left -= 64) expected.emplace('a' + static_cast<int64_t>(i % 26), std::min<int64_t>(left, 64));
    }
    EXPECT_EQ(documents_in(batches), expected);
    int64_t rows = 0;
    for (const Batch& batch : batches) {
      EXPECT_EQ(batch["tokens"].size(1), 64);
      rows += batch.size();
    }
    EXPECT_LE(static_cast<double>(rows * 64 - places) / static_cast<double>(rows * 64), 0.011) << "padding";
  }
}

TEST_F(InstructionDataTest, RowsFollowFromTheSeedForAnyRanksAndWorkers) {
  Generator random(6, 0);
  std::vector<int64_t> lengths;
  for (int i = 0; i < 300; ++i) lengths.push_back(1 + random.below(30));
  auto options = this->options(documents_of(lengths));
  options.context = 40;
  options.shuffle = true;
  options.global_batch_size = 6;
  const auto whole = testing::values_in(made(options)->train_dataloader(), "tokens", {.seed = 3, .epoch = 1});
  options.num_workers = 2;
  const DataLoader loader = made(options)->train_dataloader();
  EXPECT_EQ(testing::values_in(loader, "tokens", {.seed = 3, .epoch = 1}), whole);
  const auto rest = testing::values_in(loader, "tokens", {.seed = 3, .epoch = 1, .batch = 5});
  EXPECT_EQ(rest, std::vector<int64_t>(whole.begin() + 5 * 6 * 40, whole.end()));
  std::vector<int64_t> of_ranks;
  for (int64_t rank = 0; rank < 3; ++rank) {
    const auto own = testing::values_in(loader, "tokens", {.seed = 3, .epoch = 1, .rank = rank, .world_size = 3});
    EXPECT_TRUE(std::equal(own.begin(), own.begin() + 80, whole.begin() + rank * 80)) << "its part of the first batch";
    of_ranks.insert(of_ranks.end(), own.begin(), own.end());
  }
  auto sorted = whole;
  std::sort(sorted.begin(), sorted.end());
  std::sort(of_ranks.begin(), of_ranks.end());
  EXPECT_EQ(of_ranks, sorted);
}

TEST_F(InstructionDataTest, PackedRowsAreKeptUntilSomethingChanges) {
  auto options = this->options(documents_of({5, 6, 7, 30, 2, 9}));
  options.context = 16;
  options.val_fraction = 0.34;
  const auto packed = [&] {
    std::map<std::string, std::filesystem::file_time_type> files;
    for (const auto& entry : std::filesystem::directory_iterator(folder_.path("cache")))
      files.emplace(entry.path().filename().string(), entry.last_write_time());
    return files;
  };
  made(options);
  const auto first = packed();
  EXPECT_EQ(first.size(), 2U) << "of training and validation";
  const auto data = made(options);
  EXPECT_EQ(packed(), first);
  EXPECT_EQ(documents_in(testing::all_batches(data->val_dataloader().at(0))).size(), 2U);
  options.context = 8;
  made(options);
  EXPECT_EQ(packed().size(), 4U);
  options.files = {write(documents_of({5, 6, 7, 30, 2, 9, 1}))};
  made(options);
  EXPECT_EQ(packed().size(), 6U);

  const auto& [name, time] = *first.begin();
  std::filesystem::resize_file(folder_.path("cache/" + name), 100);
  EXPECT_THAT(message_of([&] { PackedRows(folder_.path("cache/" + name), 16); }),
              HasSubstr("are damaged; hint: remove the file, it is made again"));
}

TEST_F(InstructionDataTest, PackedRowsAreOfTheFileWhateverTheWorkingFolder) {
  // Two working folders, each with a file of one name, size and time of change, and one cache.
  const auto before = std::filesystem::current_path();
  std::vector<at::Tensor> tokens;
  const auto time = std::filesystem::file_time_type::clock::now();
  auto options = this->options(documents_of({5}));
  options.context = 16;
  options.cache_folder = folder_.path("cache");
  options.files = {"rows.jsonl"};
  for (const std::string word : {"cat", "dog"}) {
    std::filesystem::create_directories(folder_.path(word));
    std::filesystem::current_path(folder_.path(word));
    std::ofstream("rows.jsonl") << "{\"text\": \"" << word << "\"}\n";
    std::filesystem::last_write_time("rows.jsonl", time);
    tokens.push_back(testing::all_batches(made(options)->train_dataloader()).at(0)["tokens"].clone());
  }
  std::filesystem::current_path(before);
  EXPECT_FALSE(tokens[0].equal(tokens[1]));
}

TEST(RowPacker, FillsRowsOfAllSortsOfLengths) {
  // Lengths as of texts: the logarithm is normal; and as of chats: two humps.
  for (const int64_t context : {256, 1024, 4096}) {
    Generator random(9, context);
    const auto normal = [&] {
      double sum = -6;
      for (int i = 0; i < 12; ++i) sum += random.uniform();
      return sum;
    };
    for (const bool is_chat : {false, true}) {
      RowPacker packer(context);
      int64_t filled = 0;
      int64_t rows = 0;
      const auto count = [&](const std::vector<RowPacker::Row>& complete) {
        for (const RowPacker::Row& row : complete) {
          int64_t places = 0;
          for (const RowPacker::Piece& piece : row) places += std::ssize(piece);
          ASSERT_LE(places, context);
          filled += places;
          ++rows;
        }
      };
      for (int window = 0; window < 6; ++window) {
        std::vector<RowPacker::Piece> pieces;
        for (int i = 0; i < 2000; ++i) {
          const double mean = is_chat ? (random.below(3) == 0 ? 5.5 : 4.2) : 4.6;
          const auto length = static_cast<int64_t>(std::exp(mean + (is_chat ? 0.4 : 1.0) * normal()));
          pieces.emplace_back(static_cast<size_t>(std::clamp<int64_t>(length, 1, context)));
        }
        count(packer.add(std::move(pieces)));
      }
      count(packer.finish());
      EXPECT_LE(static_cast<double>(rows * context - filled) / static_cast<double>(rows * context), 0.011)
          << context << (is_chat ? " chats" : " texts");
    }
  }
}

TEST_F(InstructionDataTest, EveryMistakeIsOneMessage) {
  const std::string place = folder_.path("rows.jsonl");
  const auto chat = [](const std::vector<std::pair<std::string, std::string>>& messages) {
    nlohmann::json row{{"messages", nlohmann::json::array()}};
    for (const auto& [role, content] : messages) row["messages"].push_back({{"role", role}, {"content", content}});
    return row;
  };
  EXPECT_THAT(error(options({kChat, chat({{"user", "Q"}})})),
              HasSubstr(place + ":2: the chat has no answer, a message of the role assistant; it has 1 message"));
  EXPECT_THAT(error(options({chat({{"user", "Q"}, {"function", "F"}, {"assistant", "A"}})})),
              HasSubstr(place + ":1: message 2 of the chat has the role 'function', which the template lacks"));
  EXPECT_THAT(error(options({{{"messages", "x"}}})), HasSubstr(":1: 'messages' must be a list of messages"));
  EXPECT_THAT(error(options({{{"messages", {{{"from", "x"}}}}}})),
              HasSubstr(":1: message 1 of the chat needs a text 'role'; got {\"from\":\"x\"}"));
  EXPECT_THAT(error(options({{{"q", "x"}}})),
              HasSubstr(":1: none of the columns messages, prompt with answer, and text is there; got q"));
  EXPECT_THAT(error(options({{{"text", "x"}}, {{"text", 3}}})), HasSubstr(":2: 'text' must be a text; got number 3"));
  EXPECT_THAT(error(options({{{"text", "x"}}, {{"t", "x"}}})), HasSubstr(":2: the row has no 'text'; it has t"));

  auto changed = options(documents_of({10, 3}));
  changed.context = 8;
  changed.long_documents = LongDocuments::kRefuse;
  EXPECT_THAT(error(changed), HasSubstr(place + ":1: the document has 11 tokens, more than the context of 8"));
  changed.pack = false;
  EXPECT_THAT(error(changed), HasSubstr("a longer context, or long_documents: truncate"));
  changed.long_documents = LongDocuments::kSplit;
  EXPECT_THAT(error(changed), HasSubstr("data.long_documents is split, which needs pack: true"));
  changed = options({chat({{"user", std::string(100, 'x')}, {"assistant", "A"}})});
  changed.context = 8;
  EXPECT_THAT(error(changed), HasSubstr("none of 1 documents has a token to learn within 8 tokens"));
  changed = options(documents_of({3}));
  changed.end = "<nothing>";
  EXPECT_THAT(error(changed), HasSubstr("<nothing>"));
  changed = options(documents_of({3}));
  changed.prompt = "a";
  EXPECT_THAT(error(changed), HasSubstr("data.prompt and data.answer go together"));
  changed.text = "b";
  EXPECT_THAT(error(changed), HasSubstr("exclude each other"));
  changed = options({kChat});
  changed.chat_template = "llama9";
  EXPECT_THAT(error(changed), HasSubstr("there is no chat template 'llama9'"));
  EXPECT_THAT(message_of([] { make<InstructionData>({}); }), HasSubstr("data.files is not set"));
  EXPECT_THAT(message_of([] { make<InstructionData>({.files = {"x"}}); }), HasSubstr("data.tokenizer is not set"));
  std::filesystem::remove(folder_.path("tokenizer_config.json"));
  EXPECT_THAT(error(options(documents_of({3}))), HasSubstr("has no tokenizer_config.json with an eos_token"));
  EXPECT_THAT(error(options({kChat})),
              AllOf(HasSubstr("has no chat template"), HasSubstr("hint: `chat_template`, one of")));
}

}  // namespace
}  // namespace levin::data
