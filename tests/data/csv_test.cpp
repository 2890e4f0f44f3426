// Tables of CSV files: the values that Python reads, the parts of a data module, and one message for each mistake.

#include <levin/core/data/csv.h>

#include <levin/core/data/arrays/numpy_file.h>
#include <levin/core/data/tables/csv_parser.h>
#include <levin/core/data/tables/read_table.h>

#include "reader_checks.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <set>
#include <string>
#include <vector>

namespace levin::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::message_of;

constexpr const char* kPeople =
    "age,job,city,income\n"
    "30,cook,Rome,low\n"
    "40,\"nurse, night\",Oslo,high\n"
    ",cook,,low\n"
    "50,pilot,Rome,high\n";

/// Options of a file, the rest from YAML.
CsvOptions csv_options(const std::string& path, const std::string& more = "{}") {
  Config config = Config::parse(more, {});
  config.set("path", Config::scalar(path, true));
  return parse_options<CsvOptions>(config, "data");
}

std::shared_ptr<Csv> fitted_csv(const CsvOptions& options) {
  auto data = make<Csv>(options);
  data->setup(Stage::kFit);
  return data;
}

TEST(CsvTable, ReadsWhatPythonReads) {
  const TemporaryFolder folder;
  const auto result = testing::run_with_numpy("make_table.py", {folder.path()});
  ASSERT_EQ(result.status, 0) << result.err;
  const Table table = read_csv(folder.path("table.csv"), {.types = {{"digits", ColumnType::kCategory}}});
  const Batch expected = read_npz(folder.path("numbers.npz"));
  std::ifstream file(folder.path("categories.json"));
  const auto names = nlohmann::json::parse(file);
  ASSERT_EQ(table.columns.size(), 6U);
  EXPECT_EQ(table.columns[3].name, "line\nbreak");
  for (size_t i = 0; i < table.columns.size(); ++i) {
    const TableColumn& column = table.columns[i];
    const std::string number = std::to_string(i);
    EXPECT_EQ(column.type == ColumnType::kCategory, names.contains(number)) << column.name;
    EXPECT_TRUE(torch::allclose(column.values, expected[number], 0, 0, /*equal_nan=*/true)) << column.name;
    if (names.contains(number)) EXPECT_EQ(column.categories, names[number].get<std::vector<std::string>>());
  }
  EXPECT_EQ(table.num_rows(), 3000);
  EXPECT_TRUE(torch::tensor(table.lines).equal(expected["lines"]));
}

TEST(CsvTable, ShortAndLongNumbersAreTheNearestOnes) {
  const TemporaryFolder folder;
  const std::vector<std::string> words{"0.1",
                                       "-0",
                                       "123456789012345",
                                       "1234567890123456",
                                       "9007199254740993",
                                       "0.30000000000000004",
                                       "-98765.432101234",
                                       ".5",
                                       "5.",
                                       "007",
                                       "1e3",
                                       "-.25e-3",
                                       "99999999999999.9",
                                       "0.000000000000001"};
  std::string text = "a,\"b\nc\"\n";
  for (const std::string& word : words) text += word + ",\"x\ny\"\n";
  const Table table = read_csv(folder.write("t.csv", text));
  for (size_t i = 0; i < words.size(); ++i)
    EXPECT_EQ(table.columns[0].values[static_cast<int64_t>(i)].item<double>(), std::strtod(words[i].c_str(), nullptr))
        << words[i];
  EXPECT_EQ(table.lines.back(), 3 + 2 * (std::ssize(words) - 1));
  for (const char* word : {"-", ".", "1.2.3", "1-2", "--1", "0x10", "1 2", "inf"})
    EXPECT_THAT(
        message_of([&] {
          read_csv(folder.write("t.csv", std::string("a\n") + word + "\n"), {.types = {{"a", ColumnType::kNumber}}});
        }),
        HasSubstr("is no number"))
        << word;
}

