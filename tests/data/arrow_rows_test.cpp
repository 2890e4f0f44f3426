// Arrow IPC files that pyarrow wrote: the rows of the same JSON lines, and one message for each mistake.

#include <levin/core/data/json/arrow_rows.h>

#include <levin/core/data/instruction_data.h>
#include <levin/core/data/json/json_rows.h>
#include <levin/core/data/json_lines.h>

#include "reader_checks.h"
#include "small_tokenizer.h"
#include "tests/support/tree.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <fstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace levin::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::message_of;

#ifdef LEVIN_HAS_PARQUET

class ArrowFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string missing = testing::missing_module("pyarrow"); !missing.empty()) GTEST_SKIP() << missing;
    const auto result = testing::run_program(
        {testing::test_python(), testing::source_path("tests/data/make_arrow.py"), folder_.path()});
    ASSERT_EQ(result.status, 0) << result.err;
  }

  std::string path(const std::string& name) const { return folder_.path(name); }
  std::string bytes_of(const std::string& name) const { return testing::read_text(path(name)); }

  TemporaryFolder folder_;
};

TEST_F(ArrowFiles, HaveTheRowsOfTheSameJsonLines) {
  const JsonRows expected({path("rows.jsonl")}, folder_.path());
  ASSERT_EQ(expected.size(), 60);
  for (const std::string name : {"rows.arrow", "file.arrow", "packed-zstd.arrow", "packed-lz4.arrow"}) {
    SCOPED_TRACE(name);
    const JsonRows rows({path(name)}, folder_.path());
    ASSERT_EQ(rows.size(), 60);
    for (int64_t i = 0; i < rows.size(); ++i) {
      const int64_t row = i * 37 % 60;  // not in their order
      nlohmann::json wanted = expected.row(row);
      for (auto item = wanted.begin(); item != wanted.end();) item = item->is_null() ? wanted.erase(item) : ++item;
      EXPECT_EQ(rows.row(row), wanted) << row;
    }
    EXPECT_EQ(rows.place(16), path(name) + ":17");
  }
  const JsonRows replaced({path("replaced.arrow")}, folder_.path());
  std::vector<std::string> texts;
  for (int64_t row = 0; row < replaced.size(); ++row)
    texts.push_back(replaced.row(row).value("text", std::string("missing")));
  EXPECT_THAT(texts, ElementsAre("x", "y", "x", "z", "y", "other", "missing"));
}

TEST_F(ArrowFiles, AreReadByManyThreads) {
  const JsonRows rows({path("rows.arrow"), path("packed-zstd.arrow")}, folder_.path());
  std::vector<nlohmann::json> expected;
  for (int64_t row = 0; row < rows.size(); ++row) expected.push_back(rows.row(row));
  std::vector<int64_t> wrong(4);
  std::vector<std::thread> threads;
  for (size_t thread = 0; thread < wrong.size(); ++thread)
    threads.emplace_back([&, thread] {
      for (int64_t i = 0; i < 4 * rows.size(); ++i) {
        const int64_t row = (i * 41 + static_cast<int64_t>(thread)) % rows.size();
        wrong[thread] += rows.row(row) == expected[static_cast<size_t>(row)] ? 0 : 1;
      }
    });
  for (auto& thread : threads) thread.join();
  EXPECT_THAT(wrong, ::testing::Each(0));
}

TEST_F(ArrowFiles, TrainAsJsonLinesDo) {
  const auto loader = [&](const std::string& file) {
    const auto data = make<JsonLines>({.files = {file},
                                       .columns = {{"id", JsonColumn::kInteger}, {"messages", JsonColumn::kText}},
                                       .cache_folder = folder_.path(),
                                       .batch_size = 4,
                                       .num_workers = 2});
    data->prepare_data();
    data->setup(Stage::kFit);
    return data->train_dataloader();
  };
  const auto expected = testing::all_batches(loader(path("chats.jsonl")), {.epoch = 1});
  for (const std::string& files : {path("saved"), path("saved/"), path("saved/data-*.arrow")}) {
    SCOPED_TRACE(files);
    const auto batches = testing::all_batches(loader(files), {.epoch = 1});
    ASSERT_EQ(batches.size(), expected.size());
    for (size_t i = 0; i < batches.size(); ++i) {
      EXPECT_TRUE(batches[i]["id"].equal(expected[i]["id"]));
      EXPECT_EQ(batches[i].texts("messages"), expected[i].texts("messages"));
    }
    // On from a batch of the pass.
    const auto rest = testing::all_batches(loader(files), {.epoch = 1, .batch = 5});
    ASSERT_EQ(rest.size(), expected.size() - 5);
    EXPECT_TRUE(rest[0]["id"].equal(expected[5]["id"]));
  }
}

