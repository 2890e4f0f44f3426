#pragma once

#include <levin/core/base/schema.h>
#include <levin/core/data/image_data_module.h>

#include <cstdint>
#include <optional>
#include <string>

namespace levin::data {

/// What differs between data sets in the format of MNIST.
struct FashionMnistDefaults {
  static constexpr const char* kRoot = "/usr/share/datasets/fashion-mnist";
  static constexpr const char* kHint = "install the Debian package dataset-fashion-mnist, or set root";
  static constexpr double kMean = 0.2860;
  static constexpr double kStd = 0.3530;
  static constexpr bool kFlips = true;
};

/// The digits that gave the format its name.
struct MnistDefaults {
  static constexpr const char* kRoot = "/usr/share/datasets/mnist";
  static constexpr const char* kHint = "put the four IDX files of MNIST there, or set root";
  static constexpr double kMean = 0.1307;
  static constexpr double kStd = 0.3081;
  static constexpr bool kFlips = false;  ///< a mirrored digit is none
};

template <class Defaults>
struct MnistLikeOptions {
  std::string root = Defaults::kRoot;  ///< folder of the four IDX files, compressed by gzip or not
  int64_t batch_size = 64;             ///< examples in a batch of one rank
  /// Of all ranks together, divided by their number; replaces batch_size
  std::optional<int64_t> global_batch_size = {};
  int64_t num_workers = 0;
  int64_t val_size = 5000;  ///< training images held out for validation, the last of them; 0: no validation
  bool shuffle = true;      ///< of the training images
  bool augment = false;     ///< shift training images by up to 2 pixels; garments are also mirrored
  double mean = Defaults::kMean;
  double std = Defaults::kStd;
  bool drop_last = false;  ///< leave out a partial last training batch
  bool pin_memory = false;

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
