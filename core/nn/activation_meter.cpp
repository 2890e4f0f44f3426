#include <levin/core/nn/activation_meter.h>

#include <levin/core/base/mutex.h>
#include <levin/core/nn/memory_set.h>

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/nn/module.h>

#include <unordered_map>
#include <utility>

namespace levin {
namespace {

/// Whether the tensor was made from a leaf of another type and nothing else.
bool is_converted_leaf(const at::Tensor& tensor) {
  for (auto node = tensor.grad_fn(); node != nullptr; node = node->next_edge(0).function) {
    if (const auto* leaf = dynamic_cast<const torch::autograd::AccumulateGrad*>(node.get()))
      return leaf->variable.scalar_type() != tensor.scalar_type();
    if (node->num_outputs() != 1) return false;
  }
  return false;
}

}  // namespace

/// What is saved at present, and the most that was. Backward may let go of tensors on threads of its own.
class ActivationMeter::Ledger {
 public:
  explicit Ledger(const torch::nn::Module& module) {
    for (const auto& tensor : module.parameters()) persistent_.insert(tensor);
    for (const auto& tensor : module.buffers()) persistent_.insert(tensor);
  }

  void save(const at::Tensor& tensor) {
    const MutexLock lock(mutex_);
    if (!counts(tensor)) return;
    const auto [entry, is_new] = saved_.try_emplace(memory_of(tensor));
    Entry& of_tensor = entry->second;
    ++of_tensor.holders;
    if (is_new) {
      of_tensor.bytes.all = bytes_of(tensor);
      if (is_converted_leaf(tensor)) of_tensor.bytes.weight_copies = of_tensor.bytes.all;
      now_.whole += of_tensor.bytes;
    }
    if (!in_unit_)
      keep(tensor, of_tensor.bytes);
    else if (!kept_.contains(memory_of(tensor)) && inside_.insert(tensor))
      now_.inside.back() += of_tensor.bytes;
    if (now_.whole.all >= most_.whole.all) most_ = now_;
  }

  void let_go(const at::Tensor& tensor) {
    const MutexLock lock(mutex_);
    const auto entry = saved_.find(memory_of(tensor));
    if (entry == saved_.end() || --entry->second.holders > 0) return;
    now_.whole.all -= entry->second.bytes.all;
    now_.whole.weight_copies -= entry->second.bytes.weight_copies;
    saved_.erase(entry);
    if (!saved_.empty() || in_unit_) return;
    // Backward is over: what follows is another step.
    now_ = {};
    kept_.clear();
  }

  void enter_unit(UnitCall& call) {
    const MutexLock lock(mutex_);
    call.for_each_argument([this](at::Tensor& argument) LEVIN_REQUIRES(mutex_) {
      if (counts(argument)) keep(argument, {.all = bytes_of(argument)});
    });
    in_unit_ = true;
    inside_.clear();
    now_.inside.emplace_back();
  }

  void leave_unit() {
    const MutexLock lock(mutex_);
    in_unit_ = false;
  }

  SavedByForward most() const {
    const MutexLock lock(mutex_);
    return most_;
  }

  SavedBytes now() const {
    const MutexLock lock(mutex_);
    return now_.whole;
  }

 private:
  struct Entry {
    int64_t holders = 0;
    SavedBytes bytes;
  };

  bool counts(const at::Tensor& tensor) const LEVIN_REQUIRES(mutex_) {
    return memory_of(tensor) != nullptr && !persistent_.contains(memory_of(tensor));
  }
  void keep(const at::Tensor& tensor, const SavedBytes& bytes) LEVIN_REQUIRES(mutex_) {
    if (kept_.insert(tensor)) now_.kept += bytes;
  }

  mutable Mutex mutex_;
  MemorySet persistent_ LEVIN_GUARDED_BY(mutex_);
  std::unordered_map<const c10::StorageImpl*, Entry> saved_ LEVIN_GUARDED_BY(mutex_);
  MemorySet kept_ LEVIN_GUARDED_BY(mutex_);    ///< of `now_.kept`
  MemorySet inside_ LEVIN_GUARDED_BY(mutex_);  ///< of the unit that runs
  bool in_unit_ LEVIN_GUARDED_BY(mutex_) = false;
  SavedByForward now_ LEVIN_GUARDED_BY(mutex_);
  SavedByForward most_ LEVIN_GUARDED_BY(mutex_);
};

class ActivationMeter::Keeper final : public torch::autograd::SavedVariableHooks {
 public:
  explicit Keeper(std::shared_ptr<Ledger> ledger) : ledger_(std::move(ledger)) {}
  ~Keeper() override {
    if (tensor_.defined()) ledger_->let_go(tensor_);
  }
  void call_pack_hook(const at::Tensor& tensor) override {
    ledger_->save(tensor);
    tensor_ = tensor.detach();
  }
  at::Tensor call_unpack_hook() override { return tensor_; }

 private:
  std::shared_ptr<Ledger> ledger_;
  at::Tensor tensor_;
};

ActivationMeter::ActivationMeter(const torch::nn::Module& module, const std::vector<NamedUnit>& units)
    : ledger_(std::make_shared<Ledger>(module)) {
  for (const NamedUnit& named : units) {
    named.unit->add_hook(*this);
    units_.push_back(named.unit);
  }
}

ActivationMeter::~ActivationMeter() {
  for (Unit* unit : units_) unit->remove_hook(*this);
}

SavedByForward ActivationMeter::most() const { return ledger_->most(); }

SavedBytes ActivationMeter::now() const { return ledger_->now(); }

std::unique_ptr<torch::autograd::SavedVariableHooks> ActivationMeter::make_keeper() {
  return std::make_unique<Keeper>(ledger_);
}

/// Not what runs without a graph, nor in a part that the module checkpoints itself.
bool ActivationMeter::measures(const UnitCall& call) const {
  return SavedTensorScope::current() == this && c10::GradMode::is_enabled() && !call.is_repetition();
}

void ActivationMeter::before_forward(UnitCall& call) {
  if (measures(call)) ledger_->enter_unit(call);
}

void ActivationMeter::after_forward(UnitCall& call) {
  if (measures(call)) ledger_->leave_unit();
}

}  // namespace levin
