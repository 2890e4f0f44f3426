// Files of arrays: the values that NumPy saved, the parts of a data module, and one message for each mistake.

#include <levin/core/data/numpy_arrays.h>

#include <levin/core/data/arrays/numpy_file.h>
#include <levin/core/data/shards/tar_samples.h>

#include "../support/memory_growth.h"
#include "reader_checks.h"
#include "tar_writer.h"
#include "zip_writer.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstring>
#include <fstream>
#include <limits>
#include <set>
#include <sstream>
#include <string>

namespace levin::data {
namespace {

using ::testing::HasSubstr;
using testing::message_of;

/// Folders of arrays that NumPy wrote.
class NumpyFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto result = testing::run_with_numpy("make_arrays.py", {folder_.path()});
    ASSERT_EQ(result.status, 0) << result.err;
  }
  TemporaryFolder folder_;
};

std::string shape_of(const at::Tensor& array) {
  std::string text;
  for (const int64_t extent : array.sizes()) text += (text.empty() ? "" : "x") + std::to_string(extent);
  return text;
}

TEST_F(NumpyFiles, HaveTheShapesTypesAndValuesThatNumpySaved) {
  const Batch plain = read_npz(folder_.path("plain.npz"));
  const Batch packed = read_npz(folder_.path("packed.npz"));
  std::istringstream lines(testing::read_text(folder_.path("sums.txt")));
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    const std::string name = line.substr(0, line.find(' '));
    const std::string shape = line.substr(name.size() + 1, line.rfind(' ') - name.size() - 1);
    const double sum = std::stod(line.substr(line.rfind(' ')));
    for (const at::Tensor& array :
         {read_npy(folder_.path(name + ".npy")), map_npy(folder_.path(name + ".npy")), plain[name], packed[name]}) {
      EXPECT_EQ(shape_of(array), shape) << name;
      EXPECT_TRUE(array.is_contiguous()) << name;
      const auto values = array.is_complex() ? torch::real(array).to(torch::kDouble) : array.to(torch::kDouble);
      const auto weights = torch::arange(1, array.numel() + 1, torch::kDouble).reshape(array.sizes());
      EXPECT_EQ((values * weights).sum().item<double>(), sum) << name;
    }
  }
  EXPECT_EQ(count, 18);
  EXPECT_EQ(plain["uint16"].scalar_type(), torch::kUInt16);
  EXPECT_EQ(plain["bool"].scalar_type(), torch::kBool);
  EXPECT_EQ(plain["complex64"].scalar_type(), torch::kComplexFloat);
}

TEST_F(NumpyFiles, WhatNoTensorHasIsRefused) {
  const auto error = [&](const std::string& name) {
    return message_of([&] { read_npy(folder_.path("refused_" + name + ".npy")); });
  };
  EXPECT_THAT(error("object"), HasSubstr("no tensor has values of the type '|O'"));
  EXPECT_THAT(error("text"), HasSubstr("no tensor has values of the type '<U2'"));
  EXPECT_THAT(error("time"), HasSubstr("no tensor has values of the type '<M8[s]'"));
  EXPECT_THAT(error("order"), HasSubstr("in the byte order of other machines"));
  EXPECT_THAT(error("record"), HasSubstr("its values are records"));
}

TEST_F(NumpyFiles, DamagedFilesAreReadOrAreOneMessage) {
  const std::string array = testing::read_text(folder_.path("fortran.npy"));
  EXPECT_GT(testing::read_damaged(array, folder_.path("t.npy"), 300, [](const std::string& path) { read_npy(path); }),
            100);
  const std::string packed = testing::read_text(folder_.path("packed.npz"));
  EXPECT_GT(testing::read_damaged(packed, folder_.path("t.npz"), 300, [](const std::string& path) { read_npz(path); }),
            100);
}

TEST_F(NumpyFiles, SayWhatIsWrongWithThem) {
  const std::string bytes = testing::read_text(folder_.path("float32.npy"));
  const auto error = [&](const std::string& damaged) {
    const std::string path = folder_.write("t.npy", damaged);
    return message_of([&] { read_npy(path); });
  };
  EXPECT_THAT(error(bytes.substr(0, bytes.size() - 8)),
              HasSubstr("t.npy: it is cut short: 280 bytes of values, expected 288"));
  EXPECT_THAT(error(bytes + "x"), HasSubstr("1 bytes follow the values"));
  EXPECT_THAT(error("no array"), HasSubstr("it is no .npy file"));
  std::string huge = bytes;
  huge.replace(huge.find("(6, 4, 3)"), 10, "(99999999999999,");
  EXPECT_THAT(error(huge), HasSubstr("cannot read the array"));
  EXPECT_THAT(message_of([&] { read_npz(folder_.write("t.npz", "no zip")); }),
              HasSubstr("it is cut short, or no .npz file"));
  EXPECT_THAT(message_of([&] { read_npy(folder_.path("absent.npy")); }), HasSubstr(folder_.path("absent.npy")));
}

