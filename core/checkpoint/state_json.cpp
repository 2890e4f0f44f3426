#include <levin/core/checkpoint/state_json.h>

#include <levin/core/base/error.h>
#include <levin/core/base/json_integer.h>
#include <levin/core/base/shape_bytes.h>
#include <levin/core/base/utf8.h>
#include <levin/core/checkpoint/checkpoint_info.h>
#include <levin/core/checkpoint/state_path.h>

#include <c10/core/InferenceMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

namespace levin {
namespace {

/// Whether each of so many dimensions is there once.
bool is_dimension_order(std::vector<int64_t> order, size_t dimensions) {
  std::sort(order.begin(), order.end());
  std::vector<int64_t> expected(dimensions);
  std::iota(expected.begin(), expected.end(), int64_t{0});
  return order == expected;
}

using Json = nlohmann::json;

constexpr const char* kModelSection = "model";
constexpr const char* kOptimizerSection = "optimizers";

// What JSON has no word for is an object with one of these as its only key. A key of the tree that begins with "$" is
// written with a second "$", so that the two are never confused.
constexpr const char* kTensor = "$tensor";
constexpr const char* kDouble = "$double";
constexpr const char* kBytes = "$bytes";

std::string hex_of(const std::string& bytes) {
  std::string digits;
  for (const char byte : bytes) digits += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return digits;
}

/// The dimensions from the widest stride to the narrowest: empty when that is row-major order.
std::vector<int64_t> dimension_order(const TensorLeaf& leaf) {
  if (leaf.saved != nullptr) return leaf.saved->dimension_order();
  const at::Tensor& tensor = leaf.value;
  if (tensor.is_contiguous()) return {};
  std::vector<int64_t> order(static_cast<size_t>(tensor.dim()));
  std::iota(order.begin(), order.end(), int64_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return tensor.stride(a) > tensor.stride(b); });
  return std::is_sorted(order.begin(), order.end()) ? std::vector<int64_t>{} : order;
}

const char* kind_name(Placement::Kind kind) {
  switch (kind) {
    case Placement::Kind::kReplicated:
      return "replicated";
    case Placement::Kind::kSharded:
      return "sharded";
    case Placement::Kind::kRankLocal:
      return "rank_local";
  }
  throw InternalError("unknown placement");
}

class Encoder {
 public:
  Encoder(TensorsByFile& tensors, const TensorPlacer& place) : tensors_(tensors), place_(place) {}

  Json encode(const State& node, const std::string& pointer) {
    if (node.is_null()) return nullptr;
    if (node.is_bool()) return node.as_bool();
    if (node.is_int()) return node.as_int();
    if (node.is_double()) return number(node.as_double());
    if (node.is_string()) return text(node.as_string());
    if (node.is_tensor()) return Json{{kTensor, tensor(node.as_leaf(), pointer)}};
    if (node.is_list()) return list(node.as_list(), pointer);
    return mapping(node.as_map(), pointer);
  }

