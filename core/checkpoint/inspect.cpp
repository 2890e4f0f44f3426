#include <levin/core/checkpoint/inspect.h>

#include <levin/core/base/error.h>
#include <levin/core/base/flat_config.h>
#include <levin/core/base/memory_size.h>
#include <levin/core/base/state.h>
#include <levin/core/checkpoint/checkpoint.h>
#include <levin/core/checkpoint/checkpoint_files.h>
#include <levin/core/checkpoint/manifest.h>
#include <levin/core/checkpoint/safetensors.h>
#include <levin/core/checkpoint/state_path.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace levin {
namespace {

using Rows = std::vector<std::vector<std::string>>;

std::string shape_text(at::IntArrayRef shape) {
  return fmt::format("[{}]", fmt::join(shape.begin(), shape.end(), ", "));
}

/// A part of the tree under a heading, one "path = value" a line.
std::string section_text(const State& tree, const char* key, const char* heading) {
  const State* section = tree.find(key);
  if (section == nullptr) return "";
  std::string text = fmt::format("\n{}\n", heading);
  for_each_leaf(*section, [&](const std::string& path, const State& leaf) {
    text += path.empty() ? fmt::format("  {}\n", plain_text(leaf)) : fmt::format("  {} = {}\n", path, plain_text(leaf));
  });
  return text;
}

std::string contents_text(const State& tree) {
  Rows rows{{"section", "tensors", "elements", "size", "values"}};
  for (const auto& [key, section] : tree.as_map()) {
    int64_t tensors = 0;
    int64_t elements = 0;
    int64_t values = 0;
    uint64_t bytes = 0;
    for_each_leaf(section, [&](const std::string&, const State& leaf) {
      if (!leaf.is_tensor()) {
        ++values;
      } else if (leaf.as_tensor().defined()) {
        ++tensors;
        elements += leaf.as_tensor().numel();
        bytes += leaf.as_tensor().nbytes();
      }
    });
    rows.push_back({key, std::to_string(tensors), std::to_string(elements), size_text(bytes), std::to_string(values)});
  }
  return "\ncontents\n" + table_text(rows);
}

std::string tensors_text(const State& tree) {
  Rows rows{{"tensor", "type", "shape", "size"}};
  for_each_leaf(tree, [&](const std::string& path, const State& leaf) {
    if (!leaf.is_tensor() || !leaf.as_tensor().defined()) return;
    const at::Tensor& tensor = leaf.as_tensor();
    rows.push_back(
        {path, safetensors_type_name(tensor.scalar_type()), shape_text(tensor.sizes()), size_text(tensor.nbytes())});
  });
  return "\ntensors\n" + table_text(rows);
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor first = a.contiguous();
  const at::Tensor second = b.contiguous();
  return first.nbytes() == 0 || std::memcmp(first.const_data_ptr(), second.const_data_ptr(), first.nbytes()) == 0;
}

/// How two tensors differ; nothing when they are equal bit by bit.
std::string tensor_difference(const at::Tensor& a, const at::Tensor& b) {
  if (a.defined() != b.defined()) return a.defined() ? "a tensor -> none" : "none -> a tensor";
  if (!a.defined()) return "";
  if (a.scalar_type() != b.scalar_type())
    return fmt::format("type {} -> {}", safetensors_type_name(a.scalar_type()), safetensors_type_name(b.scalar_type()));
  if (!a.sizes().equals(b.sizes())) return fmt::format("shape {} -> {}", shape_text(a.sizes()), shape_text(b.sizes()));
  if (same_bits(a, b)) return "";
  const auto wide = a.is_complex() ? at::kComplexDouble : at::kDouble;
  return fmt::format("max abs difference {:.6g}", a.to(wide).sub(b.to(wide)).abs().max().item<double>());
}

std::map<std::string, const State*> leaves_of(const State& tree) {
  std::map<std::string, const State*> leaves;
  for_each_leaf(tree, [&](const std::string& path, const State& leaf) { leaves[path] = &leaf; });
  return leaves;
}

/// A whole checkpoint, of whose tensors one at a time will be in memory.
State open_checked(const std::string& path) {
  const auto files = CheckpointFiles::of(path);
  files->check_all();
  return files->open({});
}

at::Tensor elements_of(const State& node) {
  const TensorLeaf& leaf = node.as_leaf();
  return leaf.saved != nullptr ? leaf.saved->read_whole() : leaf.value;
}

std::string change_text(std::string_view path, std::string_view before, std::string_view after) {
  return fmt::format("{}: {} -> {}", path, before, after);
}

/// The configuration that a leaf holds as YAML; nothing for other leaves.
std::optional<Config> config_in(const std::string& path, const State& leaf) {
  if ((path != "config" && path != "hyper_parameters/options") || !leaf.is_string()) return {};
  try {
    return Config::parse(leaf.as_string(), {.source = path});
  } catch (const ConfigError&) {
    return {};
  }
}

/// Of two configurations the options that differ. The order in which they were written does not count.
void compare_options(const std::string& path, const Config& a, const Config& b, CheckpointDifference& result) {
  const size_t before = result.lines.size();
  for (const auto& row : compare_configs({flatten(a), flatten(b)}))
    if (row.differs)
      result.lines.push_back(
          change_text(path + "/" + row.path, row.values[0].value_or("not given"), row.values[1].value_or("not given")));
  if (result.lines.size() == before) ++result.same_values;
}

void compare(const std::string& path, const State& a, const State& b, CheckpointDifference& result) {
  if (a.is_tensor() && b.is_tensor()) {
    const std::string difference = tensor_difference(elements_of(a), elements_of(b));
    if (difference.empty())
      ++result.same_tensors;
    else
      result.lines.push_back(fmt::format("{}: {}", path, difference));
    return;
  }
  const auto first_config = config_in(path, a);
  const auto second_config = config_in(path, b);
  if (first_config && second_config) {
    compare_options(path, *first_config, *second_config, result);
    return;
  }
  const std::string first = plain_text(a);
  const std::string second = plain_text(b);
  if (first == second)
    ++result.same_values;
  else
    result.lines.push_back(change_text(path, first, second));
}

}  // namespace