std::string npy_of_shape(const std::string& shape, const std::string& type = "<f4") {
  std::string header = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': {}, }}\n", type, shape);
  const auto size = static_cast<uint16_t>(header.size());
  return std::string("\x93NUMPY\x01\x00", 8) + static_cast<char>(size & 0xff) + static_cast<char>(size >> 8) + header;
}

TEST(NumpyFile, ShapesBeyondAllMemoryAreRefused) {
  const TemporaryFolder folder;
  EXPECT_EQ(parse_npy(npy_of_shape("(0, 3)"), "t.npy").sizes(), (std::vector<int64_t>{0, 3}));
  std::string dimensions = "(0";
  for (int i = 0; i < 64; ++i) dimensions += ", 1";
  for (const std::string& shape :
       {std::string("(0, 4611686018427387904, 4611686018427387904)"),
        std::string("(4611686018427387904, 4611686018427387904, 0)"), std::string("(0, 9223372036854775807, 3)"),
        std::string("(4611686018427387904, 8)"), std::string("(9223372036854775807,)"), dimensions + ")"}) {
    const std::string bytes = npy_of_shape(shape);
    const std::string path = folder.write("t.npy", bytes);
    const std::string tar = folder.write("t.tar", testing::TarWriter().add("a.npy", bytes).str());
    const std::string zip = folder.write("t.npz", testing::zip_of({{"a.npy", bytes}}));
    Generator generator(0, 0);
    for (const std::string& message : {message_of([&] { read_npy(path); }), message_of([&] { map_npy(path); }),
                                       message_of([&] { read_npz(zip); }), message_of([&] {
                                         TarSamples({tar}, {.fields = {{"a", "npy"}}}).get(0, generator);
                                       })}) {
      EXPECT_THAT(message, HasSubstr("cannot read the array")) << shape;
      EXPECT_THAT(message, HasSubstr("its header promises")) << shape;
    }
  }
}

