#include <levin/core/base/host_scalar.h>

namespace levin {

double read_host_scalar(const at::Tensor& value) {
  switch (value.scalar_type()) {
    case at::kFloat:
      return static_cast<double>(*value.const_data_ptr<float>());
    case at::kDouble:
      return *value.const_data_ptr<double>();
    case at::kLong:
      return static_cast<double>(*value.const_data_ptr<int64_t>());
    case at::kInt:
      return *value.const_data_ptr<int32_t>();
    case at::kBool:
      return *value.const_data_ptr<bool>() ? 1 : 0;
    case at::kBFloat16:
      return static_cast<double>(static_cast<float>(*value.const_data_ptr<at::BFloat16>()));
    case at::kHalf:
      return static_cast<double>(static_cast<float>(*value.const_data_ptr<at::Half>()));
    default:
      return value.item<double>();
  }
}

}  // namespace levin
