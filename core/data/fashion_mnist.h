#pragma once

#include <levin/core/base/schema.h>
#include <levin/core/data/image_data_module.h>

#include <cstdint>
#include <optional>
#include <string>

namespace levin::data {

/// Settings of FashionMnist, where data sets in the format of MNIST differ.
struct FashionMnistDefaults {
  static constexpr const char* kRoot = "/usr/share/datasets/fashion-mnist";
  static constexpr const char* kHint = "install the Debian package dataset-fashion-mnist, or set root";
  static constexpr double kMean = 0.2860;
  static constexpr double kStd = 0.3530;
  static constexpr bool kFlips = true;
};

/// Settings of Mnist.
struct MnistDefaults {
  static constexpr const char* kRoot = "/usr/share/datasets/mnist";
  static constexpr const char* kHint = "put the four IDX files of MNIST there, or set root";
  static constexpr double kMean = 0.1307;
  static constexpr double kStd = 0.3081;
  static constexpr bool kFlips = false;  ///< mirrored digits are not digits
};

/// Options of MnistLike, explained in describe().
template <class Defaults>
struct MnistLikeOptions {
  std::string root = Defaults::kRoot;
  int64_t batch_size = 64;
  std::optional<int64_t> global_batch_size = {};
  int64_t num_workers = 0;
  int64_t prefetch_factor = 2;
  int64_t val_size = 5000;  ///< 0: no validation
  bool shuffle = true;
  bool augment = false;
  double mean = Defaults::kMean;
  double std = Defaults::kStd;
  std::optional<Spec<Sampling>> sampler = {};
  bool drop_last = false;
  bool pin_memory = false;
  double timeout = 0;
  bool persistent_workers = true;
  OnError on_error = OnError::kRaise;

  static void describe(Schema<MnistLikeOptions>& schema);
};

/// 28x28 images of 10 classes in the IDX files of MNIST: 60,000 for training and validation, 10,000 for test and
/// prediction. Batches: "image" float [N, 1, 28, 28], normalised by (value / 255 - mean) / std, and "label" int64 [N].
template <class Defaults>
class MnistLike : public ImageDataModule {
 public:
  using Options = MnistLikeOptions<Defaults>;
  explicit MnistLike(const Options& options);

 protected:
  Images read(bool training) const override;

 private:
  std::string root_;
};

extern template struct MnistLikeOptions<FashionMnistDefaults>;
extern template struct MnistLikeOptions<MnistDefaults>;
extern template class MnistLike<FashionMnistDefaults>;
extern template class MnistLike<MnistDefaults>;

using FashionMnistOptions = MnistLikeOptions<FashionMnistDefaults>;
using MnistOptions = MnistLikeOptions<MnistDefaults>;

/// Zalando's images of garments (Xiao, Rasul and Vollgraf, 2017), as Debian's package dataset-fashion-mnist installs
/// them.
class FashionMnist : public MnistLike<FashionMnistDefaults> {
 public:
  using MnistLike::MnistLike;
};

/// Handwritten digits (LeCun, Cortes and Burges, 1998).
class Mnist : public MnistLike<MnistDefaults> {
 public:
  using MnistLike::MnistLike;
};

}  // namespace levin::data
