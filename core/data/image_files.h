#pragma once

#include <levin/core/data/dataset.h>
#include <levin/core/data/image_index.h>
#include <levin/core/data/transforms/transform.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace levin::data {

/// What becomes of an image that cannot be read.
enum class OnError { kRaise, kSkip };

struct ImageFilesOptions {
  Transforms transforms = {};
  OnError on_error = OnError::kRaise;
  int64_t max_pixels = 0;   ///< an image that claims to have more is an error
  bool keep_bytes = false;  ///< images that are bytes after the transforms stay bytes; else they become 0 to 1
  std::string name = {};    ///< what the images are for, in messages: "training"
};

/// Images of an index, decoded and transformed when they are asked for. Batches: "image", [N, channels, height, width]
/// of what the transforms give, and "label" int64 [N], the number of the class. With OnError::kSkip the next image of
/// the list that can be read takes the place of one that cannot, so that batches keep their sizes and positions.
class ImageFiles : public Dataset {
 public:
  /// `rows`: which images of the index, in which order.
  ImageFiles(std::shared_ptr<const ImageIndex> index, std::vector<int64_t> rows, ImageFilesOptions options);
  /// Reports what was skipped and not reported yet.
  ~ImageFiles() override;

  int64_t size() const override { return static_cast<int64_t>(rows_.size()); }
  /// Returns the number of each image's class, int64 [N], without reading images.
  at::Tensor labels() const;
  Batch get(int64_t index, Generator& generator) const override;

  /// Prints how many images of the last epoch were skipped, and which, if any. Called by itself when the next begins.
  void report_skipped() const;

 private:
  Batch example(int64_t row, Generator& generator) const;
  void report_if_new(int64_t epoch) const;
  void note_skipped(int64_t row, const std::string& reason) const;

  std::shared_ptr<const ImageIndex> index_;
  std::vector<int64_t> rows_;
  ImageFilesOptions options_;

  mutable std::mutex mutex_;  ///< guards what follows
  mutable int64_t epoch_ = 0;
  mutable std::map<int64_t, std::string> skipped_;  ///< reasons by row, of `epoch_`
};

}  // namespace levin::data
