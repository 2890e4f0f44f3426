#pragma once

#include <levin/core/base/state.h>
#include <levin/core/interchange/weight_rules.h>
#include <levin/core/interchange/weights.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace levin {

/// How weights are written.
struct WriteWeightsOptions {
  WeightRules rules = {};                   ///< change names and shapes, as they do for load_weights
  std::string key = {};                     ///< of convert_weights: of the weights in its source; see open_weights
  std::string config = {};                  ///< of kHuggingFace: config.json, copied into the folder
  int64_t max_shard_bytes = 5'000'000'000;  ///< of kHuggingFace: the size of a file beyond which there are several
};

/// Returns whether a format keeps a tensor with several names (tied weights) once, under each of them.
bool keeps_tied_names(WeightsFormat format);

/// Writes tensors by name: kSafetensors and kPyTorch one file, kHuggingFace a folder that from_pretrained reads. The
/// file, or each of the folder's, appears at once and whole. Of tensors that are in files one at a time is in memory.
/// A tensor that is there under several names is written once where the format keeps_tied_names, else once for each.
/// Throws levin::Error.
void write_weights(const std::string& path, WeightsFormat format,
                   const std::vector<std::pair<std::string, TensorLeaf>>& tensors,
                   const WriteWeightsOptions& options = {});

/// Returns the format that a path's end names: ".safetensors", ".pth" (also ".pt", ".bin"), ".ckpt", or that of a
/// folder, kHuggingFace.
WeightsFormat weights_format_of(const std::string& path);

/// Returns the format of a weights_format_name; throws levin::Error for another.
WeightsFormat weights_format_of_name(const std::string& name);

/// Writes weights, or a whole checkpoint, in another format. A Levin or Lightning checkpoint becomes a Lightning
/// checkpoint with everything that training goes on with; all else is weights alone. Throws levin::Error.
void convert_weights(const std::string& source, const std::string& target, WeightsFormat format,
                     const WriteWeightsOptions& options = {}, bool weights_only = false);

}  // namespace levin
