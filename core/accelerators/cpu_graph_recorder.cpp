#include <levin/core/accelerators/cpu_graph_recorder.h>

#include <levin/core/accelerators/operator_plan.h>
#include <levin/core/accelerators/operator_recording.h>
#include <levin/core/base/error.h>
#include <levin/core/base/generator_state.h>
#include <levin/core/base/seed.h>
#include <levin/core/base/thread_generator.h>

#include <ATen/ops/empty_strided.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

namespace levin {
namespace {

/// Makes a storage be the memory of a tensor, which lives as long as the storage reads it.
void read_from(const at::Storage& storage, const at::Tensor& tensor) {
  auto* const owner = new at::Storage(tensor.storage());
  storage.unsafeGetStorageImpl()->set_data_ptr_noswap(at::DataPtr(
      const_cast<void*>(tensor.const_data_ptr()), owner, [](void* held) { delete static_cast<at::Storage*>(held); },
      at::kCPU));
}

}  // namespace

/// What the memory that a part writes holds, and where random generators are.
class CpuGraphRecorder::Memory {
 public:
  Memory(OperatorPlan& plan, size_t part)
      : plan_(plan), writes_(plan.writes_of(part)), generator_(capture_rng_state()) {
    for (const size_t number : writes_) {
      const at::Storage& storage = plan.trace().storages[number].storage;
      const auto* const bytes = static_cast<const char*>(storage.data());
      bytes_.emplace_back(bytes, bytes + storage.nbytes());
    }
    for (const auto& version : plan.versions()) versions_.push_back(version.counter.current_version());
    // Those of the program's own, beside that of the thread.
    for (const at::Generator& generator : plan.trace().generators)
      if (generator != default_cpu_generator()) own_generators_.emplace_back(generator, generator_state(generator));
  }
  /// Puts it back, and holds what was there until now instead.
  void exchange() {
    for (size_t i = 0; i < writes_.size(); ++i)
      std::swap_ranges(bytes_[i].begin(), bytes_[i].end(),
                       static_cast<char*>(plan_.trace().storages[writes_[i]].storage.mutable_data()));
    for (size_t i = 0; i < versions_.size(); ++i) {
      auto& counter = plan_.versions()[i].counter;
      const uint32_t now = counter.current_version();
      counter.set_version(versions_[i]);
      versions_[i] = now;
    }
    State now = capture_rng_state();
    restore_rng_state(generator_);
    generator_ = std::move(now);
    for (auto& [generator, state] : own_generators_) {
      at::Tensor present = generator_state(generator);
      set_generator_state(generator, state);
      state = std::move(present);
    }
  }
  /// Whether two storages are the same memory, at least in part: a tensor of the batch and a buffer may be.
  bool overlaps() const {
    std::vector<std::pair<const char*, const char*>> ranges;
    for (const size_t number : writes_) {
      const at::Storage& storage = plan_.trace().storages[number].storage;
      const auto* const begin = static_cast<const char*>(storage.data());
      if (storage.nbytes() > 0) ranges.emplace_back(begin, begin + storage.nbytes());
    }
    std::sort(ranges.begin(), ranges.end());
    return std::adjacent_find(ranges.begin(), ranges.end(), [](const auto& one, const auto& next) {
             return next.first < one.second;
           }) != ranges.end();
  }
  /// Returns the storage that holds something else now.
  std::optional<size_t> changed() const {
    for (size_t i = 0; i < writes_.size(); ++i)
      if (std::memcmp(plan_.trace().storages[writes_[i]].storage.data(), bytes_[i].data(), bytes_[i].size()) != 0)
        return writes_[i];
    return std::nullopt;
  }
  bool same_generators() const {
    return capture_rng_state().at("cpu").as_tensor().equal(generator_.at("cpu").as_tensor()) &&
           std::all_of(own_generators_.begin(), own_generators_.end(),
                       [](const auto& own) { return generator_state(own.first).equal(own.second); });
  }

