#include <levin/core/loops/recorded_units.h>

#include <levin/core/base/recording.h>
#include <levin/core/nn/named_units.h>
#include <levin/core/nn/unit.h>

#include <fmt/format.h>
#include <torch/nn/module.h>

namespace levin {

class RecordedUnits::Hook final : public UnitHook {
 public:
  explicit Hook(std::string name) : name_(std::move(name)) {}
  void before_forward(UnitCall& /*call*/) override { outer_.push_back(set_recording_unit(&name_)); }
  void after_forward(UnitCall& /*call*/) override {
    set_recording_unit(outer_.back());
    outer_.pop_back();
  }

 private:
  const std::string name_;
  std::vector<const std::string*> outer_;  ///< of the calls under way, of which one may be inside of another
};

RecordedUnits::RecordedUnits(torch::nn::Module& module) : submodules_(module.modules(/*include_self=*/false)) {
  for (const NamedUnit& named : named_units(module))
    hooks_.emplace_back(
        named.unit,
        std::make_unique<Hook>(named.path.empty() ? named.type : fmt::format("{} ({})", named.path, named.type)));
}

RecordedUnits::~RecordedUnits() { detach(); }

void RecordedUnits::attach() {
  if (std::exchange(is_attached_, true)) return;
  for (auto& [unit, hook] : hooks_) unit->add_hook(*hook);
}

void RecordedUnits::detach() {
  if (!std::exchange(is_attached_, false)) return;
  set_recording_unit(nullptr);
  for (auto& [unit, hook] : hooks_) unit->remove_hook(*hook);
}

}  // namespace levin