std::string describe_checkpoint(const std::string& path, bool with_tensors) {
  const Manifest manifest = read_manifest(path);
  const CheckpointInfo& info = manifest.info;
  const State tree = read_outline(path);

  std::string text = fmt::format("checkpoint {}\n  epoch {}, global step {}, world size {}\n  saved {} by Levin {}\n",
                                 path, info.epoch, info.global_step, info.world_size, info.created,
                                 info.levin_version.empty() ? "of an unknown version" : info.levin_version);
  if (!manifest.save_id.empty()) text += fmt::format("  sharded, save {}\n", manifest.save_id);
  if (!info.monitor.empty())
    text += fmt::format("  {} = {}\n", info.monitor, info.score ? fmt::format("{}", *info.score) : "none");

  Rows rows{{"file", "size"}};
  uint64_t total = 0;
  for (const auto& [name, summary] : manifest.files) {
    rows.push_back({name, size_text(summary.size)});
    total += summary.size;
  }
  rows.push_back({"total", size_text(total)});
  text += "\nfiles\n" + table_text(rows);

  text += contents_text(tree);
  text += section_text(tree, "loops", "cursor");
  text += section_text(tree, "hyper_parameters", "hyper-parameters");
  text += section_text(tree, "versions", "versions");
  if (with_tensors) text += tensors_text(tree);
  return text;
}

CheckpointDifference diff_checkpoints(const std::string& a, const std::string& b) {
  const State first = open_checked(a);
  const State second = open_checked(b);
  const auto first_leaves = leaves_of(first);
  const auto second_leaves = leaves_of(second);
  std::set<std::string> paths;
  for (const auto& [path, leaf] : first_leaves) paths.insert(path);
  for (const auto& [path, leaf] : second_leaves) paths.insert(path);

  CheckpointDifference result;
  for (const auto& path : paths) {
    const auto in_first = first_leaves.find(path);
    const auto in_second = second_leaves.find(path);
    if (in_first == first_leaves.end())
      result.lines.push_back(fmt::format("{}: only in {}: {}", path, b, plain_text(*in_second->second)));
    else if (in_second == second_leaves.end())
      result.lines.push_back(fmt::format("{}: only in {}: {}", path, a, plain_text(*in_first->second)));
    else
      compare(path, *in_first->second, *in_second->second, result);
  }
  return result;
}

std::string table_text(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) line += fmt::format("  {:<{}}", row[i], widths[i]);
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

}  // namespace levin
