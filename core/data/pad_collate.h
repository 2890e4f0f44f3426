#pragma once

#include <levin/core/data/dataset.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace levin::data {

/// Options of pad_collate.
struct PadCollateOptions {
  std::vector<std::string> fields = {};              ///< tensors that are padded; empty: those of one or two dimensions
  int64_t multiple_of = 1;                           ///< padded lengths are multiples of it
  std::map<std::string, double> padding_value = {};  ///< of a tensor, by name; 0 of those not named
};

/// Returns a function for Dataset::collate that puts examples of different lengths together. A tensor [length] or
/// [length, features] of an example becomes [N, longest] or [N, longest, features], filled up at the end; beside it
/// are `NAME_length`, int64 [N], and `NAME_mask`, bool [N, longest], true where an element is no padding. Other tensors
/// are stacked, texts put one behind the other. The longest is that of the batch; a rank pads its own part. Throws
/// levin::Error for options out of range; the function throws it for a tensor that cannot be padded, and for one named
/// as it names its own.
CollateFunction pad_collate(const PadCollateOptions& options = {});

}  // namespace levin::data