TEST(NumpyFile, ArchivesThatPromiseMoreThanTheyHoldTakeNoMemory) {
  const TemporaryFolder folder;
  const std::string array = npy_bytes(torch::zeros({1000}));
  EXPECT_EQ(read_npz(folder.write("t.npz", testing::zip_of({{"a.npy", array}})))["a"].numel(), 1000);
  // One that says 1 MB packed and 1 GB unpacked, in both of its places, of a file of a few bytes.
  std::string liar = testing::zip_of({{"a.npy", "x"}});
  const size_t entry = liar.find("PK\1\2");
  const uint32_t packed = 1'000'000;
  const uint32_t unpacked = 1'000'000'000;
  for (const size_t place : {size_t{18}, entry + 20}) {
    std::memcpy(liar.data() + place, &packed, sizeof(packed));
    std::memcpy(liar.data() + place + 4, &unpacked, sizeof(unpacked));
  }
  const std::string path = folder.write("liar.npz", liar);
  EXPECT_THAT(message_of([&] { read_npz(path); }), HasSubstr("the arrays have more bytes together than the file"));
  EXPECT_LT(testing::memory_growth([&] { message_of([&] { read_npz(path); }); }), 100) << "MiB";
  // A directory that names the same bytes 100 times.
  const std::string once = testing::zip_of({{"00.npy", npy_bytes(torch::zeros({100'000}))}});
  const std::string end = once.substr(once.find("PK\5\6"));
  const std::string first = once.substr(once.find("PK\1\2"), once.find("PK\5\6") - once.find("PK\1\2"));
  std::string directory;
  for (int i = 0; i < 100; ++i) directory += first.substr(0, 46) + fmt::format("{:02}", i) + first.substr(48);
  std::string bomb = once.substr(0, once.find("PK\1\2")) + directory + end;
  const uint16_t count = 100;
  const auto size = static_cast<uint32_t>(directory.size());
  char* const of_end = bomb.data() + bomb.size() - 22;
  std::memcpy(of_end + 8, &count, sizeof(count));
  std::memcpy(of_end + 10, &count, sizeof(count));
  std::memcpy(of_end + 12, &size, sizeof(size));
  EXPECT_THAT(message_of([&] { read_npz(folder.write("bomb.npz", bomb)); }), HasSubstr("or overlap"));
}

TEST(NumpyFile, FoldersAreReadWithoutWhatMacosAdds) {
  const TemporaryFolder folder;
  folder.write("x.npy", npy_bytes(torch::arange(3)));
  folder.write("._x.npy", "\0\5\x16\7");
  NumpyArrays data({.path = folder.path(), .val_fraction = 0, .test_fraction = 0, .batch_size = 3});
  data.setup(Stage::kFit);
  EXPECT_EQ(testing::values_in(data.train_dataloader(), "x").size(), 3U);
}

TEST_F(NumpyFiles, AreDataModules) {
  std::filesystem::create_directories(folder_.path("train"));
  for (const char* name : {"uint16", "fortran"})
    std::filesystem::copy_file(folder_.path(std::string(name) + ".npy"),
                               folder_.path(std::string("train/") + name + ".npy"));
  auto data = make<NumpyArrays>({.path = folder_.path("train"),
                                 .val_path = folder_.path("float64.npy"),
                                 .test_fraction = 0.5,
                                 .batch_size = 2,
                                 .shuffle = false});
  data->setup(Stage::kFit);
  data->setup(Stage::kTest);
  const auto batches = testing::all_batches(data->train_dataloader());
  ASSERT_EQ(batches.size(), 2U) << "three of six examples";
  EXPECT_EQ(batches[0]["uint16"].scalar_type(), torch::kInt);
  EXPECT_EQ(batches[0]["fortran"].sizes(), (torch::IntArrayRef{2, 4, 3}));
  EXPECT_EQ(data->test_dataloader().at(0).num_examples(), 3);
  EXPECT_EQ(data->val_dataloader().at(0).num_examples(), 6);

  const auto error = [&](const std::string& path) {
    return message_of([&] { make<NumpyArrays>({.path = path})->setup(Stage::kFit); });
  };
  EXPECT_THAT(error(folder_.path("single.npy")),
              HasSubstr("the array 'single' of " + folder_.path("single.npy") + " is a single value"));
  EXPECT_THAT(error(folder_.path("none.npy")), HasSubstr("have no examples"));
  std::filesystem::copy_file(folder_.path("row.npy"), folder_.path("train/row.npy"));
  EXPECT_THAT(error(folder_.path("train")), HasSubstr("disagree on the number of examples: 'fortran' has 6, 'row' 5"));
  EXPECT_THROW(make<NumpyArrays>(), ConfigError);
}

TEST(NumpyArrays, NumbersThatInt64DoesNotHoldAreRefused) {
  const TemporaryFolder folder;
  const auto first = [&](uint64_t value) {
    std::string bytes = npy_of_shape("(2,)", "<u8");
    for (const uint64_t item : {uint64_t{7}, value}) bytes.append(reinterpret_cast<const char*>(&item), sizeof item);
    NumpyArraysOptions options;
    options.path = folder.write("hash.npy", bytes);
    auto data = make<NumpyArrays>(options);
    data->setup(Stage::kFit);
    return testing::all_batches(data->train_dataloader()).front()["hash"].select(0, 1).item<int64_t>();
  };
  EXPECT_EQ(first((uint64_t{1} << 63) - 1), std::numeric_limits<int64_t>::max());
  EXPECT_THAT(message_of([&] { first(uint64_t{1} << 63); }), HasSubstr("the array 'hash' of "));
}

TEST_F(NumpyFiles, StratifyAndSamplersNameArrays) {
  Config config = Config::parse("{val_fraction: 0.5, stratify: uint16, sampler: {weighted: {weights: float64}}}", {});
  config.set("path", Config::scalar(folder_.path("plain.npz"), true));
  const auto message = [&](const char* name, const char* value) {
    config.set(name, Config::parse(value, {}));
    return message_of([&] {
      auto data = make<NumpyArrays>(parse_options<NumpyArraysOptions>(config, "data"));
      data->setup(Stage::kFit);
      data->train_dataloader();
    });
  };
  EXPECT_NE(message("stratify", "uint16"), "") << "arrays of different lengths";
  std::filesystem::create_directories(folder_.path("even"));
  std::filesystem::copy_file(folder_.path("uint16.npy"), folder_.path("even/uint16.npy"));
  config.set("path", Config::scalar(folder_.path("even"), true));
  EXPECT_THAT(message("stratify", "uint16"), HasSubstr("'uint16' must have the number of a class for each example"));
  EXPECT_THAT(message("stratify", "none"), HasSubstr("no tensor 'none'; it has: uint16"));
}

}  // namespace
}  // namespace levin::data
