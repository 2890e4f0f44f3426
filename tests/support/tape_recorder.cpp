#include "tests/support/tape_recorder.h"

#include <levin/core/base/error.h>
#include <levin/core/base/seed.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/stack.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace levin::testing {
namespace {

// A key of which LibTorch itself makes no use; it comes before autograd.
constexpr auto kKey = c10::DispatchKey::DeferredInit;

std::atomic<int64_t> recordings{0};
std::atomic<int64_t> replays{0};

void for_each_tensor(const c10::IValue& value, const std::function<void(const at::Tensor&)>& visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) visit(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) visit(tensor);
  } else if (value.isList()) {
    for (const c10::IValue& item : value.toListRef()) for_each_tensor(item, visit);
  }
}

/// The operators of one graph.
class Tape final : public RecordedGraph {
 public:
  void replay() override {
    ++replays;
    const at::NoGradGuard no_grad;
    for (const Call& call : calls_) {
      torch::jit::Stack stack = call.arguments;
      call.operation.callBoxed(&stack);
      for (size_t i = 0; i < stack.size(); ++i) {
        std::vector<at::Tensor> fresh;
        for_each_tensor(stack[i], [&](const at::Tensor& tensor) { fresh.push_back(tensor); });
        size_t next = 0;
        for_each_tensor(call.results[i], [&](const at::Tensor& recorded) {
          const at::Tensor& again = fresh.at(next++);
          // Views and what was written in place lie where they did.
          if (!recorded.is_alias_of(again)) recorded.detach().copy_(again);
        });
      }
    }
  }

  void add(const c10::OperatorHandle& operation, torch::jit::Stack arguments, torch::jit::Stack results) {
    calls_.push_back({operation, std::move(arguments), std::move(results)});
  }

 private:
  struct Call {
    c10::OperatorHandle operation;
    torch::jit::Stack arguments;
    torch::jit::Stack results;
  };
  std::vector<Call> calls_;
};

/// What is recorded now, and what its operators overwrote that was there before.
struct Recording {
  Tape* tape;
  std::vector<std::pair<at::Tensor, at::Tensor>> overwritten;  ///< tensor, copy
  std::set<const void*> made_here;                             ///< storages

  void before_write(const at::Tensor& tensor) {
    const void* storage = tensor.storage().unsafeGetStorageImpl();
    if (made_here.count(storage) > 0) return;
    const at::Tensor held = tensor.detach();
    overwritten.emplace_back(held, held.clone());
  }
};

Recording* current = nullptr;

bool looks_at_values(const std::string& name) {
  static const std::set<std::string> names = {
      "aten::_local_scalar_dense", "aten::item", "aten::nonzero", "aten::masked_select",
      "aten::unique_consecutive",  "aten::equal"};
  return names.count(name) > 0;
}

void record_call(const c10::OperatorHandle& operation, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto after = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey);
  const std::string name = operation.schema().name();
  if (current == nullptr) return operation.redispatchBoxed(after, stack);
  if (looks_at_values(name)) throw Error("tape", name + " is not permitted while recording");
  // Autocast converts and calls the operator again, which is then recorded.
  if (keys.has(c10::DispatchKey::AutocastCPU) && operation.hasKernelForDispatchKey(c10::DispatchKey::AutocastCPU))
    return operation.redispatchBoxed(after, stack);
  // Made of other operators, which are recorded one by one.
  if (operation.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
      !operation.hasKernelForDispatchKey(c10::DispatchKey::CPU))
    return operation.redispatchBoxed(after, stack);

  const auto& schema = operation.schema();
  const size_t count = schema.arguments().size();
  torch::jit::Stack arguments(stack->end() - static_cast<std::ptrdiff_t>(count), stack->end());
  for (size_t i = 0; i < count; ++i) {
    const auto* alias = schema.arguments()[i].alias_info();
    if (alias != nullptr && alias->isWrite())
      for_each_tensor(arguments[i], [&](const at::Tensor& tensor) { current->before_write(tensor); });
  }
  std::set<const void*> inputs;
  for (const c10::IValue& argument : arguments)
    for_each_tensor(argument,
                    [&](const at::Tensor& tensor) { inputs.insert(tensor.storage().unsafeGetStorageImpl()); });
  {
    const c10::impl::ExcludeDispatchKeyGuard rest(kKey);
    operation.redispatchBoxed(after, stack);
  }
  torch::jit::Stack results(*stack);
  for (const c10::IValue& result : results)
    for_each_tensor(result, [&](const at::Tensor& tensor) {
      const void* storage = tensor.storage().unsafeGetStorageImpl();
      if (inputs.count(storage) == 0) current->made_here.insert(storage);
    });
  current->tape->add(operation, std::move(arguments), std::move(results));
}

void ensure_registered() {
  [[maybe_unused]] static const auto* const library = [] {
    auto* made = new torch::Library(torch::Library::IMPL, "_", kKey, __FILE__, __LINE__);
    made->fallback(torch::CppFunction::makeFromBoxedFunction<&record_call>());
    return made;
  }();
}

}  // namespace

TapeRecorder::TapeRecorder() { ensure_registered(); }

std::unique_ptr<RecordedGraph> TapeRecorder::record(const std::function<void()>& body) {
  ++recordings;
  auto tape = std::make_unique<Tape>();
  const RngStateGuard keep_random_state;
  Recording recording{.tape = tape.get(), .overwritten = {}, .made_here = {}};
  const auto end = [&] {
    current = nullptr;
    c10::impl::tls_set_dispatch_key_included(kKey, false);
    const at::NoGradGuard no_grad;
    const c10::InferenceMode ordinary(false);
    std::reverse(recording.overwritten.begin(), recording.overwritten.end());
    for (auto& [tensor, before] : recording.overwritten) tensor.copy_(before);
  };
  current = &recording;
  c10::impl::tls_set_dispatch_key_included(kKey, true);
  try {
    body();
  } catch (...) {
    end();
    throw;
  }
  end();
  return tape;
}

int64_t TapeRecorder::recorded() { return recordings; }
int64_t TapeRecorder::replayed() { return replays; }

}  // namespace levin::testing
