#include "tests/support/sim_device/cpu_fallback.h"

#include "tests/support/sim_device/generator.h"
#include "tests/support/sim_device/hardware.h"
#include "tests/support/sim_device/host_wait.h"
#include "tests/support/sim_device/kernel_launch.h"
#include "tests/support/sim_device/memory_kernels.h"
#include "tests/support/sim_device/recording.h"
#include "tests/support/sim_device/streams.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <torch/library.h>

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace levin::testing::sim {
namespace {

using torch::jit::Stack;

/// On a GPU the host waits in these until it knows the result's shape, or the answer.
bool has_shape_from_data(const std::string& name) {
  static const std::set<std::string> names = {
      "aten::nonzero",  "aten::masked_select",       "aten::_unique",
      "aten::_unique2", "aten::unique_dim",          "aten::unique_consecutive",
      "aten::bincount", "aten::repeat_interleave",   "aten::unique_dim_consecutive",
      "aten::equal",    "aten::_linalg_check_errors"};
  return names.count(name) > 0;
}

/// Those whose indices may be masks, which are counted first, and tensors of the host, which are copied first.
bool is_indexing(const std::string& name) {
  static const std::set<std::string> names = {"aten::index", "aten::index_put", "aten::index_put_",
                                              "aten::_index_put_impl_"};
  return names.count(name) > 0;
}

void for_each_tensor(const c10::IValue& value, const std::function<void(const at::Tensor&)>& visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) visit(value.toTensor());
  } else if (value.isList()) {
    for (const c10::IValue& item : value.toListRef()) for_each_tensor(item, visit);
  }
}

/// One call of an operator, by the CPU's kernel.
class OperatorCall {
 public:
  OperatorCall(const c10::OperatorHandle& operation, Stack& stack)
      : operation_(operation),
        schema_(operation.schema()),
        stack_(stack),
        first_(stack.size() - schema_.arguments().size()),
        launch_(schema_.name()) {}

  void run() {
    // In LibTorch's words for an operator that a plug-in lacks.
    TORCH_CHECK_NOT_IMPLEMENTED(operation_.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU) &&
                                    schema_.name() != Hardware::instance().missing_operator(),
                                "Could not run '", operation_.operator_name(),
                                "' with arguments from the 'PrivateUse1' backend. The CPU has no kernel for it.");
    const bool indexes = is_indexing(schema_.name());
    if (indexes) launch_.allow_host_tensors();
    for (size_t i = 0; i < schema_.arguments().size(); ++i) take_argument(stack_[first_ + i], schema_.arguments()[i]);
    for (size_t i = 0; i < schema_.arguments().size(); ++i)
      if (*schema_.arguments()[i].type() == *generator_type()) fill_in_generator(stack_[first_ + i]);
    launch_.start();
    if (has_shape_from_data(schema_.name()) || (indexes && has_mask_ && !fills_by_mask()))
      host_waits_for_stream(Wait::kShapeFromData, launch_.stream());
    if (indexes && has_host_indices_) host_waits_for_stream(Wait::kCopyFromHost, launch_.stream());
    operation_.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack_);
    for (size_t i = stack_.size() - schema_.returns().size(); i < stack_.size(); ++i) give_result(stack_[i]);
  }

  size_t stream() const { return launch_.stream(); }

 private:
  struct Argument {
    at::Tensor device;  ///< as the caller gave it
    at::Tensor cpu;
    bool write;
  };

  static const c10::TypePtr& generator_type() {
    static const c10::TypePtr type = c10::OptionalType::create(c10::GeneratorType::get());
    return type;
  }

  at::Tensor on_cpu(const at::Tensor& tensor, bool write) {
    at::Tensor cpu = write ? launch_.write(tensor) : launch_.read(tensor);
    // What the operator is to make from nothing, as `out=` with an empty tensor, has no memory yet.
    if (write && tensor.defined() && tensor.device().type() == kDeviceType && tensor.numel() == 0)
      cpu = at::empty({0}, tensor.options().device(at::kCPU));
    arguments_.push_back({tensor, cpu, write});
    return cpu;
  }

  void take_argument(c10::IValue& value, const c10::Argument& argument) {
    const bool write = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
    if (value.isTensor()) {
      value = on_cpu(value.toTensor(), write);
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(on_cpu(tensor, write));
      value = list;
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const auto& tensor : value.toOptionalTensorVector()) {
        list.push_back(tensor ? std::optional(on_cpu(*tensor, write)) : std::nullopt);
        if (!tensor || !tensor->defined()) continue;
        if (tensor->scalar_type() == at::kBool || tensor->scalar_type() == at::kByte) has_mask_ = true;
        if (tensor->device().is_cpu() && tensor->dim() > 0) has_host_indices_ = true;
      }
      value = list;
    } else if (value.isDevice()) {
      if (value.toDevice().has_index()) launch_.set_device(value.toDevice().index());
      value = c10::Device(c10::DeviceType::CPU);
    }
  }

  /// `tensor[mask] = number`, which LibTorch turns into masked_fill.
  bool fills_by_mask() const {
    if (schema_.name() == "aten::index") return false;
    return stack_[first_ + 2].toTensor().numel() == 1 && !stack_[first_ + 3].toBool();
  }

  void fill_in_generator(c10::IValue& value) {
    // An undefined generator counts as none, but LibTorch cannot take it off the stack again.
    const bool given = value.isGenerator() && value.isPtrType();
    const at::Generator generator = given ? value.toGenerator() : DeviceGenerator::default_of(launch_.device());
    const auto* own = dynamic_cast<const DeviceGenerator*>(generator.unsafeGetGeneratorImpl());
    TORCH_CHECK(own != nullptr, "sim: ", schema_.name(), ": expected a generator of 'sim' but found one of '",
                generator.device().str(), "'");
    value = own->cpu();
  }

  void give_result(c10::IValue& value) {
    if (value.isTensor()) {
      value = on_device(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(on_device(tensor));
      value = list;
    }
  }

  /// The caller's tensor for what was written in place, a view for what shares an argument's memory, else a new tensor.
  at::Tensor on_device(const at::Tensor& cpu) {
    if (!cpu.defined()) return cpu;
    for (const Argument& argument : arguments_) {
      if (!argument.device.defined() || argument.device.device().type() != kDeviceType) continue;
      if (cpu.is_same(argument.cpu)) {
        if (argument.write && argument.device.numel() == 0 && cpu.numel() > 0)
          argument.device.unsafeGetTensorImpl()->shallow_copy_from(launch_.result(cpu).getIntrusivePtr());
        else if (argument.write && argument.device.sizes() != cpu.sizes())
          argument.device.unsafeGetTensorImpl()->set_sizes_and_strides(cpu.sizes(), cpu.strides());
        return argument.device;
      }
      if (cpu.storage().data() != nullptr && cpu.storage().is_alias_of(argument.cpu.storage()))
        return view_of(argument.device, cpu.sizes(), cpu.strides(), cpu.storage_offset(), cpu.dtype());
    }
    return launch_.result(cpu);
  }

  const c10::OperatorHandle& operation_;
  const c10::FunctionSchema& schema_;
  Stack& stack_;
  const size_t first_;
  KernelLaunch launch_;
  std::vector<Argument> arguments_;
  bool has_mask_ = false;
  bool has_host_indices_ = false;
};

