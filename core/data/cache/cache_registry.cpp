#include <levin/core/data/cache/cache_registry.h>

#include <levin/core/data/cache/disk_cache.h>
#include <levin/core/data/cache/memory_cache.h>

namespace levin::data {

Registry<ExampleCache>& cache_registry() {
  static Registry<ExampleCache>* instance = [] {
    auto* made = new Registry<ExampleCache>("cache");  // outlives every static object that may still use it
    made->add<MemoryCache>("memory", "in the memory of each process");
    made->add<DiskCache>("disk", "in a folder that any number of programs share");
    return made;
  }();
  return *instance;
}

std::shared_ptr<ExampleCache> make_cache(const std::optional<Spec<ExampleCache>>& spec) {
  return spec ? spec->resolve(cache_registry(), "data.cache") : nullptr;
}

}  // namespace levin::data
