#include <levin/core/nn/sequence_units.h>

#include <levin/core/base/error.h>
#include <levin/core/comm/collective.h>
#include <levin/core/nn/behaviour_key.h>
#include <levin/core/nn/cut_sequence.h>
#include <levin/core/nn/module_type_name.h>
#include <levin/core/nn/unit.h>

#include <c10/core/GradMode.h>
#include <c10/util/StringUtil.h>
#include <fmt/format.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <string_view>
#include <utility>

namespace levin {
namespace {

// Units run one inside another on a thread, each ended before the one around it.
thread_local std::vector<std::unique_ptr<SequenceScope>> sequence_scopes;

bool is_inside(std::string_view name, std::string_view path) {
  return path.empty() || (name.starts_with(path) && name.size() > path.size() && name[path.size()] == '.');
}

std::string sizes_that_would_do(int64_t length, int64_t ranks) {
  const int64_t below = length / ranks * ranks;
  return below > 0 ? fmt::format("{} or {}", below, below + ranks) : std::to_string(ranks);
}

}  // namespace

SequenceUnits::SequenceUnits(torch::nn::Module& module, const std::vector<CutWeight>& weights,
                             std::shared_ptr<Collective> group)
    : group_(std::move(group)) {
  for (const NamedUnit& unit : named_units(module)) {
    const auto has = [&](TensorCut cut) {
      return std::ranges::any_of(weights, [&](const CutWeight& weight) {
        return weight.rule.cut == cut && is_inside(weight.name, unit.path);
      });
    };
    const bool is_in_another =
        std::ranges::any_of(units_, [&](const NamedUnit& outer) { return is_inside(unit.path, outer.path); });
    if (!is_in_another && has(TensorCut::kColumn) && has(TensorCut::kRow) && !has(TensorCut::kVocabulary))
      units_.push_back(unit);
  }
  if (units_.empty())
    throw ConfigError(
        fmt::format("strategy.tensor.sequence_parallel: {} has no unit with layers that are cut by column and by row, "
                    "between which sequences are cut; hint: make its blocks units (LEVIN_UNIT, or members of a "
                    "levin::Sequential), or sequence_parallel: false",
                    short_type_name(module.name())));
  for (const NamedUnit& unit : units_) {
    paths_.emplace(unit.unit, unit.path);
    unit.unit->add_hook(*this);
  }
}

SequenceUnits::~SequenceUnits() {
  for (const NamedUnit& unit : units_) unit.unit->remove_hook(*this);
}

void SequenceUnits::before_forward(UnitCall& call) {
  const std::string& path = paths_.at(call.unit());
  const int64_t ranks = group_->world_size();
  at::Tensor first;
  call.for_each_argument([&](at::Tensor& argument) {
    if (first.defined() || !argument.defined()) return;
    first = argument;
    if (!detail::is_forward()) return;  // operators would not know parts
    const bool has_positions = argument.dim() >= 3 && argument.is_floating_point();
    if (!is_cut_sequence(argument) && has_positions && argument.size(1) > 0 && argument.size(1) % ranks == 0)
      argument = cut_sequence(argument, group_);
    first = argument;
    if (is_cut_sequence(argument) || !c10::GradMode::is_enabled()) return;
    if (!has_positions)
      throw Error(
          "tensor",
          fmt::format("the unit '{}' is given a tensor {} of {} first; valid for sequence_parallel: activations "
                      "[examples, positions, features]; hint: make the blocks inside of it units, or "
                      "sequence_parallel: false",
                      path, c10::str(argument.sizes()), c10::toString(argument.scalar_type())));
    throw Error("tensor",
                fmt::format("the sequence of {} positions that the unit '{}' is given cannot be divided over "
                            "{} ranks; valid: a multiple of {}, such as {}; hint: pad or cut the examples, or "
                            "sequence_parallel: false",
                            argument.size(1), path, ranks, ranks, sizes_that_would_do(argument.size(1), ranks)));
  });
  sequence_scopes.push_back(std::make_unique<SequenceScope>(first, path));
}

void SequenceUnits::after_forward(UnitCall& /*call*/) { sequence_scopes.pop_back(); }

}  // namespace levin
