#pragma once

#include <levin/core/base/schema.h>

#include <cmath>
#include <cstdint>
#include <string>

namespace levin {

/// Declares the option `scale_lr` of a strategy.
template <class Options>
void describe_scale_lr(Schema<Options>& schema, const char* of) {
  schema
      .field("scale_lr", &Options::scale_lr,
             std::string("multiply learning rates by the number of ") + of + ", or by its square root")
      .one_of({"none", "linear", "sqrt"});
}

/// Factor of learning rates that `scale_lr` (none, linear or sqrt) means with so many ranks or replicas.
inline double learning_rate_scale(const std::string& scale_lr, int64_t count) {
  if (scale_lr == "linear") return static_cast<double>(count);
  return scale_lr == "sqrt" ? std::sqrt(static_cast<double>(count)) : 1;
}

}  // namespace levin
