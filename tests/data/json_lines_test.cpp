// Files of JSON lines: batches of their columns, packed files, indices, orders of any size, and one message for each
// mistake.

#include <levin/core/data/json_lines.h>

#include <levin/core/data/json/json_rows.h>
#include <levin/core/data/json_fields.h>
#include <levin/core/data/permutation_sampler.h>

#include "reader_checks.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <set>
#include <string>
#include <vector>

namespace levin::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::message_of;
using testing::values_in;

std::string gzipped(const std::string& text) {
  std::string packed(compressBound(text.size()) + 32, '\0');
  z_stream stream{};
  EXPECT_EQ(deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

std::string zstandard(const std::string& text) {
  std::string packed(ZSTD_compressBound(text.size()), '\0');
  packed.resize(ZSTD_compress(packed.data(), packed.size(), text.data(), text.size(), 3));
  return packed;
}

/// Rows {"number": 0, "text": ...} of different lengths, some of them long, with blank lines between.
std::string numbered_rows(int64_t begin, int64_t end) {
  std::string text;
  for (int64_t i = begin; i < end; ++i) {
    text += fmt::format("{{\"number\": {}, \"text\": \"{}\"}}\n", i,
                        std::string(static_cast<size_t>(i * i % 97 + (i % 50 == 0 ? 30'000 : 0)), 'x'));
    if (i % 3 == 0) text += i % 2 == 0 ? "\n" : "  \r\n";
  }
  return text;
}

std::vector<int64_t> counted_to(int64_t end) {
  std::vector<int64_t> numbers(static_cast<size_t>(end));
  std::iota(numbers.begin(), numbers.end(), int64_t{0});
  return numbers;
}

DataLoader loader_of(const JsonLinesOptions& options) {
  const auto data = make<JsonLines>(options);
  data->prepare_data();
  data->setup(Stage::kFit);
  return data->train_dataloader();
}

TEST(JsonLines, GivesColumnsOfAllKinds) {
  const TemporaryFolder folder;
  const std::string path = folder.write(
      "a.jsonl",
      "\xef\xbb\xbf{\"t\": \"\\u00e9\\n\", \"i\": 9007199254740993, \"n\": 1, \"b\": true, \"is\": [1, 2], \"ns\": "
      "[1], "
      "\"o\": {\"k\": [1, \"2\"]}}\r\n"
      "{\"t\": \"\", \"i\": -1, \"n\": 0.5, \"b\": false, \"is\": [3], \"ns\": [0.25, 2, 3], \"o\": {\"k\": []}, "
      "\"later\": 1}");
  const JsonLinesOptions options{.files = {path},
                                 .columns = {{"t", JsonColumn::kText},
                                             {"i", JsonColumn::kInteger},
                                             {"n", JsonColumn::kNumber},
                                             {"b", JsonColumn::kBoolean},
                                             {"is", JsonColumn::kIntegers},
                                             {"ns", JsonColumn::kNumbers},
                                             {"o", JsonColumn::kText}},
                                 .shuffle = false};
  const Batch batch = testing::all_batches(loader_of(options)).at(0);
  EXPECT_THAT(batch.texts("t"), ElementsAre("\xc3\xa9\n", ""));
  EXPECT_THAT(batch.texts("o"), ElementsAre("{\"k\":[1,\"2\"]}", "{\"k\":[]}"));
  EXPECT_TRUE(batch["i"].equal(torch::tensor({int64_t{9007199254740993}, int64_t{-1}}, torch::kLong)));
  EXPECT_TRUE(batch["n"].equal(torch::tensor({1.0, 0.5}, torch::kFloat)));
  EXPECT_TRUE(batch["b"].equal(torch::tensor({true, false})));
  EXPECT_TRUE(batch["is"].equal(torch::tensor({{1, 2}, {3, 0}}, torch::kLong)));
  EXPECT_TRUE(batch["is_length"].equal(torch::tensor({2, 1}, torch::kLong)));
  EXPECT_TRUE(batch["ns"].equal(torch::tensor({{1.0, 0.0, 0.0}, {0.25, 2.0, 3.0}}, torch::kFloat)));

  const auto data = make<JsonLines>({.files = {path}});
  data->setup(Stage::kFit);
  auto found = options.columns;
  found.emplace("later", JsonColumn::kInteger);
  EXPECT_EQ(data->columns(), found) << "of the rows themselves";
}

TEST(JsonLines, ReadsPackedFilesInAnyOrder) {
  const TemporaryFolder folder;
  constexpr int64_t kRows = 1000;
  folder.write("0.jsonl", numbered_rows(0, 300));
  folder.write("1.jsonl.gz", gzipped(numbered_rows(300, 400)) + gzipped(numbered_rows(400, 600)));
  folder.write("2.jsonl.zst", zstandard(numbered_rows(600, 800)) + zstandard(numbered_rows(800, kRows)));
  const JsonRows rows({folder.path("?.jsonl*")}, "");
  ASSERT_EQ(rows.size(), kRows);
  const Permutation order(kRows, 3, 0);
  for (int64_t i = 0; i < kRows; ++i) {
    const int64_t row = order.at(i);
    const nlohmann::json object = rows.row(row);
    EXPECT_EQ(object["number"], row);
    EXPECT_EQ(object["text"].get<std::string>().size(),
              static_cast<size_t>(row * row % 97 + (row % 50 == 0 ? 30'000 : 0)));
  }
  // Blank lines count: rows 300 to 399 of the first packed file have one after each third number.
  EXPECT_EQ(rows.place(301), folder.path("1.jsonl.gz") + ":3");
  EXPECT_TRUE(std::filesystem::exists(folder.path(".1.jsonl.gz.blocks")));
  EXPECT_FALSE(std::filesystem::exists(folder.path(".0.jsonl.blocks")));
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path()))
    names.push_back(entry.path().filename().string());
  EXPECT_EQ(names.size(), 8U) << "nothing unfinished is left";
}

TEST(JsonLines, OrdersFollowFromTheSeedForAnyRanksAndWorkers) {
  const TemporaryFolder folder;
  folder.write("a.jsonl.gz", gzipped(numbered_rows(0, 100)));
  JsonLinesOptions options{
      .files = {folder.path("*.gz")}, .columns = {{"number", JsonColumn::kInteger}}, .global_batch_size = 12};
  const auto whole = values_in(loader_of(options), "number", {.seed = 5, .epoch = 1});
  EXPECT_NE(whole, values_in(loader_of(options), "number", {.seed = 5, .epoch = 2}));
  auto sorted = whole;
  std::sort(sorted.begin(), sorted.end());
  EXPECT_EQ(sorted, counted_to(100));
  options.num_workers = 3;
  const DataLoader with_workers = loader_of(options);
  EXPECT_EQ(values_in(with_workers, "number", {.seed = 5, .epoch = 1}), whole);
  const auto rest = values_in(with_workers, "number", {.seed = 5, .epoch = 1, .batch = 4});
  EXPECT_EQ(rest, std::vector<int64_t>(whole.begin() + 48, whole.end()));
  std::multiset<int64_t> of_ranks;
  for (int64_t rank = 0; rank < 3; ++rank)
    for (const int64_t number :
         values_in(with_workers, "number", {.seed = 5, .epoch = 1, .rank = rank, .world_size = 3}))
      of_ranks.insert(number);
  EXPECT_EQ(of_ranks, std::multiset<int64_t>(whole.begin(), whole.end()));
}

TEST(JsonLines, IndicesAreKeptAndFollowTheFile) {
  const TemporaryFolder folder;
  for (const bool is_packed : {false, true}) {
    const auto packed = [&](const std::string& text) { return is_packed ? zstandard(text) : text; };
    const std::string path = folder.write(is_packed ? "b.jsonl.zst" : "a.jsonl", packed(numbered_rows(0, 10)));
    const RowIndex first = index_rows(path, "");
    EXPECT_EQ(first.rows, 10);
    const auto written = std::filesystem::last_write_time(first.index);
    EXPECT_EQ(index_rows(path, "").index, first.index);
    EXPECT_EQ(std::filesystem::last_write_time(first.index), written) << "found, not made again";
    folder.write(std::filesystem::path(path).filename().string(), packed(numbered_rows(0, 25)));
    EXPECT_EQ(index_rows(path, "").rows, 25);
    // What is not whole is made again.
    std::filesystem::resize_file(first.index, std::filesystem::file_size(first.index) - 1);
    EXPECT_EQ(index_rows(path, "").rows, 25);
    if (is_packed) {
      std::filesystem::remove(first.blocks);
      EXPECT_EQ(RowFile(index_rows(path, "")).line(24), 33);
    }
  }
}

TEST(JsonLines, IndicesAreInTheCacheFolderWhereTheirPlaceCannotBeWritten) {
  const TemporaryFolder folder;
  const Descriptor file(::open(folder.write("a.jsonl", numbered_rows(0, 9)).c_str(), O_RDONLY | O_CLOEXEC));
  const std::string path = fmt::format("/proc/self/fd/{}", file.number());  // where nobody makes files
  const std::string cache = folder.path("cache/of/levin");
  const RowIndex index = index_rows(path, cache);
  EXPECT_EQ(index.rows, 9);
  EXPECT_TRUE(index.index.starts_with(cache + "/rows-")) << index.index;
  EXPECT_THAT(message_of([&] { index_rows(path, ""); }), HasSubstr("can be written neither beside it nor in ''"));
}

TEST(JsonLines, HoldsRowsOutEvenly) {
  for (const int64_t size : {1, 2, 7, 100, 1001})
    for (const int64_t held_out : {int64_t{0}, int64_t{1}, size / 3, size / 2, size - 1}) {
      if (held_out >= size && size > 1) continue;
      const RowSelection some(size, held_out, RowSelection::Part::kHeldOut);
      const RowSelection others(size, held_out, RowSelection::Part::kOthers);
      ASSERT_EQ(some.size() + others.size(), size);
      std::vector<int64_t> rows;
      for (int64_t i = 0; i < some.size(); ++i) rows.push_back(some.row(i));
      EXPECT_TRUE(std::is_sorted(rows.begin(), rows.end()));
      for (int64_t i = 0; i < others.size(); ++i) rows.push_back(others.row(i));
      EXPECT_TRUE(std::is_sorted(rows.begin() + some.size(), rows.end()));
      std::sort(rows.begin(), rows.end());
      EXPECT_EQ(rows, counted_to(size)) << held_out;
    }

  const TemporaryFolder folder;
  const JsonLinesOptions options{.files = {folder.write("a.jsonl", numbered_rows(0, 20))},
                                 .val_fraction = 0.25,
                                 .columns = {{"number", JsonColumn::kInteger}},
                                 .shuffle = false};
  const auto data = make<JsonLines>(options);
  data->setup(Stage::kFit);
  EXPECT_THAT(values_in(data->val_dataloader().at(0), "number"), ElementsAre(3, 7, 11, 15, 19));
  EXPECT_EQ(values_in(data->train_dataloader(), "number").size(), 15U);
}

TEST(JsonLines, EveryMistakeIsOneMessage) {
  const TemporaryFolder folder;
  const auto error = [&](const std::string& text, JsonLinesOptions options = {}) {
    options.files = {folder.write("a.jsonl", text)};
    options.shuffle = false;
    return message_of([&] { testing::all_batches(loader_of(options)); });
  };
  const std::string path = folder.path("a.jsonl");
  EXPECT_THAT(error("{\"a\": 1}\n\n{\"a\": 2\n"), HasSubstr(path + ":3: the line is not JSON: {\"a\": 2; valid: "));
  EXPECT_THAT(error("{\"a\": \"\xff\"}\n"), HasSubstr(path + ":1: the line is not JSON"));
  EXPECT_THAT(error("[1]\n"), HasSubstr(path + ":1: a row must be an object; got array: [1]"));
  EXPECT_THAT(error("{\"a\": 1}\n{\"b\": 1}\n", {.columns = {{"a", JsonColumn::kInteger}}}),
              HasSubstr(path + ":2: the row has no 'a'; it has b"));
  EXPECT_THAT(error("{\"a\": 1}\n{\"a\": \"x\"}\n"),
              HasSubstr(path + ":2: the column 'a' has the text \"x\" after values of the kind integer"));
  EXPECT_THAT(error("{\"a\": 1}\n{\"a\": 1.5}\n", {.columns = {{"a", JsonColumn::kInteger}}}),
              HasSubstr(path + ":2: the column 'a' has the kind integer; got 1.5"));
  EXPECT_THAT(error("{\"a\": 18446744073709551615}\n", {.columns = {{"a", JsonColumn::kInteger}}}),
              HasSubstr("the column 'a' has the kind integer; got 18446744073709551615"));
  // Identifiers that float32 would round, and numbers that it does not hold.
  for (const char* large : {"9223372036854775808", "123456789012345678901234567890", "[18446744073709551615]"}) {
    const std::string one = large[0] == '[' ? "[16777217]" : "16777217";
    const auto rows = [](const std::string& a, const std::string& b) {
      return "{\"id\": " + a + "}\n{\"id\": " + b + "}\n";
    };
    EXPECT_THAT(error(rows(one, large)), HasSubstr("the column 'id' has whole numbers that int64 does not hold"));
    EXPECT_THAT(error(rows(large, one)), HasSubstr("the column 'id' has whole numbers that int64 does not hold"));
  }
  EXPECT_EQ(error("{\"a\": 0.5}\n{\"a\": 1e30}\n"), "");
  EXPECT_THAT(error("{\"a\": 0.5}\n{\"a\": 1e39}\n"),
              HasSubstr(path + ":2: the column 'a' has a number that float32 does not hold; got 1e+39"));
  EXPECT_THAT(error("{\"a\": [0.5, -1e39]}\n"), HasSubstr("has a number that float32 does not hold; got -1e+39"));
  EXPECT_THAT(message_of([&] {
                loader_of({.files = {path, folder.path("*.jsonl")}});
              }),
              HasSubstr("the file '" + path + "' is named twice"));
  EXPECT_THAT(error("{}\n"), HasSubstr(path + ":1: the first rows have no columns"));
  EXPECT_THAT(error("\n \n"), HasSubstr(path + " has no rows"));
  EXPECT_THAT(message_of([&] { loader_of({.files = {folder.path("none-*.jsonl")}}); }),
              HasSubstr("no file matches '" + folder.path("none-*.jsonl") + "'"));
  EXPECT_THAT(message_of([] { make<JsonLines>({}); }), HasSubstr("data.files is not set"));

  const std::string text = numbered_rows(0, 2000);
  for (const bool is_gzip : {true, false}) {
    const std::string packed = is_gzip ? gzipped(text) : zstandard(text);
    const std::string cut = folder.write("cut", packed.substr(0, packed.size() / 2));
    EXPECT_THAT(message_of([&] { loader_of({.files = {cut}}); }), HasSubstr(cut + " is cut off"));
  }
  EXPECT_EQ(
      error("{\"a\": 1}\nno\n{\"a\": 3}\n", {.columns = {{"a", JsonColumn::kInteger}}, .on_error = OnError::kSkip}),
      "");
}

TEST(JsonLines, DamagedPackedFilesAreErrorsThatNameThem) {
  const TemporaryFolder folder;
  const std::string text = numbered_rows(1, 60);
  for (const bool is_gzip : {true, false}) {
    const std::string path = folder.path(is_gzip ? "a.jsonl.gz" : "a.jsonl.zst");
    const int64_t errors =
        testing::read_damaged(is_gzip ? gzipped(text) : zstandard(text), path, 300, [&](const std::string& damaged) {
          const JsonRows rows({damaged}, "");
          for (int64_t row = 0; row < rows.size(); ++row) rows.row(row);
        });
    EXPECT_GT(errors, 100);
  }
}

TEST(PermutationSampler, PermutesAndTakesNoMemory) {
  const PermutationSampler sampler;
  for (const int64_t size : {int64_t{0}, int64_t{1}, int64_t{5}, Permutation::kMostListed, Permutation::kMostListed + 1,
                             int64_t{100'003}, int64_t{262'144}}) {
    auto order = sampler.order(size, 7, 3);
    EXPECT_EQ(order, sampler.order(size, 7, 3));
    if (size > 100) {
      EXPECT_NE(order, sampler.order(size, 7, 4));
      EXPECT_NE(order, sampler.order(size, 8, 3));
    }
    std::sort(order.begin(), order.end());
    EXPECT_EQ(order, counted_to(size));
  }
  // Neighbours are as far from each other as in any permutation: a third of the size on average.
  const Permutation drawn(1'000'000, 1, 0);
  double distance = 0;
  for (int64_t place = 0; place + 1 < 10'000; ++place)
    distance += std::abs(static_cast<double>(drawn.at(place) - drawn.at(place + 1))) / 1e6;
  EXPECT_NEAR(distance / 1e4, 1.0 / 3, 0.01);

  class Many : public Dataset {
   public:
    int64_t size() const override { return 1'000'000'000'000; }
    Batch get(int64_t index, Generator& /*generator*/) const override { return {{"index", torch::tensor(index)}}; }
  };
  const DataLoader loader = unlisted_loader(std::make_shared<Many>(), {.batch_size = 4, .shuffle = true});
  auto pass = loader.pass({.seed = 1, .batch = 100'000'000'000});
  EXPECT_EQ(pass.next()->size(), 4);
  EXPECT_EQ(values_in(DataLoader(std::make_shared<Many>(), {.batch_size = 4}), "index", {.batch = 249'999'999'999}),
            (std::vector<int64_t>{999'999'999'996, 999'999'999'997, 999'999'999'998, 999'999'999'999}));
}

}  // namespace
}  // namespace levin::data