 private:
  OperatorPlan& plan_;
  const std::vector<size_t>& writes_;
  std::vector<std::vector<char>> bytes_;
  std::vector<uint32_t> versions_;
  State generator_;
  std::vector<std::pair<at::Generator, at::Tensor>> own_generators_;
};

CpuGraphRecorder::CpuGraphRecorder() = default;
CpuGraphRecorder::~CpuGraphRecorder() = default;

std::unique_ptr<RecordedGraph> CpuGraphRecorder::record(const std::function<void()>&) {
  throw Error("graph", "operators of the CPU are recorded by watching a whole step");
}

std::vector<at::Tensor> CpuGraphRecorder::begin_step(const std::vector<at::Tensor>& batch,
                                                     const std::vector<at::Tensor>& added_to,
                                                     const std::vector<at::Tensor>& state) {
  std::vector<at::Tensor> inputs;
  for (const at::Tensor& tensor : batch) {
    const c10::InferenceMode ordinary(false);
    inputs.push_back(at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options()));
    read_from(inputs.back().storage(), tensor);
  }
  difference_.clear();
  batch_size_ = inputs.size();
  if (plan_ == nullptr) {
    inputs_ = inputs;
    state_ = state;
    results_.clear();
    left_out_.clear();
    callers_.clear();
    at_part_end_.clear();
    taken_.clear();
    kept_.clear();
  }
  std::vector<at::Tensor> all = inputs;
  all.insert(all.end(), added_to.begin(), added_to.end());
  if (plan_ != nullptr) read(all);
  recording_ = std::make_unique<OperatorRecording>(all, state);
  if (recording_->trace().inputs != all.size()) recording_->refuse("gradients of a window share memory");
  return inputs;
}

void CpuGraphRecorder::watch(const std::function<void()>& part) {
  begin_part();
  try {
    part();
  } catch (...) {
    before_.reset();
    recording_->abandon_part();
    throw;
  }
  end_part();
}

void CpuGraphRecorder::interrupt(const std::function<void()>& between) {
  end_part();
  between();
  begin_part();
}

std::vector<int64_t> CpuGraphRecorder::holders() const {
  const OperatorTrace& trace = recording_->trace();
  std::vector<at::Tensor> own = left_out_;
  own.insert(own.end(), results_.begin(), results_.end());
  for (const at::Tensor& tensor : state_) own.push_back(tensor.grad());
  std::vector<int64_t> counts = trace.holders(own);
  for (size_t number = 0; number < counts.size(); ++number) {
    if (number < inputs_.size())
      counts[number] += static_cast<int64_t>(inputs_[number].use_count());
    else if (!trace.storages[number].maker)
      counts[number] = 0;
  }
  return counts;
}

void CpuGraphRecorder::leave_out(const at::Tensor& tensor) {
  if (plan_ == nullptr) left_out_.push_back(tensor);
}

void CpuGraphRecorder::look_for_let_go() {
  if (plan_ != nullptr || recording_ == nullptr) return;
  const std::vector<int64_t> now = holders();
  taken_.resize(at_part_end_.size());
  for (size_t number = 0; number < at_part_end_.size(); ++number) {
    taken_[number] += now[number] - at_part_end_[number];
    if (taken_[number] < 0 && kept_.empty()) kept_ = recording_->trace().name_of_storage(number);
  }
}

void CpuGraphRecorder::note_kept() {
  if (plan_ != nullptr || recording_ == nullptr) return;
  const std::vector<int64_t> now = holders();
  taken_.resize(now.size());
  for (size_t number = 0; number < now.size(); ++number) {
    const int64_t known = taken_[number] + (number < callers_.size() ? callers_[number] : 0);
    if (now[number] > known && kept_.empty()) kept_ = recording_->trace().name_of_storage(number);
  }
  at_part_end_ = now;
}

void CpuGraphRecorder::note_let_go() {
  look_for_let_go();
  left_out_.clear();
  inputs_.clear();
}

void CpuGraphRecorder::begin_part() {
  look_for_let_go();
  const size_t number = recording_->trace().part_ends.size();
  if (plan_ != nullptr && difference_.empty() && number == plan_->parts()) {
    difference_ = "an ordinary step has more parts";
    recording_->refuse(difference_);
  }
  if (plan_ != nullptr && difference_.empty()) before_ = std::make_unique<Memory>(*plan_, number);
  if (plan_ == nullptr && number == 0) {
    callers_ = holders();
    callers_.resize(batch_size_);
  }
  recording_->begin_part();
}

void CpuGraphRecorder::end_part() {
  const size_t number = recording_->trace().part_ends.size();
  recording_->end_part();
  if (plan_ == nullptr) at_part_end_ = holders();
  if (before_ == nullptr) return;
  const auto before = std::move(before_);
  difference_ = recording_->failure();
  if (difference_.empty()) difference_ = compare(number, *before);
}

std::string CpuGraphRecorder::compare(size_t part, Memory& memory) {
  std::string what = plan_->trace().difference(recording_->trace(), part);
  if (!what.empty()) return what;
  if (!plan_->has_constants_of(recording_->trace(), part))
    return "a tensor that the host writes changes from step to step";
  if (memory.overlaps()) return "the step writes memory that two tensors share; hint: clone one of them";
  memory.exchange();
  const std::string first = plan_->replay_beside(recording_->trace(), part);
  plan_->settle();
  const auto changed = memory.changed();
  if (!memory.same_generators()) what = "random numbers are drawn in another way";
  if (changed)
    what =
        fmt::format("what {} gives differs from an ordinary step", first.empty() ? plan_->writer_of(*changed) : first);
  memory.exchange();
  return what;
}

