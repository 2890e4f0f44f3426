#pragma once

#include <levin/core/base/file_system.h>
#include <levin/core/base/log.h>
#include <levin/core/interfaces/logger.h>

#include <gtest/gtest.h>
#include "stand_in_server.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <string>
#include <vector>

namespace levin::testing {

/// A run's folder, and the warnings of a test.
class MlflowTest : public ::testing::Test {
 protected:
  static constexpr int kLongSeconds = 240;  ///< only a hang takes so long

  MlflowTest() {
    keep_loopback_off_proxies();
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    name_ = test->name();
    run_.directory = ::testing::TempDir() + "levin_mlflow_" + name_ + "_" + std::to_string(::getpid());
    run_.name = "version_0";
    std::filesystem::remove_all(run_.directory);
    log::set_sink([this](const std::string& line) {
      const std::lock_guard lock(mutex_);
      // Such as that the end waits, which depends on how busy the machine is.
      (line.find("warning: ") == std::string::npos ? notices_ : warnings_).push_back(line);
    });
  }
  ~MlflowTest() override {
    log::set_sink(nullptr);
    std::filesystem::remove_all(run_.directory);
  }
  std::vector<std::string> warnings() {
    const std::lock_guard lock(mutex_);
    return warnings_;
  }
  std::string all_warnings() {
    std::string text;
    for (const auto& line : warnings()) text += line + "\n";
    return text;
  }
  /// Whether what was said, and is no warning, has this in a line.
  bool has_notice(const std::string& part) {
    const std::lock_guard lock(mutex_);
    return std::ranges::any_of(notices_, [&](const std::string& line) { return line.find(part) != std::string::npos; });
  }
  std::string mlflow_path(const std::string& name) const { return run_.directory + "/mlflow/" + name; }
  bool has_unsent() const { return !FileSystem::current().list(mlflow_path("unsent")).empty(); }
  bool has_unsent_artifacts() const { return !FileSystem::current().list(mlflow_path("unsent_artifacts")).empty(); }
  /// A checkpoint of one file; its path.
  std::string write_checkpoint(const std::string& name, const std::string& content) const {
    const std::string path = run_.directory + "/checkpoints/" + name;
    std::filesystem::create_directories(path + "/part");
    std::ofstream(path + "/part/model.safetensors") << content;
    return path;
  }

  std::string name_;
  RunInfo run_;

 private:
  std::mutex mutex_;
  std::vector<std::string> warnings_;
  std::vector<std::string> notices_;
};

inline void log_one(Logger& logger, const std::string& name, double value, int64_t step) {
  const MetricValue metric{name, value};
  logger.log_metrics({&metric, 1}, step, 0);
}

}  // namespace levin::testing
