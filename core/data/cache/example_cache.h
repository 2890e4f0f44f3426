#pragma once

#include <levin/core/base/registry.h>
#include <levin/core/data/batch.h>

#include <optional>
#include <string>

namespace levin::data {

/// What an example of a cache was made of.
struct ExampleKey {
  std::string source = {};   ///< where it comes from, "photographs/cat/1.jpg": a cache keeps one example of a source
  std::string version = {};  ///< what else its values follow from: the file's size and time of change, transforms
};

/// Returns size and time of change of a file, which an example's version consists of; empty where there is none.
std::string version_of_file(const std::string& path);

/// Returns a path that says the same from any working folder, as keys of what is kept need.
std::string whole_path(const std::string& path);

/// Keeps decoded examples. Called by several worker threads at a time.
class ExampleCache : public Configurable {
 public:
  /// Returns a copy of the example that is kept for a key; nothing where there is none, or one of another version.
  virtual std::optional<Batch> find(const ExampleKey& key) = 0;
  /// Keeps an example, as far as there is room. Its tensors are dense, on the CPU.
  virtual void add(const ExampleKey& key, const Batch& example) = 0;
};

}  // namespace levin::data
