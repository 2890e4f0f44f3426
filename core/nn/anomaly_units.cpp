#include <levin/core/nn/anomaly_units.h>

#include <levin/core/base/log.h>
#include <levin/core/nn/named_units.h>

#include <fmt/format.h>

#include <atomic>
#include <vector>

namespace levin {
namespace {

/// Ranks that are threads have one each.
std::atomic<int> alive{0};

/// Units that run on this thread, the innermost last.
thread_local std::vector<std::shared_ptr<const std::string>> running;

class Metadata final : public torch::autograd::AnomalyMetadata {
 public:
  void store_stack() override {
    if (!running.empty()) unit_ = running.back();
  }
  void print_stack(const std::string& node) override {
    log::warning(fmt::format(
        "{} failed in backward; its forward ran {}", node,
        unit_ != nullptr ? "in the unit " + *unit_
                         : "outside of units; hint: parts of a model that are made with LEVIN_UNIT are named here"));
  }

 private:
  std::shared_ptr<const std::string> unit_;
};

}  // namespace

AnomalyUnits::AnomalyUnits(torch::nn::Module& module) {
  for (const NamedUnit& named : named_units(module)) {
    hooks_.emplace_back(named.path.empty() ? named.type : fmt::format("{} ({})", named.path, named.type), *named.unit);
    named.unit->add_hook(hooks_.back());
  }
  ++alive;
}

AnomalyUnits::~AnomalyUnits() {
  --alive;
  for (Hook& hook : hooks_) hook.unit().remove_hook(hook);
}

std::unique_ptr<torch::autograd::AnomalyMetadata> AnomalyUnits::make_metadata() {
  return alive == 0 ? nullptr : std::make_unique<Metadata>();
}

void AnomalyUnits::Hook::before_forward(UnitCall& /*call*/) { running.push_back(name_); }

void AnomalyUnits::Hook::after_forward(UnitCall& /*call*/) { running.pop_back(); }

}  // namespace levin