TEST_F(ArrowFiles, AreChatsThatArePacked) {
  std::ofstream(path("tokenizer.json")) << testing::small_tokenizer();
  const auto rows = [&](const std::string& file) {
    const auto data = make<InstructionData>({.files = {file},
                                             .val_fraction = 0.1,
                                             .tokenizer = path("tokenizer.json"),
                                             .chat_template = "none",
                                             .end = "<end>",
                                             .context = 64,
                                             .cache_folder = folder_.path("cache")});
    data->prepare_data();
    data->setup(Stage::kFit);
    return std::pair{testing::all_batches(data->train_dataloader()), testing::all_batches(data->val_dataloader()[0])};
  };
  const auto [expected, expected_held_out] = rows(path("chats.jsonl"));
  const auto [batches, held_out] = rows(path("saved"));
  ASSERT_EQ(batches.size(), expected.size());
  for (size_t i = 0; i < batches.size(); ++i)
    for (const char* name : {"tokens", "next", "positions"})
      EXPECT_TRUE(batches[i][name].equal(expected[i][name])) << name << " " << i;
  EXPECT_TRUE(held_out.at(0)["tokens"].equal(expected_held_out.at(0)["tokens"]));
}

TEST_F(ArrowFiles, LeaveOutWhatJsonDoesNotHave) {
  ::testing::internal::CaptureStderr();
  const ArrowRows rows(path("other.arrow"));
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("rows are read without what JSON does not have: image.bytes (binary)"));
  EXPECT_EQ(rows.row(0), nlohmann::json::parse(
                             R"({"text": "a", "image": {"path": "a.png"}, "day": "2024-02-29", "price": "1.50"})"));
  EXPECT_EQ(rows.row(1), nlohmann::json::parse(R"({"text": "b", "image": {"path": "b.png"}, "price": "-2.25"})"));
}

TEST_F(ArrowFiles, SayWhatIsWrong) {
  const auto error = [&](const std::string& file) { return message_of([&] { JsonRows({file}, folder_.path()); }); };
  const std::string whole = bytes_of("rows.arrow");
  const auto cut = [&](size_t bytes) { return error(folder_.write("cut.arrow", whole.substr(0, bytes))); };
  EXPECT_THAT(cut(whole.size() / 2), HasSubstr("cut.arrow, which is damaged or cut short"));
  EXPECT_THAT(cut(whole.size() - 8), HasSubstr("cut.arrow is cut short; got no mark at its end"));
  EXPECT_THAT(cut(6), HasSubstr("cut.arrow"));
  const std::string file = bytes_of("file.arrow");
  EXPECT_THAT(error(folder_.write("cut.file", file.substr(0, file.size() - 3))), HasSubstr("cut.file is cut short"));
  EXPECT_THAT(error(path("empty.arrow")), HasSubstr("empty.arrow has no rows"));
  EXPECT_THAT(error(folder_.write("a.parquet", "PAR1....")),
              HasSubstr("a.parquet is a Parquet file; valid: JSON lines and Arrow IPC files"));
  EXPECT_THAT(error(folder_.path()), HasSubstr("is a folder; valid: files and patterns"));
  std::ofstream(path("saved/dataset_dict.json")) << R"({"splits": ["train"]})";
  EXPECT_THAT(error(path("saved")), HasSubstr("is a folder of several splits; hint: one of them"));
  std::filesystem::remove(path("saved/dataset_dict.json"));
  std::filesystem::remove(path("saved/data-00001-of-00002.arrow"));
  EXPECT_THAT(error(path("saved")), HasSubstr("there is no file " + path("saved/data-00001-of-00002.arrow")));
  std::ofstream(path("saved/state.json")) << "[";
  EXPECT_THAT(error(path("saved")), HasSubstr("state.json names no data files"));
}

TEST_F(ArrowFiles, ThatAreDamagedAreReadOrRefused) {
  const auto read = [&](const std::string& damaged) {
    const ArrowRows rows(damaged);
    for (int64_t row = 0; row < rows.size(); ++row) rows.row(row);
  };
  for (const std::string name : {"rows.arrow", "file.arrow", "packed-lz4.arrow", "replaced.arrow"})
    EXPECT_GT(testing::read_damaged(bytes_of(name), path("damaged.arrow"), 300, read), 50) << name;
}

#else

TEST(ArrowFiles, AreRefusedWithoutArrow) {
  const TemporaryFolder folder;
  const std::string path = folder.write("a.arrow", std::string("\xff\xff\xff\xff\x10\0\0\0", 8));
  EXPECT_THAT(message_of([&] { JsonRows({path}, folder.path()); }), HasSubstr("built without Arrow"));
}

#endif

}  // namespace
}  // namespace levin::data
