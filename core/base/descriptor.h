#pragma once

#include <levin/core/base/error.h>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

namespace levin {

/// An open file descriptor that is closed with this object.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor() { close(); }
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }

  /// The descriptor's number; -1 when there is none.
  int number() const { return number_; }
  bool is_open() const { return number_ >= 0; }
  /// Lets go without closing.
  int release() { return std::exchange(number_, -1); }
  void close() {
    if (is_open()) ::close(release());
  }

 private:
  int number_ = -1;
};

/// A pipe: what is written into one end is read from the other.
struct Pipe {
  Descriptor read_end;
  Descriptor write_end;
};

/// Makes a pipe that programs started by this process do not inherit.
inline Pipe make_pipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0)
    throw Error("process", fmt::format("cannot make a pipe: {}; hint: `ulimit -n` limits the open files of a process",
                                       std::generic_category().message(errno)));
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

}  // namespace levin
