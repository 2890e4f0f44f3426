#pragma once

#include <levin/core/base/mutex.h>
#include <levin/core/base/schema.h>
#include <levin/core/data/cache/example_cache.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>

namespace levin::data {

/// Options of MemoryCache, explained in describe().
struct MemoryCacheOptions {
  std::optional<double> max_gb = {};

  static void describe(Schema<MemoryCacheOptions>& schema);
};

/// Examples in the memory of this process. What was kept first stays: in passes over more than fits, whatever is thrown
/// out is needed before what took its place.
class MemoryCache final : public ExampleCache {
 public:
  using Options = MemoryCacheOptions;
  explicit MemoryCache(const Options& options = {});

  std::optional<Batch> find(const ExampleKey& key) override;
  void add(const ExampleKey& key, const Batch& example) override;

  /// Returns the bytes of the tensors that are kept.
  int64_t bytes() const { return bytes_; }

 private:
  struct Kept {
    std::string version;
    Batch example;
  };
  struct Part {
    Mutex mutex;
    std::unordered_map<std::string, Kept> examples LEVIN_GUARDED_BY(mutex);  ///< by source
  };
  Part& part_of(const std::string& source);

  int64_t max_bytes_;
  std::atomic<int64_t> bytes_ = 0;
  std::array<Part, 16> parts_;  ///< so that workers seldom wait for each other
};

}  // namespace levin::data
