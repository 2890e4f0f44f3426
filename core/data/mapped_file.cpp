#include <levin/core/data/mapped_file.h>

#include <levin/core/base/error.h>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace levin::data {

MappedFile::MappedFile(const std::string& path) {
  const auto fail = [&](int code) {
    return Error("data", fmt::format("cannot read {}: {}", path, std::strerror(code)));
  };
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) throw fail(errno);
  struct stat status {};
  int code = ::fstat(file, &status) < 0 ? errno : 0;
  if (code == 0 && !S_ISREG(status.st_mode)) code = S_ISDIR(status.st_mode) ? EISDIR : EINVAL;
  if (code == 0 && status.st_size > 0) {
    size_ = static_cast<size_t>(status.st_size);
    data_ = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file, 0);
    if (data_ == MAP_FAILED) code = errno;
  }
  ::close(file);
  if (code != 0) throw fail(code);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

}  // namespace levin::data
