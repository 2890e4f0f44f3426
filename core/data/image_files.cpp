#include <levin/core/data/image_files.h>

#include <levin/core/base/error.h>
#include <levin/core/data/images/image_file.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>
#include <fmt/format.h>

#include <string>
#include <utility>

namespace levin::data {

ImageFiles::ImageFiles(std::shared_ptr<const ImageIndex> index, std::vector<int64_t> rows, ImageFilesOptions options)
    : index_(std::move(index)), rows_(std::move(rows)), options_(std::move(options)) {
  if (options_.max_pixels < 1) options_.max_pixels = kMaxImagePixels;
  whole_root_ = whole_path(index_->root);
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
  const int64_t row = rows_[static_cast<size_t>(index)];
  Batch example{{"image", read_image(index_->path(row), options_.max_pixels)},
                {"label", at::scalar_tensor(index_->labels[static_cast<size_t>(row)], at::kLong)}};
  if (options_.paths) example.set_texts("path", {index_->path(row)});
  apply_transforms(options_.transforms, example, generator);
  if (!options_.keep_bytes) bytes_to_float(example);
  return example;
}

ExampleKey ImageFiles::cache_key(int64_t index) const {
  const int64_t row = rows_[static_cast<size_t>(index)];
  const std::string path = index_->path(row);
  return {.source = whole_root_ + "/" + index_->files[static_cast<size_t>(row)],
          .version = fmt::format("{}label {}\npaths {}\n", version_of_file(path),
                                 index_->labels[static_cast<size_t>(row)], options_.paths)};
}

}  // namespace levin::data
