#pragma once

#include <levin/core/base/registry.h>
#include <levin/core/base/schema.h>
#include <levin/core/base/spec.h>
#include <levin/core/data/cache/example_cache.h>

#include <memory>
#include <optional>

namespace levin::data {

/// Names that YAML may use: memory and disk, and a program's own.
Registry<ExampleCache>& cache_registry();

/// Describes the field `cache` of a data module's options, an optional Spec<ExampleCache>.
template <class Options>
void describe_cache_field(Schema<Options>& schema) {
  schema.field("cache", &Options::cache,
               "cache of decoded examples after the transforms that are not random: memory or disk; null: none");
}
/// Returns the cache of that field; nullptr where there is none.
std::shared_ptr<ExampleCache> make_cache(const std::optional<Spec<ExampleCache>>& spec);

}  // namespace levin::data
