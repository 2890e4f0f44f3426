// Tables of Parquet files that pyarrow wrote: the same as of a CSV file, and one message for each mistake.

#include <levin/core/data/csv.h>
#include <levin/core/data/tables/read_table.h>

#include "reader_checks.h"
#include "tests/support/tree.h"

#include <levin/core/base/file_system.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

namespace levin::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::message_of;

#ifdef LEVIN_HAS_PARQUET

class Parquet : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string missing = testing::missing_module("pyarrow"); !missing.empty()) GTEST_SKIP() << missing;
    const auto result = testing::run_program(
        {testing::test_python(), testing::source_path("tests/data/make_parquet.py"), folder_.path()});
    ASSERT_EQ(result.status, 0) << result.err;
  }

  static std::string error(const std::string& path, const TableOptions& options = {}) {
    return message_of([&] { read_parquet(path, options); });
  }

  TemporaryFolder folder_;
};

TEST_F(Parquet, IsTheTableOfTheSameCsvFile) {
  const TableOptions options{.types = {{"digits", ColumnType::kCategory}, {"written", ColumnType::kNumber}},
                             .missing = {"", "NA", "nan", "null", "-2", "100", "17", "9.75"}};
  const Table table = read_parquet(folder_.path("table.parquet"), options);
  const Table expected = read_csv(folder_.path("table.csv"), options);
  EXPECT_EQ(table.names(), expected.names());
  ASSERT_EQ(table.columns.size(), 13U);
  for (size_t i = 0; i < table.columns.size(); ++i) {
    const TableColumn& column = table.columns[i];
    EXPECT_EQ(column.type, expected.columns[i].type) << column.name;
    EXPECT_TRUE(torch::allclose(column.values, expected.columns[i].values, 0, 0, /*equal_nan=*/true)) << column.name;
    EXPECT_EQ(column.categories, expected.columns[i].categories) << column.name;
  }
  EXPECT_THAT(table.find("flag")->categories, ElementsAre("false", "true"));
  EXPECT_THAT(table.find("digits")->categories, ElementsAre("9", "10")) << "100 is missing";
  ASSERT_EQ(table.num_rows(), 3000);
  EXPECT_EQ(table.lines.front(), 1);
  EXPECT_EQ(table.lines.back(), 3000);
  EXPECT_TRUE(read_table(folder_.path("table.parquet")).find("whole")->values.equal(table.find("whole")->values));
}

TEST_F(Parquet, NumbersAreMadeCategoriesAndTheOtherWayRound) {
  const Table table = read_parquet(
      folder_.path("table.parquet"),
      {.types = {{"flag", ColumnType::kNumber}, {"price", ColumnType::kCategory}, {"single", ColumnType::kCategory}},
       .columns = {"single", "flag", "price", "word"},
       .ignore = {"word"}});
  EXPECT_THAT(table.names(), ElementsAre("single", "price", "flag")) << "the file's order";
  const Table plain = read_parquet(folder_.path("table.parquet"), {.columns = {"flag", "single", "price"}});
  // Of false, true and what is missing: 0, 1 and NaN, or the places 0, 1 and -1.
  const auto& places = plain.find("flag")->values;
  const auto expected = torch::where(places < 0, torch::full({}, NAN, torch::kDouble), places.to(torch::kDouble));
  EXPECT_TRUE(torch::allclose(table.find("flag")->values, expected, 0, 0, /*equal_nan=*/true));
  for (const char* name : {"price", "single"}) {
    const TableColumn& words = *table.find(name);
    const TableColumn& numbers = *plain.find(name);
    for (int64_t row = 0; row < table.num_rows(); ++row) {
      const auto place = words.values[row].item<int64_t>();
      const double number = numbers.values[row].item<double>();
      if (place < 0)
        EXPECT_TRUE(std::isnan(number));
      else
        ASSERT_EQ(std::stod(words.categories[static_cast<size_t>(place)]), number) << name;
    }
  }
}

