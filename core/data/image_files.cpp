#include <levin/core/data/image_files.h>

#include <levin/core/base/error.h>
#include <levin/core/base/log.h>
#include <levin/core/data/images/image_file.h>
#include <levin/core/data/transforms/image_operations.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace levin::data {

ImageFiles::ImageFiles(std::shared_ptr<const ImageIndex> index, std::vector<int64_t> rows, ImageFilesOptions options)
    : index_(std::move(index)), rows_(std::move(rows)), options_(std::move(options)) {
  if (options_.max_pixels < 1) options_.max_pixels = kMaxImagePixels;
}

ImageFiles::~ImageFiles() { report_skipped(); }

Batch ImageFiles::example(int64_t row, Generator& generator) const {
  Batch example{{"image", read_image(index_->path(row), options_.max_pixels)},
                {"label", at::scalar_tensor(index_->labels[static_cast<size_t>(row)], at::kLong)}};
  apply_transforms(options_.transforms, example, generator);
  if (!options_.keep_bytes && example["image"].scalar_type() == at::kByte)
    example["image"] = operations::to_dtype(example["image"], at::kFloat);
  return example;
}

at::Tensor ImageFiles::labels() const {
  at::Tensor labels = at::empty({size()}, at::kLong);
  for (int64_t i = 0; i < size(); ++i)
    labels.mutable_data_ptr<int64_t>()[i] = index_->labels[static_cast<size_t>(rows_[static_cast<size_t>(i)])];
  return labels;
}

Batch ImageFiles::get(int64_t index, Generator& generator) const {
  if (index < 0 || index >= size())
    throw Error("data", fmt::format("there is no image {}; there are {}", index, size()));
  if (options_.on_error == OnError::kRaise) return example(rows_[static_cast<size_t>(index)], generator);
  report_if_new(generator.epoch());
  constexpr int64_t kMostInARow = 1000;
  std::string reason;
  for (int64_t i = 0; i < std::min(size(), kMostInARow); ++i) {
    const int64_t row = rows_[static_cast<size_t>((index + i) % size())];
    Generator fresh = generator;
    try {
      return example(row, fresh);
    } catch (const Error& error) {
      if (error.component() != "data") throw;
      reason = error.what();
    }
    note_skipped(row, reason);
  }
  throw Error("data", fmt::format("none of {} images one after the other could be read; the last one: {}",
                                  std::min(size(), kMostInARow), reason));
}

void ImageFiles::report_if_new(int64_t epoch) const {
  {
    const std::lock_guard lock(mutex_);
    if (epoch == epoch_) return;
  }
  report_skipped();
  const std::lock_guard lock(mutex_);
  epoch_ = epoch;
}

void ImageFiles::note_skipped(int64_t row, const std::string& reason) const {
  const std::lock_guard lock(mutex_);
  skipped_.emplace(row, reason);
}

void ImageFiles::report_skipped() const {
  std::map<int64_t, std::string> skipped;
  int64_t epoch = 0;
  {
    const std::lock_guard lock(mutex_);
    skipped.swap(skipped_);
    epoch = epoch_;
  }
  if (skipped.empty()) return;
  constexpr size_t kMost = 5;
  std::string message = fmt::format("epoch {}: {} of {} {} images could not be read; others took their place:", epoch,
                                    skipped.size(), rows_.size(), options_.name);
  size_t named = 0;
  for (const auto& [row, reason] : skipped) {
    if (named++ == kMost) break;
    message += "\n  " + reason;
  }
  if (skipped.size() > kMost) message += fmt::format("\n  and {} more", skipped.size() - kMost);
  log::warning(message);
}

}  // namespace levin::data
