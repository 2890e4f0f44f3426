#include <levin/core/data/cifar10.h>

#include <levin/core/base/error.h>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

namespace levin::data {

namespace {

constexpr int64_t kRecordBytes = 1 + 3 * 32 * 32;
constexpr int64_t kNumTrainingFiles = 5;
constexpr int64_t kCifarShift = 4;
constexpr uint8_t kNumClasses = 10;

/// The records of one file: uint8 [N, 3073].
at::Tensor read_records(const std::string& folder, const std::string& name) {
  const auto path = std::filesystem::path(folder) / name;
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error))
    throw Error("data",
                fmt::format("there is no {} in the folder {}; hint: unpack the binary version of CIFAR-10 and set root "
                            "to its folder cifar-10-batches-bin",
                            name, folder));
  const auto bytes = static_cast<int64_t>(std::filesystem::file_size(path));
  if (bytes == 0 || bytes % kRecordBytes != 0)
    throw Error("data", fmt::format("{} is truncated or not a CIFAR-10 file: expected a multiple of {} bytes, found {}",
                                    path.string(), kRecordBytes, bytes));
  at::Tensor records = at::empty({bytes / kRecordBytes, kRecordBytes}, at::kByte);
  std::ifstream file(path, std::ios::binary);
  if (!file.read(reinterpret_cast<char*>(records.mutable_data_ptr<uint8_t>()), bytes))
    throw Error("data", fmt::format("cannot read {}: {}", path.string(), std::strerror(errno)));
  const auto* data = records.const_data_ptr<uint8_t>();
  for (int64_t record = 0; record < records.size(0); ++record) {
    const uint8_t label = data[record * kRecordBytes];
    if (label >= kNumClasses)
      throw Error("data", fmt::format("{} is not a CIFAR-10 file: record {} has the label {}, valid: 0 to {}",
                                      path.string(), record, label, kNumClasses - 1));
  }
  return records;
}

}  // namespace

void Cifar10Options::describe(Schema<Cifar10Options>& schema) {
  using O = Cifar10Options;
  const auto is_per_channel = [](const std::vector<double>& values) { return values.size() == 3; };
  schema.field("root", &O::root, "folder of the files data_batch_1.bin to data_batch_5.bin and test_batch.bin");
  schema.field("batch_size", &O::batch_size, "examples in a batch of one rank")
      .at_least(1)
      .at_most(DataLoaderOptions::kMaxBatchSize);
  schema
      .field("global_batch_size", &O::global_batch_size,
             "examples in a batch of all ranks together, divided by their number; replaces batch_size")
      .at_least(1)
      .at_most(DataLoaderOptions::kMaxBatchSize);
  schema.field("num_workers", &O::num_workers, "threads that fetch batches ahead; 0 fetches in the training thread")
      .at_least(0)
      .at_most(DataLoaderOptions::kMaxWorkers);
  schema.field("val_size", &O::val_size, "training images held out for validation, the last of them").at_least(0);
  schema.field("shuffle", &O::shuffle, "visit the training images in an order drawn from seed and epoch");
  schema.field("augment", &O::augment, "mirror training images at random and shift them by up to 4 pixels");
  schema.field("mean", &O::mean, "subtracted from the pixels of each channel, which range from 0 to 1")
      .require("three numbers", is_per_channel);
  schema.field("std", &O::std, "the pixels of each channel are divided by it").require("three numbers", is_per_channel);
  schema.field("drop_last", &O::drop_last, "leave out the last training batch when it is not full");
  schema.field("pin_memory", &O::pin_memory, "page-locked batches for faster copies to a CUDA device");
}

Cifar10::Cifar10(const Options& options)
    : ImageDataModule({.loader = {.batch_size = options.batch_size,
                                  .shuffle = options.shuffle,
                                  .num_workers = options.num_workers,
                                  .pin_memory = options.pin_memory,
                                  .drop_last = options.drop_last,
                                  .global_batch_size = options.global_batch_size},
                       .val_size = options.val_size,
                       .images = {.mean = options.mean,
                                  .std = options.std,
                                  .flip = options.augment,
                                  .max_shift = options.augment ? kCifarShift : 0}}),
      root_(options.root) {}

ImageDataModule::Images Cifar10::read(bool training) const {
  std::vector<at::Tensor> parts;
  if (training) {
    for (int64_t i = 1; i <= kNumTrainingFiles; ++i)
      parts.push_back(read_records(root_, fmt::format("data_batch_{}.bin", i)));
  } else {
    parts.push_back(read_records(root_, "test_batch.bin"));
  }
  const at::Tensor records = at::cat(parts, 0);
  return {records.slice(1, 1).reshape({-1, 3, 32, 32}), records.select(1, 0).to(at::kLong)};
}

}  // namespace levin::data