/// Runs the operator again; what it makes goes where the recorded call's results are.
void replay(const c10::OperatorHandle& operation, const Stack& arguments, const Stack& results) {
  Stack stack = arguments;
  OperatorCall(operation, stack).run();
  for (size_t i = 0; i < results.size(); ++i) {
    std::vector<at::Tensor> again;
    for_each_tensor(stack[i], [&](const at::Tensor& tensor) { again.push_back(tensor); });
    size_t next = 0;
    for_each_tensor(results[i], [&](const at::Tensor& recorded) {
      const at::Tensor& made = again.at(next++);
      if (!recorded.is_alias_of(made)) at::Tensor(recorded).copy_(made);
    });
  }
}

void run_on_cpu(const c10::OperatorHandle& operation, c10::DispatchKeySet, Stack* stack) {
  const auto count = static_cast<std::ptrdiff_t>(operation.schema().arguments().size());
  Stack arguments(stack->end() - count, stack->end());
  size_t stream = 0;
  {
    OperatorCall call(operation, *stack);
    call.run();
    stream = call.stream();
  }
  const std::lock_guard lock(Hardware::instance().mutex());
  if (Recording* recording = Recording::of_stream(stream)) {
    const auto returned = static_cast<std::ptrdiff_t>(operation.schema().returns().size());
    recording->add([operation, arguments = std::move(arguments),
                    results = Stack(stack->end() - returned, stack->end())] { replay(operation, arguments, results); });
  }
}

}  // namespace

void register_cpu_fallback(torch::Library& all, torch::Library& operators) {
  const auto fallback = [] { return torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>(); };
  all.fallback(fallback());
  // A kernel that LibTorch composes of others comes before a fallback. Where the CPU has one of its own, which may
  // round otherwise, the device takes that.
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const auto operation = dispatcher.findSchema(name);
    if (name.getNamespace() != "aten" || !operation) continue;
    if (!operation->hasKernelForDispatchKey(c10::DispatchKey::CPU) ||
        operation->hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1))
      continue;
    if (!operation->hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) &&
        !operation->hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional) &&
        !operation->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd))
      continue;
    const std::string full_name = name.name + (name.overload_name.empty() ? "" : "." + name.overload_name);
    operators.impl(full_name.c_str(), fallback());
  }
}

}  // namespace levin::testing::sim
