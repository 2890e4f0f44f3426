#include <levin/core/nn/kept_group.h>

#include <levin/core/base/error.h>
#include <levin/core/comm/collective.h>

#include <c10/core/GradMode.h>
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
  if (c10::GradMode::is_enabled())
    throw Error("context",
                "gradients of gradients do not pass through attention over a sequence that is cut over ranks; hint: "
                "leave context out");
  return c10::static_intrusive_pointer_cast<GroupHolder>(context.saved_data["group"].toCapsule())->group;
}

}  // namespace levin::detail
