#include <levin/core/devices/device_sampler.h>

#include <levin/core/accelerators/accelerator_registry.h>
#include <levin/core/accelerators/byte_units.h>
#include <levin/core/base/mutex.h>
#include <levin/core/devices/process_stats.h>

#include <fmt/format.h>
#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <limits>
#include <thread>
#include <utility>

namespace levin {
namespace {

using Clock = std::chrono::steady_clock;

/// A sample that takes longer than this and than several intervals is worth a word.
constexpr std::chrono::seconds kLongSample{10};

template <class Reading>
struct Field {
  const char* name;
  std::optional<double> Reading::*value;
  SampleFold fold = SampleFold::kMean;
};

constexpr Field<ProcessReading> kProcessFields[] = {
    {"cpu/utilization_percent", &ProcessReading::utilization_percent},
    {"cpu/resident_memory_mib", &ProcessReading::resident_memory_mib, SampleFold::kMax},
    {"cpu/resident_memory_peak_mib", &ProcessReading::resident_memory_peak_mib, SampleFold::kMax},
    {"cpu/read_mib_per_second", &ProcessReading::read_mib_per_second},
    {"cpu/written_mib_per_second", &ProcessReading::written_mib_per_second},
    {"cpu/threads", &ProcessReading::threads, SampleFold::kMax},
};
constexpr Field<HostReading> kHostFields[] = {
    {"host/utilization_percent", &HostReading::utilization_percent},
    {"host/available_memory_mib", &HostReading::available_memory_mib, SampleFold::kMin},
};
constexpr Field<GpuReading> kGpuFields[] = {
    {"utilization_percent", &GpuReading::utilization_percent},
    {"memory_utilization_percent", &GpuReading::memory_utilization_percent},
    {"memory_used_mib", &GpuReading::memory_used_mib, SampleFold::kMax},
    {"memory_total_mib", &GpuReading::memory_total_mib, SampleFold::kMax},
    {"temperature_celsius", &GpuReading::temperature_celsius},
    {"power_watts", &GpuReading::power_watts},
    {"power_limit_watts", &GpuReading::power_limit_watts},
    {"sm_clock_mhz", &GpuReading::sm_clock_mhz},
    {"memory_clock_mhz", &GpuReading::memory_clock_mhz},
    {"pcie_receive_mib_per_second", &GpuReading::pcie_receive_mib_per_second},
    {"pcie_send_mib_per_second", &GpuReading::pcie_send_mib_per_second},
    {"nvlink_receive_mib_per_second", &GpuReading::nvlink_receive_mib_per_second},
    {"nvlink_send_mib_per_second", &GpuReading::nvlink_send_mib_per_second},
    {"processes", &GpuReading::processes, SampleFold::kMax},
};

struct AllocatorReading {
  std::optional<double> allocated_mib;
  std::optional<double> allocated_peak_mib;
  std::optional<double> reserved_mib;
};
constexpr Field<AllocatorReading> kAllocatorFields[] = {
    {"allocated_mib", &AllocatorReading::allocated_mib, SampleFold::kMax},
    {"allocated_peak_mib", &AllocatorReading::allocated_peak_mib, SampleFold::kMax},
    {"reserved_mib", &AllocatorReading::reserved_mib, SampleFold::kMax},
};

AllocatorReading read_allocator(const c10::Device& device) {
  const MemoryStats stats = accelerator_of(device).memory_stats(device);
  return {.allocated_mib = static_cast<double>(stats.allocated) / kMebibyte,
          .allocated_peak_mib = static_cast<double>(stats.peak) / kMebibyte,
          .reserved_mib = static_cast<double>(stats.reserved) / kMebibyte};
}

}  // namespace

/// What the thread does, and what it shares with whoever asks. Lives as long as one of them.
class DeviceSampler::Work {
 public:
  Work(std::chrono::duration<double> interval, SampledDevices devices)
      : interval_(interval), devices_(std::move(devices)) {}

  /// The thread.
  void run();

  /// What will be sampled, once the GPUs are known, or without them where that takes too long.
  std::vector<SampledQuantity> wait_for_quantities();
  void take(std::vector<double>& values);
  std::vector<std::string> take_messages();
  void stop(bool with_last_sample);
  int64_t samples();

 private:
  /// A GPU that is sampled.
  struct Watched {
    std::optional<size_t> in_nvml;
    std::optional<c10::Device> allocator_of;
    bool fault_is_told = false;
  };
  struct Sum {
    double value = 0;
    int64_t count = 0;
  };

  void find_gpus();
  void watch(std::optional<size_t> in_nvml, const std::optional<c10::Device>& allocator_of);
  void sample();
  void sample_gpu(Watched& gpu);
  void tell(std::string message);
  template <class Reading, size_t count>
  void describe(const Field<Reading> (&fields)[count], const std::string& prefix = "") {
    for (const auto& field : fields) found_.push_back({prefix + field.name, field.fold});
  }
  template <class Reading, size_t count>
  void note(const Reading& reading, const Field<Reading> (&fields)[count]) {
    for (const auto& field : fields) sample_.push_back(reading.*field.value);
  }

