#include <levin/core/trainer/memory_summary.h>

#include <levin/core/accelerators/accelerator_registry.h>
#include <levin/core/base/out_of_memory.h>
#include <levin/core/connectors/error_context.h>
#include <levin/core/connectors/optimizer_connector.h>
#include <levin/core/interfaces/module.h>
#include <levin/core/interfaces/strategy.h>
#include <levin/core/nn/named_units.h>
#include <levin/core/nn/unit.h>
#include <levin/core/optim/has_parameter_states.h>

#include <fmt/format.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <unordered_map>
#include <vector>

namespace levin {
namespace {

constexpr size_t kMostRows = 20;

/// Bytes that tensors of parameters hold.
struct Held {
  int64_t parameters = 0;
  int64_t gradients = 0;
  int64_t optimizer = 0;

  int64_t all() const { return parameters + gradients + optimizer; }
  Held& operator+=(const Held& other) {
    parameters += other.parameters;
    gradients += other.gradients;
    optimizer += other.optimizer;
    return *this;
  }
};

struct Row {
  std::string unit;
  Held held;
};

int64_t bytes_in(const State& state) {
  int64_t bytes = 0;
  if (state.is_tensor()) return static_cast<int64_t>(state.as_tensor().nbytes());
  if (state.is_map())
    for (const auto& [name, item] : state.as_map()) bytes += bytes_in(item);
  return bytes;
}

int64_t bytes_of(const at::Tensor& gradient) {
  if (!gradient.defined()) return 0;
  if (gradient.is_sparse()) return static_cast<int64_t>(gradient._indices().nbytes() + gradient._values().nbytes());
  return static_cast<int64_t>(gradient.nbytes());
}

std::unordered_map<std::string, Held> held_by_parameter(Module& module, const OptimizerConnector& optimizers) {
  std::unordered_map<std::string, Held> held;
  for (const auto& [name, parameter] : named_unique_parameters(module))
    held[name] = {.parameters = static_cast<int64_t>(parameter.nbytes()), .gradients = bytes_of(parameter.grad())};
  for (const OptimizerHandle* handle : optimizers.all()) {
    // The state of LibTorch's optimizers cannot be looked at without a copy, for which there may be no memory.
    const auto* named = dynamic_cast<const optim::HasParameterStates*>(&handle->optimizer());
    if (named == nullptr) continue;
    const State states = named->held_states(optimizers.parameter_names());
    if (!states.is_map()) continue;
    for (const auto& [name, state] : states.as_map()) held[name].optimizer += bytes_in(state);
  }
  return held;
}

/// Of the outermost units, the largest first, then what is in none.
std::vector<Row> rows_of(Module& module, const OptimizerConnector& optimizers) {
  std::vector<Row> rows;
  for (const auto& named : named_units(module)) {
    const bool inside = std::any_of(rows.begin(), rows.end(),
                                    [&](const Row& outer) { return named.path.starts_with(outer.unit + "."); });
    if (!inside && !named.path.empty()) rows.push_back({.unit = named.path, .held = {}});
  }
  Row rest{.unit = "outside of units", .held = {}};
  for (const auto& [name, held] : held_by_parameter(module, optimizers)) {
    const auto owner = std::find_if(rows.begin(), rows.end(),
                                    [&name = name](const Row& row) { return name.starts_with(row.unit + "."); });
    (owner == rows.end() ? rest : *owner).held += held;
  }
  std::erase_if(rows, [](const Row& row) { return row.held.all() == 0; });
  std::stable_sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) { return a.held.all() > b.held.all(); });
  if (rows.size() > kMostRows) {
    Row others{.unit = fmt::format("{} more units", rows.size() - kMostRows), .held = {}};
    for (size_t i = kMostRows; i < rows.size(); ++i) others.held += rows[i].held;
    rows.resize(kMostRows);
    rows.push_back(others);
  }
  if (rest.held.all() > 0) rows.push_back(rest);
  return rows;
}

}  // namespace

std::string memory_summary(Strategy& strategy, Module& module, const OptimizerConnector& optimizers) {
  const at::Device& device = strategy.root_device();
  const MemoryStats stats = accelerator_of(device).memory_stats(device);
  std::string text =
      fmt::format("memory of rank {} on {}, in MiB: {} allocated, at most {} so far, {}{} in all\n", strategy.rank(),
                  device.str(), mebibytes(stats.allocated), mebibytes(stats.peak),
                  stats.reserved > 0 ? mebibytes(stats.reserved) + " reserved, " : "", mebibytes(stats.total));
  const std::vector<Row> rows = rows_of(module, optimizers);
  size_t width = 5;
  for (const Row& row : rows) width = std::max(width, row.unit.size());
  const auto line = [&](const std::string& unit, const Held& held) {
    text += fmt::format("  {:<{}}  {:>10}  {:>10}  {:>10}\n", unit, width, mebibytes(held.parameters),
                        mebibytes(held.gradients), mebibytes(held.optimizer));
  };
  text += fmt::format("  {:<{}}  {:>10}  {:>10}  {:>10}\n", "unit", width, "parameters", "gradients", "optimizer");
  Held total;
  for (const Row& row : rows) {
    line(row.unit, row.held);
    total += row.held;
  }
  line("total", total);
  if (!device.is_cpu())
    text += fmt::format("  the rest is activations, batches and workspaces: {} now, at most {}\n",
                        mebibytes(stats.allocated - total.all()), mebibytes(stats.peak - total.all()));
  text.pop_back();
  return text;
}

std::exception_ptr with_memory_summary(Strategy& strategy, Module* module, const OptimizerConnector& optimizers,
                                       const std::exception_ptr& error) {
  if (module == nullptr || !is_out_of_memory(error)) return error;
  return std::make_exception_ptr(
      OutOfMemoryError(fmt::format("{}; hint: a smaller batch_size with accumulate_grad_batches, precision: "
                                   "bf16-mixed, activation_checkpointing, or "
                                   "the callback batch_size_finder\n{}",
                                   error_message(error), memory_summary(strategy, *module, optimizers))));
}

}  // namespace levin
