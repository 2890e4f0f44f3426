#pragma once

#include <levin/core/base/state.h>
#include <levin/core/checkpoint/safetensors.h>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace levin {

/// Tensors of a state tree by the file that is to hold them.
using TensorsByFile = std::map<std::string, std::vector<NamedLeaf>>;

/// Consecutive elements of a flattened tensor that one file holds as a tensor of one dimension.
struct TensorPiece {
  std::string file;
  std::string name;    ///< in the file
  int64_t offset = 0;  ///< of its first element in the whole
  int64_t count = 0;
};

/// Location of a tensor in a checkpoint: whole in one file, or in pieces.
struct TensorReference {
  std::string file;                      ///< empty for a tensor in pieces
  std::string name;                      ///< in the file; empty for a tensor in pieces
  std::vector<int64_t> dimension_order;  ///< SavedTensor::dimension_order
  std::optional<at::ScalarType> dtype;   ///< this and what follows: only of a tensor in pieces
  std::vector<int64_t> shape;
  std::vector<TensorPiece> pieces;  ///< by offset; together they hold every element once

  bool in_pieces() const { return dtype.has_value(); }
};

/// Returns a tensor: its elements, or a handle to them.
using TensorLoader = std::function<State(const TensorReference& reference)>;
/// Returns a tensor's location, given its usual one, which it has in a checkpoint that one rank writes.
using TensorPlacer = std::function<TensorReference(const TensorLeaf& leaf, const TensorReference& usual)>;

/// Returns the usual file, and name in it, of the tensor at `pointer` (child_pointer).
TensorReference usual_place(const std::string& pointer);

/// Encodes a state tree as JSON text, in which tensors are references; the tensors themselves, except those in pieces,
/// are added to `tensors` (shared, not copied). Every value survives exactly: 2 and 2.0 stay apart, and so do NaN and
/// the infinities. Throws levin::Error for a key that is not UTF-8.
std::string encode_state(const State& tree, TensorsByFile& tensors, const TensorPlacer& place = {});

/// Decodes what encode_state gave. `source` is the file's path, for messages; `sections` are the top-level keys to
/// decode, all when empty. `load` gives each tensor. Throws levin::Error when the text is not what encode_state writes.
State decode_state(std::string_view text, const std::string& source, const TensorLoader& load,
                   const std::vector<std::string>& sections = {});

/// Lays out a row-major tensor in memory in another order of dimensions; an empty order changes nothing.
/// Throws levin::Error when the order is none of the tensor's dimensions.
at::Tensor with_dimension_order(const at::Tensor& tensor, const std::vector<int64_t>& order);

}  // namespace levin
