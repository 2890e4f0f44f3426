#pragma once

#include <levin/core/nn/named_units.h>
#include <levin/core/nn/unit_hook.h>

#include <map>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace levin {

/// Knows which unit runs, so that operators inside of one that would reduce a part of a sequence to one number are
/// refused, by its name (see cut_context).
class ContextUnits final : public UnitHook {
 public:
  /// The module outlives it.
  explicit ContextUnits(torch::nn::Module& module);
  ~ContextUnits() override;
  ContextUnits(const ContextUnits&) = delete;
  ContextUnits& operator=(const ContextUnits&) = delete;

  void before_forward(UnitCall& call) override;
  void after_forward(UnitCall& call) override;

 private:
  std::vector<NamedUnit> units_;
  std::map<const Unit*, std::string> paths_;
};

}  // namespace levin
