#pragma once

#include <levin/core/comm/collective.h>

#include <c10/util/intrusive_ptr.h>

namespace c10d {
class Store;
}

namespace levin {

/// A store of c10d. A TCP store's `get` blocks every other call on the same connection until it is over: helper threads
/// use a clone.
class C10dStore : public Store {
 public:
  explicit C10dStore(c10::intrusive_ptr<c10d::Store> store);
  ~C10dStore() override;

  void set(const std::string& key, const std::string& value) override;
  std::string get(const std::string& key, std::chrono::milliseconds timeout) override;
  int64_t add(const std::string& key, int64_t amount) override;
  bool contains(const std::string& key) override;
  std::unique_ptr<Store> clone() const override;

 private:
  c10::intrusive_ptr<c10d::Store> store_;
};

}  // namespace levin
