// The options of loading that every data module has, by the same names and with the same meaning.

#include <levin/core/data/loader_fields.h>

#include <levin/core/data/cifar10.h>
#include <levin/core/data/cifar100.h>
#include <levin/core/data/csv.h>
#include <levin/core/data/fashion_mnist.h>
#include <levin/core/data/image_folder.h>
#include <levin/core/data/instruction_data.h>
#include <levin/core/data/json_lines.h>
#include <levin/core/data/numpy_arrays.h>
#include <levin/core/data/tar_shards.h>
#include <levin/core/data/token_text.h>

#include "reader_checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace levin::data {
namespace {

template <class Options>
class LoaderFields : public ::testing::Test {};
using AllOptions =
    ::testing::Types<Cifar10Options, Cifar100Options, CsvOptions, FashionMnistOptions, MnistOptions, ImageFolderOptions,
                     InstructionDataOptions, JsonLinesOptions, NumpyArraysOptions, TarShardsOptions, TokenTextOptions>;
TYPED_TEST_SUITE(LoaderFields, AllOptions);

TYPED_TEST(LoaderFields, ReachTheLoaders) {
  const auto options = parse_options<TypeParam>(
      Config::parse("{batch_size: 12, num_workers: 3, prefetch_factor: 5, timeout: 2.5, persistent_workers: false, "
                    "on_error: skip, shuffle: true, drop_last: true, pin_memory: true, global_batch_size: 24}",
                    {}),
      "data");
  for (const bool trains : {true, false}) {
    const DataLoaderOptions loader = trains ? training_loader_options(options) : evaluation_loader_options(options);
    EXPECT_EQ(loader.batch_size, 12);
    EXPECT_EQ(loader.num_workers, 3);
    EXPECT_EQ(loader.prefetch_factor, 5);
    EXPECT_EQ(loader.timeout, 2.5);
    EXPECT_FALSE(loader.persistent_workers);
    EXPECT_EQ(loader.on_error, OnError::kSkip);
    EXPECT_EQ(loader.shuffle, trains);
    EXPECT_EQ(loader.drop_last, trains);
    EXPECT_TRUE(loader.pin_memory);
    EXPECT_EQ(loader.global_batch_size, 24);
  }
}

TYPED_TEST(LoaderFields, AreCheckedInOneMessage) {
  const auto error_of = [](const std::string& yaml) {
    return testing::message_of([&] { parse_options<TypeParam>(Config::parse(yaml, {}), "data"); });
  };
  EXPECT_THAT(error_of("{timeout: -1}"), ::testing::HasSubstr("data.timeout must be at least 0; got -1"));
  EXPECT_THAT(error_of("{prefetch_factor: 0}"), ::testing::HasSubstr("data.prefetch_factor must be at least 1; got 0"));
  EXPECT_THAT(error_of("{persistent_workers: 3}"), ::testing::HasSubstr("data.persistent_workers"));
  EXPECT_THAT(error_of("{on_error: ignore}"), ::testing::HasSubstr("one of raise, skip"));
}

}  // namespace
}  // namespace levin::data
