#include <levin/core/nn/named_units.h>

#include <levin/core/nn/module_type_name.h>
#include <levin/core/nn/sequential.h>
#include <levin/core/nn/unit.h>

#include <torch/nn/module.h>

#include <unordered_set>
#include <utility>

namespace levin {
namespace {

class UnitCollector {
 public:
  void collect(const std::string& path, torch::nn::Module& module) {
    if (!seen_.insert(&module).second) return;
    if (auto* unit = dynamic_cast<Unit*>(&module)) add(path, short_type_name(module.name()), *unit);
    if (auto* sequential = dynamic_cast<SequentialImpl*>(&module)) {
      for (size_t i = 0; i < sequential->size(); ++i) collect_element(path, sequential->element(i));
      return;
    }
    for (const auto& child : module.named_children()) collect(joined(path, child.key()), *child.value());
  }

  std::vector<NamedUnit> take() { return std::move(units_); }

 private:
  static std::string joined(const std::string& path, const std::string& name) {
    return path.empty() ? name : path + "." + name;
  }

  void collect_element(const std::string& parent, SequentialElement& element) {
    const std::string path = joined(parent, element.name());
    const auto& module = element.module();
    if (module == nullptr) return add(path, "Function", element);
    if (dynamic_cast<Unit*>(module.get()) == nullptr) add(path, short_type_name(module->name()), element);
    collect(path, *module);
  }

  void add(std::string path, std::string type, Unit& unit) {
    units_.push_back({.path = std::move(path), .type = std::move(type), .unit = &unit});
  }

  std::vector<NamedUnit> units_;
  std::unordered_set<const torch::nn::Module*> seen_;
};

}  // namespace

std::vector<NamedUnit> named_units(torch::nn::Module& module) {
  UnitCollector collector;
  collector.collect("", module);
  return collector.take();
}

}  // namespace levin