TEST(CsvTable, SkipsEmptyLinesAndTakesAnyLineEnd) {
  const TemporaryFolder folder;
  const Table table = read_csv(folder.write("t.csv",
                                            "\xef\xbb\xbf"
                                            "a;b\r\n\r\n1;x\r\n\r\n2; y z \r\n3;\" z\""),
                               {.delimiter = ';'});
  EXPECT_THAT(table.names(), ElementsAre("a", "b"));
  EXPECT_THAT(table.lines, ElementsAre(3, 5, 6));
  EXPECT_THAT(table.columns[1].categories, ElementsAre(" z", "x", "y z"));
  const Table bare = read_csv(folder.write("bare.csv", "1,x\n2,y\n"), {.header = false, .ignore = {"0"}});
  EXPECT_THAT(bare.names(), ElementsAre("1"));
  EXPECT_EQ(bare.num_rows(), 2);
}

TEST(CsvTable, SaysWhereTheFileIsWrong) {
  const TemporaryFolder folder;
  const auto error = [&](const std::string& text, TableOptions options = {}) {
    const std::string path = folder.write("t.csv", text);
    return message_of([&] { read_csv(path, options); });
  };
  const std::string path = folder.path("t.csv");
  EXPECT_THAT(error("a,b\n1,2\n1,2,3\n"), HasSubstr(path + ":3: the row has 3 fields, the header 2"));
  EXPECT_THAT(error("a,b\n\"x\ny\",2\n1\n"), HasSubstr(path + ":4: the row has 1 field, the header 2"));
  EXPECT_THAT(error("a,b\nx,2\ny,z\n", {.types = {{"b", ColumnType::kNumber}}}),
              HasSubstr(path + ":3: column 'b': 'z' is no number"));
  std::string long_file = "a\n";
  for (int i = 0; i < 1200; ++i) long_file += i == 1100 ? "1,5\n" : "1\n";
  EXPECT_THAT(error(long_file), HasSubstr(path + ":1102: the row has 2 fields"));
  long_file.replace(long_file.find("1,5"), 3, "1.5.2");
  EXPECT_THAT(error(long_file), HasSubstr(path + ":1102: column 'a': '1.5.2' is no number"));
  EXPECT_THAT(error("a\n1e999\n", {.types = {{"a", ColumnType::kNumber}}}), HasSubstr("'1e999' is no number"));
  EXPECT_THAT(error("a,b\n1,x\"y\n"), HasSubstr(path + ":2: a quote is out of place"));
  EXPECT_THAT(error("a,b\n1,2\n3,\"x\n4,5\n"), HasSubstr(path + ":3: a quote that begins in this row does not end"));
  EXPECT_THAT(error("a,a\n1,2\n"), HasSubstr(path + ":1: two columns have the name 'a'"));
  EXPECT_THAT(error("a,b\n"), HasSubstr("has no rows below its header"));
  EXPECT_THAT(error(""), HasSubstr("has no rows"));
  EXPECT_THAT(error("age,b\n1,2\n", {.ignore = {"agee"}}), HasSubstr("has no column 'agee'; did you mean 'age'?"));
  EXPECT_THAT(message_of([&] { read_csv(folder.path("none.csv")); }), HasSubstr(folder.path("none.csv")));
}

TEST(CsvTable, DamagedFilesAreReadOrAreOneMessage) {
  const TemporaryFolder folder;
  EXPECT_GT(testing::read_damaged(kPeople, folder.path("t.csv"), 400, [](const std::string& path) { read_csv(path); }),
            100);
}

