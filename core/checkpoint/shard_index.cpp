#include <levin/core/checkpoint/shard_index.h>

#include <levin/core/base/error.h>
#include <levin/core/checkpoint/checkpoint_info.h>
#include <levin/core/checkpoint/checksum.h>
#include <levin/core/checkpoint/state_path.h>

#include <c10/util/accumulate.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>

namespace levin {
namespace {

std::string shape_text(const std::vector<int64_t>& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

void check_fits(const Shard& shard) {
  const int64_t whole = c10::multiply_integers(shard.global_shape);
  if (shard.offset >= 0 && shard.offset <= whole && shard.elements.numel() <= whole - shard.offset) return;
  throw Error("checkpoint",
              fmt::format("cannot save the shard of tensor '{}'; got {} elements at {}; valid: within the "
                          "{} elements of shape {}",
                          shard.name, shard.elements.numel(), shard.offset, whole, shape_text(shard.global_shape)));
}

}  // namespace

std::vector<Shard> shards_of(const State& tree) {
  std::vector<Shard> shards;
  for_each_leaf(tree, [&](const std::string& path, const State& node) {
    if (!node.is_tensor()) return;
    const TensorLeaf& leaf = node.as_leaf();
    if (leaf.placement.kind != Placement::Kind::kSharded || !leaf.value.defined()) return;
    const TensorReference place = usual_place("/" + path);
    shards.push_back(
        {place.file, place.name, leaf.value.detach().flatten(), leaf.placement.offset, leaf.placement.global_shape});
    check_fits(shards.back());
  });
  return shards;
}

std::string signature_of(const std::vector<Shard>& shards) {
  if (shards.empty()) return "";
  Checksum checksum;
  for (const Shard& shard : shards) {
    if (shard.elements.numel() == 0) continue;
    const std::string text = fmt::format("{}\n{}\n{} {} {} {}\n", shard.kind, shard.name,
                                         safetensors_type_name(shard.elements.scalar_type()),
                                         shape_text(shard.global_shape), shard.offset, shard.elements.numel());
    checksum.update(text.data(), text.size());
  }
  return checksum.hex();
}

std::string rank_file(const std::string& kind, int64_t rank) {
  const size_t dot = kind.rfind('.');
  return fmt::format("{}.rank-{:05}{}", kind.substr(0, dot), rank, kind.substr(dot));
}

std::string describe_shards(const std::vector<Shard>& shards) {
  State description = State::map();
  for (const Shard& shard : shards) {
    State& entry = description[shard.name];
    entry["offset"] = shard.offset;
    entry["shape"] = State::list();
    for (const int64_t size : shard.global_shape) entry["shape"].push_back(size);
  }
  TensorsByFile none;
  return encode_state(description, none);
}

void ShardIndex::add(const std::string& kind, const std::string& file, const SafetensorsFile& header) {
  const auto found = header.metadata().find(kPiecesKey);
  if (found == header.metadata().end()) return;
  const State description = decode_state(found->second, file, [&](const TensorReference&) -> State {
    throw Error("checkpoint", fmt::format("{} describes its shards by a tensor", file));
  });
  for (const auto& [name, entry] : description.as_map()) {
    std::vector<int64_t> shape;
    for (const State& size : entry.at("shape").as_list()) shape.push_back(size.as_int());
    const at::ScalarType dtype = header.dtype(name);
    const int64_t count = c10::multiply_integers(header.shape(name));
    const auto [whole, is_new] = wholes_.try_emplace({kind, name}, Whole{shape, dtype, {}});
    if (whole->second.shape != shape || whole->second.dtype != dtype)
      throw Error(
          "checkpoint",
          fmt::format("ranks hold shards of different tensors as '{}'; got {} of shape {} in {}, {} of shape {} "
                      "in {}",
                      name, safetensors_type_name(whole->second.dtype), shape_text(whole->second.shape),
                      whole->second.pieces.front().file, safetensors_type_name(dtype), shape_text(shape), file));
    whole->second.pieces.push_back({file, name, entry.at("offset").as_int(), count});
  }
}

TensorReference ShardIndex::place(const TensorLeaf& leaf, const TensorReference& usual) {
  TensorReference reference{.shape = leaf.placement.global_shape};
  reference.dtype = leaf.value.scalar_type();
  const auto found = wholes_.find({usual.file, usual.name});
  std::vector<TensorPiece> pieces;
  if (found != wholes_.end()) {
    placed_.insert(found->first);
    if (found->second.shape != reference.shape || found->second.dtype != *reference.dtype)
      throw Error("checkpoint",
                  fmt::format("ranks hold shards of different tensors as '{}'; got {} of shape {} on rank 0, {} of "
                              "shape {} in {}",
                              usual.name, safetensors_type_name(*reference.dtype), shape_text(reference.shape),
                              safetensors_type_name(found->second.dtype), shape_text(found->second.shape),
                              found->second.pieces.front().file));
    pieces = found->second.pieces;
  }
  std::stable_sort(pieces.begin(), pieces.end(),
                   [](const TensorPiece& a, const TensorPiece& b) { return a.offset < b.offset; });
  const int64_t whole = c10::multiply_integers(reference.shape);
  int64_t end = 0;
  const auto require_next = [&](int64_t offset) {
    if (offset > end)
      throw Error("checkpoint", fmt::format("no rank holds the elements {} to {} of tensor '{}', which has {}", end,
                                            offset - 1, usual.name, whole));
  };
  for (const TensorPiece& piece : pieces) {
    require_next(piece.offset);
    if (piece.offset < end) {
      const TensorPiece& before = reference.pieces.back();
      if (piece.offset == before.offset && piece.count == before.count) continue;  // a replica
      throw Error(
          "checkpoint",
          fmt::format("ranks hold overlapping shards of tensor '{}'; got elements {} to {} in {}, {} to {} in {}; "
                      "valid: equal or separate ranges",
                      usual.name, before.offset, before.offset + before.count - 1, before.file, piece.offset,
                      piece.offset + piece.count - 1, piece.file));
    }
    reference.pieces.push_back(piece);
    end = piece.offset + piece.count;
  }
  require_next(whole);
  return reference;
}

void ShardIndex::require_all_placed() const {
  for (const auto& [key, whole] : wholes_)
    if (!placed_.contains(key))
      throw Error(
          "checkpoint",
          fmt::format("{} holds a shard of tensor '{}', which is no sharded tensor in the tree of rank 0; hint: "
                      "a rank that holds nothing of a tensor gives a shard of no elements",
                      whole.pieces.front().file, key.second));
}

}  // namespace levin
