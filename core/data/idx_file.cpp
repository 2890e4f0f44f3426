#include <levin/core/data/idx_file.h>

#include <levin/core/base/error.h>
#include <levin/core/base/file_system.h>

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <vector>

namespace levin::data {

namespace {

constexpr uint8_t kUnsignedByte = 0x08;

/// A plain or compressed file: zlib reads both.
class InputFile {
 public:
  explicit InputFile(const std::string& path) : path_(path) {
    open_regular_file(path, "data");
    file_ = gzopen(path.c_str(), "rb");
    if (file_ == nullptr) throw Error("data", fmt::format("cannot read {}: {}", path, std::strerror(errno)));
    gzbuffer(file_, 1 << 18);
  }
  ~InputFile() { gzclose(file_); }
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  /// Up to `size` bytes; fewer where the file ends, or where its compressed data do.
  size_t read(uint8_t* data, size_t size) {
    size_t done = 0;
    while (done < size) {
      const auto piece = static_cast<unsigned>(std::min<size_t>(size - done, 1 << 24));
      const int count = gzread(file_, data + done, piece);
      if (count < 0) {
        int code = Z_OK;
        const char* message = gzerror(file_, &code);
        if (code == Z_BUF_ERROR) break;
        throw Error("data", fmt::format("cannot read {}: {}", path_, code == Z_ERRNO ? std::strerror(errno) : message));
      }
      if (count == 0) break;
      done += static_cast<size_t>(count);
    }
    return done;
  }

 private:
  std::string path_;
  gzFile file_ = nullptr;
};

int64_t big_endian(const uint8_t* bytes) {
  return int64_t{bytes[0]} << 24 | int64_t{bytes[1]} << 16 | int64_t{bytes[2]} << 8 | int64_t{bytes[3]};
}

}  // namespace

at::Tensor read_idx(const std::string& path, int64_t dimensions) {
  InputFile file(path);
  std::array<uint8_t, 4> magic{};
  if (file.read(magic.data(), magic.size()) < magic.size() || magic[0] != 0 || magic[1] != 0 ||
      magic[2] != kUnsignedByte || magic[3] != dimensions)
    throw Error(
        "data",
        fmt::format("{} is not an IDX file of bytes with {} dimension{}; it begins with {:02x} {:02x} {:02x} "
                    "{:02x}, expected 00 00 08 {:02x}",
                    path, dimensions, dimensions == 1 ? "" : "s", magic[0], magic[1], magic[2], magic[3], dimensions));

  std::vector<uint8_t> header(static_cast<size_t>(dimensions) * 4);
  const size_t header_bytes = file.read(header.data(), header.size());
  if (header_bytes < header.size())
    throw Error("data", fmt::format("{} is truncated: its header has {} bytes, expected {}", path,
                                    magic.size() + header_bytes, magic.size() + header.size()));
  std::vector<int64_t> shape;
  double promised = 1;
  double of_one = 1;  // as if no dimension were 0: a tensor's strides are products, too
  for (int64_t i = 0; i < dimensions; ++i) {
    shape.push_back(big_endian(header.data() + i * 4));
    promised *= static_cast<double>(shape.back());
    of_one *= static_cast<double>(std::max<int64_t>(shape.back(), 1));
  }
  if (of_one > 0x1p62)
    throw Error("data",
                fmt::format("{} is damaged: its header says that it has {} values", path, fmt::join(shape, " x ")));
  // Deflate compresses by 1032 at most, so a header that promises more is damaged: do not allocate what it says.
  const auto file_bytes = static_cast<double>(std::filesystem::file_size(path));
  if (promised > 1032 * file_bytes)
    throw Error("data",
                fmt::format("{} is truncated or damaged: its header promises {:.0f} bytes, which a file of {:.0f} "
                            "bytes cannot hold",
                            path, promised, file_bytes));

  at::Tensor values = at::empty(shape, at::kByte);
  const auto expected = static_cast<size_t>(values.numel());
  const size_t found = file.read(values.mutable_data_ptr<uint8_t>(), expected);
  if (found < expected)
    throw Error("data", fmt::format("{} is truncated: expected {} bytes of data after its header, found {}", path,
                                    expected, found));
  uint8_t extra = 0;
  if (file.read(&extra, 1) > 0)
    throw Error("data", fmt::format("{} is damaged: there are more than the {} bytes of data that its header promises",
                                    path, expected));
  return values;
}

std::string find_idx_file(const std::string& folder, const std::string& name, const std::string& hint) {
  for (const char* ending : {".gz", ""}) {
    const auto path = std::filesystem::path(folder) / (name + ending);
    std::error_code ignored;
    if (std::filesystem::is_regular_file(path, ignored)) return path.string();
  }
  throw Error("data",
              fmt::format("there is neither {}.gz nor {} in the folder {}; hint: {}", name, name, folder, hint));
}

}  // namespace levin::data
