#include <levin/strategies/parameter_server/update_message.h>

#include <levin/core/base/error.h>

#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <algorithm>

namespace levin {
namespace {

constexpr int64_t kFields = 4;
constexpr int64_t kMostGroups = 1020;

}  // namespace

at::Tensor UpdateMessage::empty() {
  const c10::InferenceMode ordinary(false);
  return at::zeros({kFields + kMostGroups}, at::kDouble);
}

at::Tensor UpdateMessage::pack() const {
  if (std::ssize(rates) > kMostGroups)
    throw Error("parameter_server", fmt::format("the optimizer has {} parameter groups; valid with mode: async: at "
                                                "most {}",
                                                rates.size(), kMostGroups));
  at::Tensor tensor = empty();
  double* fields = tensor.data_ptr<double>();
  fields[0] = done ? 1 : 0;
  fields[1] = static_cast<double>(epoch);
  fields[2] = static_cast<double>(batch);
  fields[3] = static_cast<double>(rates.size());
  std::copy(rates.begin(), rates.end(), fields + kFields);
  return tensor;
}

UpdateMessage UpdateMessage::unpack(const at::Tensor& tensor) {
  const double* fields = tensor.const_data_ptr<double>();
  UpdateMessage message{
      .done = fields[0] != 0, .epoch = static_cast<int64_t>(fields[1]), .batch = static_cast<int64_t>(fields[2])};
  message.rates.assign(fields + kFields, fields + kFields + static_cast<int64_t>(fields[3]));
  return message;
}

}  // namespace levin
