#pragma once

#include <levin/core/data/batch.h>

#include <cstdint>
#include <string_view>
#include <vector>

namespace levin {

/// Who splits a batch, for messages.
struct BatchSplitter {
  std::string_view component = {};
  std::string_view what = {};  ///< "strategy dp divides each batch among its replicas"
  std::string_view hint = {};
};

/// Splits a batch as Batch::split does. Throws levin::Error that says who wanted it where it has entries whose rows are
/// not its examples.
std::vector<Batch> split_batch(const Batch& batch, int64_t parts, const BatchSplitter& splitter);

}  // namespace levin
