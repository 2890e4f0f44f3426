#include <levin/core/data/byte_images.h>

#include <levin/core/base/error.h>

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace levin::data {

namespace {

/// Blocks of a fixed length, so that the compiler uses vector instructions at every optimisation level.
void scale_bytes(const uint8_t* __restrict input, float* __restrict output, int64_t count, float scale, float offset) {
  constexpr int64_t kBlock = 16;
  int64_t i = 0;
  for (; i + kBlock <= count; i += kBlock)
    for (int64_t j = 0; j < kBlock; ++j) output[i + j] = static_cast<float>(input[i + j]) * scale + offset;
  for (; i < count; ++i) output[i] = static_cast<float>(input[i]) * scale + offset;
}

}  // namespace

ByteImages::ByteImages(at::Tensor images, at::Tensor labels, const ByteImagesOptions& options)
    : images_(std::move(images)), labels_(std::move(labels)), flip_(options.flip), max_shift_(options.max_shift) {
  if (images_.dim() != 4 || images_.scalar_type() != at::kByte || labels_.dim() != 1 ||
      labels_.scalar_type() != at::kLong)
    throw Error("data",
                fmt::format("ByteImages needs uint8 images [N, C, H, W] and int64 labels [N]; got {} {} and {} {}",
                            c10::toString(images_.scalar_type()), c10::str(images_.sizes()),
                            c10::toString(labels_.scalar_type()), c10::str(labels_.sizes())));
  if (images_.size(0) != labels_.size(0))
    throw Error("data", fmt::format("there are {} images but {} labels", images_.size(0), labels_.size(0)));
  images_ = images_.contiguous();
  labels_ = labels_.contiguous();
  channels_ = images_.size(1);
  height_ = images_.size(2);
  width_ = images_.size(3);
  if (static_cast<int64_t>(options.mean.size()) != channels_ || static_cast<int64_t>(options.std.size()) != channels_)
    throw Error("data", fmt::format("mean and std need one number for each of the {} channels; got {} and {}",
                                    channels_, options.mean.size(), options.std.size()));
  for (size_t channel = 0; channel < options.mean.size(); ++channel) {
    if (!(options.std[channel] > 0))
      throw Error("data", fmt::format("std must be above 0; got {}", options.std[channel]));
    scale_.push_back(static_cast<float>(1 / (255 * options.std[channel])));
    offset_.push_back(static_cast<float>(-options.mean[channel] / options.std[channel]));
  }
}

Batch ByteImages::get_batch(std::span<const int64_t> indices, Generator& generator) const {
  const auto count = static_cast<int64_t>(indices.size());
  at::Tensor images = at::empty({count, channels_, height_, width_}, at::kFloat);
  at::Tensor labels = at::empty({count}, at::kLong);
  const uint8_t* source = images_.const_data_ptr<uint8_t>();
  const int64_t* source_labels = labels_.const_data_ptr<int64_t>();
  auto* target = images.mutable_data_ptr<float>();
  auto* target_labels = labels.mutable_data_ptr<int64_t>();
  const int64_t image_size = channels_ * height_ * width_;
  const bool augments = flip_ || max_shift_ > 0;
  for (int64_t row = 0; row < count; ++row) {
    const int64_t index = indices[static_cast<size_t>(row)];
    if (index < 0 || index >= size())
      throw Error("data", fmt::format("there is no example {}; the data set has {}", index, size()));
    target_labels[row] = source_labels[index];
    if (augments)
      write_augmented(source + index * image_size, target + row * image_size, generator.for_sample(index));
    else
      write_plain(source + index * image_size, target + row * image_size);
  }
  return {{"image", std::move(images)}, {"label", std::move(labels)}};
}

void ByteImages::write_plain(const uint8_t* image, float* output) const {
  const int64_t plane = height_ * width_;
  for (int64_t channel = 0; channel < channels_; ++channel) {
    const auto c = static_cast<size_t>(channel);
    scale_bytes(image + channel * plane, output + channel * plane, plane, scale_[c], offset_[c]);
  }
}

void ByteImages::write_augmented(const uint8_t* image, float* output, Generator generator) const {
  const bool mirror = flip_ && generator.below(2) == 1;
  const int64_t down = generator.below(2 * max_shift_ + 1) - max_shift_;
  const int64_t right = generator.below(2 * max_shift_ + 1) - max_shift_;
  const int64_t first = std::clamp<int64_t>(right, 0, width_);
  const int64_t last = std::clamp<int64_t>(width_ + right, 0, width_);
  for (int64_t channel = 0; channel < channels_; ++channel) {
    const float scale = scale_[static_cast<size_t>(channel)];
    const float black = offset_[static_cast<size_t>(channel)];
    for (int64_t y = 0; y < height_; ++y) {
      float* row = output + (channel * height_ + y) * width_;
      const int64_t from = y - down;
      if (from < 0 || from >= height_) {
        std::fill_n(row, width_, black);
        continue;
      }
      const uint8_t* pixels = image + (channel * height_ + from) * width_;
      std::fill(row, row + first, black);
      scale_bytes(pixels + (first - right), row + first, last - first, scale, black);
      std::fill(row + last, row + width_, black);
      if (mirror) std::reverse(row, row + width_);
    }
  }
}

}  // namespace levin::data
