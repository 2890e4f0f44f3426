#include <levin/strategies/sharded/sharded_build.h>

#include <levin/core/nn/batch_norm.h>
#include <levin/strategies/sharded/sharded_model.h>

#include <torch/nn/module.h>

#include <utility>

namespace levin {

ShardedBuild::ShardedBuild(std::shared_ptr<Collective> group, std::shared_ptr<Collective> replicas,
                           const ShardedModelOptions& options, std::function<void(torch::nn::Module&)> prepare)
    : group_(std::move(group)),
      replicas_(std::move(replicas)),
      options_(options),
      prepare_(std::move(prepare)),
      scope_([this](Unit& unit) {
        divide_newest();
        newest_ = &unit;
      }) {}

ShardedBuild::~ShardedBuild() = default;

void ShardedBuild::divide_newest() {
  auto* module = dynamic_cast<torch::nn::Module*>(std::exchange(newest_, nullptr));
  if (module == nullptr) return;
  // ShardedModel takes care of those that are not computed with in the unit's type.
  const auto left = options_.compute_type ? batch_norm_parameters(*module) : std::unordered_set<const void*>();
  // Those of units inside of it are divided already, but for small ones, which go with it.
  std::vector<FlatParameterGroup::NamedParameter> own;
  int64_t elements = 0;
  for (const auto& item : module->named_parameters()) {
    const void* parameter = item.value().unsafeGetTensorImpl();
    if (divided_.contains(parameter) || left.contains(parameter)) continue;
    own.emplace_back(item.key(), item.value());
    elements += item.value().numel();
  }
  if (own.empty() || elements < options_.min_elements) return;
  prepare_(*module);
  const auto type = own.front().second.scalar_type();
  for (const auto& [name, parameter] : own)
    if (parameter.scalar_type() != type) return;  // ShardedModel takes care of them
  for (const auto& [name, parameter] : own) divided_.insert(parameter.unsafeGetTensorImpl());
  parts_.push_back({dynamic_cast<Unit*>(module), std::make_unique<FlatParameterGroup>(
                                                     "", std::move(own), group_, replicas_, options_.sharding(type))});
}

std::vector<ShardedBuild::Part> ShardedBuild::take() {
  divide_newest();
  return std::move(parts_);
}

}  // namespace levin
