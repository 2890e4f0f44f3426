#include <levin/core/nn/checkpointed_call.h>

#include <levin/core/base/error.h>
#include <levin/core/base/error_notes.h>
#include <levin/core/base/recording.h>
#include <levin/core/base/thread_generator.h>
#include <levin/core/base/weight_cast_scope.h>
#include <levin/core/base/weight_conversion.h>
#include <levin/core/nn/activation_budget.h>
#include <levin/core/nn/forward_context.h>
#include <levin/core/nn/kept_results.h>
#include <levin/core/nn/saved_tensor_scope.h>

#include <ATen/Context.h>
#include <ATen/ThreadLocalState.h>
#include <ATen/core/Generator.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/GradMode.h>
#include <c10/util/StringUtil.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace levin {
namespace {

using torch::autograd::SavedVariableHooks;

/// How often the tensor's memory was written to in place; its aliases count together.
int64_t version_of(const at::TensorBase& tensor) { return tensor.is_inference() ? 0 : tensor._version(); }

/// An argument of the call: what of it the graph keeps.
class SavedInput {
 public:
  SavedInput(const at::Tensor& input, bool offload) {
    if (!input.defined()) return;
    requires_grad_ = input.requires_grad();
    is_leaf_ = input.is_leaf();
    at::Tensor tensor = input.detach();
    if (SavedTensorScope* outer = SavedTensorScope::current()) {
      // A call around this one is checkpointed, and recomputes this input as it does everything in it.
      keeper_ = outer->make_keeper();
      keeper_->call_pack_hook(tensor);
    } else if (offload && !tensor.is_cpu()) {
      device_ = tensor.device();
      tensor_ = at::empty_like(tensor, tensor.options().device(at::kCPU).pinned_memory(true));
      tensor_.copy_(tensor, /*non_blocking=*/true);
    } else {
      version_ = version_of(tensor);
      tensor_ = std::move(tensor);
    }
  }

  /// Whether the argument came out of operations.
  bool is_activation() const { return !is_leaf_; }
  /// A leaf of a new graph with the value of the argument, or nothing when it was modified since.
  std::optional<at::Tensor> restore() const {
    if (keeper_ == nullptr && !tensor_.defined()) return at::Tensor();
    if (version_ && version_of(tensor_) != *version_) return std::nullopt;
    at::Tensor tensor = keeper_ == nullptr ? tensor_ : keeper_->call_unpack_hook();
    if (device_) tensor = tensor.to(*device_, tensor.scalar_type(), /*non_blocking=*/true);
    return tensor.detach().requires_grad_(requires_grad_);
  }

 private:
  at::Tensor tensor_;
  std::optional<int64_t> version_;
  std::optional<at::Device> device_;  ///< where an offloaded one belongs
  std::unique_ptr<SavedVariableHooks> keeper_;
  bool requires_grad_ = false;
  bool is_leaf_ = true;
};

/// The state of the generators of some accelerator's devices.
class DeviceRandomState {
 public:
  DeviceRandomState() = default;
  explicit DeviceRandomState(const std::vector<at::Device>& devices) {
    for (const auto& device : devices) {
      at::Generator generator = at::globalContext().defaultGenerator(device);
      const std::lock_guard lock(generator.mutex());
      states_.emplace_back(generator, generator.get_state());
    }
  }

  /// Sets the generators to the state, and gives what they had.
  DeviceRandomState exchange() const {
    DeviceRandomState former;
    for (auto [generator, state] : states_) {
      const std::lock_guard lock(generator.mutex());
      former.states_.emplace_back(generator, generator.get_state());
      generator.set_state(state);
    }
    return former;
  }

 private:
  std::vector<std::pair<at::Generator, at::Tensor>> states_;
};

class DeviceRandomScope {
 public:
  explicit DeviceRandomScope(const DeviceRandomState& state) : former_(state.exchange()) {}
  ~DeviceRandomScope() { former_.exchange(); }
  DeviceRandomScope(const DeviceRandomScope&) = delete;
  DeviceRandomScope& operator=(const DeviceRandomScope&) = delete;

