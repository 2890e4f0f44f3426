#pragma once

#include <string>

namespace levin {

/// A request to stop made elsewhere than on the thread that trains: on another thread, before the call has begun, or in
/// the process whose forks are the ranks. They share its memory, so that a request made there reaches those forked
/// before. Of several requests the first one stays. Thread-safe.
class PendingStop {
 public:
  /// Throws levin::Error where there is no memory.
  PendingStop();
  ~PendingStop();
  PendingStop(const PendingStop&) = delete;
  PendingStop& operator=(const PendingStop&) = delete;

  void request(const std::string& reason);
  bool is_requested() const;
  /// Returns the reason; empty without a request. A long one is cut short.
  std::string reason() const;
  void clear();

 private:
  struct Shared;
  Shared* shared_;
};

}  // namespace levin
