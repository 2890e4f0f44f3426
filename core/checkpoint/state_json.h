#pragma once

#include <levin/core/base/state.h>
#include <levin/core/checkpoint/safetensors.h>

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace levin {

/// The tensors of a state tree by the file that is to hold them.
using TensorsByFile = std::map<std::string, std::vector<NamedTensor>>;

/// Where a checkpoint keeps a tensor.
struct TensorReference {
  std::string file;
  std::string name;
};
using TensorLoader = std::function<at::Tensor(const TensorReference& reference)>;

/// A state tree as JSON text, in which tensors are references; the tensors themselves are added to `tensors` (shared,
/// not copied). Every value survives exactly: 2 and 2.0 stay apart, and so do NaN and the infinities. Throws
/// levin::Error for a key that is not UTF-8.
std::string encode_state(const State& tree, TensorsByFile& tensors);

/// The inverse. `source` is the file's path, for messages; `sections` are the top-level keys to decode, all when empty.
/// `load` gives each tensor. Throws levin::Error when the text is not what encode_state writes.
State decode_state(std::string_view text, const std::string& source, const TensorLoader& load,
                   const std::vector<std::string>& sections = {});

}  // namespace levin
