#include <levin/core/accelerators/cpu_graph_recorder.h>

#include <levin/core/accelerators/operator_plan.h>
#include <levin/core/accelerators/operator_recording.h>
#include <levin/core/base/error.h>

#include <fmt/format.h>

#include <cstring>
#include <utility>

namespace levin {
namespace {

/// A part of the step that a recorder has recorded.
class CpuGraph final : public RecordedGraph {
 public:
  CpuGraph(const std::unique_ptr<OperatorPlan>& plan, size_t part) : plan_(plan), part_(part) {}
  void replay() override { plan_->replay(part_); }

 private:
  const std::unique_ptr<OperatorPlan>& plan_;  ///< the recorder's
  const size_t part_;
};

bool same_values(const at::Tensor& a, const at::Tensor& b) {
  if (a.defined() != b.defined()) return false;
  if (!a.defined()) return true;
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes()) return false;
  const at::Tensor x = a.detach().contiguous();
  const at::Tensor y = b.detach().contiguous();
  return x.nbytes() == 0 || std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

}  // namespace

CpuGraphRecorder::CpuGraphRecorder() = default;
CpuGraphRecorder::~CpuGraphRecorder() = default;

std::unique_ptr<RecordedGraph> CpuGraphRecorder::record(const std::function<void()>& body) {
  LEVIN_CHECK(recording_ != nullptr, "record() outside of record_step()");
  const size_t part = recording_->trace().part_ends.size();
  recording_->record(body);
  return std::make_unique<CpuGraph>(plan_, part);
}

void CpuGraphRecorder::record_step(const Parts& parts) {
  recording_ = std::make_unique<OperatorRecording>();
  try {
    kept_ = parts();
    recording_->finish();
  } catch (...) {
    recording_->take_back();
    recording_.reset();
    throw;
  }
  recording_->take_back();
  const auto recording = std::move(recording_);
  plan_ = std::make_unique<OperatorPlan>(*recording, kept_);
}

std::string CpuGraphRecorder::kept_result(const std::vector<at::Tensor>& known) const {
  std::vector<at::Tensor> all = known;
  all.insert(all.end(), kept_.begin(), kept_.end());
  return plan_->kept_result(all);
}

std::string CpuGraphRecorder::difference(const Parts& parts) {
  recording_ = std::make_unique<OperatorRecording>();
  std::vector<at::Tensor> results;
  try {
    results = parts();
    recording_->finish();
  } catch (...) {
    recording_->take_back();
    recording_.reset();
    throw;
  }
  recording_->take_back();
  const auto ordinary = std::move(recording_);
  std::string what = difference(*ordinary, results);
  ordinary->take_back();
  return what;
}

std::string CpuGraphRecorder::difference(OperatorRecording& ordinary, const std::vector<at::Tensor>& results) {
  std::string what = plan_->trace().difference(ordinary.trace());
  if (!what.empty()) return what;
  if (!plan_->has_constants_of(ordinary.trace())) return "a tensor that the host writes changes from step to step";
  for (size_t part = 0; part < plan_->parts(); ++part) plan_->replay(part);
  plan_->settle();
  const auto found_in = [&](const std::string& likely) {
    ordinary.take_back();
    const std::string first = plan_->first_different_call(ordinary.trace());
    return fmt::format("what {} gives differs from an ordinary step", first.empty() ? likely : first);
  };
  if (const auto storage = ordinary.first_difference())
    return found_in(plan_->writer_of(*storage));
  if (!ordinary.generator_is_same()) return "random numbers are drawn in another way";
  for (size_t i = 0; i < kept_.size() && i < results.size(); ++i) {
    if (same_values(kept_[i], results[i])) continue;
    const auto number = plan_->trace().find(kept_[i]);
    return found_in(number ? plan_->writer_of(*number) : "an operator");
  }
  return kept_.size() == results.size() ? "" : "an ordinary step has other results";
}

void CpuGraphRecorder::read_input_from(const at::Tensor& input, const at::Tensor& from) {
  c10::StorageImpl* const storage = input.storage().unsafeGetStorageImpl();
  if (!from.defined()) return storage->set_data_ptr_noswap(at::DataPtr(nullptr, at::kCPU));
  // The memory lives as long as the input reads it.
  auto* const owner = new at::Storage(from.storage());
  at::DataPtr memory(const_cast<void*>(from.const_data_ptr()), owner,
                     [](void* held) { delete static_cast<at::Storage*>(held); }, at::kCPU);
  storage->set_data_ptr_noswap(std::move(memory));
}

at::Tensor CpuGraphRecorder::renew(const at::Tensor& result) {
  at::Tensor renewed = plan_->renew(result);
  for (at::Tensor& tensor : kept_)
    if (tensor.is_same(result)) tensor = renewed;
  return renewed;
}

}  // namespace levin