  /// Nobody waits for the thread any longer: when the driver lets it go, what it would look at may be gone. Set under
  /// the lock.
  std::atomic<bool> is_abandoned_{false};

  // Of the thread alone.
  const std::chrono::duration<double> interval_;
  const SampledDevices devices_;
  std::unique_ptr<Nvml> nvml_;
  std::vector<Watched> watched_;
  ProcessStats process_stats_;
  std::vector<SampledQuantity> found_;
  std::vector<std::optional<double>> sample_;

  Mutex mutex_;
  ConditionVariable changed_;
  std::vector<SampledQuantity> quantities_ LEVIN_GUARDED_BY(mutex_);
  std::vector<Sum> sums_ LEVIN_GUARDED_BY(mutex_);
  std::vector<std::string> messages_ LEVIN_GUARDED_BY(mutex_);
  int64_t samples_ LEVIN_GUARDED_BY(mutex_) = 0;
  std::optional<Clock::time_point> sampling_since_ LEVIN_GUARDED_BY(mutex_);
  bool long_sample_is_told_ LEVIN_GUARDED_BY(mutex_) = false;
  bool is_ready_ LEVIN_GUARDED_BY(mutex_) = false;
  bool goes_without_gpus_ LEVIN_GUARDED_BY(mutex_) = false;  ///< nobody waited for them any longer
  bool is_stopped_ LEVIN_GUARDED_BY(mutex_) = false;
  bool wants_last_sample_ LEVIN_GUARDED_BY(mutex_) = false;
  bool is_done_ LEVIN_GUARDED_BY(mutex_) = false;
};

void DeviceSampler::Work::run() {
  try {
    if (devices_.process) describe(kProcessFields);
    if (devices_.host) describe(kHostFields);
    {
      const MutexLock lock(mutex_);
      quantities_ = found_;
    }
    find_gpus();
    MutexLock lock(mutex_);
    is_ready_ = true;
    if (goes_without_gpus_)
      watched_.clear();
    else
      quantities_ = found_;
    sums_.assign(quantities_.size(), {});
    changed_.notify_all();
    bool goes_on = !is_abandoned_;
    while (goes_on) {
      const bool is_last = is_stopped_;
      sampling_since_ = Clock::now();
      lock.unlock();
      sample();
      lock.lock();
      if (is_abandoned_) break;
      sampling_since_.reset();
      for (size_t i = 0; i < sums_.size(); ++i) {
        if (!sample_[i]) continue;
        Sum& sum = sums_[i];
        const SampleFold fold = quantities_[i].fold;
        if (fold == SampleFold::kMean)
          sum.value += *sample_[i];
        else if (sum.count == 0)
          sum.value = *sample_[i];
        else
          sum.value = fold == SampleFold::kMax ? std::max(sum.value, *sample_[i]) : std::min(sum.value, *sample_[i]);
        ++sum.count;
      }
      ++samples_;
      if (is_last) wants_last_sample_ = false;
      changed_.wait_for(lock, interval_, [this]() LEVIN_REQUIRES(mutex_) { return is_stopped_; });
      goes_on = !is_stopped_ || wants_last_sample_;
    }
  } catch (const std::exception& error) {
    tell(fmt::format("sampling of devices has ended: {}; training goes on", error.what()));
  }
  nvml_.reset();
  const MutexLock lock(mutex_);
  sampling_since_.reset();
  is_ready_ = is_done_ = true;
  changed_.notify_all();
}

void DeviceSampler::Work::watch(std::optional<size_t> in_nvml, const std::optional<c10::Device>& allocator_of) {
  watched_.push_back({.in_nvml = in_nvml, .allocator_of = allocator_of});
  const int64_t number = in_nvml ? nvml_->gpus()[*in_nvml].index : allocator_of->index();
  const std::string prefix = fmt::format("gpu{}/", number);
  if (in_nvml) describe(kGpuFields, prefix);
  if (allocator_of) describe(kAllocatorFields, prefix);
}

void DeviceSampler::Work::find_gpus() {
  const bool wants_nvml = devices_.other_gpus || std::any_of(devices_.gpus.begin(), devices_.gpus.end(),
                                                             [](const auto& gpu) { return gpu.address.has_value(); });
  if (wants_nvml) {
    Nvml::Opened opened = Nvml::open(&is_abandoned_);
    nvml_ = std::move(opened.nvml);
    if (nvml_ == nullptr)
      tell(fmt::format("what GPUs do is not logged: {}; hint: nvidia-smi needs the same library", opened.reason));
    else if (devices_.other_gpus && nvml_->gpus().empty())
      tell("NVML lists no GPU");
  }
  const size_t listed = nvml_ == nullptr ? 0 : nvml_->gpus().size();
  std::vector<bool> is_used(listed);
  for (const auto& gpu : devices_.gpus) {
    std::optional<size_t> in_nvml;
    for (size_t i = 0; i < listed && gpu.address; ++i)
      if (nvml_->gpus()[i].address == *gpu.address) in_nvml = i;
    if (in_nvml)
      is_used[*in_nvml] = true;
    else if (nvml_ != nullptr && gpu.address)
      tell(fmt::format("NVML does not list the GPU at PCI address {:04x}:{:02x}:{:02x}: what it does is not logged",
                       gpu.address->domain, gpu.address->bus, gpu.address->device));
    if (in_nvml || gpu.allocator_of) watch(in_nvml, gpu.allocator_of);
  }
  if (!devices_.other_gpus) return;
  for (size_t i = 0; i < listed; ++i)
    if (!is_used[i] &&
        std::find(devices_.except.begin(), devices_.except.end(), nvml_->gpus()[i].address) == devices_.except.end())
      watch(i, std::nullopt);
}

void DeviceSampler::Work::sample() {
  sample_.clear();
  if (devices_.process) note(process_stats_.read_process(), kProcessFields);
  if (devices_.host) note(process_stats_.read_host(), kHostFields);
  for (Watched& gpu : watched_) sample_gpu(gpu);
}

void DeviceSampler::Work::sample_gpu(Watched& gpu) {
  if (gpu.in_nvml) {
    note(nvml_->read(*gpu.in_nvml), kGpuFields);
    const NvmlGpu& read = nvml_->gpus()[*gpu.in_nvml];
    if (!read.fault.empty() && !std::exchange(gpu.fault_is_told, true))
      tell(
          fmt::format("{} cannot be read, NVML says: {}; its values are not logged from here on and training goes on; "
                      "hint: a GPU that fell off the bus left an Xid message in dmesg, and comes back with a reset or "
                      "a restart of the machine",
                      read.describe(), read.fault));
  }
  if (!gpu.allocator_of) return;
  // Under the lock, so that nobody goes on without this thread while it looks.
  const MutexLock lock(mutex_);
  if (!is_abandoned_) note(read_allocator(*gpu.allocator_of), kAllocatorFields);
}

void DeviceSampler::Work::tell(std::string message) {
  const MutexLock lock(mutex_);
  messages_.push_back(std::move(message));
}

std::vector<SampledQuantity> DeviceSampler::Work::wait_for_quantities() {
  MutexLock lock(mutex_);
  if (!changed_.wait_for(lock, kPatience, [this]() LEVIN_REQUIRES(mutex_) { return is_ready_; })) {
    goes_without_gpus_ = true;
    messages_.push_back(
        fmt::format("NVML has not answered for {} s: what GPUs do is not logged in this fit", kPatience.count()));
  }
  return quantities_;
}

void DeviceSampler::Work::take(std::vector<double>& values) {
  const MutexLock lock(mutex_);
  values.assign(quantities_.size(), std::numeric_limits<double>::quiet_NaN());
  for (size_t i = 0; i < sums_.size(); ++i) {
    Sum& sum = sums_[i];
    if (sum.count == 0) continue;
    values[i] = quantities_[i].fold == SampleFold::kMean ? sum.value / static_cast<double>(sum.count) : sum.value;
    sum = {};
  }
  if (long_sample_is_told_ || !sampling_since_) return;
  const auto taken = Clock::now() - *sampling_since_;
  if (taken < kLongSample || taken < 5 * interval_) return;
  long_sample_is_told_ = true;
  messages_.push_back(
      fmt::format("the GPUs' driver has not answered for {:.0f} s: no device values are logged until "
                  "it does; training goes on",
                  std::chrono::duration<double>(taken).count()));
}

std::vector<std::string> DeviceSampler::Work::take_messages() {
  const MutexLock lock(mutex_);
  return std::exchange(messages_, {});
}

void DeviceSampler::Work::stop(bool with_last_sample) {
  MutexLock lock(mutex_);
  if (is_done_ || is_stopped_) return;
  is_stopped_ = true;
  wants_last_sample_ = with_last_sample;
  changed_.notify_all();
  if (changed_.wait_for(lock, kPatience, [this]() LEVIN_REQUIRES(mutex_) { return is_done_; })) return;
  is_abandoned_ = true;
  messages_.push_back(fmt::format("the GPUs' driver has not answered for {} s: the last device values are not logged",
                                  kPatience.count()));
}

int64_t DeviceSampler::Work::samples() {
  const MutexLock lock(mutex_);
  return samples_;
}

DeviceSampler::DeviceSampler(std::chrono::duration<double> interval, SampledDevices devices)
    : work_(std::make_shared<Work>(interval, std::move(devices))) {
  std::thread([work = work_] {
    pthread_setname_np(pthread_self(), "levin-devices");
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, nullptr);
    work->run();
  }).detach();
  quantities_ = work_->wait_for_quantities();
}

DeviceSampler::~DeviceSampler() { stop(false); }

void DeviceSampler::take(std::vector<double>& values) { work_->take(values); }
std::vector<std::string> DeviceSampler::take_messages() { return work_->take_messages(); }
void DeviceSampler::stop(bool with_last_sample) { work_->stop(with_last_sample); }
int64_t DeviceSampler::samples() const { return work_->samples(); }

}  // namespace levin
