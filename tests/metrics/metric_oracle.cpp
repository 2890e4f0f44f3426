#include "metric_oracle.h"

#include <cmath>
#include <map>

namespace levin::metrics {
namespace {
#include "../oracles/metrics.inc"
}  // namespace

at::Tensor oracle_input(const std::string& name, at::IntArrayRef shape) {
  return at::tensor(kInputs.at(name), at::kDouble).to(at::kFloat).reshape(shape);
}

at::Tensor oracle_classes(const std::string& name, at::IntArrayRef shape) {
  return at::tensor(kInputs.at(name), at::kDouble).to(at::kLong).reshape(shape);
}

at::Tensor oracle_value(const std::string& name) { return at::tensor(kExpected.at(name), at::kDouble); }

}  // namespace levin::metrics
