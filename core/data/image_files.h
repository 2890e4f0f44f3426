#pragma once

#include <levin/core/data/cache/example_cache.h>
#include <levin/core/data/dataset.h>
#include <levin/core/data/image_index.h>
#include <levin/core/data/transforms/transform.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace levin::data {

struct ImageFilesOptions {
  Transforms transforms = {};
  int64_t max_pixels = 0;   ///< an image that claims to have more is an error
  bool paths = false;       ///< examples have the name of their file, as texts "path"
  bool keep_bytes = false;  ///< images that are bytes after the transforms stay bytes; else they become 0 to 1
};

/// Images of an index, decoded and transformed when they are asked for. Batches: "image", [N, channels, height, width]
/// of what the transforms give, and "label" int64 [N], the number of the class; with `paths` the texts "path".
class ImageFiles : public Dataset {
 public:
  /// `rows`: which images of the index, in which order.
  ImageFiles(std::shared_ptr<const ImageIndex> index, std::vector<int64_t> rows, ImageFilesOptions options);

  int64_t size() const override { return static_cast<int64_t>(rows_.size()); }
  /// Returns the number of each image's class, int64 [N], without reading images.
  at::Tensor labels() const;
  Batch get(int64_t index, Generator& generator) const override;

  /// Returns what an example is made of, but for its transforms.
  ExampleKey cache_key(int64_t index) const;

 private:
  std::shared_ptr<const ImageIndex> index_;
  std::vector<int64_t> rows_;
  ImageFilesOptions options_;
  std::string whole_root_;  ///< of the index
};

}  // namespace levin::data