TEST(Csv, NumbersAreNormalisedAndCategoriesCountedByTheTrainingRows) {
  const TemporaryFolder folder;
  const auto data = fitted_csv(
      csv_options(folder.write("t.csv", kPeople), "{target: income, val_fraction: 0, shuffle: false, batch_size: 8}"));
  const auto batches = testing::all_batches(data->train_dataloader());
  ASSERT_EQ(batches.size(), 1U);
  const float step = std::sqrt(1.5F);
  EXPECT_TRUE(batches[0]["numbers"].allclose(torch::tensor({{-step}, {0.F}, {0.F}, {step}})));
  EXPECT_TRUE(batches[0]["missing"].equal(torch::tensor({{0.F}, {0.F}, {1.F}, {0.F}})));
  EXPECT_TRUE(batches[0]["categories"].equal(torch::tensor({{1, 2}, {2, 1}, {1, 0}, {3, 2}}, torch::kLong)));
  EXPECT_TRUE(batches[0]["label"].equal(torch::tensor({1, 0, 1, 0}, torch::kLong)));
  EXPECT_THAT(data->classes(), ElementsAre("high", "low"));
  ASSERT_EQ(data->categories().size(), 2U);
  EXPECT_THAT(data->categories()[0].categories, ElementsAre("cook", "nurse, night", "pilot"));
  EXPECT_EQ(data->numbers()[0].mean, 40);

  const auto plain = fitted_csv(csv_options(
      folder.path("t.csv"), "{target: age, missing: [], ignore: [income], val_fraction: 0, target_type: category}"));
  EXPECT_THAT(plain->classes(), ElementsAre("", "30", "40", "50"));
}

TEST(Csv, OtherFilesAreReadWithWhatTrainingHas) {
  const TemporaryFolder folder;
  const auto options = csv_options(folder.write("t.csv", kPeople),
                                   fmt::format("{{target: income, val_path: {}, test_path: {}, normalize: false}}",
                                               folder.write("v.csv", "income,city,job,age,more\nlow,Paris,pilot,1,x\n"),
                                               folder.write("p.csv", "age,job,city\n2,cook,Oslo\n")));
  const auto data = fitted_csv(options);
  const auto validation = testing::all_batches(data->val_dataloader().at(0));
  EXPECT_TRUE(validation.at(0)["categories"].equal(torch::tensor({{3, 0}}, torch::kLong)));
  EXPECT_TRUE(validation.at(0)["numbers"].equal(torch::tensor({{1.F}})));
  EXPECT_TRUE(validation.at(0)["label"].equal(torch::tensor({1}, torch::kLong)));
  data->setup(Stage::kPredict);
  const auto predicted = testing::all_batches(data->predict_dataloader().at(0));
  EXPECT_TRUE(predicted.at(0)["categories"].equal(torch::tensor({{1, 1}}, torch::kLong)));
  EXPECT_EQ(predicted.at(0).find("label"), nullptr);
  // Without a run before it, prediction learns the columns from the training file.
  const auto fresh = make<Csv>(options);
  fresh->setup(Stage::kPredict);
  EXPECT_TRUE(
      testing::all_batches(fresh->predict_dataloader().at(0)).at(0)["categories"].equal(predicted[0]["categories"]));
  EXPECT_THAT(message_of([&] { data->setup(Stage::kTest); }), HasSubstr("p.csv has no column 'income'"));
}

TEST(Csv, HeldOutRowsAreOtherRowsAndTheSameInEveryRun) {
  const TemporaryFolder folder;
  std::string text = "number,target\n";
  for (int i = 0; i < 100; ++i) text += fmt::format("{},{}\n", i, i);
  const auto options = csv_options(folder.write("t.csv", text),
                                   "{target: target, val_fraction: 0.2, test_fraction: 0.1, num_workers: 2}");
  const auto data = fitted_csv(options);
  data->setup(Stage::kTest);
  std::set<int64_t> seen;
  size_t count = 0;
  for (const auto& loader : {data->train_dataloader(), data->val_dataloader().at(0), data->test_dataloader().at(0)})
    for (const int64_t value : testing::values_in(loader, "target")) {
      seen.insert(value);
      ++count;
    }
  EXPECT_EQ(seen.size(), 100U);
  EXPECT_EQ(count, 100U);
  EXPECT_EQ(testing::values_in(data->val_dataloader().at(0), "target"),
            testing::values_in(fitted_csv(options)->val_dataloader().at(0), "target"));
  EXPECT_EQ(testing::values_in(data->val_dataloader().at(0), "target").size(), 20U);
}

