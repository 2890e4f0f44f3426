#pragma once

#include <levin/core/base/schema.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

/// Checks of batches that all metrics share. `metric` leads the message.
namespace levin::metrics::detail {

/// Throws levin::Error when two tensors of a batch lie on different devices; `words` names them: "logits and labels".
void check_same_device(std::string_view metric, std::string_view words, const at::Tensor& a, const at::Tensor& b);
/// Whether the values of a tensor may be looked at: on the CPU, and with levin::DebugChecks everywhere. Elsewhere
/// looking would wait for the device.
bool may_look_at(const at::Tensor& values);
/// Throws levin::Error naming the first class (int64) outside [0, num_classes), where it may look at them.
void check_classes(std::string_view metric, const at::Tensor& classes, int64_t num_classes);
/// Returns values as float64 where they are float64 or integers, else as float32.
at::Tensor without_rounding(const at::Tensor& values);
/// Returns the options. Throws levin::ConfigError when one is out of range.
template <class Options>
const Options& checked_options(const Options& options, const char* metric) {
  schema_of<Options>().validate(options, metric);
  return options;
}
/// NaN, a scalar, float64, on the device of a tensor.
at::Tensor undefined_value(const at::Tensor& like);
/// Throws levin::Error for samples found outside the classes when the metric is computed.
[[noreturn]] void throw_outside(std::string_view metric, int64_t samples, int64_t num_classes);

}  // namespace levin::metrics::detail
