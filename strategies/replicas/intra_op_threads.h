#pragma once

namespace levin {

/// Sets, while it lives, the number of threads of LibTorch's own parallel loops that the calling thread starts. Other
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
