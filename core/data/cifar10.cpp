#include <levin/core/data/cifar10.h>

#include <levin/core/data/cifar_records.h>

#include <ATen/ops/cat.h>
#include <fmt/format.h>

namespace levin::data {

namespace {

constexpr int64_t kNumTrainingFiles = 5;
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
  const CifarFormat format{.name = "CIFAR-10", .num_classes = {10}, .folder = "cifar-10-batches-bin"};
  std::vector<at::Tensor> parts;
  if (training) {
    for (int64_t i = 1; i <= kNumTrainingFiles; ++i)
      parts.push_back(read_cifar_records(root_, fmt::format("data_batch_{}.bin", i), format));
  } else {
    parts.push_back(read_cifar_records(root_, "test_batch.bin", format));
  }
  const at::Tensor records = at::cat(parts, 0);
  return {records.slice(1, 1).reshape({-1, 3, 32, 32}), records.select(1, 0).to(at::kLong)};
}

}  // namespace levin::data
