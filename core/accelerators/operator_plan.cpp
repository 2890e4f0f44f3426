#include <levin/core/accelerators/operator_plan.h>

#include <levin/core/accelerators/arena_layout.h>
#include <levin/core/accelerators/out_operators.h>
#include <levin/core/base/error.h>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <string_view>
#include <utility>

namespace levin {
namespace {

const c10::DispatchKeySet kCpu(c10::DispatchKey::CPU);

/// The CPU's kernels, and before them those that a KernelScope puts in front: nothing else has kernels for operators on
/// tensors there.
c10::DispatchKeySet keys_of(const c10::OperatorHandle& op) {
  const auto& arguments = op.schema().arguments();
  const bool takes_tensor = !arguments.empty() && *arguments.front().type() == *c10::TensorType::get();
  return takes_tensor && op.hasKernelForDispatchKey(c10::DispatchKey::BackendSelect)
             ? kCpu.add(c10::DispatchKey::BackendSelect)
             : kCpu;
}

/// Writes all of its first argument without reading it.
bool overwrites(const OperatorCall& call) {
  constexpr std::array<std::string_view, 12> kNames = {"aten::copy_",        "aten::fill_",       "aten::zero_",
                                                       "aten::bernoulli_",   "aten::normal_",     "aten::uniform_",
                                                       "aten::exponential_", "aten::random_",     "aten::geometric_",
                                                       "aten::cauchy_",      "aten::log_normal_", "aten::detach_"};
  return call.is_one_of(kNames) ||
         (!call.op->schema().arguments().empty() && call.op->schema().arguments().back().is_out());
}

bool contains(const std::vector<size_t>& numbers, size_t number) {
  return std::find(numbers.begin(), numbers.end(), number) != numbers.end();
}

/// Whether a tensor may take over memory whole.
bool fills_storage(const at::Tensor& tensor) {
  return tensor.storage_offset() == 0 && tensor.is_non_overlapping_and_dense();
}

bool same_layout(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() && a.strides() == b.strides();
}

at::Storage new_storage(size_t bytes) {
  return at::Storage(at::Storage::use_byte_size_t(), bytes, c10::GetCPUAllocator(), /*resizable=*/true);
}

}  // namespace

OperatorPlan::OperatorPlan(OperatorRecording& recording, const std::vector<at::Tensor>& kept)
    : trace_(std::move(recording.trace())),
      versions_(recording.versions()),
      kept_(trace_.storages.size(), false),
      reads_(trace_.inputs, false) {
  for (const OperatorCall& call : trace_.calls)
    for (const size_t number : call.reads)
      if (number < trace_.inputs) reads_[number] = true;
  for (const at::Tensor& tensor : kept)
    if (const auto number = trace_.find(tensor)) kept_[*number] = true;
  const std::vector<Kind> kinds = classify();
  for (size_t i = 0, part = 0; i <= trace_.calls.size(); ++i) {
    for (; part < trace_.part_ends.size() && trace_.part_ends[part] == i; ++part) step_ends_.push_back(steps_.size());
    if (i == trace_.calls.size()) break;
    if (kinds[i] == Kind::kDropped) continue;
    OperatorCall& call = trace_.calls[i];
    Step step{.call = i, .kind = kinds[i], .op = call.op, .keys = {}, .arguments = call.arguments, .releases = {}};
    if (step.kind == Kind::kOut) {
      step.op = find_out_operator(*call.op);
      step.arguments.insert(step.arguments.end(), call.results.begin(), call.results.end());
    }
    if (step.op) step.keys = keys_of(*step.op);
    steps_.push_back(std::move(step));
  }
  for (size_t part = 0; part < parts(); ++part) {
    std::vector<size_t>& written = part_writes_.emplace_back();
    for (size_t i = trace_.first_call(part); i < trace_.part_ends[part]; ++i)
      for (const size_t number : trace_.calls[i].writes)
        if (!trace_.storages[number].maker && !contains(written, number)) written.push_back(number);
  }
  plan_memory();
  note_former();
}

/// Other plans of the thread, of batches of other shapes, keep the same tensors alive.
void OperatorPlan::note_former() {
  static thread_local const auto of_thread = std::make_shared<References>();
  references_ = of_thread;
  const auto note = [this](const void* used, size_t own) {
    size_t& of_plans = (*references_)[used];
    of_plans += own;
    return &of_plans;
  };
  for (at::Generator& generator : trace_.generators) {
    size_t own = 1;
    const auto count = [&](const torch::jit::Stack& arguments) {
      for (const c10::IValue& argument : arguments)
        if (argument.isGenerator() && argument.isPtrType() && argument.toGenerator() == generator) ++own;
    };
    for (const OperatorCall& call : trace_.calls) count(call.arguments);
    for (const Step& step : steps_) count(step.arguments);
    const void* const key = generator.unsafeGetGeneratorImpl();
    generators_.push_back({&generator, key, own, note(key, own)});
  }
  for (size_t number = trace_.inputs; number < trace_.storages.size(); ++number) {
    const TracedStorage& storage = trace_.storages[number];
    if (storage.maker) continue;
    const size_t own = storage.aliases + 1;
    const void* const key = storage.storage.unsafeGetStorageImpl();
    former_.push_back({number, key, own, note(key, own)});
  }
}

bool OperatorPlan::has_lost_memory() const {
  return std::any_of(
             former_.begin(), former_.end(),
             [this](const auto& one) { return trace_.storages[one.used].storage.use_count() <= *one.of_plans; }) ||
         std::any_of(generators_.begin(), generators_.end(),
                     [](const auto& one) { return one.used->getIntrusivePtr().use_count() <= *one.of_plans; });
}

OperatorPlan::~OperatorPlan() {
  if (references_ == nullptr) return;
  const auto forget = [this](const void* used, size_t own) {
    const auto found = references_->find(used);
    if ((found->second -= own) == 0) references_->erase(found);
  };
  for (const auto& one : former_) forget(one.key, one.own);
  for (const auto& one : generators_) forget(one.key, one.own);
}

bool OperatorPlan::is_overwritten_first(size_t storage, size_t maker) const {
  for (size_t i = maker + 1; i < trace_.calls.size(); ++i) {
    const OperatorCall& call = trace_.calls[i];
    if (!contains(call.reads, storage)) continue;
    if (call.host_work) return true;
    if (contains(call.writes, storage)) return overwrites(call);
    // A view of it reads nothing.
    const bool is_view = call.makes.empty() && call.writes.empty();
    if (!is_view) return false;
  }
  return true;
}

std::vector<OperatorPlan::Kind> OperatorPlan::classify() {
  std::vector<Kind> kinds;
  for (size_t i = 0; i < trace_.calls.size(); ++i) {
    OperatorCall& call = trace_.calls[i];
    const auto kind = [&] {
      if (call.host_work) return Kind::kHostWork;
      const auto is_written_later = [&](size_t storage) {
        for (size_t later = i + 1; later < trace_.calls.size(); ++later)
          if (contains(trace_.calls[later].writes, storage)) return true;
        return false;
      };
      if (!call.writes.empty()) return call.makes.empty() ? Kind::kInPlace : Kind::kNew;
      if (call.makes.empty()) return Kind::kDropped;
      if (call.makes_empty()) {
        for (const size_t storage : call.makes) {
          if (is_overwritten_first(storage, i)) continue;
          // The host wrote into it, as at::tensor does.
          if (is_written_later(storage))
            throw Error("graph", "a tensor that the host wrote is changed in place; hint: clone it first");
          constants_.push_back(storage);
        }
        return Kind::kDropped;
      }
      if (call.makes_constant() && std::none_of(call.makes.begin(), call.makes.end(), is_written_later)) {
        // The host may have written into it too.
        constants_.insert(constants_.end(), call.makes.begin(), call.makes.end());
        return Kind::kDropped;
      }
      const bool all_defined = std::all_of(call.results.begin(), call.results.end(), [](const c10::IValue& result) {
        return result.isTensor() && result.toTensor().defined();
      });
      const bool all_made = call.makes.size() == call.results.size();
      return all_defined && all_made && find_out_operator(*call.op) ? Kind::kOut : Kind::kNew;
    }();
    kinds.push_back(kind);
  }
  for (const size_t storage : constants_) kept_[storage] = true;
  return kinds;
}

void OperatorPlan::plan_memory() {
  constexpr size_t kNever = std::numeric_limits<size_t>::max();
  std::vector<Use> uses(trace_.storages.size(), {.first = kNever, .last = 0});
  std::vector<bool> taken_over(trace_.storages.size(), false);
  for (size_t s = 0; s < steps_.size(); ++s) {
    const OperatorCall& call = trace_.calls[steps_[s].call];
    for (const auto* numbers : {&call.reads, &call.makes}) {
      for (const size_t number : *numbers) {
        uses[number].first = std::min(uses[number].first, s);
        uses[number].last = std::max(uses[number].last, s);
      }
    }
    if (steps_[s].kind == Kind::kNew)
      for (const size_t number : call.makes) taken_over[number] = true;
  }
  std::vector<ArenaBlock> blocks;
  std::vector<size_t> numbers;
  for (size_t number = 0; number < trace_.storages.size(); ++number) {
    const TracedStorage& traced = trace_.storages[number];
    if (!traced.maker || kept_[number] || traced.storage.nbytes() == 0) continue;
    if (uses[number].first == kNever) {
      traced.storage.unsafeGetStorageImpl()->set_data_ptr_noswap(at::DataPtr(nullptr, at::kCPU));
    } else if (taken_over[number]) {
      steps_[uses[number].last].releases.push_back(number);
    } else {
      blocks.push_back({.bytes = traced.storage.nbytes(), .first = uses[number].first, .last = uses[number].last});
      numbers.push_back(number);
    }
  }
  arena_bytes_ = lay_out(blocks);
  arena_ = c10::GetCPUAllocator()->allocate(arena_bytes_);
  for (size_t i = 0; i < blocks.size(); ++i) {
    void* const place = static_cast<char*>(arena_.get()) + blocks[i].offset;
    trace_.storages[numbers[i]].storage.unsafeGetStorageImpl()->set_data_ptr_noswap(at::DataPtr(place, at::kCPU));
    places_.emplace_back(numbers[i], place);
  }
}

void OperatorPlan::take_over(const at::Tensor& recorded, const at::Tensor& made) const {
  if (!recorded.defined() || !made.defined()) return;
  if (recorded.sizes() != made.sizes())
    throw Error("graph",
                fmt::format("a recorded operator gives another shape than recorded; got {}, recorded {}; hint: "
                            "graph: false takes ordinary steps",
                            c10::str(made.sizes()), c10::str(recorded.sizes())));
  c10::StorageImpl* const to = recorded.storage().unsafeGetStorageImpl();
  c10::StorageImpl* const from = made.storage().unsafeGetStorageImpl();
  if (to == from) return;
  if (same_layout(recorded, made) && fills_storage(recorded) && fills_storage(made) && to->nbytes() == from->nbytes() &&
      made.storage().use_count() <= 2) {
    to->set_data_ptr_noswap(from->set_data_ptr(at::DataPtr(nullptr, at::kCPU)));
    return;
  }
  if (to->data() == nullptr) to->set_data_ptr_noswap(c10::GetCPUAllocator()->allocate(to->nbytes()));
  recorded.copy_(made);
}

void OperatorPlan::run(const Step& step) {
  if (step.kind == Kind::kHostWork) {
    trace_.calls[step.call].host_work();
    return;
  }
  stack_.assign(step.arguments.begin(), step.arguments.end());
  step.op->redispatchBoxed(step.keys, &stack_);
  if (step.kind == Kind::kNew) {
    const auto& results = trace_.calls[step.call].results;
    for (size_t i = 0; i < results.size(); ++i) {
      if (results[i].isTensor()) {
        take_over(results[i].toTensor(), stack_[i].toTensor());
      } else if (results[i].isTensorList()) {
        const auto recorded = results[i].toTensorVector();
        const auto made = stack_[i].toTensorVector();
        for (size_t k = 0; k < recorded.size(); ++k) take_over(recorded[k], made[k]);
      }
    }
  }
  stack_.clear();
}

void OperatorPlan::release_after(const Step& step) {
  for (const size_t number : step.releases)
    trace_.storages[number].storage.unsafeGetStorageImpl()->set_data_ptr_noswap(at::DataPtr(nullptr, at::kCPU));
}

void OperatorPlan::enter(const OperatorCall& call) {
  if (at::GradMode::is_enabled() != call.grad_mode) at::GradMode::set_enabled(call.grad_mode);
  if (c10::get_default_dtype_as_scalartype() != call.default_dtype)
    c10::set_default_dtype(c10::scalarTypeToTypeMeta(call.default_dtype));
}

namespace {

/// Puts a thread's gradient mode and default type back, and keeps autograd and autocast out meanwhile.
class ReplayScope {
 public:
  ~ReplayScope() {
    at::GradMode::set_enabled(grad_mode_);
    // It is the process's, not the thread's.
    if (c10::get_default_dtype() != default_type_) c10::set_default_dtype(default_type_);
  }

