#include <levin/core/nn/kept_group.h>

#include <levin/core/comm/collective.h>

#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <utility>

namespace levin::detail {
namespace {

struct GroupHolder : torch::CustomClassHolder {
  explicit GroupHolder(std::shared_ptr<Collective> held) : group(std::move(held)) {}
  std::shared_ptr<Collective> group;
};

}  // namespace

void keep_group(torch::autograd::AutogradContext& context, const std::shared_ptr<Collective>& group) {
  context.saved_data["group"] = c10::IValue::make_capsule(c10::make_intrusive<GroupHolder>(group));
}

std::shared_ptr<Collective> kept_group(torch::autograd::AutogradContext& context) {
  return c10::static_intrusive_pointer_cast<GroupHolder>(context.saved_data["group"].toCapsule())->group;
}

}  // namespace levin::detail
