#pragma once

#include <levin/core/data/cache/example_cache.h>
#include <levin/core/data/dataset.h>
#include <levin/core/data/images/image_file.h>
#include <levin/core/data/transforms/transform.h>

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace levin::data {

/// How samples of tar files are read.
struct TarSamplesOptions {
  /// Endings that a tensor of the batch is read from, the first that a sample has: {"image", "jpg;png"}.
  std::map<std::string, std::string> fields = {{"image", "jpg;jpeg;png;webp"}, {"label", "cls"}};
  Transforms transforms = {};
  bool keep_bytes = false;                  ///< images that are bytes after the transforms stay bytes
  int64_t max_pixels = kMaxImagePixels;     ///< an image that claims to have more is an error
  std::optional<int64_t> num_classes = {};  ///< a label that is not below it is an error
};

/// Samples of tar files as WebDataset lays them out: files one behind the other whose names are the same up to the
/// first dot behind the last slash are a sample, and what follows the dot says what a file has. Batches have a tensor
/// for each field: of .jpg, .jpeg, .png and .webp the image, as a tensor "image" transformed and from 0 to 1; of .cls,
/// .index, .id and .count a whole number, int64 [N]; of .npy the array; of .txt, .text, .transcript and .json texts; of
/// everything else its bytes, uint8. The field's endings "__key__" stand for the sample's name, as texts.
class TarSamples : public Dataset {
 public:
  /// Reads the headers of these files. Throws levin::Error where a file is damaged, has no samples, or a sample lacks a
  /// field.
  explicit TarSamples(std::vector<std::string> paths, TarSamplesOptions options = {});

  int64_t size() const override { return static_cast<int64_t>(keys_.size()); }
  Batch get(int64_t index, Generator& generator) const override;
  Batch get_batch(std::span<const int64_t> indices, Generator& generator) const override;

  /// Returns the name of a sample, without endings.
  const std::string& key(int64_t index) const { return keys_[static_cast<size_t>(index)]; }
  /// Returns what a sample is made of, but for its transforms.
  ExampleKey cache_key(int64_t index) const;
  /// Returns the number of samples of each file.
  const std::vector<int64_t>& shard_sizes() const { return shard_sizes_; }

 private:
  enum class Kind { kImage, kNumber, kArray, kText, kKey, kBytes };
  struct Field {
    std::string name;
    std::vector<std::string> endings;
  };
  struct Place {
    int64_t offset = 0;
    int64_t size = 0;
    Kind kind = Kind::kBytes;
    int32_t ending = -1;  ///< in the field's endings; -1: the sample lacks the field
  };
  class OpenShards;

  static Kind kind_of(std::string_view ending);
  void add_shard(const std::string& path);
  void check_sample(const std::string& path) const;
  std::string name_of(int64_t index, size_t field) const;
  const Place& place(int64_t index, size_t field) const {
    return places_[static_cast<size_t>(index) * fields_.size() + field];
  }
  int64_t shard_of(int64_t index) const;
  int64_t number(int64_t index, size_t field, OpenShards& shards) const;
  Batch example(int64_t index, Generator& generator, OpenShards& shards) const;
  bool reads_whole_batches(std::span<const int64_t> indices) const;

  std::vector<std::string> paths_;
  TarSamplesOptions options_;
  std::vector<Field> fields_;
  std::vector<std::string> keys_;
  std::vector<Place> places_;  ///< of the first sample's fields, then of the second's
  std::vector<int64_t> shard_sizes_;
  std::vector<std::string> shard_versions_;  ///< see version_of_file
  std::vector<std::string> shard_sources_;   ///< whole paths
  std::vector<int64_t> shard_ends_;          ///< samples up to the end of each file
};

}  // namespace levin::data
