#include <levin/core/checkpoint/input_file.h>

#include <levin/core/base/error.h>
#include <levin/core/base/file_system.h>

#include <fmt/format.h>

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

namespace levin {
namespace {

[[noreturn]] void throw_cannot_read(const std::string& path, int error) {
  throw Error("checkpoint", fmt::format("cannot read {}: {}", path, std::generic_category().message(error)));
}

}  // namespace

InputFile::InputFile(const std::string& path) : path_(path), descriptor_(open_regular_file(path, "checkpoint")) {
  struct stat status {};
  if (::fstat(descriptor_.number(), &status) != 0) throw_cannot_read(path, errno);
  size_ = static_cast<uint64_t>(status.st_size);
}

void InputFile::read(uint64_t offset, void* data, size_t size) const {
  // Linux transfers at most about 2 GiB a call.
  constexpr size_t kLargestRead = size_t{1} << 30;
  auto* target = static_cast<char*>(data);
  while (size > 0) {
    const ssize_t count =
        ::pread(descriptor_.number(), target, std::min(size, kLargestRead), static_cast<off_t>(offset));
    if (count < 0) {
      if (errno == EINTR) continue;
      throw_cannot_read(path_, errno);
    }
    if (count == 0)
      throw Error("checkpoint",
                  fmt::format("{} is truncated; got {} bytes; valid: at least {}", path_, size_, offset + size));
    target += count;
    offset += static_cast<uint64_t>(count);
    size -= static_cast<size_t>(count);
  }
}

}  // namespace levin
