#include <levin/core/data/cifar100.h>

#include <levin/core/data/cifar_records.h>
#include <levin/core/data/loader_fields.h>

namespace levin::data {

void Cifar100Options::describe(Schema<Cifar100Options>& schema) {
  using O = Cifar100Options;
  const auto is_of_three_channels = [](const std::vector<double>& values) { return values.size() == 3; };
  schema.field("root", &O::root, "folder of the files train.bin and test.bin");
  schema.field("labels", &O::labels, "kind of label: one of 100 classes, or of 20 groups",
               {{"fine", Cifar100Labels::kFine}, {"coarse", Cifar100Labels::kCoarse}});
  schema.field("val_size", &O::val_size, "training images held out for validation, from the end").at_least(0);
  schema.field("augment", &O::augment, "random mirroring and shifts of training images (up to 4 pixels)");
  schema.field("mean", &O::mean, "mean of each channel, on the scale 0 to 1")
      .require("three numbers", is_of_three_channels);
  schema.field("std", &O::std, "divisor of the pixels of each channel").require("three numbers", is_of_three_channels);
  describe_sampler_field(schema);
  describe_loader_fields(schema);
}

Cifar100::Cifar100(const Options& options)
    : ImageDataModule({.loader = training_loader_options(options),
                       .sampling = make_sampling(options.sampler),
                       .val_size = options.val_size,
                       .images = {.mean = options.mean,
                                  .std = options.std,
                                  .flip = options.augment,
                                  .max_shift = options.augment ? kCifarShift : 0}}),
      root_(options.root),
      labels_(options.labels) {}

ImageDataModule::Images Cifar100::read(bool training) const {
  const CifarFormat format{.name = "CIFAR-100", .num_classes = {20, 100}, .folder = "cifar-100-binary"};
  const at::Tensor records = read_cifar_records(root_, training ? "train.bin" : "test.bin", format);
  const int64_t label = labels_ == Cifar100Labels::kCoarse ? 0 : 1;
  return {records.slice(1, 2).reshape({-1, 3, 32, 32}), records.select(1, label).to(at::kLong)};
}

}  // namespace levin::data
