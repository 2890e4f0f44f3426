#pragma once

#include <levin/core/data/transforms/transform.h>

#include <cstdint>
#include <vector>

namespace levin::data {

/// Types of an image's values.
enum class ImageType { kFloat32, kUint8 };

struct ToDtypeOptions {
  ImageType dtype = ImageType::kFloat32;

  static void describe(Schema<ToDtypeOptions>& schema);
};

/// Converts between bytes and floats of 0 to 1: torchvision's ToDtype with scale=True.
class ToDtype : public ImageTransform {
 public:
  using Options = ToDtypeOptions;
  explicit ToDtype(const Options& options) : type_(options.dtype) {}
  at::Tensor transform(const at::Tensor& image, Generator& generator) const override;

 private:
  ImageType type_;
};

struct NormalizeOptions {
  std::vector<double> mean = {0.485, 0.456, 0.406};
  std::vector<double> std = {0.229, 0.224, 0.225};

  static void describe(Schema<NormalizeOptions>& schema);
};

/// Subtracts a mean and divides by a deviation for each channel; bytes become floats of 0 to 1 first.
class Normalize : public ImageTransform {
 public:
  using Options = NormalizeOptions;
  explicit Normalize(const Options& options) : options_(options) {}
  at::Tensor transform(const at::Tensor& image, Generator& generator) const override;

 private:
  Options options_;
};

struct OneHotOptions {
  int64_t num_classes = 0;
  double label_smoothing = 0;

  static void describe(Schema<OneHotOptions>& schema);
};

/// Turns the tensor "label" from a class's number into probabilities, float [num_classes]: 1 - label_smoothing for the
/// class, and label_smoothing divided over all.
class OneHot : public Transform {
 public:
  using Options = OneHotOptions;
  explicit OneHot(const Options& options);
  void apply(Batch& example, Generator& generator) const override;

 private:
  Options options_;
};

}  // namespace levin::data
