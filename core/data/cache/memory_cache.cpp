#include <levin/core/data/cache/memory_cache.h>

#include <levin/core/data/cache/example_bytes.h>

#include <unistd.h>

#include <functional>
#include <utility>

namespace levin::data {

namespace {

int64_t half_of_free_memory() {
  return static_cast<int64_t>(sysconf(_SC_AVPHYS_PAGES)) / 2 * static_cast<int64_t>(sysconf(_SC_PAGESIZE));
}

Batch copied(const Batch& example) {
  Batch copy;
  copy.text_items() = example.text_items();
  copy.items().reserve(example.items().size());
  for (const auto& [name, tensor] : example.items()) copy.items().emplace_back(name, tensor.clone());
  return copy;
}

}  // namespace

void MemoryCacheOptions::describe(Schema<MemoryCacheOptions>& schema) {
  schema
      .field("max_gb", &MemoryCacheOptions::max_gb,
             "memory of each process at most (10^9 bytes); null: half of the free memory")
      .above(0)
      .at_most(1e9);
}

MemoryCache::MemoryCache(const Options& options)
    : max_bytes_(options.max_gb ? static_cast<int64_t>(*options.max_gb * 1e9) : half_of_free_memory()) {}

MemoryCache::Part& MemoryCache::part_of(const std::string& source) {
  return parts_[std::hash<std::string>()(source) % parts_.size()];
}

std::optional<Batch> MemoryCache::find(const ExampleKey& key) {
  Part& part = part_of(key.source);
  Batch kept;
  {
    const MutexLock lock(part.mutex);
    const auto found = part.examples.find(key.source);
    if (found == part.examples.end() || found->second.version != key.version) return std::nullopt;
    kept = found->second.example;
  }
  return copied(kept);
}

void MemoryCache::add(const ExampleKey& key, const Batch& example) {
  const int64_t size = num_bytes(example);
  if (bytes_ + size > max_bytes_) return;
  Kept kept{key.version, copied(example)};
  Part& part = part_of(key.source);
  const MutexLock lock(part.mutex);
  const auto [place, is_new] = part.examples.try_emplace(key.source);
  bytes_ += size - (is_new ? 0 : num_bytes(place->second.example));
  place->second = std::move(kept);
}

}  // namespace levin::data
