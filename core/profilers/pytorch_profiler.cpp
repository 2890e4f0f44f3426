#include <levin/core/profilers/pytorch_profiler.h>

#include <levin/core/accelerators/accelerator_registry.h>
#include <levin/core/base/error.h>
#include <levin/core/base/file_system.h>
#include <levin/core/base/log.h>
#include <levin/core/profilers/operator_table.h>
#include <levin/core/profilers/profile_file.h>

#include <ATen/record_function.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/profiler_kineto.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <deque>
#include <fstream>
#include <limits>
#include <utility>
#include <vector>

namespace levin {
namespace {

namespace kineto = torch::autograd::profiler;
using torch::profiler::impl::ActivityType;
using torch::profiler::impl::ProfilerState;

/// Whether a profiler of this process prepares or records.
std::atomic<bool> process_is_taken{false};

/// Kineto puts names into JSON as they are, and does without those that are not ASCII.
std::string json_safe(std::string_view name) {
  std::string text;
  for (const char c : name) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x80 && byte < 0xC0) continue;  // the rest of a character of several bytes
    text += c == '"' ? '\'' : c == '\\' ? '/' : byte < ' ' ? ' ' : byte >= 0x80 ? '?' : c;
  }
  return text;
}

/// What a span is called in a trace. TensorBoard's plugin knows the time that a step waits for data by this name alone.
std::string trace_name(std::string_view span) {
  const bool waits_for_data = span.starts_with("fetch_") && span.ends_with("_batch");
  return waits_for_data ? fmt::format("enumerate(DataLoader)#{}.__next__", span) : json_safe(span);
}

struct OpenRange {
  explicit OpenRange(const char* span) : name(span), text(trace_name(span)), record(at::RecordScope::USER_SCOPE) {
    record.before(std::string_view(text));
  }

  const char* name;
  const std::string text;  ///< as the trace has it
  at::RecordFunction record;
};

/// Ranges of the calling thread that are being recorded; none of them may move.
std::deque<OpenRange>& open_ranges() {
  thread_local std::deque<OpenRange> ranges;
  return ranges;
}

std::string host_name() {
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0 || host[0] == '\0') return "host";
  return host.data();
}

/// Kineto reports no failure to its caller: a whole trace ends with its name and a brace.
bool is_whole_trace(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return false;
  constexpr std::streamoff kTail = 4096;
  const std::streamoff size = file.tellg();
  file.seekg(std::max<std::streamoff>(0, size - kTail));
  std::string tail(static_cast<size_t>(std::min(size, kTail)), '\0');
  file.read(tail.data(), static_cast<std::streamsize>(tail.size()));
  const size_t last = tail.find_last_not_of(" \n");
  return last != tail.npos && tail[last] == '}' && tail.find("\"traceName\"") != tail.npos;
}

}  // namespace

void PyTorchProfilerOptions::describe(Schema<PyTorchProfilerOptions>& schema) {
  using O = PyTorchProfilerOptions;
  schema.field("schedule", &O::schedule, "which steps are recorded: {wait: 1, warmup: 1, active: 3, repeat: 1}");
  schema.field("record_shapes", &O::record_shapes, "shapes of the operators' inputs");
  schema.field("profile_memory", &O::profile_memory, "allocations, and what operators allocate");
  schema.field("with_flops", &O::with_flops, "estimated operations of matrix products and convolutions");
  schema.field("units", &O::units, "add a range for the forward of each unit");
  schema.field("rank_zero_only", &O::rank_zero_only, "other ranks record nothing");
  schema.field("row_limit", &O::row_limit, "rows of the table of operators on the console").at_least(1);
  schema.field("dirpath", &O::dirpath, "folder for traces; empty: 'profiler' of the run's folder");
}

PyTorchProfiler::PyTorchProfiler(const Options& options)
    : options_(options),
      config_(ProfilerState::KINETO, options.record_shapes, options.profile_memory, /*with_stack=*/false,
              options.with_flops) {}

PyTorchProfiler::~PyTorchProfiler() = default;

void PyTorchProfiler::start(const ProfiledCall& call) {
  call_ = call;
  step_ = -1;
  has_recorded_ = false;
  action_ = ProfilerAction::kNone;
  takes_part_ = call.rank == 0 || !options_.rank_zero_only;
  if (takes_part_ && !call.is_first_in_process) {
    takes_part_ = false;
    log::info_once(
        "profiler pytorch: LibTorch records once in a process, so that of ranks that are threads the first one records "
        "its own operators");
  }
  activities_ = {ActivityType::CPU};
  if (AcceleratorRegistry::instance().find("cuda")->device_count() > 0) activities_.insert(ActivityType::CUDA);
}

void PyTorchProfiler::on_model_ready(torch::nn::Module& module) {
  if (takes_part_ && options_.units) units_.find(module);
}

void PyTorchProfiler::step() {
  if (!takes_part_) return;
  if (recording_) end_open_ranges();
  change_to(options_.schedule.action(++step_));
  if (recording_) begin_step_range();
}

void PyTorchProfiler::change_to(ProfilerAction next) {
  const ProfilerAction before = std::exchange(action_, next);
  const bool records = next == ProfilerAction::kRecord || next == ProfilerAction::kRecordAndSave;
  if (recording_ && (before == ProfilerAction::kRecordAndSave || !records)) stop_recording(step_ - 1);
  if (next == ProfilerAction::kNone || recording_ || !takes_part_) return;
  if (!holds_process_ && !prepare()) return;
  if (records) start_recording();
}