std::string CpuGraphRecorder::end_step(const std::vector<at::Tensor>& results) {
  if (plan_ == nullptr) {
    results_ = results;
    // What the step added to is the program's, which asks who holds it.
    OperatorTrace& trace = recording_->trace();
    for (size_t input = batch_size_; input < trace.inputs; ++input)
      trace.replace(input, at::Storage(at::Storage::use_byte_size_t(), trace.storages[input].storage.nbytes(),
                                       at::DataPtr(nullptr, at::kCPU), c10::GetCPUAllocator(), /*resizable=*/true));
    at_part_end_ = holders();
    return recording_->failure();
  }
  const auto recording = std::move(recording_);
  if (!difference_.empty()) return difference_;
  if (recording->trace().part_ends.size() != plan_->parts() || results.size() != results_.size())
    return "an ordinary step has other parts or results";
  for (size_t i = 0; i < results.size(); ++i) {
    if (same_values(results_[i], results[i])) continue;
    const auto number = plan_->trace().find(results_[i]);
    return fmt::format("what {} gives differs from an ordinary step",
                       number ? plan_->writer_of(*number) : "an operator");
  }
  return "";
}

void CpuGraphRecorder::abandon_step() {
  before_.reset();
  recording_.reset();
  left_out_.clear();
  inputs_.clear();
  if (plan_ != nullptr) read({});
}

std::string CpuGraphRecorder::held_result(const std::vector<at::Tensor>& known) const {
  if (!kept_.empty()) return kept_;
  std::vector<at::Tensor> all = known;
  all.insert(all.end(), results_.begin(), results_.end());
  const OperatorTrace& trace = recording_->trace();
  const std::vector<int64_t> held = trace.holders(all);
  for (size_t number = 0; number < held.size(); ++number)
    if (held[number] > 0 && (trace.storages[number].maker || number < batch_size_))
      return trace.name_of_storage(number);
  return "";
}

std::string CpuGraphRecorder::finish() {
  state_.clear();
  const auto recording = std::move(recording_);
  const std::string lost = recording->trace().lost_memory();
  if (!lost.empty())
    return fmt::format(
        "a tensor that {} uses is made anew in each step, by other means than operators; hint: give it in "
        "the batch, or keep it as a buffer",
        lost);
  try {
    plan_ = std::make_unique<OperatorPlan>(*recording, results_);
  } catch (const Error& error) {
    return error.what();
  }
  if (plan_->has_lost_memory()) {
    plan_.reset();
    return "a generator that an operator is given is made anew in each step; hint: keep it in the module";
  }
  // From here on nobody else has the memory of inputs and results.
  for (size_t input = 0; input < plan_->trace().inputs; ++input) plan_->renew(input);
  for (size_t result = 0; result < results_.size(); ++result)
    if (is_made(results_[result])) renew(result);
  return "";
}

bool CpuGraphRecorder::is_made(const at::Tensor& result) const {
  const auto number = plan_->trace().find(result);
  return number && plan_->trace().storages[*number].maker;
}

bool CpuGraphRecorder::has_lost_memory() const { return plan_->has_lost_memory(); }

size_t CpuGraphRecorder::part_of(const at::Tensor& result) const {
  const OperatorTrace& trace = plan_->trace();
  const auto number = trace.find(result);
  LEVIN_CHECK(number && trace.storages[*number].maker, "part_of: not a result that replays make");
  return trace.part_of(*trace.storages[*number].maker);
}

void CpuGraphRecorder::read(const std::vector<at::Tensor>& batch) {
  for (size_t input = 0; input < plan_->trace().inputs; ++input) {
    const at::Storage& storage = plan_->trace().storages[input].storage;
    if (batch.empty() || !plan_->reads(input))
      storage.unsafeGetStorageImpl()->set_data_ptr_noswap(at::DataPtr(nullptr, at::kCPU));
    else
      read_from(storage, batch[input]);
  }
}

void CpuGraphRecorder::replay(size_t part) { plan_->replay(part); }

at::Tensor CpuGraphRecorder::renew(size_t result) {
  const at::Tensor former = results_[result];
  const auto number = plan_->trace().find(former);
  LEVIN_CHECK(number.has_value(), "renew: not a result of the step");
  plan_->renew(*number);
  const at::Storage& now = plan_->trace().storages[*number].storage;
  // Several results may share memory.
  for (at::Tensor& tensor : results_) {
    if (!tensor.is_alias_of(former)) continue;
    at::Tensor renewed(tensor.unsafeGetTensorImpl()->shallow_copy_and_detach(c10::VariableVersion(0), true));
    renewed.unsafeGetTensorImpl()->set_storage_keep_dtype(now);
    tensor = renewed;
  }
  return results_[result];
}

}  // namespace levin