 private:
  DeviceRandomState former_;
};

/// Puts the buffers of a module back as they were, unnoticed by autograd, which may have saved them.
class BufferScope {
 public:
  explicit BufferScope(const torch::nn::Module* module) {
    if (module == nullptr) return;
    const at::NoGradGuard no_grad;
    for (const auto& buffer : module->buffers())
      if (buffer.defined()) buffers_.emplace_back(buffer, buffer.detach().clone());
  }
  ~BufferScope() {
    const at::NoGradGuard no_grad;
    // variable_data() has a version counter of its own.
    for (const auto& [buffer, before] : buffers_) at::Tensor(buffer.variable_data()).copy_(before);
  }
  BufferScope(const BufferScope&) = delete;
  BufferScope& operator=(const BufferScope&) = delete;

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> buffers_;
};

/// The random state, the modes and the device of a thread. They are set on whichever thread runs the forward again.
class Surroundings {
 public:
  explicit Surroundings(const std::vector<at::Device>& devices)
      : device_random_(devices), contexts_(capture_forward_contexts()) {
    at::Generator generator = default_cpu_generator();
    const std::lock_guard lock(generator.mutex());
    cpu_random_ = generator.clone();
    if (!devices.empty()) device_ = devices.front();
  }

  class Scope {
   public:
    explicit Scope(const Surroundings& surroundings)
        : modes_(surroundings.modes_),
          cpu_random_(surroundings.cpu_random_.clone()),
          device_random_(surroundings.device_random_),
          device_(surroundings.device_) {
      for (const auto& enter : surroundings.contexts_) contexts_.push_back(enter());
    }

   private:
    at::ThreadLocalStateGuard modes_;
    WeightCastScope casts_;
    ThreadGeneratorScope cpu_random_;
    DeviceRandomScope device_random_;
    c10::OptionalDeviceGuard device_;
    std::vector<std::shared_ptr<void>> contexts_;
  };

 private:
  at::ThreadLocalState modes_;  ///< grad mode and autocast among them
  at::Generator cpu_random_;
  DeviceRandomState device_random_;
  std::optional<at::Device> device_;
  std::vector<ForwardContext> contexts_;  ///< of Levin, such as a scope of SyncBatchNorm
};

/// What ends the second run of a forward early.
struct RecomputeDone : ControlFlow {
  const char* what() const noexcept override {
    return "levin: the rest of a checkpointed forward is not needed; to be passed on";
  }
};

thread_local int recomputations = 0;  // one inside another

class RecomputeScope {
 public:
  RecomputeScope() { ++recomputations; }
  ~RecomputeScope() { --recomputations; }
  RecomputeScope(const RecomputeScope&) = delete;
  RecomputeScope& operator=(const RecomputeScope&) = delete;
};

/// One call from its forward until backward has used all that its operations saved.
class CheckpointedCall : public std::enable_shared_from_this<CheckpointedCall> {
 public:
  CheckpointedCall(const UnitCall& call, std::string name, bool offload, std::shared_ptr<const ResultChoice> keep,
                   std::shared_ptr<MeasuredForward> meter)
      : name_(std::move(name)), call_(call.copy()), choice_(std::move(keep)), meter_(std::move(meter)) {
    if (choice_ != nullptr) kept_.emplace(choice_);
    // A replay would give the second forward other random numbers than the first.
    refuse_while_recording("activation checkpointing", "leave out graph or activation_checkpointing");
    std::vector<at::Device> devices;
    call_->for_each_argument([&](at::Tensor& argument) {
      if (argument.defined() && !argument.is_cpu() &&
          std::find(devices.begin(), devices.end(), argument.device()) == devices.end())
        devices.push_back(argument.device());
      inputs_.emplace_back(argument, offload);
      if (meter_ != nullptr && argument.defined() && !(offload && !argument.is_cpu())) meter_->take_input(argument);
      argument = at::Tensor();
    });
    surroundings_.emplace(devices);
  }

  /// Runs the forward, dropping what it saves.
  void run(UnitCall& call) {
    Dropping scope(shared_from_this());
    if (kept_) {
      const auto keeping = kept_->keep();
      return call.run();
    }
    if (meter_ == nullptr) return call.run();
    {
      const auto watching = meter_->watch();
      call.run();
    }
    meter_->finish();
  }

