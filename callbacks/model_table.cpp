#include <levin/callbacks/model_table.h>

#include <levin/callbacks/unit_sizes.h>
#include <levin/core/nn/module_type_name.h>

#include <ATen/core/Tensor.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <set>
#include <string_view>

namespace levin {
namespace {

/// Each tensor once, however many modules share it.
std::vector<at::Tensor> unique(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> result;
  std::set<const void*> seen;
  for (const auto& tensor : tensors)
    if (tensor.defined() && seen.insert(tensor.unsafeGetTensorImpl()).second) result.push_back(tensor);
  return result;
}

int64_t bytes_of(const at::Tensor& tensor) { return tensor.numel() * static_cast<int64_t>(tensor.element_size()); }

int64_t depth_of(const std::string& dotted) { return 1 + std::count(dotted.begin(), dotted.end(), '.'); }

std::string flops_text(std::optional<int64_t> flops) { return flops ? short_count(*flops) : "?"; }

/// "[8, 4]", or of several tensors "[8, 4], [8]".
std::string sizes_text(const UnitSizes::Sizes& tensors) {
  if (tensors.empty()) return "?";
  std::string text;
  for (const auto& sizes : tensors) text += fmt::format("{}[{}]", text.empty() ? "" : ", ", fmt::join(sizes, ", "));
  return text;
}

std::string size_in_megabytes(int64_t bytes) { return fmt::format("{:.3f}", static_cast<double>(bytes) / 1e6); }

}  // namespace

std::string short_count(int64_t count) {
  constexpr std::string_view kUnits[] = {"", " K", " M", " B", " T"};
  double value = static_cast<double>(count);
  size_t unit = 0;
  while (value >= 1000 && unit + 1 < std::size(kUnits)) {
    value /= 1000;
    ++unit;
  }
  if (unit == 0) return std::to_string(count);
  // Cut off, not rounded, so that 999,999 does not become 1000 K.
  return value >= 100 ? fmt::format("{}{}", static_cast<int64_t>(value), kUnits[unit])
                      : fmt::format("{:.1f}{}", std::floor(value * 10) / 10, kUnits[unit]);
}

ModelTable tabulate_model(const torch::nn::Module& module, int64_t max_depth) {
  ModelTable table;
  for (const auto& item : module.named_modules("", false)) {
    if (max_depth >= 0 && depth_of(item.key()) > max_depth) continue;
    ModelTable::Row row{.name = item.key(), .type = short_type_name(item.value()->name())};
    for (const auto& parameter : unique(item.value()->parameters())) row.parameters += parameter.numel();
    row.training = item.value()->is_training();
    table.rows.push_back(std::move(row));
  }
  for (const auto& parameter : unique(module.parameters())) {
    (parameter.requires_grad() ? table.trainable : table.frozen) += parameter.numel();
    table.parameter_bytes += bytes_of(parameter);
  }
  for (const auto& buffer : unique(module.buffers())) {
    table.buffers += buffer.numel();
    table.buffer_bytes += bytes_of(buffer);
  }
  return table;
}

void ModelTable::add_sizes(const std::map<std::string, UnitSizes>& sizes, std::optional<int64_t> flops) {
  has_sizes = true;
  batch_flops = flops_text(flops);
  for (Row& row : rows) {
    const auto found = sizes.find(row.name);
    if (found == sizes.end()) continue;
    row.inputs = sizes_text(found->second.inputs);
    row.outputs = sizes_text(found->second.outputs);
    row.flops = flops_text(found->second.flops);
  }
}

std::string ModelTable::to_text() const {
  size_t name_width = 4;
  size_t type_width = 4;
  size_t inputs_width = 2;
  for (const auto& row : rows) {
    name_width = std::max(name_width, row.name.size());
    type_width = std::max(type_width, row.type.size());
    inputs_width = std::max(inputs_width, row.inputs.size());
  }
  std::string text;
  if (!rows.empty()) {
    std::string header =
        fmt::format("  {:<{}} | {:<{}} | {:>7} | mode", "name", name_width, "type", type_width, "params");
    if (has_sizes) header += fmt::format("  | {:>7} | {:<{}} | out", "FLOPs", "in", inputs_width);
    const std::string rule(header.size() + 1, '-');
    text += header + "\n" + rule + "\n";
    for (const auto& row : rows) {
      text += fmt::format("  {:<{}} | {:<{}} | {:>7} | {}", row.name, name_width, row.type, type_width,
                          short_count(row.parameters), row.training ? "train" : "eval");
      if (has_sizes)
        text += fmt::format("{} | {:>7} | {:<{}} | {}", row.training ? "" : " ", row.flops, row.inputs, inputs_width,
                            row.outputs);
      text += "\n";
    }
    text += rule + "\n";
  }
  text += fmt::format("  {:<9} trainable parameters\n", short_count(trainable));
  text += fmt::format("  {:<9} non-trainable parameters\n", short_count(frozen));
  text += fmt::format("  {:<9} parameters in total\n", short_count(trainable + frozen));
  if (buffers > 0)
    text += fmt::format("  {:<9} elements in buffers ({} MB)\n", short_count(buffers), size_in_megabytes(buffer_bytes));
  text += fmt::format("  {:<9} MB of parameters", size_in_megabytes(parameter_bytes));
  if (has_sizes) text += fmt::format("\n  {:<9} FLOPs of a forward", batch_flops);
  return text;
}

}  // namespace levin
