#include <levin/core/interchange/mapped_bytes.h>

#include <levin/core/base/error.h>
#include <levin/core/base/file_system.h>

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <functional>

namespace levin {

MappedBytes::MappedBytes(const std::string& path) {
  const Descriptor file = open_regular_file(path, "weights");
  const auto fail = [&] { throw Error("weights", fmt::format("cannot read {}: {}", path, std::strerror(errno))); };
  struct stat status {};
  if (fstat(file.number(), &status) != 0) fail();
  size_ = static_cast<uint64_t>(status.st_size);
  if (size_ == 0) return;
  void* const address = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, file.number(), 0);
  if (address == MAP_FAILED) fail();
  data_ = static_cast<char*>(address);
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
