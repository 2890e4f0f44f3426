#include <levin/core/data/mapped_file.h>

#include <levin/core/base/error.h>
#include <levin/core/base/file_system.h>

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

namespace levin::data {

MappedFile::MappedFile(const std::string& path) {
  const Descriptor file = open_regular_file(path, "data");
  struct stat status {};
  bool is_read = ::fstat(file.number(), &status) == 0;
  if (is_read && status.st_size > 0) {
    size_ = static_cast<size_t>(status.st_size);
    data_ = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.number(), 0);
    is_read = data_ != MAP_FAILED;
  }
  if (!is_read) throw Error("data", fmt::format("cannot read {}: {}", path, std::strerror(errno)));
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

}  // namespace levin::data