 private:
  /// A tensor that an operation of the forward saved, in the order in which they did.
  struct Slot {
    at::DimVector sizes;
    at::ScalarType type;
    at::Device device;
    std::optional<int64_t> parameter_version;  ///< of a leaf or its view, which is not recomputed
    bool needed = true;                        ///< backward may still ask for it
    at::Tensor recomputed;
    int64_t recomputed_version = 0;
  };

  /// Stands for a tensor that was dropped.
  class Placeholder : public SavedVariableHooks {
   public:
    explicit Placeholder(std::shared_ptr<CheckpointedCall> call) : call_(std::move(call)) {}
    ~Placeholder() override {
      if (slot_) call_->release(*slot_);
    }
    void call_pack_hook(const at::Tensor& tensor) override { slot_ = call_->add_slot(tensor); }
    at::Tensor call_unpack_hook() override { return call_->unpack(*slot_); }

   private:
    std::shared_ptr<CheckpointedCall> call_;
    std::optional<size_t> slot_;
  };

  class Dropping : public SavedTensorScope {
   public:
    explicit Dropping(std::shared_ptr<CheckpointedCall> call) : call_(std::move(call)) {}
    std::unique_ptr<SavedVariableHooks> make_keeper() override { return std::make_unique<Placeholder>(call_); }

   private:
    std::shared_ptr<CheckpointedCall> call_;
  };

  /// Takes down what the second run saves. Its graph is thrown away; a backward pass inside of the forward may use it.
  class Recording : public SavedTensorScope {
   public:
    Recording(CheckpointedCall& call, size_t end) : call_(call), end_(end) {}

    size_t recorded() const { return recorded_; }
    std::unique_ptr<SavedVariableHooks> make_keeper() override { return std::make_unique<Keeper>(*this); }

   private:
    class Keeper : public SavedVariableHooks {
     public:
      explicit Keeper(Recording& recording) : recording_(recording) {}
      void call_pack_hook(const at::Tensor& tensor) override {
        tensor_ = tensor.detach();
        recording_.record(tensor);
      }
      at::Tensor call_unpack_hook() override { return tensor_; }

     private:
      Recording& recording_;  // used while autograd saves the tensor, so inside of the scope
      at::Tensor tensor_;
    };

    void record(const at::Tensor& tensor) {
      // User code that swallowed the end of the recompute goes on.
      if (recorded_ == end_) return;
      call_.fill(recorded_++, tensor);
      if (recorded_ == end_) throw RecomputeDone();
    }

    CheckpointedCall& call_;
    size_t end_;
    size_t recorded_ = 0;
  };

  static std::string describe(const Slot& slot) {
    return fmt::format("{} {} on {}", c10::toString(slot.type), c10::str(at::IntArrayRef(slot.sizes)),
                       slot.device.str());
  }

  static Slot make_slot(const at::Tensor& tensor) {
    Slot slot{.sizes = at::DimVector(tensor.sizes()), .type = tensor.scalar_type(), .device = tensor.device()};
    const at::TensorBase& root = tensor.is_view() ? tensor._base() : tensor;
    if (root.is_leaf() && root.requires_grad()) slot.parameter_version = version_of(root);
    return slot;
  }

  [[noreturn]] void fail(const std::string& message) const {
    throw Error("activation_checkpointing", fmt::format("{}: {}", name_, message));
  }

  static bool is_freed(const at::Tensor& tensor) {
    return tensor.has_storage() && tensor.numel() > 0 && tensor.storage().nbytes() == 0;
  }

  size_t add_slot(const at::Tensor& tensor) {
    const std::lock_guard lock(mutex_);
    slots_.push_back(make_slot(tensor));
    if (meter_ != nullptr && !slots_.back().parameter_version) meter_->save(tensor);
    return slots_.size() - 1;
  }

  void release(size_t index) {
    const std::lock_guard lock(mutex_);
    slots_[index].needed = false;
    slots_[index].recomputed.reset();
  }

