#pragma once

#include <levin/core/base/state.h>
#include <levin/core/checkpoint/safetensors.h>
#include <levin/core/checkpoint/state_json.h>

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace levin {

/// What one rank holds of a tensor that is sharded over several.
struct Shard {
  std::string kind;  ///< usual_place of the tensor: kModelFile, kOptimizerFile or kTensorsFile, and the name
  std::string name;
  at::Tensor elements;  ///< flat; may be empty
  int64_t offset = 0;   ///< of the first in the flattened whole
  std::vector<int64_t> global_shape;
};

/// The shards in a rank's tree. Throws levin::Error for one that does not fit into its whole.
std::vector<Shard> shards_of(const State& tree);

/// The same text for ranks that hold the same parts of the same tensors (replicas of hybrid sharding), whatever the
/// elements are; empty for a rank without a sharded tensor.
std::string signature_of(const std::vector<Shard>& shards);

/// "model.rank-00003.safetensors" for kModelFile and 3.
std::string rank_file(const std::string& kind, int64_t rank);

/// What rank files say about their shards in the entry kPiecesKey of their metadata.
std::string describe_shards(const std::vector<Shard>& shards);

/// Where all shards of a checkpoint are, as the headers of the ranks' files say; finds out whether they make up whole
/// tensors.
class ShardIndex {
 public:
  /// Ranks in ascending order. `kind` is the file's kind, `file` its name.
  void add(const std::string& kind, const std::string& file, const SafetensorsFile& header);

  /// The reference to a sharded tensor. Where several ranks hold the same elements, those of the lowest count. Throws
  /// levin::Error for elements that no rank holds, ranges that overlap, shapes and types that differ.
  TensorReference place(const TensorLeaf& leaf, const TensorReference& usual);
  /// Throws levin::Error naming a tensor that was never placed: rank 0, whose tree is saved, does not know it.
  void require_all_placed() const;

 private:
  struct Whole {
    std::vector<int64_t> shape;
    at::ScalarType dtype;
    std::vector<TensorPiece> pieces;  ///< in the order of ranks
  };

  std::map<std::pair<std::string, std::string>, Whole> wholes_;  ///< by kind and name
  std::set<std::pair<std::string, std::string>> placed_;
};

}  // namespace levin
