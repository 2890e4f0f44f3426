#include <levin/core/optim/named_optimizer.h>

#include <levin/core/base/error.h>
#include <levin/core/optim/adadelta.h>
#include <levin/core/optim/adafactor.h>
#include <levin/core/optim/adagrad.h>
#include <levin/core/optim/adam.h>
#include <levin/core/optim/adamax.h>
#include <levin/core/optim/adamw8bit.h>
#include <levin/core/optim/layerwise_optimizers.h>
#include <levin/core/optim/lion.h>
#include <levin/core/optim/lookahead.h>
#include <levin/core/optim/muon.h>
#include <levin/core/optim/nadam.h>
#include <levin/core/optim/parameter_groups.h>
#include <levin/core/optim/radam.h>
#include <levin/core/optim/rmsprop.h>
#include <levin/core/optim/rprop.h>
#include <levin/core/optim/sam.h>
#include <levin/core/optim/sgd.h>
#include <levin/core/optim/sparse_adam.h>

#include <fmt/format.h>

namespace levin::optim {

std::vector<detail::NamedGroup> detail::named_groups(const torch::nn::Module& module,
                                                     const std::vector<Config>& groups) {
  std::vector<GroupRule> rules;
  for (const Config& group : groups) rules.push_back({.pattern = group.find("pattern")->text()});
  auto parameters = parameters_by_rule(module, rules);
  std::vector<NamedGroup> found;
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i].empty()) continue;
    const std::string path = i == 0 ? "optimizer" : fmt::format("optimizer.groups[{}]", i - 1);
    found.push_back({std::move(parameters[i]), i == 0 ? Config{} : group_overrides(groups[i - 1], path), path});
  }
  if (found.empty())
    throw Error(
        "optim",
        "trainer.optimizer: the module has no trainable parameters; hint: unfreeze some, or leave the optimizer out");
  return found;
}

Config detail::group_overrides(const Config& group, const std::string& path) {
  const Config* const pattern = group.is_mapping() ? group.find("pattern") : nullptr;
  if (pattern == nullptr || !pattern->is_scalar())
    throw_wrong_type(group, path, "a mapping such as {pattern: \"*.bias\", weight_decay: 0}");
  Config overrides = group;
  overrides.erase("pattern");
  return overrides;
}

void register_builtin_optimizers(Registry<NamedOptimizer>& registry) {
  registry.add<NamedOptimizerOf<SGD>>("sgd", "stochastic gradient descent, with momentum and Nesterov's");
  registry.add<NamedOptimizerOf<Adam>>("adam", "Adam (Kingma and Ba, 2015)");
  registry.add<NamedOptimizerOf<AdamW>>("adamw", "Adam with decoupled weight decay (Loshchilov and Hutter, 2019)");
  registry.add<NamedOptimizerOf<AdamW8bit>>("adamw8bit", "AdamW with state of 8 bits (Dettmers et al., 2022)");
  registry.add<NamedOptimizerOf<NAdam>>("nadam", "Adam with Nesterov's momentum (Dozat, 2016)");
  registry.add<NamedOptimizerOf<RAdam>>("radam", "Adam, rectified in the first steps (Liu et al., 2020)");
  registry.add<NamedOptimizerOf<Adamax>>("adamax", "Adam with the largest gradient for the mean square (2015)");
  registry.add<NamedOptimizerOf<SparseAdam>>("sparse_adam", "Adam for sparse gradients, of the rows that they have");
  registry.add<NamedOptimizerOf<Adagrad>>("adagrad", "Adagrad (Duchi et al., 2011)");
  registry.add<NamedOptimizerOf<Adadelta>>("adadelta", "Adadelta (Zeiler, 2012)");
  registry.add<NamedOptimizerOf<RMSprop>>("rmsprop", "RMSprop, also centered and with momentum");
  registry.add<NamedOptimizerOf<Rprop>>("rprop", "Rprop, for whole batches (Riedmiller and Braun, 1993)");
  registry.add<NamedOptimizerOf<LAMB>>("lamb", "Adam with steps of the weights' size, for large batches (2020)");
  registry.add<NamedOptimizerOf<LARS>>("lars", "SGD with steps of the weights' size, for large batches (2017)");
  registry.add<NamedOptimizerOf<Lion>>("lion", "the sign of a mean of gradients (Chen et al., 2023)");
  registry.add<NamedOptimizerOf<Adafactor>>("adafactor", "Adam with small state (Shazeer and Stern, 2018)");
  registry.add<NamedOptimizerOf<Muon>>("muon",
                                       "orthogonal steps for matrices, AdamW for the rest (Jordan et al., 2024)");
  registry.add<NamedWrapperOf<Lookahead>>("lookahead", "goes back a part of every few steps of another (2019)");
  registry.add<NamedWrapperOf<SAM>>("sam", "another, with gradients of the highest loss nearby (Foret et al., 2021)");
}

}  // namespace levin::optim
