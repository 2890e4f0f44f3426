#pragma once

#include <levin/core/base/error.h>
#include <levin/core/base/mutex.h>
#include <levin/strategies/comm/store_server.h>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace levin {

/// What a StoreServer's clients need to reach it.
struct StoreAddress {
  std::string host;
  int64_t port = 0;
  std::string secret;  ///< of the job; see job_secret
};

/// Why a store cannot be used, which no further attempt will change: the two sides have different secrets, or what
/// answers is something else.
class WrongSecretError : public Error {
 public:
  using Error::Error;
};

/// A connection to a StoreServer, as a store for c10d. Both sides have proven that they know the secret before any key
/// is sent. One call at a time uses the connection; a clone has one of its own. Waits ask the server again and again,
/// at growing intervals of up to 0.1 s. Errors are c10::DistNetworkError, time-outs of waits c10::DistStoreError.
class ProtectedStore final : public c10d::Store {
 public:
  /// Connects within `patience`; nullptr where nobody answered in that time. `timeout`: of waits. `server`: kept as
  /// long as this store and its clones; the one that is connected to, where this process serves it. Throws
  /// WrongSecretError.
  static c10::intrusive_ptr<ProtectedStore> connect(const StoreAddress& address, std::chrono::milliseconds patience,
                                                    std::chrono::milliseconds timeout,
                                                    std::shared_ptr<StoreServer> server = nullptr);

  c10::intrusive_ptr<c10d::Store> clone() override;
  void set(const std::string& key, const std::vector<uint8_t>& value) override;
  std::vector<uint8_t> compareSet(const std::string& key, const std::vector<uint8_t>& expected,
                                  const std::vector<uint8_t>& desired) override;
  std::vector<uint8_t> get(const std::string& key) override;
  int64_t add(const std::string& key, int64_t amount) override;
  bool deleteKey(const std::string& key) override;
  bool check(const std::vector<std::string>& keys) override;
  int64_t getNumKeys() override;
  void wait(const std::vector<std::string>& keys) override { wait(keys, getTimeout()); }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override;
  void append(const std::string& key, const std::vector<uint8_t>& value) override;
  std::vector<std::vector<uint8_t>> multiGet(const std::vector<std::string>& keys) override;
  void multiSet(const std::vector<std::string>& keys, const std::vector<std::vector<uint8_t>>& values) override;
  bool hasExtendedApi() const override { return true; }
  std::vector<std::string> listKeys() override;

  ProtectedStore(StoreAddress address, Descriptor socket, std::chrono::milliseconds timeout,
                 std::shared_ptr<StoreServer> server);

 private:
  /// Sends a request and returns the answer; throws where the server refused it or is gone.
  std::string ask(std::string_view request);

  const StoreAddress address_;
  const std::shared_ptr<StoreServer> server_;
  Mutex mutex_;
  Descriptor socket_ LEVIN_GUARDED_BY(mutex_);
};

}  // namespace levin