  at::Tensor unpack(size_t index) {
    const std::lock_guard lock(mutex_);
    // A strategy that gathers parameters may have freed them since.
    if (!slots_[index].recomputed.defined() || is_freed(slots_[index].recomputed)) recompute();
    Slot& slot = slots_[index];
    if (version_of(slot.recomputed) != slot.recomputed_version)
      fail(
          "one of the tensors needed for its gradient was modified in place afterwards; hint: use the operation that "
          "gives a new tensor");
    // A graph that is freed releases the slot right after the operation; one that is kept must not keep the tensor.
    if (!torch::autograd::get_current_graph_task_keep_graph()) return slot.recomputed;
    return std::exchange(slot.recomputed, at::Tensor());
  }

  void recompute() {
    if (meter_ != nullptr) std::exchange(meter_, nullptr)->begin_backward();
    const RecomputeScope recomputing;
    const Surroundings::Scope surroundings(*surroundings_);
    const std::unique_ptr<UnitCall> again = call_->copy();
    auto input = inputs_.begin();
    std::vector<at::Tensor> activations;
    again->for_each_argument([&](at::Tensor& argument) {
      const auto restored = input->restore();
      if (!restored)
        fail(
            fmt::format("its input {} was modified in place after its forward began, so that the forward cannot be "
                        "run again; hint: use the operation that gives a new tensor, or checkpoint another unit",
                        input - inputs_.begin()));
      argument = *restored;
      if (input->is_activation() && argument.defined()) activations.push_back(argument);
      ++input;
    });
    const ActivationLeavesScope are_activations(std::move(activations));
    const BufferScope buffers(again->module());
    size_t end = slots_.size();
    while (!slots_[end - 1].needed) --end;
    Recording recording(*this, end);
    try {
      run_again(*again);
    } catch (const RecomputeDone&) {
      return;
    }
    if (recording.recorded() != end)
      fail(
          fmt::format("its forward did not do the same when it was run again for backward; got {} saved tensors; "
                      "valid: {}, as the first time; hint: a forward may depend only on its inputs, parameters, "
                      "buffers and random numbers of LibTorch",
                      recording.recorded(), slots_.size()));
  }

  void run_again(UnitCall& again) {
    if (!kept_) return again.run();
    choice_->begin_second_forward();
    const auto giving = kept_->give(/*for_good=*/!torch::autograd::get_current_graph_task_keep_graph());
    again.run();
  }

  /// The second run saved the tensor of a slot.
  void fill(size_t index, const at::Tensor& tensor) {
    Slot& slot = slots_[index];
    const Slot again = make_slot(tensor);
    const bool other_kind = slot.parameter_version && !again.parameter_version;
    if (again.sizes != slot.sizes || again.type != slot.type || again.device != slot.device || other_kind)
      fail(
          fmt::format("its forward did not do the same when it was run again for backward; got {} as saved tensor {} "
                      "of {}; valid: {}, as the first time; hint: a forward may depend only on its inputs, "
                      "parameters, buffers and random numbers of LibTorch",
                      describe(again), index + 1, slots_.size(), describe(slot)));
    if (slot.parameter_version && again.parameter_version != slot.parameter_version)
      fail(
          "one of its parameters was modified in place between its forward and backward; hint: step the optimizer "
          "after "
          "backward");
    if (!slot.needed) return;
    slot.recomputed = tensor.detach();
    slot.recomputed_version = version_of(slot.recomputed);
  }

  std::string name_;
  std::unique_ptr<UnitCall> call_;  ///< without the tensors among its arguments
  std::vector<SavedInput> inputs_;
  std::shared_ptr<const ResultChoice> choice_;
  std::shared_ptr<MeasuredForward> meter_;
  std::optional<KeptResults> kept_;
  std::optional<Surroundings> surroundings_;
  std::vector<Slot> slots_;
  // Operations on several devices run backward in a thread each. They never wait for one another inside a forward.
  // Recursive, because running the forward again may let go of graphs that the module held.
  std::recursive_mutex mutex_;
};

}  // namespace

bool is_recomputing() { return recomputations > 0; }

void run_checkpointed(UnitCall& call, const std::string& name, bool offload, std::shared_ptr<const ResultChoice> keep,
                      std::shared_ptr<MeasuredForward> meter) {
  if (!c10::GradMode::is_enabled()) return call.run();
  std::make_shared<CheckpointedCall>(call, name, offload, std::move(keep), std::move(meter))->run(call);
}

}  // namespace levin
