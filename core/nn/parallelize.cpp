#include <levin/core/nn/parallelize.h>

#include <levin/core/base/error.h>
#include <levin/core/base/mutex.h>
#include <levin/core/nn/module_type_name.h>

#include <fmt/format.h>
#include <torch/nn/module.h>

#include <map>
#include <memory>
#include <utility>

namespace levin {
namespace {

/// Plans by the address of their module.
class GivenPlans {
 public:
  static GivenPlans& instance() {
    static auto* const plans = new GivenPlans;
    return *plans;
  }

  std::optional<TensorPlan> find(const torch::nn::Module& module) const {
    const MutexLock lock(mutex_);
    const auto found = plans_.find(&module);
    // Another module may have had the address before.
    if (found == plans_.end() || found->second.module.expired()) return std::nullopt;
    return found->second.plan;
  }
  void set(torch::nn::Module& module, TensorPlan plan) {
    const MutexLock lock(mutex_);
    std::erase_if(plans_, [](const auto& item) { return item.second.module.expired(); });
    plans_.insert_or_assign(&module, Given{module.weak_from_this(), std::move(plan)});
  }

 private:
  struct Given {
    std::weak_ptr<torch::nn::Module> module;
    TensorPlan plan;
  };
  mutable Mutex mutex_;
  std::map<const torch::nn::Module*, Given> plans_ LEVIN_GUARDED_BY(mutex_);
};

}  // namespace

void parallelize(torch::nn::Module& module, TensorPlan plan) {
  if (module.weak_from_this().expired())
    throw Error("nn", fmt::format("levin::parallelize was given {} while nothing owns it, as in its own constructor; "
                                  "valid: a module that a holder or a std::shared_ptr has; hint: derive it from "
                                  "levin::HasTensorPlan, or call parallelize in configure_model",
                                  short_type_name(module.name())));
  GivenPlans::instance().set(module, std::move(plan));
}

std::optional<TensorPlan> tensor_plan_of(const torch::nn::Module& module) {
  if (auto given = GivenPlans::instance().find(module)) return given;
  if (const auto* const planned = dynamic_cast<const HasTensorPlan*>(&module)) return planned->tensor_plan();
  return std::nullopt;
}

}  // namespace levin
