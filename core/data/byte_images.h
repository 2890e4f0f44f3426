#pragma once

#include <levin/core/data/dataset.h>

#include <cstdint>
#include <vector>

namespace levin::data {

/// Options of ByteImages.
struct ByteImagesOptions {
  std::vector<double> mean = {};  ///< for each channel, on the scale 0...1
  std::vector<double> std = {};   ///< for each channel, on the scale 0...1
  bool flip = false;              ///< mirror half of the images from left to right, drawn for each sample
  int64_t max_shift = 0;  ///< shift each image by up to this many pixels in both directions, filling up with black
};

/// Labelled images kept as bytes in memory and turned into floats batch by batch: "image" float [N, C, H, W],
/// normalised by (value / 255 - mean) / std, and "label" int64 [N]. One pass over the chosen rows writes straight into
/// the batch.
class ByteImages : public Dataset {
 public:
  /// `images`: uint8 [N, C, H, W]; `labels`: int64 [N]. Throws levin::Error when the numbers of images, labels or
  /// channels disagree.
  ByteImages(at::Tensor images, at::Tensor labels, const ByteImagesOptions& options);

  int64_t size() const override { return labels_.size(0); }
  Batch get_batch(std::span<const int64_t> indices, Generator& generator) const override;
  /// Returns int64 [N].
  const at::Tensor& labels() const { return labels_; }

 private:
  void write_plain(const uint8_t* image, float* output) const;
  void write_augmented(const uint8_t* image, float* output, Generator generator) const;

  at::Tensor images_;
  at::Tensor labels_;
  bool flip_;
  int64_t max_shift_;
  int64_t channels_;
  int64_t height_;
  int64_t width_;
  std::vector<float> scale_;  ///< a channel's floats are byte * scale + offset
  std::vector<float> offset_;
};

}  // namespace levin::data
