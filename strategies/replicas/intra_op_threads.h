#pragma once

namespace levin {

/// While it lives, LibTorch's own parallel loops use this many threads where the calling thread starts them. Other
/// threads keep their number.
class [[nodiscard]] IntraOpThreadsScope {
 public:
  explicit IntraOpThreadsScope(int threads);
  ~IntraOpThreadsScope();
  IntraOpThreadsScope(const IntraOpThreadsScope&) = delete;
  IntraOpThreadsScope& operator=(const IntraOpThreadsScope&) = delete;

 private:
  int previous_;
};

}  // namespace levin
