#include <levin/strategies/ddp/communication_hooks.h>

#include <levin/core/base/error.h>

#include <torch/csrc/distributed/c10d/reducer.hpp>

#include <utility>

namespace levin {
namespace {

class Bfloat16Hook : public c10d::CppCommHookInterface<c10::intrusive_ptr<c10d::ProcessGroup>> {
 public:
  using CppCommHookInterface::CppCommHookInterface;

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
    at::Tensor whole = bucket.getBufferRef();
    std::vector<at::Tensor> small = {whole.to(at::kBFloat16).div_(state_->getSize())};
    return state_->allreduce(small)->getFuture()->then(
        [whole](c10::ivalue::Future& done) -> c10::IValue {
          const c10::IValue result = done.value();
          whole.copy_(result.isTensorList() ? result.toTensorVector().at(0) : result.toTensor());
          return std::vector<at::Tensor>{whole};
        },
        c10::ListType::ofTensors());
  }
};

}  // namespace

const std::vector<std::string>& gradient_compressions() {
  static const std::vector<std::string> kNames = {"none", "fp16", "bf16"};
  return kNames;
}

void compress_gradients(c10d::Reducer& reducer, const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                        const std::string& compression) {
  if (compression == "fp16") {
    reducer.register_builtin_comm_hook(c10d::BuiltinCommHookType::FP16_COMPRESS);
  } else if (compression == "bf16") {
    reducer.register_comm_hook(std::make_unique<Bfloat16Hook>(group));
  } else {
    LEVIN_CHECK(compression == "none", "unknown gradient compression");
  }
}

}  // namespace levin
