#include <levin/core/precision/full_precision.h>

#include <ATen/autocast_mode.h>

namespace levin {

FullPrecision::FullPrecision()
    : cpu_(at::autocast::is_autocast_enabled(at::kCPU)), cuda_(at::autocast::is_autocast_enabled(at::kCUDA)) {
  at::autocast::set_autocast_enabled(at::kCPU, false);
  at::autocast::set_autocast_enabled(at::kCUDA, false);
}

FullPrecision::~FullPrecision() {
  at::autocast::set_autocast_enabled(at::kCPU, cpu_);
  at::autocast::set_autocast_enabled(at::kCUDA, cuda_);
}

}  // namespace levin
