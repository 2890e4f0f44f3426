#pragma once

#include <levin/core/base/schema.h>
#include <levin/core/data/image_data_module.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace levin::data {

/// Options of Cifar10, explained in describe().
struct Cifar10Options {
  std::string root = "/usr/share/datasets/cifar-10-batches-bin";
  int64_t batch_size = 64;
  std::optional<int64_t> global_batch_size = {};
  int64_t num_workers = 0;
  int64_t prefetch_factor = 2;
  int64_t val_size = 5000;  ///< 0: no validation
  bool shuffle = true;
  bool augment = false;
  std::vector<double> mean = {0.4914, 0.4822, 0.4465};
  std::vector<double> std = {0.2470, 0.2435, 0.2616};
  std::optional<Spec<Sampling>> sampler = {};
  bool drop_last = false;
  bool pin_memory = false;
  double timeout = 0;
  bool persistent_workers = true;
  OnError on_error = OnError::kRaise;

  static void describe(Schema<Cifar10Options>& schema);
};

/// 32x32 colour images of 10 classes (Krizhevsky, 2009) in the binary format: records of a label byte and 3072 bytes of
/// pixels, channel by channel. Training reads data_batch_1.bin to data_batch_5.bin. Batches: "image" float [N, 3, 32,
/// 32], normalised by (value / 255 - mean) / std for each channel, and "label" int64 [N].
class Cifar10 : public ImageDataModule {
 public:
  using Options = Cifar10Options;
  explicit Cifar10(const Options& options);

 protected:
  Images read(bool training) const override;

 private:
  std::string root_;
};

}  // namespace levin::data
