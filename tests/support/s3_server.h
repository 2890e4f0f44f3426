#pragma once

#include "../loggers/stand_in_server.h"
#include "../loggers/test_python.h"
#include "run_program.h"
#include "tests/support/tree.h"

#include <gtest/gtest.h>

#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace levin::testing {

/// The variables by which Levin finds a store of objects; unset again at the end.
class StoreVariables {
 public:
  StoreVariables() = default;
  StoreVariables(const std::string& key, const std::string& secret, const std::string& endpoint) {
    set(key, secret, endpoint);
  }
  ~StoreVariables() {
    for (const char* name : {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL"})
      unsetenv(name);
  }
  StoreVariables(const StoreVariables&) = delete;
  StoreVariables& operator=(const StoreVariables&) = delete;

  void set(const std::string& key, const std::string& secret, const std::string& endpoint) const {
    setenv("AWS_ACCESS_KEY_ID", key.c_str(), 1);
    setenv("AWS_SECRET_ACCESS_KEY", secret.c_str(), 1);
    setenv("AWS_ENDPOINT_URL", endpoint.c_str(), 1);
  }
};

/// An S3 server on loopback, and the variables by which Levin finds it; both end with this object. It checks signatures
/// and has an empty bucket named "bucket". With a port it is there, and any keys will do.
class S3Server {
 public:
  explicit S3Server(int port = 0) {
    keep_loopback_off_proxies();
    std::vector<std::string> words{test_python(), "-W", "ignore", source_path("tests/checkpoint/s3_server.py"),
                                   std::to_string(::getpid())};
    if (port != 0) words.push_back(std::to_string(port));
    program_ = std::make_unique<RunningProgram>(std::move(words), ProgramOptions{.timeout = std::chrono::seconds(300)});
    if (!program_->wait_until([this] { return program_->out().ends_with('\n'); }))
      ADD_FAILURE() << "the S3 server did not start: " << program_->err();
    std::string number;
    std::istringstream(program_->out()) >> number >> key_ >> secret_;
    endpoint_ = "http://127.0.0.1:" + number;
    use(key_, secret_);
  }

  /// Sets the variables to these keys.
  void use(const std::string& key, const std::string& secret) const { variables_.set(key, secret, endpoint_); }
  const std::string& key() const { return key_; }
  const std::string& secret() const { return secret_; }
  /// Why there can be none; empty where it can.
  static std::string missing() {
    if (const std::string moto = missing_module("moto"); !moto.empty()) return moto;
    return missing_module("flask_cors");
  }

 private:
  const StoreVariables variables_;
  std::unique_ptr<RunningProgram> program_;
  std::string endpoint_;
  std::string key_;
  std::string secret_;
};

}  // namespace levin::testing
