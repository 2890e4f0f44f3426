#include <levin/strategies/pipeline/chain_measurement.h>

#include <levin/core/base/error.h>
#include <levin/core/base/seed.h>
#include <levin/core/metrics/taken_back_updates.h>
#include <levin/core/nn/module_type_name.h>
#include <levin/core/nn/move_to_device.h>
#include <levin/strategies/pipeline/module_scopes.h>
#include <levin/strategies/pipeline/stage_inputs.h>
#include <levin/strategies/replicas/replica_logs.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones_like.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace levin {
namespace {

using Tensors = std::vector<at::Tensor>;

/// Keeps what the step gives to the sequential, and ends it there.
class FirstInputs final : public SequentialRunner {
 public:
  struct Seen {
    Tensors inputs;
  };
  Tensors run(SequentialImpl& /*sequential*/, Tensors inputs) override { throw Seen{std::move(inputs)}; }
};

/// What is moved of a model: modules as they are, and tensors by themselves.
struct Part {
  std::vector<torch::nn::Module*> modules = {};
  std::vector<at::Tensor> tensors = {};
};

/// Adds what is outside of the sequential.
void add_outside(torch::nn::Module& module, SequentialImpl& sequential, Part& part) {
  if (&module == &sequential) return;
  const auto inside = module.modules(/*include_self=*/false);
  if (std::none_of(inside.begin(), inside.end(), [&](const auto& other) { return other.get() == &sequential; })) {
    part.modules.push_back(&module);
    return;
  }
  for (const at::Tensor& parameter : module.parameters(/*recurse=*/false)) part.tensors.push_back(parameter);
  for (const at::Tensor& buffer : module.buffers(/*recurse=*/false)) part.tensors.push_back(buffer);
  for (const auto& child : module.children()) add_outside(*child, sequential, part);
}

/// Has a part of the model on a device while it lives, and then on the host again.
class OnDevice {
 public:
  OnDevice(const Part& part, const at::Device& device) : part_(part) { move_to(device); }
  ~OnDevice() { move_to(at::kCPU); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  void move_to(const at::Device& device) const {
    const at::NoGradGuard no_grad;
    for (torch::nn::Module* module : part_.modules) move_to_device(*module, device);
    for (const at::Tensor& tensor : part_.tensors)
      if (tensor.defined() && tensor.device() != device) replace_data(tensor, tensor.detach().to(device));
  }

  const Part& part_;
};

Tensors first_inputs(Module& module, SequentialImpl& sequential, const Batch& batch) {
  ReplicaLogs unheard({module.device()});
  unheard.begin(*module.attached_runtime());
  const RuntimeScope recording(module, unheard.runtime(0));
  const metrics::TakenBackUpdates keep_metrics;
  FirstInputs runner;
  sequential.set_runner(&runner);
  try {
    module.training_step(batch, 0);
  } catch (FirstInputs::Seen& seen) {
    sequential.set_runner(nullptr);
    return std::move(seen.inputs);
  } catch (...) {
    sequential.set_runner(nullptr);
    throw;
  }
  sequential.set_runner(nullptr);
  throw Error("pipeline", "training_step did not call the sequential that is to be cut; valid: once a step");
}

void wait_for(const at::Device& device) {
  if (device.is_cpu()) return;
  const c10::impl::VirtualGuardImpl guard(device.type());
  guard.synchronizeStream(guard.getStream(device));
}

/// Copies, as an element that runs several times may change them in place.
Tensors as_inputs(const Tensors& tensors) {
  Tensors inputs;
  for (const at::Tensor& tensor : tensors) {
    inputs.push_back(tensor.detach().clone());
    if (tensor.is_floating_point()) inputs.back().requires_grad_();
  }
  return changeable(inputs);
}

Tensors detached(const Tensors& tensors) {
  Tensors values;
  for (const at::Tensor& tensor : tensors) values.push_back(tensor.detach());
  return values;
}

}  // namespace

std::vector<ChainUnit> describe_chain(SequentialImpl& sequential) {
  std::vector<ChainUnit> units;
  for (size_t i = 0; i < sequential.size(); ++i) {
    SequentialElement& element = sequential.element(i);
    ChainUnit unit{.name = element.name(), .type = "function"};
    if (const auto& module = element.module()) {
      unit.type = short_type_name(module->name());
      for (const at::Tensor& parameter : module->parameters()) {
        unit.parameters += parameter.numel();
        unit.bytes += static_cast<int64_t>(parameter.nbytes()) * (parameter.requires_grad() ? 4 : 1);
      }
    }
    units.push_back(std::move(unit));
  }
  return units;
}

void measure_chain(Module& module, SequentialImpl& sequential, const Batch& micro_batch, int64_t repetitions,
                   std::vector<ChainUnit>& units) {
  const RngStateGuard random_numbers(module.device());
  const KeptBuffers buffers(module);
  const at::AutoGradMode records(true);
  const at::Device device = module.device();
  Tensors passing;
  {
    Part outside;
    add_outside(module, sequential, outside);
    const OnDevice here(outside, device);
    passing = detached(first_inputs(module, sequential, copy_of(micro_batch)));
  }
  for (size_t i = 0; i < sequential.size(); ++i) {
    Part element;
    if (const auto& own = sequential.element(i).module()) element.modules.push_back(own.get());
    const OnDevice here(element, device);
    double best = 0;
    Tensors outputs;
    for (int64_t repetition = 0; repetition < repetitions; ++repetition) {
      Tensors inputs = as_inputs(passing);
      wait_for(device);
      const auto from = std::chrono::steady_clock::now();
      outputs = sequential.forward_range(std::move(inputs), i, i + 1);
      Tensors roots;
      Tensors gradients;
      for (const at::Tensor& output : outputs) {
        if (!output.requires_grad()) continue;
        roots.push_back(output);
        gradients.push_back(at::ones_like(output.detach()));
      }
      if (!roots.empty()) torch::autograd::backward(roots, gradients);
      wait_for(device);
      const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - from).count();
      best = repetition == 0 ? seconds : std::min(best, seconds);
    }
    units[i].seconds = best;
    for (const at::Tensor& output : outputs) units[i].bytes += static_cast<int64_t>(output.nbytes());
    passing = detached(outputs);
    for (torch::nn::Module* own : element.modules)
      for (const at::Tensor& parameter : own->parameters()) parameter.mutable_grad().reset();
  }
}

}  // namespace levin
