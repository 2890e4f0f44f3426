#include <levin/core/interchange/mapped_bytes.h>

#include <levin/core/base/error.h>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <functional>

namespace levin {

MappedBytes::MappedBytes(const std::string& path) {
  const auto fail = [&](int descriptor) {
    const int code = errno;
    if (descriptor >= 0) close(descriptor);
    throw Error("weights", fmt::format("cannot read {}: {}", path, std::strerror(code)));
  };
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat status {};
  if (descriptor < 0 || fstat(descriptor, &status) != 0) fail(descriptor);
  size_ = static_cast<uint64_t>(status.st_size);
  if (size_ > 0) {
    void* const address = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, descriptor, 0);
    if (address == MAP_FAILED) fail(descriptor);
    data_ = static_cast<char*>(address);
  }
  close(descriptor);
}

MappedBytes::~MappedBytes() {
  if (data_ != nullptr) munmap(data_, size_);
}

bool MappedBytes::contains(const void* pointer) const {
  const auto* const byte = static_cast<const char*>(pointer);
  return data_ != nullptr && !std::less<>()(byte, static_cast<const char*>(data_)) &&
         std::less<>()(byte, static_cast<const char*>(data_ + size_));
}

}  // namespace levin