TEST(Csv, StratifiedPartsAndSamplersKnowClassesAndWeights) {
  const TemporaryFolder folder;
  std::string text = "number,kind,w\n";
  for (int i = 0; i < 200; ++i)
    text += fmt::format("{},{},{}\n", i, i % 10 == 0 ? "rare" : "common", i % 10 == 0 ? 3 : 0);
  const std::string path = folder.write("t.csv", text);
  const auto count_rare = [](const DataLoader& loader) {
    const auto labels = testing::values_in(loader, "label", {.seed = 1});
    return std::make_pair(std::ssize(labels), std::count(labels.begin(), labels.end(), 1));
  };
  const auto data = fitted_csv(csv_options(path,
                                           "{target: kind, ignore: [w], val_fraction: 0.25, test_fraction: 0.1, "
                                           "stratify: true, sampler: class_balanced}"));
  data->setup(Stage::kTest);
  EXPECT_EQ(count_rare(data->val_dataloader().at(0)), std::make_pair(std::ptrdiff_t{50}, std::ptrdiff_t{5}));
  EXPECT_EQ(count_rare(data->test_dataloader().at(0)), std::make_pair(std::ptrdiff_t{20}, std::ptrdiff_t{2}));
  const auto [drawn, rare] = count_rare(data->train_dataloader());
  EXPECT_EQ(drawn, 130);
  EXPECT_NEAR(static_cast<double>(rare), 65, 28) << "5 standard deviations";

  const auto weighted = fitted_csv(csv_options(path,
                                               "{target: kind, weight: w, val_fraction: 0.25, stratify: true, "
                                               "sampler: {weighted: {replacement: false, num_samples: 15}}}"));
  EXPECT_EQ(count_rare(weighted->train_dataloader()), std::make_pair(std::ptrdiff_t{15}, std::ptrdiff_t{15}));
  const auto batch = testing::all_batches(weighted->train_dataloader()).at(0);
  EXPECT_TRUE(batch["weight"].equal(torch::full({15}, 3.F)));
  EXPECT_EQ(batch["numbers"].size(1), 1) << "the weight is no input";
  EXPECT_EQ(testing::all_batches(weighted->val_dataloader().at(0)).at(0).find("weight"), nullptr);
}

TEST(Csv, NumbersOfAnySizeAreNormalised) {
  const TemporaryFolder folder;
  const auto first_rows = [&](const std::vector<std::string>& training, const std::string& validation) {
    std::string rows = "a,b\n";
    for (const std::string& value : training) rows += value + ",1\n";
    const auto data = fitted_csv(
        csv_options(folder.write("t.csv", rows), fmt::format("{{target: b, val_path: {}, shuffle: false}}",
                                                             folder.write("v.csv", "a,b\n" + validation + ",1\n"))));
    const at::Tensor trained = testing::all_batches(data->train_dataloader()).front()["numbers"].flatten();
    const at::Tensor validated = testing::all_batches(data->val_dataloader().front()).front()["numbers"].flatten();
    return at::cat({trained, validated});
  };
  // Equal values have no deviation, whatever their sum rounds to.
  for (const char* value : {"0.1", "0.3", "-7.7", "123456.789"}) {
    SCOPED_TRACE(value);
    const std::vector<std::string> equal(10, value);
    const at::Tensor rows = first_rows(equal, std::to_string(std::stod(value) + 0.5));
    EXPECT_TRUE(rows.slice(0, 0, 10).equal(torch::zeros(10)));
    EXPECT_NEAR(rows[10].item<double>(), 0.5, 1e-6);
  }
  const double step = std::sqrt(2.0);
  for (const char* exponent : {"e-300", "e-160", "e0", "e160", "e307"}) {
    SCOPED_TRACE(exponent);
    std::vector<std::string> values;
    for (const char* digits : {"1", "2", "3", "4", "5"}) values.push_back(std::string(digits) + exponent);
    EXPECT_TRUE(first_rows(values, std::string("6") + exponent)
                    .allclose(torch::tensor({-step, -step / 2, 0.0, step / 2, step, 1.5 * step}).to(torch::kFloat)));
  }
  EXPECT_TRUE(first_rows({"-1.5e308", "1.5e308"}, "0").allclose(torch::tensor({-1.F, 1.F, 0.F})));
}

