#include <levin/core/interchange/describe_weights.h>

#include <levin/core/base/memory_size.h>
#include <levin/core/checkpoint/state_path.h>
#include <levin/core/interchange/lightning.h>
#include <levin/core/interchange/torch_file.h>
#include <levin/core/interchange/weights.h>

#include <c10/util/accumulate.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstring>
#include <set>

namespace levin {
namespace {

using TextRows = std::vector<std::vector<std::string>>;

uint64_t size_of(const SavedTensor& tensor) {
  return static_cast<uint64_t>(c10::multiply_integers(tensor.shape())) * c10::elementSize(tensor.dtype());
}

/// "Float [2, 3]"
std::string kind_text(const SavedTensor& tensor) {
  return fmt::format("{} [{}]", c10::toString(tensor.dtype()), fmt::join(tensor.shape(), ", "));
}

bool same_elements(const SavedTensor& a, const SavedTensor& b) {
  const at::Tensor first = a.read_whole().contiguous();
  const at::Tensor second = b.read_whole().contiguous();
  return first.nbytes() == 0 || std::memcmp(first.const_data_ptr(), second.const_data_ptr(), first.nbytes()) == 0;
}

}  // namespace

std::string describe_weights(const std::string& path, bool with_tensors, const std::string& key) {
  const Weights weights = open_weights(path, key);
  uint64_t bytes = 0;
  int64_t elements = 0;
  for (const auto& [name, tensor] : weights.tensors) {
    bytes += size_of(*tensor);
    elements += c10::multiply_integers(tensor->shape());
  }
  std::string text =
      fmt::format("weights {}\n  format {}\n  {} tensors, {} elements, {}\n", path, weights_format_name(weights.format),
                  weights.tensors.size(), elements, size_text(bytes));
  if (weights.torch_file != nullptr && weights.key != kWholeFile) text += fmt::format("  at {}\n", weights.key);
  if (weights.torch_file != nullptr) {
    TextRows rows{{"entry", "value"}};
    const PickleValue& root = weights.torch_file->root();
    for (const auto& [key, value] : root.pairs) {
      if (!key->is(PickleValue::Kind::kText) || value->is(PickleValue::Kind::kTensor)) continue;
      const bool plain = !value->is(PickleValue::Kind::kObject) && value->items.empty() && value->pairs.empty();
      rows.push_back({key->text, plain ? plain_text(state_from_pickle(*value)) : value->kind_name()});
    }
    if (rows.size() > 1) text += "\nentries\n" + table_text(rows);
    if (const PickleValue* parameters = root.find("hyper_parameters")) {
      text += "\nhyper-parameters\n";
      for_each_leaf(state_from_pickle(*parameters), [&](const std::string& name, const State& leaf) {
        text += fmt::format("  {} = {}\n", name, plain_text(leaf));
      });
    }
  }
  if (!with_tensors) return text;
  TextRows rows{{"tensor", "type and shape", "size"}};
  for (const auto& [name, tensor] : weights.tensors)
    rows.push_back({name, kind_text(*tensor), size_text(size_of(*tensor))});
  return text + "\ntensors\n" + table_text(rows);
}

CheckpointDifference diff_weights(const std::string& a, const std::string& b, const std::string& key_a,
                                  const std::string& key_b) {
  const Weights first = open_weights(a, key_a);
  const Weights second = open_weights(b, key_b);
  std::set<std::string> names;
  for (const auto& [name, tensor] : first.tensors) names.insert(name);
  for (const auto& [name, tensor] : second.tensors) names.insert(name);
  CheckpointDifference difference;
  for (const auto& name : names) {
    const auto in_first = first.tensors.find(name);
    const auto in_second = second.tensors.find(name);
    if (in_first == first.tensors.end() || in_second == second.tensors.end()) {
      difference.lines.push_back(fmt::format("{}: only in {}", name, in_first == first.tensors.end() ? b : a));
      continue;
    }
    const std::string before = kind_text(*in_first->second);
    const std::string after = kind_text(*in_second->second);
    if (before != after)
      difference.lines.push_back(fmt::format("{}: {} -> {}", name, before, after));
    else if (same_elements(*in_first->second, *in_second->second))
      ++difference.same_tensors;
    else
      difference.lines.push_back(fmt::format("{}: other elements", name));
  }
  return difference;
}

}  // namespace levin
