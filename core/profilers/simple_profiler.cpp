#include <levin/core/profilers/simple_profiler.h>

#include <levin/core/base/log.h>
#include <levin/core/profilers/profile_file.h>

#include <fmt/format.h>

#include <algorithm>
#include <atomic>

namespace levin {
namespace {

double seconds(std::chrono::nanoseconds time) { return std::chrono::duration<double>(time).count(); }

}  // namespace

void SimpleProfilerOptions::describe(Schema<SimpleProfilerOptions>& schema) {
  schema.field("units", &SimpleProfilerOptions::units, "also time the forward of each unit");
  schema
      .field("least_percent", &SimpleProfilerOptions::least_percent,
             "smallest share of the time shown on the console (%)")
      .at_least(0)
      .at_most(100);
}

SimpleProfiler::SimpleProfiler(const Options& options) : options_(options) {}

SimpleProfiler::~SimpleProfiler() = default;

void SimpleProfiler::start(const ProfiledCall& call) {
  static std::atomic<uint64_t> last_serial{0};
  units_.detach();
  call_ = call;
  {
    const MutexLock lock(mutex_);
    others_.clear();
    serial_ = ++last_serial;
  }
  own_ = SpanTimes();
  rank_thread_ = std::this_thread::get_id();
  running_ = true;
  started_ = SpanTimes::Clock::now();
}

void SimpleProfiler::on_model_ready(torch::nn::Module& module) {
  if (!options_.units) return;
  units_.find(module);
  units_.attach();
}

SpanTimes& SimpleProfiler::times_of_other_thread() {
  thread_local uint64_t known_serial = 0;
  thread_local SpanTimes* known = nullptr;
  if (known_serial != serial_) {
    const MutexLock lock(mutex_);
    known = &others_[std::this_thread::get_id()];
    known_serial = serial_;
  }
  return *known;
}

void SimpleProfiler::finish() {
  units_.detach();
  if (!running_) return;
  whole_ = SpanTimes::Clock::now() - started_;
  summary_ = summary();
  running_ = false;
  const std::string path =
      call_.directory.empty()
          ? ""
          : write_profile(call_.directory, fmt::format("profile_{}_rank{}", to_string(call_.stage), call_.rank), ".txt",
                          table());
  if (call_.rank > 0) return;
  const std::string whole_table = path.empty() ? "" : fmt::format("\nall of it is in {}", path);
  log::info(table(options_.least_percent) + whole_table);
}

std::vector<SpanTime> SimpleProfiler::summary() const {
  if (!running_) return summary_;
  const MutexLock lock(mutex_);
  std::vector<const SpanTimes*> threads = {&own_};
  for (const auto& [thread, times] : others_) threads.push_back(&times);
  return SpanTimes::merged(threads);
}

std::string SimpleProfiler::table(double least_percent) const {
  const std::vector<SpanTime> times = summary();
  const double whole = seconds(running_ ? SpanTimes::Clock::now() - started_ : whole_);
  const auto percent = [whole](std::chrono::nanoseconds time) { return whole == 0 ? 0 : 100 * seconds(time) / whole; };
  size_t width = 4;
  for (const SpanTime& time : times)
    if (percent(time.total) >= least_percent) width = std::max(width, time.name.size());
  std::string text =
      fmt::format("profile of {}, rank {}: {:.3f} s on the host\n", to_string(call_.stage), call_.rank, whole);
  text += fmt::format("{:<{}}  {:>9}  {:>11}  {:>7}  {:>11}  {:>11}  {:>7}\n", "span", width, "calls", "total s",
                      "total %", "mean ms", "self s", "self %");
  size_t left_out = 0;
  for (const SpanTime& time : times) {
    if (time.calls == 0 || percent(time.total) < least_percent) {
      ++left_out;
      continue;
    }
    text += fmt::format("{:<{}}  {:>9}  {:>11.6f}  {:>7.2f}  {:>11.6f}  {:>11.6f}  {:>7.2f}\n", time.name, width,
                        time.calls, seconds(time.total), percent(time.total),
                        1e3 * seconds(time.total) / static_cast<double>(time.calls), seconds(time.self),
                        percent(time.self));
  }
  if (left_out > 0) text += fmt::format("({} spans of less than {} % left out)\n", left_out, least_percent);
  text.pop_back();
  return text;
}

}  // namespace levin
