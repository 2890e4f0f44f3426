#include <levin/callbacks/model_table.h>

#include <levin/core/nn/module_type_name.h>

#include <ATen/core/Tensor.h>
#include <fmt/format.h>
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

std::string ModelTable::to_text() const {
  size_t name_width = 4;
  size_t type_width = 4;
  for (const auto& row : rows) {
    name_width = std::max(name_width, row.name.size());
    type_width = std::max(type_width, row.type.size());
  }
  std::string text;
  if (!rows.empty()) {
    const std::string header =
        fmt::format("  {:<{}} | {:<{}} | {:>7} | mode", "name", name_width, "type", type_width, "params");
    const std::string rule(header.size() + 1, '-');
    text += header + "\n" + rule + "\n";
    for (const auto& row : rows)
      text += fmt::format("  {:<{}} | {:<{}} | {:>7} | {}\n", row.name, name_width, row.type, type_width,
                          short_count(row.parameters), row.training ? "train" : "eval");
    text += rule + "\n";
  }
  text += fmt::format("  {:<9} trainable parameters\n", short_count(trainable));
  text += fmt::format("  {:<9} non-trainable parameters\n", short_count(frozen));
  text += fmt::format("  {:<9} parameters in total\n", short_count(trainable + frozen));
  if (buffers > 0)
    text += fmt::format("  {:<9} elements in buffers ({} MB)\n", short_count(buffers), size_in_megabytes(buffer_bytes));
  text += fmt::format("  {:<9} MB of parameters", size_in_megabytes(parameter_bytes));
  return text;
}

}  // namespace levin
