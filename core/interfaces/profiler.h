#pragma once

#include <string_view>

namespace levin {

/// Sees every hook and every phase of a step begin and end; the one dispatcher calls it. Without one, nothing is
/// called.
class Profiler {
 public:
  virtual ~Profiler() = default;
  /// `name` is a string literal, valid for the life of the program.
  virtual void begin(std::string_view name) = 0;
  virtual void end(std::string_view name) = 0;
};

/// A span of a profiler that may be absent.
class ProfilerSpan {
 public:
  ProfilerSpan(Profiler* profiler, std::string_view name) : profiler_(profiler), name_(name) {
    if (profiler_ != nullptr) profiler_->begin(name_);
  }
  ~ProfilerSpan() {
    if (profiler_ != nullptr) profiler_->end(name_);
  }
  ProfilerSpan(const ProfilerSpan&) = delete;
  ProfilerSpan& operator=(const ProfilerSpan&) = delete;

 private:
  Profiler* profiler_;
  std::string_view name_;
};

}  // namespace levin
