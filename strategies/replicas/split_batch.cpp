#include <levin/strategies/replicas/split_batch.h>

#include <levin/core/base/error.h>

#include <fmt/format.h>

#include <string>

namespace levin {

std::vector<Batch> split_batch(const Batch& batch, int64_t parts, const BatchSplitter& splitter) {
  try {
    return batch.split(parts);
  } catch (const Error& error) {
    const std::string why = std::string(error.what()).substr(error.component().size() + 3);
    throw Error(splitter.component, fmt::format("{}, and this one cannot be: {}; valid: entries with one row for each "
                                                "example; hint: {}",
                                                splitter.what, why, splitter.hint));
  }
}

}  // namespace levin
