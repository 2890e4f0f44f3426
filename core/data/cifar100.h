#pragma once

#include <levin/core/base/schema.h>
#include <levin/core/data/image_data_module.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace levin::data {

/// Which of the two labels of a CIFAR-100 image is read.
enum class Cifar100Labels { kFine, kCoarse };

/// Options of Cifar100, explained in describe().
struct Cifar100Options {
  std::string root = "/usr/share/datasets/cifar-100-binary";
  Cifar100Labels labels = Cifar100Labels::kFine;
  int64_t val_size = 5000;  ///< 0: no validation
  bool augment = false;
  std::vector<double> mean = {0.5071, 0.4865, 0.4409};
  std::vector<double> std = {0.2673, 0.2564, 0.2762};
  std::optional<Spec<Sampling>> sampler = {};
  int64_t batch_size = 64;
  std::optional<int64_t> global_batch_size = {};
  int64_t num_workers = 0;
  int64_t prefetch_factor = 2;
  bool shuffle = true;
  bool drop_last = false;
  bool pin_memory = false;
  double timeout = 0;
  bool persistent_workers = true;
  OnError on_error = OnError::kRaise;

  static void describe(Schema<Cifar100Options>& schema);
};

/// 32x32 colour images of 100 classes in 20 groups (Krizhevsky, 2009) in the binary format: records of a byte for the
/// group, one for the class, and 3072 of pixels, in train.bin and test.bin. Batches: "image" float [N, 3, 32, 32],
/// normalised by (value / 255 - mean) / std for each channel, and "label" int64 [N], the class, or the group.
class Cifar100 : public ImageDataModule {
 public:
  using Options = Cifar100Options;
  explicit Cifar100(const Options& options);

 protected:
  Images read(bool training) const override;

 private:
  std::string root_;
  Cifar100Labels labels_;
};

}  // namespace levin::data
