#include <levin/core/nn/activation_meter.h>

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <mutex>
#include <unordered_set>
#include <utility>

namespace levin {
namespace {

const void* memory_of(const at::Tensor& tensor) {
  return tensor.defined() && tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr;
}

int64_t bytes_of(const at::Tensor& tensor) { return static_cast<int64_t>(tensor.storage().nbytes()); }

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
    for (const auto& tensor : module.parameters()) persistent_.insert(memory_of(tensor));
    for (const auto& tensor : module.buffers()) persistent_.insert(memory_of(tensor));
  }

  void save(const at::Tensor& tensor) {
    const std::lock_guard lock(mutex_);
    const void* memory = memory_of(tensor);
    if (memory == nullptr || persistent_.contains(memory)) return;
    const int64_t bytes = bytes_of(tensor);
    const auto [entry, is_new] = saved_.try_emplace(memory);
    ++entry->second.holders;
    if (is_new) entry->second.is_copy = is_converted_leaf(tensor);
    if (entry->second.is_copy) {
      if (is_new) now_.weight_copies += bytes;
    } else {
      if (is_new) {
        entry->second.bytes = bytes;
        now_.all += bytes;
      }
      if (!in_unit_)
        keep(memory, bytes);
      else if (!kept_.contains(memory) && inside_.insert(memory).second)
        now_.inside.back() += bytes;
    }
    if (now_.all + now_.weight_copies >= most_.all + most_.weight_copies) most_ = now_;
  }

  void let_go(const void* memory) {
    const std::lock_guard lock(mutex_);
    const auto entry = saved_.find(memory);
    if (entry == saved_.end() || --entry->second.holders > 0) return;
    now_.all -= entry->second.bytes;
    saved_.erase(entry);
    if (!saved_.empty() || in_unit_) return;
    // Backward is over: what follows is another step.
    now_ = {};
    kept_.clear();
  }

  void enter_unit(UnitCall& call) {
    const std::lock_guard lock(mutex_);
    call.for_each_argument([this](at::Tensor& argument) {
      const void* memory = memory_of(argument);
      if (memory != nullptr && !persistent_.contains(memory)) keep(memory, bytes_of(argument));
    });
    in_unit_ = true;
    inside_.clear();
    now_.inside.push_back(0);
  }

  void leave_unit() {
    const std::lock_guard lock(mutex_);
    in_unit_ = false;
  }

  SavedBytes most() const {
    const std::lock_guard lock(mutex_);
    return most_;
  }

 private:
  struct Entry {
    int64_t holders = 0;
    int64_t bytes = 0;
    bool is_copy = false;
  };

  void keep(const void* memory, int64_t bytes) {
    if (kept_.insert(memory).second) now_.kept += bytes;
  }

  mutable std::mutex mutex_;
  std::unordered_set<const void*> persistent_;
  std::unordered_map<const void*, Entry> saved_;
  std::unordered_set<const void*> kept_;    ///< of `now_.kept`
  std::unordered_set<const void*> inside_;  ///< of the unit that runs
  bool in_unit_ = false;
  SavedBytes now_;
  SavedBytes most_;
};

class ActivationMeter::Keeper final : public torch::autograd::SavedVariableHooks {
 public:
  explicit Keeper(std::shared_ptr<Ledger> ledger) : ledger_(std::move(ledger)) {}
  ~Keeper() override {
    if (tensor_.defined()) ledger_->let_go(memory_of(tensor_));
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

SavedBytes ActivationMeter::most() const { return ledger_->most(); }

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
