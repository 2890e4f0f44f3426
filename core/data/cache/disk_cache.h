#pragma once

#include <levin/core/base/mutex.h>
#include <levin/core/base/schema.h>
#include <levin/core/data/cache/example_cache.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace levin::data {

/// Options of DiskCache, explained in describe().
struct DiskCacheOptions {
  std::string path = {};
  std::optional<double> max_gb = {};

  static void describe(Schema<DiskCacheOptions>& schema);
};

/// Examples in a folder, a file for each, that any number of programs read and write at the same time: a file is
/// written beside its place and renamed. A file that is damaged (it has a checksum) or holds another version of its
/// example is made again, which one message says. Where nothing can be written any more, one message says so and data
/// are read as without a cache.
class DiskCache final : public ExampleCache {
 public:
  using Options = DiskCacheOptions;
  /// Makes no folder before there is an example to keep. Throws ConfigError without a path.
  explicit DiskCache(const Options& options);

  std::optional<Batch> find(const ExampleKey& key) override;
  void add(const ExampleKey& key, const Batch& example) override;

  /// Returns the file of a source.
  std::string file_of(const std::string& source) const;

 private:
  bool has_room(int64_t size);
  void measure() LEVIN_REQUIRES(mutex_);
  void stop(const std::string& reason);
  void write(const std::string& file, std::string_view bytes);

  std::string path_;
  std::optional<int64_t> max_bytes_;
  std::atomic<bool> writes_ = true;
  std::atomic<bool> said_other_version_ = false;
  std::atomic<bool> said_damaged_ = false;
  std::atomic<uint64_t> num_written_ = 0;

  Mutex mutex_;
  int64_t bytes_ LEVIN_GUARDED_BY(mutex_) = 0;           ///< in the folder, as far as is known
  int64_t until_measured_ LEVIN_GUARDED_BY(mutex_) = 0;  ///< bytes to be written before it is looked again
};

}  // namespace levin::data
