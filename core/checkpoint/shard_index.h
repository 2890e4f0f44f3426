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

/// Part of a sharded tensor that one rank holds.
struct Shard {
  std::string kind;  ///< usual_place of the tensor: kModelFile, kOptimizerFile or kTensorsFile, and the name
  std::string name;
  at::Tensor elements;  ///< flat; may be empty
  int64_t offset = 0;   ///< of its first element in the flattened whole
  std::vector<int64_t> global_shape;
};

/// Returns the shards in a rank's tree. Throws levin::Error for one that does not fit into its whole.
std::vector<Shard> shards_of(const State& tree);

/// Returns a text that is equal for ranks with the same parts of the same tensors (replicas of hybrid sharding),
/// whatever the elements; empty for a rank without a sharded tensor.
std::string signature_of(const std::vector<Shard>& shards);

/// Returns "model.rank-00003.safetensors" for kModelFile and 3.
std::string rank_file(const std::string& kind, int64_t rank);

/// Describes shards as JSON, for the entry kPiecesKey of a rank file's metadata.
std::string describe_shards(const std::vector<Shard>& shards);

/// Index of a checkpoint's shards, from the headers of the ranks' files. Checks that they make up whole tensors.
class ShardIndex {
 public:
  /// Adds the shards of a rank's file, ranks in ascending order. `kind` is the file's kind, `file` its name.
  void add(const std::string& kind, const std::string& file, const SafetensorsFile& header);

  /// Returns the reference to a sharded tensor. Of elements that several ranks hold, the lowest rank's count. Throws
  /// levin::Error for elements that no rank holds, ranges that overlap, shapes and types that differ.
  TensorReference place(const TensorLeaf& leaf, const TensorReference& usual);
  /// Throws levin::Error naming a tensor that was never placed, because the tree of rank 0, which is saved, lacks it.
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