TEST_F(Parquet, TextsOfWhichEachIsThereOnce) {
  const Table table = read_parquet(folder_.path("distinct.parquet"));
  ASSERT_EQ(table.columns[0].categories.size(), 100'000U);
  const auto place = table.columns[0].values[70'007].item<int64_t>();
  EXPECT_EQ(table.columns[0].categories[static_cast<size_t>(place)], "name 70007 " + std::string(40, 'x'));
}

TEST_F(Parquet, TrainsAsACsvFileDoes) {
  const auto batches = [&](const std::string& file, const std::string& more = "") {
    Config config = Config::parse(
        "{target: kind, numbers: [written], categories: [digits], split_seed: 3, batch_size: 500" + more + "}", {});
    config.set("path", Config::scalar(folder_.path(file), true));
    auto data = make<Csv>(parse_options<CsvOptions>(config, "data"));
    data->setup(Stage::kFit);
    auto all = testing::all_batches(data->train_dataloader(), {.seed = 2});
    for (Batch& batch : testing::all_batches(data->val_dataloader().at(0))) all.push_back(std::move(batch));
    return all;
  };
  const std::string path = folder_.path("table.parquet");
  EXPECT_THAT(message_of([&] { batches("table.parquet"); }), HasSubstr(path + ":"));
  EXPECT_THAT(message_of([&] { batches("table.parquet"); }), HasSubstr("the target 'kind' is missing"));
  EXPECT_THAT(message_of([&] { batches("known.parquet", ", val_path: " + folder_.path("refused.parquet")); }),
              HasSubstr("refused.parquet has no column"));
  // The held-out file has columns besides that are not read.
  for (const std::string& more : {std::string(), ", val_path: " + folder_.path("more.parquet")}) {
    const auto of_parquet = batches("known.parquet", more);
    const auto of_csv = batches("known.csv", more);
    ASSERT_EQ(of_parquet.size(), of_csv.size());
    for (size_t i = 0; i < of_csv.size(); ++i) {
      EXPECT_EQ(of_csv[i].items().size(), 4U);
      for (const auto& [name, values] : of_csv[i].items()) EXPECT_TRUE(of_parquet[i][name].equal(values)) << name;
    }
  }
}

TEST_F(Parquet, SaysWhatIsWrong) {
  const std::string refused = folder_.path("refused.parquet");
  const std::vector<std::string> all{"x", "time", "day", "bytes", "list", "record", "record_of_two", "y"};
  for (size_t i = 1; i + 1 < all.size(); ++i)
    EXPECT_THAT(error(refused, {.columns = {"y", all[i]}}),
                HasSubstr(fmt::format("{}: column '{}' has neither numbers nor words; got ", refused, all[i])));
  EXPECT_THAT(error(refused, {.columns = {"time"}}), HasSubstr("got timestamp[us]"));
  EXPECT_THAT(read_parquet(refused, {.ignore = {all.begin(), all.end() - 1}}).names(), ElementsAre("y"));
  EXPECT_THAT(error(refused, {.columns = {"x"}}), HasSubstr(refused + ":2: column 'x': 'inf' is no number"));
  const std::string path = folder_.path("table.parquet");
  EXPECT_THAT(error(path, {.types = {{"word", ColumnType::kNumber}}}), HasSubstr("' is no number"));
  EXPECT_THAT(error(path, {.types = {{"wrod", ColumnType::kNumber}}}),
              HasSubstr("has no column 'wrod'; did you mean 'word'?"));
  EXPECT_THAT(error(path, {.columns = {"wrod"}}), HasSubstr(path + " has no column 'wrod'"));
  EXPECT_THAT(error(folder_.path("twice.parquet")), HasSubstr("twice.parquet: two columns have the name 'x'"));
  EXPECT_THAT(error(folder_.path("empty.parquet")), HasSubstr("empty.parquet has no rows"));
  EXPECT_THAT(error(folder_.path("none.parquet")), HasSubstr("none.parquet"));
  EXPECT_THAT(error(folder_.path()), HasSubstr(folder_.path()));
  EXPECT_THAT(error(folder_.write("t.parquet", "a,b\n1,2\n3,4\n")), HasSubstr("t.parquet is no Parquet file"));
  EXPECT_THAT(error(folder_.write("t.parquet", "")), HasSubstr("t.parquet is no Parquet file"));
  const std::string bytes = FileSystem::current().read_file(path);
  EXPECT_THAT(error(folder_.write("t.parquet", bytes.substr(0, bytes.size() / 2))),
              HasSubstr("t.parquet is cut short; got no PAR1 at its end"));
  EXPECT_THAT(error(folder_.write("t.parquet", bytes.substr(0, bytes.size() / 2) + bytes.substr(bytes.size() - 8))),
              HasSubstr("t.parquet"));
}

TEST_F(Parquet, APageOfEnormousSizeIsRefused) {
  EXPECT_THAT(
      error(testing::source_path("tests/fuzz/corpus/parquet/page_of_enormous_size")),
      HasSubstr("page_of_enormous_size: a damaged file, or a page of it, needs more memory than a table of that "
                "size may; got '"));
}

TEST_F(Parquet, DamagedFilesAreReadOrAreOneMessage) {
  const std::string bytes = FileSystem::current().read_file(folder_.path("table.parquet"));
  EXPECT_GT(testing::read_damaged(bytes, folder_.path("t.parquet"), 200,
                                  [](const std::string& path) {
                                    read_parquet(path, {.columns = {"small", "price", "word", "flag"}});
                                  }),
            50);
}

#else

TEST(Parquet, IsRefusedWithoutArrowAndTheMessageSaysHowToGetIt) {
  EXPECT_THAT(message_of([] { read_table("t.parquet"); }),
              HasSubstr("cannot read t.parquet: this Levin was built without Arrow"));
}

#endif

}  // namespace
}  // namespace levin::data