 private:
  static Json number(double value) {
    if (std::isfinite(value)) return value;
    return Json{{kDouble, std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf"}};
  }

  static Json text(const std::string& value) {
    if (is_utf8(value)) return value;
    return Json{{kBytes, hex_of(value)}};
  }

  Json list(const State::List& items, const std::string& pointer) {
    check_depth(pointer, "the state to save");
    Json result = Json::array();
    for (size_t i = 0; i < items.size(); ++i)
      result.push_back(encode(items[i], child_pointer(pointer, std::to_string(i))));
    return result;
  }

  Json mapping(const State::Map& entries, const std::string& pointer) {
    check_depth(pointer, "the state to save");
    Json result = Json::object();
    for (const auto& [key, value] : entries) {
      const std::string child = child_pointer(pointer, key);
      if (!is_utf8(key))
        throw Error("checkpoint",
                    fmt::format("cannot save a key that is not UTF-8 text; got one below '{}'; hint: keep "
                                "bytes in a value",
                                path_of(pointer)));
      result[key.starts_with('$') ? "$" + key : key] = encode(value, child);
    }
    return result;
  }

  Json tensor(const TensorLeaf& leaf, const std::string& pointer) {
    if (!leaf.value.defined() && leaf.saved == nullptr) return nullptr;
    TensorReference reference = usual_place(pointer);
    if (place_) reference = place_(leaf, reference);
    if (reference.in_pieces()) return in_pieces(reference);
    tensors_[reference.file].emplace_back(reference.name, leaf);
    Json result{{"file", reference.file}, {"name", reference.name}};
    const auto order = dimension_order(leaf);
    if (!order.empty()) result["dimension_order"] = order;
    if (leaf.placement.kind != Placement::Kind::kReplicated) result["placement"] = placement(leaf.placement);
    return result;
  }

  static Json in_pieces(const TensorReference& reference) {
    Json pieces = Json::array();
    for (const TensorPiece& piece : reference.pieces)
      pieces.push_back({{"file", piece.file}, {"name", piece.name}, {"offset", piece.offset}, {"count", piece.count}});
    return {{"dtype", safetensors_type_name(*reference.dtype)}, {"shape", reference.shape}, {"pieces", pieces}};
  }

  static Json placement(const Placement& placement) {
    Json result{{"kind", kind_name(placement.kind)}};
    if (placement.kind == Placement::Kind::kSharded) {
      result["shard_name"] = placement.shard_name;
      result["offset"] = placement.offset;
      result["global_shape"] = placement.global_shape;
    }
    return result;
  }

  TensorsByFile& tensors_;
  const TensorPlacer& place_;
};

class Decoder {
 public:
  Decoder(const std::string& source, const TensorLoader& load) : source_(source), load_(load) {}

  State decode(const Json& node, const std::string& pointer) const {
    switch (node.type()) {
      case Json::value_t::null:
        return {};
      case Json::value_t::boolean:
        return node.get<bool>();
      case Json::value_t::number_integer:
        return node.get<int64_t>();
      case Json::value_t::number_unsigned:
        if (node.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
          fail(pointer, "an integer beyond 64 bits");
        return node.get<int64_t>();
      case Json::value_t::number_float:
        return node.get<double>();
      case Json::value_t::string:
        return node.get<std::string>();
      case Json::value_t::array:
        return list(node, pointer);
      case Json::value_t::object:
        return is_special(node) ? special(node, pointer) : mapping(node, pointer, {});
      default:
        fail(pointer, node.type_name());
    }
  }

  State mapping(const Json& node, const std::string& pointer, const std::vector<std::string>& sections) const {
    check_depth(pointer, source_);
    State::Map entries;
    for (const auto& [escaped, value] : node.items()) {
      if (escaped.starts_with('$') && !escaped.starts_with("$$")) fail(pointer, fmt::format("the key '{}'", escaped));
      const std::string key = escaped.starts_with('$') ? escaped.substr(1) : escaped;
      if (!sections.empty() && std::find(sections.begin(), sections.end(), key) == sections.end()) continue;
      entries.emplace(key, decode(value, child_pointer(pointer, key)));
    }
    return entries;
  }

 private:
  [[noreturn]] void fail(const std::string& pointer, std::string_view got) const {
    throw Error("checkpoint",
                fmt::format("{} holds what no checkpoint has at '{}'; got {}", source_, path_of(pointer), got));
  }

  static bool is_special(const Json& node) {
    if (node.size() != 1) return false;
    const std::string& key = node.begin().key();
    return key == kTensor || key == kDouble || key == kBytes;
  }

  State list(const Json& node, const std::string& pointer) const {
    check_depth(pointer, source_);
    State::List items;
    for (const auto& item : node) items.push_back(decode(item, child_pointer(pointer, std::to_string(items.size()))));
    return items;
  }

  State special(const Json& node, const std::string& pointer) const {
    const std::string& key = node.begin().key();
    const Json& value = node.begin().value();
    if (key == kTensor) return value.is_null() ? State(at::Tensor()) : State(tensor(value, pointer));
    const std::string text = value.get<std::string>();
    if (key == kBytes) return bytes(text, pointer);
    if (text == "nan") return std::numeric_limits<double>::quiet_NaN();
    if (text == "inf") return std::numeric_limits<double>::infinity();
    if (text == "-inf") return -std::numeric_limits<double>::infinity();
    fail(pointer, fmt::format("the number '{}'", text));
  }

  State bytes(const std::string& digits, const std::string& pointer) const {
    if (digits.size() % 2 != 0) fail(pointer, "half a byte");
    std::string result;
    for (size_t i = 0; i < digits.size(); i += 2) {
      unsigned byte = 0;
      const char* end = digits.data() + i + 2;
      if (std::from_chars(digits.data() + i, end, byte, 16).ptr != end) fail(pointer, "bytes that are not hexadecimal");
      result += static_cast<char>(byte);
    }
    return result;
  }

  TensorLeaf tensor(const Json& node, const std::string& pointer) const {
    TensorReference reference;
    if (node.contains("pieces")) {
      const auto type = node.at("dtype").get<std::string>();
      reference.dtype = safetensors_type(type);
      if (!reference.dtype) fail(pointer, fmt::format("the element type '{}'", type));
      reference.shape = integers_of(node.at("shape"));
      for (const auto& piece : node["pieces"])
        reference.pieces.push_back({piece.at("file").get<std::string>(), piece.at("name").get<std::string>(),
                                    integer_of(piece.at("offset")), integer_of(piece.at("count"))});
    } else {
      reference.file = node.at("file").get<std::string>();
      reference.name = node.at("name").get<std::string>();
    }
    const auto& order = reference.dimension_order;
    if (node.contains("dimension_order")) reference.dimension_order = integers_of(node["dimension_order"]);
    // Whoever reads pieces puts them into this order.
    if (reference.in_pieces()) check_dimension_order(order, reference.shape.size(), pointer);
    TensorLeaf leaf = load_(reference).as_leaf();
    if (leaf.saved != nullptr) check_dimension_order(order, leaf.saved->shape().size(), pointer);
    if (leaf.value.defined()) {
      check_dimension_order(order, static_cast<size_t>(leaf.value.dim()), pointer);
      leaf.value = with_dimension_order(leaf.value, order);
    }
    if (node.contains("placement")) leaf.placement = placement(node["placement"], pointer);
    return leaf;
  }

  void check_dimension_order(const std::vector<int64_t>& order, size_t dimensions, const std::string& pointer) const {
    if (!order.empty() && !is_dimension_order(order, dimensions))
      fail(pointer, fmt::format("the dimension order [{}]", fmt::join(order, ",")));
  }

  Placement placement(const Json& node, const std::string& pointer) const {
    Placement result;
    const auto kind = node.at("kind").get<std::string>();
    if (kind == kind_name(Placement::Kind::kRankLocal)) {
      result.kind = Placement::Kind::kRankLocal;
    } else if (kind == kind_name(Placement::Kind::kSharded)) {
      result.kind = Placement::Kind::kSharded;
      result.shard_name = node.at("shard_name").get<std::string>();
      result.offset = integer_of(node.at("offset"));
      result.global_shape = integers_of(node.at("global_shape"));
      const auto elements = bytes_of_shape(result.global_shape, 1);
      if (!elements || result.offset < 0 || static_cast<uint64_t>(result.offset) > *elements)
        fail(pointer, fmt::format("a shard at {} of shape [{}]", result.offset, fmt::join(result.global_shape, ",")));
    } else {
      fail(pointer, fmt::format("the placement '{}'", kind));
    }
    return result;
  }

  const std::string& source_;
  const TensorLoader& load_;
};

}  // namespace

TensorReference usual_place(const std::string& pointer) {
  const std::vector<std::string> keys = keys_of(pointer);
  TensorReference reference;
  if (keys.size() == 2 && keys.front() == kModelSection) {
    reference.file = kModelFile;
    reference.name = keys.back();
  } else {
    reference.file = keys.size() > 1 && keys.front() == kOptimizerSection ? kOptimizerFile : kTensorsFile;
    reference.name = path_of(pointer);
  }
  return reference;
}

at::Tensor with_dimension_order(const at::Tensor& tensor, const std::vector<int64_t>& order) {
  if (order.empty()) return tensor;
  if (!is_dimension_order(order, static_cast<size_t>(tensor.dim())))
    throw Error("checkpoint", fmt::format("the dimension order [{}] is none of a tensor of {} dimensions",
                                          fmt::join(order, ","), tensor.dim()));
  std::vector<int64_t> inverse(order.size());
  for (size_t i = 0; i < order.size(); ++i) inverse[static_cast<size_t>(order[i])] = static_cast<int64_t>(i);
  const c10::InferenceMode guard(false);
  return tensor.permute(order).contiguous().permute(inverse);
}

std::string encode_state(const State& tree, TensorsByFile& tensors, const TensorPlacer& place) {
  if (!tree.is_map()) throw Error("checkpoint", fmt::format("expected a mapping to save; got {}", tree.type_name()));
  return Encoder(tensors, place).encode(tree, "").dump(2);
}

State decode_state(std::string_view text, const std::string& source, const TensorLoader& load,
                   const std::vector<std::string>& sections) {
  try {
    const Json node = Json::parse(text);
    const Decoder decoder(source, load);
    if (!node.is_object())
      throw Error("checkpoint", fmt::format("{} is no JSON object; got {}", source, node.type_name()));
    return decoder.mapping(node, "", sections);
  } catch (const Json::exception& error) {
    throw Error("checkpoint", fmt::format("{} is not what a checkpoint holds; got {}", source, error.what()));
  }
}

}  // namespace levin
