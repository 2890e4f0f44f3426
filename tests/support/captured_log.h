#pragma once

#include <levin/core/base/log.h>

#include <mutex>
#include <string>

namespace levin::testing {

/// Keeps the library's messages, of all threads, for a test to look at.
class CapturedLog {
 public:
  CapturedLog() {
    log::set_sink([this](const std::string& line) {
      const std::lock_guard lock(mutex_);
      text_ += line + "\n";
    });
  }
  ~CapturedLog() { log::set_sink(nullptr); }
  CapturedLog(const CapturedLog&) = delete;
  CapturedLog& operator=(const CapturedLog&) = delete;
  std::string text() const {
    const std::lock_guard lock(mutex_);
    return text_;
  }

 private:
  mutable std::mutex mutex_;
  std::string text_;
};

}  // namespace levin::testing