 private:
  const bool grad_mode_ = at::GradMode::is_enabled();
  const caffe2::TypeMeta default_type_ = c10::get_default_dtype();
  const at::AutoDispatchBelowADInplaceOrView below_autograd_;
  const c10::impl::ExcludeDispatchKeyGuard below_autocast_{c10::autocast_dispatch_keyset};
};

}  // namespace

void OperatorPlan::replay(size_t part) {
  {
    const ReplayScope scope;
    for (size_t s = part == 0 ? 0 : step_ends_[part - 1]; s < step_ends_[part]; ++s) {
      enter(trace_.calls[steps_[s].call]);
      run(steps_[s]);
      release_after(steps_[s]);
    }
  }
  advance_versions(part);
}

void OperatorPlan::advance_versions(size_t part) {
  for (auto& version : versions_) {
    const uint32_t bumps = version.of_parts[part];
    if (bumps > 0) version.counter.set_version(int64_t{version.counter.current_version()} + bumps);
  }
}

std::string OperatorPlan::replay_beside(const OperatorTrace& other, size_t part) {
  // Where several calls write the same memory, the other recording holds what the last one left.
  std::vector<size_t> writers(trace_.storages.size(), 0);
  for (const OperatorCall& call : trace_.calls)
    for (const auto* numbers : {&call.writes, &call.makes})
      for (const size_t number : *numbers) ++writers[number];
  std::string first;
  {
    const ReplayScope scope;
    for (size_t s = part == 0 ? 0 : step_ends_[part - 1]; s < step_ends_[part]; ++s) {
      const OperatorCall& call = trace_.calls[steps_[s].call];
      enter(call);
      run(steps_[s]);
      for (const size_t number : call.makes) {
        if (!first.empty() || writers[number] > 1) continue;
        const at::Storage& mine = trace_.storages[number].storage;
        const at::Storage& its = other.storages[number].storage;
        if (mine.data() != nullptr && its.data() != nullptr && mine.nbytes() == its.nbytes() &&
            std::memcmp(mine.data(), its.data(), mine.nbytes()) != 0)
          first = call.place();
      }
      release_after(steps_[s]);
    }
  }
  advance_versions(part);
  return first;
}

std::string OperatorPlan::writer_of(size_t storage) const {
  for (auto call = trace_.calls.rbegin(); call != trace_.calls.rend(); ++call)
    if (contains(call->writes, storage) || contains(call->makes, storage)) return call->place();
  return "nothing";
}

bool OperatorPlan::has_constants_of(const OperatorTrace& other, size_t part) const {
  return std::all_of(constants_.begin(), constants_.end(), [&](size_t number) {
    const size_t maker = *trace_.storages[number].maker;
    if (maker < trace_.first_call(part) || maker >= trace_.part_ends[part]) return true;
    const at::Storage& mine = trace_.storages[number].storage;
    const at::Storage& its = other.storages[number].storage;
    return mine.nbytes() == its.nbytes() && std::memcmp(mine.data(), its.data(), mine.nbytes()) == 0;
  });
}

void OperatorPlan::settle() {
  for (const auto& [number, place] : places_) {
    if (trace_.storages[number].storage.data() == place) continue;
    for (Step& step : steps_) {
      const OperatorCall& call = trace_.calls[step.call];
      if (step.kind != Kind::kOut || !contains(call.makes, number)) continue;
      step.kind = Kind::kNew;
      step.op = call.op;
      step.keys = keys_of(*call.op);
      step.arguments = call.arguments;
    }
  }
}

void OperatorPlan::renew(size_t storage) {
  trace_.replace(storage, new_storage(trace_.storages[storage].storage.nbytes()));
}

}  // namespace levin
