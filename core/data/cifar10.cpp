#include <levin/core/data/cifar10.h>

#include <levin/core/data/cifar_records.h>
#include <levin/core/data/loader_fields.h>

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
  schema.field("val_size", &O::val_size, "training images held out for validation, from the end").at_least(0);
  schema.field("augment", &O::augment, "random mirroring and shifts of training images (up to 4 pixels)");
  schema.field("mean", &O::mean, "mean of each channel, on the scale 0 to 1").require("three numbers", is_per_channel);
  schema.field("std", &O::std, "divisor of the pixels of each channel").require("three numbers", is_per_channel);
  describe_sampler_field(schema);
  describe_loader_fields(schema);
}

Cifar10::Cifar10(const Options& options)
    : ImageDataModule({.loader = training_loader_options(options),
                       .sampling = make_sampling(options.sampler),
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