TEST(Csv, NumbersThatFloatDoesNotHoldAreRefused) {
  const TemporaryFolder folder;
  const auto error = [&](const std::string& row, const std::string& more) {
    return message_of([&] { fitted_csv(csv_options(folder.write("t.csv", "a,b\n1,1\n" + row + "\n"), more)); });
  };
  EXPECT_THAT(error("1e39,2", "{target: b, normalize: false, val_fraction: 0}"),
              HasSubstr("t.csv:3: the value of 'a' is beyond what 32-bit floating point holds; got 1e+39"));
  EXPECT_THAT(error("2,-1e39", "{target: b, val_fraction: 0}"), HasSubstr("t.csv:3: the value of 'b' is beyond"));
  EXPECT_EQ(error("1e39,2", "{target: b, val_fraction: 0}"), "");
}

TEST(Csv, EveryMistakeIsOneMessage) {
  const TemporaryFolder folder;
  const std::string path = folder.write("t.csv", kPeople);
  const auto error = [&](const std::string& more) { return message_of([&] { fitted_csv(csv_options(path, more)); }); };
  EXPECT_THAT(error("{target: incom}"), HasSubstr("has no column 'incom'; did you mean 'income'?"));
  EXPECT_THAT(error("{target: age, val_fraction: 0}"), HasSubstr(path + ":4: the target 'age' is missing"));
  EXPECT_THAT(error("{target: income, ignore: [age, job, city]}"), HasSubstr("has no column beside the target"));
  EXPECT_THAT(error("{target: income, numbers: [job]}"), HasSubstr(path + ":2: column 'job': 'cook' is no number"));
  EXPECT_THAT(error("{target: income, numbers: [income]}"), HasSubstr("data.target is 'income'"));
  EXPECT_THAT(error("{numbers: [age], ignore: [age]}"), HasSubstr("name the column 'age' more than once"));
  EXPECT_THAT(error("{delimiter: '::'}"), HasSubstr("data.delimiter must be one byte"));
  EXPECT_THAT(error("{val_fraction: 0.6, test_fraction: 0.5}"), HasSubstr("must be below 1 together"));
  EXPECT_THAT(
      error("{target: income, val_path: " + folder.write("v.csv", "age,job,city,income\n1,cook,Oslo,middle\n") + "}"),
      HasSubstr("v.csv:2: the target 'income' has a class that no training row has; got middle; valid: high, low"));
  EXPECT_THROW(make<Csv>(CsvOptions{}), ConfigError);
  EXPECT_THAT(error("{stratify: true}"), HasSubstr("data.stratify needs the classes of a target"));
  EXPECT_THAT(error("{target: age, stratify: true}"), HasSubstr("the target 'age' has numbers"));
  EXPECT_THAT(error("{target: job, stratify: true, val_fraction: 0.5}"),
              HasSubstr("two examples of each class; got one of class 'nurse, night'"));
  EXPECT_THAT(error("{target: city, stratify: true}"), HasSubstr(path + ":4: the target 'city' is missing"));
  EXPECT_THAT(error("{target: income, weight: income}"), HasSubstr("data.weight is 'income', which another option"));
  EXPECT_THAT(error("{target: income, weight: weigth}"), HasSubstr("has no column 'weigth'"));
  EXPECT_THAT(error("{target: income, weight: age, val_fraction: 0}"), HasSubstr(":4: the weight 'age' is missing"));
}

}  // namespace
}  // namespace levin::data