bool PyTorchProfiler::prepare() {
  if (process_is_taken.exchange(true)) {
    give_up("another profiler of this process is recording");
    return false;
  }
  holds_process_ = true;
  try {
    kineto::prepareProfiler(config_, activities_);
    return true;
  } catch (const std::exception& error) {
    give_up(error.what());
    return false;
  }
}

void PyTorchProfiler::start_recording() {
  try {
    kineto::enableProfiler(config_, activities_);
  } catch (const std::exception& error) {
    return give_up(error.what());
  }
  recording_ = true;
  has_recorded_ = true;
  first_recorded_ = step_;
  if (options_.units) units_.attach();
}

/// Kernels that still run belong to the window. What a device that has failed did until then is worth the more.
void PyTorchProfiler::wait_for_kernels() const {
  if (!activities_.contains(ActivityType::CUDA)) return;
  try {
    torch::profiler::impl::cudaStubs()->synchronize();
  } catch (const std::exception& error) {
    log::warning(fmt::format("profiler pytorch: the trace may lack kernels, as the device failed: {}", error.what()));
  }
}

void PyTorchProfiler::stop_recording(int64_t last_step) {
  end_open_ranges();
  units_.detach();
  recording_ = false;
  wait_for_kernels();
  try {
    const auto result = kineto::disableProfiler();
    release_process();
    const std::vector<OperatorTime> times = operator_times(result->events());
    const std::string title = fmt::format("operators of {}, rank {}, steps {} to {}\n", to_string(call_.stage),
                                          call_.rank, first_recorded_, last_step);
    const std::string where = save(*result, title + operator_table(times, static_cast<int64_t>(times.size())) + "\n");
    if (call_.rank == 0) log::info(title + operator_table(times, options_.row_limit) + "\n" + where);
  } catch (const std::exception& error) {
    give_up(error.what());
  }
}

void PyTorchProfiler::release_process() {
  if (std::exchange(holds_process_, false)) process_is_taken = false;
}

std::string PyTorchProfiler::save(kineto::ProfilerResult& result, const std::string& table) const {
  const std::string directory = !options_.dirpath.empty() ? options_.dirpath
                                : call_.directory.empty() ? ""
                                                          : call_.directory + "/profiler";
  if (directory.empty()) return "no trace is written, as the run writes nothing; hint: the option dirpath";
  const auto time = std::chrono::system_clock::now().time_since_epoch();
  const std::string stem = fmt::format("{}_{}.{}", host_name(), ::getpid(), std::chrono::nanoseconds(time).count());
  const std::string path = fmt::format("{}/{}.pt.trace.json", directory, stem);
  FileSystem& files = FileSystem::current();
  try {
    files.create_directories(directory);
    result.save(path);
    if (!is_whole_trace(path)) {
      files.remove_all(path);
      files.remove_all(path + ".tmp");  // where Kineto writes at first
      throw Error("files", fmt::format("cannot write {}; hint: is the disk full?", path));
    }
  } catch (const Error& error) {
    log::warning(fmt::format("the trace was not written: {}", error.what()));
    return "the trace was not written";
  }
  write_profile(directory, stem, ".operators.txt", table);
  return "trace: " + path;
}

void PyTorchProfiler::begin_step_range() {
  step_name_ = fmt::format("ProfilerStep#{}", step_);
  step_range_ = std::make_unique<at::RecordFunction>(at::RecordScope::USER_SCOPE);
  step_range_->before(std::string_view(step_name_));
}

/// A range that is open at the edge of two steps ends there: ranges in a trace must not overlap.
void PyTorchProfiler::end_open_ranges() {
  std::deque<OpenRange>& ranges = open_ranges();
  while (!ranges.empty()) ranges.pop_back();
  step_range_.reset();
}

void PyTorchProfiler::begin(const char* name) {
  if (recording_) open_ranges().emplace_back(name);
}

void PyTorchProfiler::end(const char* name) {
  if (!recording_) return;
  std::deque<OpenRange>& ranges = open_ranges();
  // One that began before the recording, or in an earlier step, is not there.
  if (!ranges.empty() && ranges.back().name == name) ranges.pop_back();
}

void PyTorchProfiler::finish() {
  if (recording_) stop_recording(step_);
  if (holds_process_) {
    // It has warmed up, and there was no step to record: LibTorch ends what it prepared only after a recording.
    try {
      kineto::enableProfiler(config_, activities_);
      kineto::disableProfiler();
    } catch (const std::exception& error) {
      log::warning(fmt::format("profiler pytorch: {}", error.what()));
    }
    release_process();
  }
  if (takes_part_ && call_.rank == 0 && !has_recorded_)
    log::info(
        fmt::format("profiler pytorch recorded nothing: the schedule's first recorded step is after the last "
                    "step ({}); hint: schedule: {{wait: 0, warmup: 1, active: 1}}",
                    step_));
  takes_part_ = false;
}

void PyTorchProfiler::give_up(const std::string& why) {
  log::warning(fmt::format("profiler pytorch records nothing more in this {}: {}", to_string(call_.stage), why));
  units_.detach();
  release_process();
  recording_ = false;
  takes_part_ = false;
}

}  // namespace levin
