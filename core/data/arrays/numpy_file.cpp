#include <levin/core/data/arrays/numpy_file.h>

#include <levin/core/base/error.h>
#include <levin/core/base/file_system.h>
#include <levin/core/base/shape_bytes.h>
#include <levin/core/data/mapped_file.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <minizip/unzip.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace levin::data {

namespace {

[[noreturn]] void fail_numpy(const std::string& name, std::string_view what) {
  throw Error("data", fmt::format("cannot read the array {}: {}", name, what));
}

/// What the header of a .npy file says.
struct ArrayHeader {
  at::ScalarType type = at::kFloat;
  bool fortran_order = false;
  std::vector<int64_t> shape = {};
  size_t begin = 0;  ///< of the values
  size_t bytes = 0;  ///< of the values
};

constexpr std::array<std::pair<std::string_view, at::ScalarType>, 14> kTypes{{{"b1", at::kBool},
                                                                              {"u1", at::kByte},
                                                                              {"i1", at::kChar},
                                                                              {"i2", at::kShort},
                                                                              {"i4", at::kInt},
                                                                              {"i8", at::kLong},
                                                                              {"u2", at::kUInt16},
                                                                              {"u4", at::kUInt32},
                                                                              {"u8", at::kUInt64},
                                                                              {"f2", at::kHalf},
                                                                              {"f4", at::kFloat},
                                                                              {"f8", at::kDouble},
                                                                              {"c8", at::kComplexFloat},
                                                                              {"c16", at::kComplexDouble}}};

at::ScalarType to_scalar_type(std::string_view descr, const std::string& name) {
  const std::string_view kind = descr.empty() ? descr : descr.substr(1);
  for (const auto& [word, type] : kTypes)
    if (kind == word && (descr.front() == '<' || descr.front() == '|' || descr.front() == '=')) return type;
  if (descr.starts_with('>'))
    fail_numpy(name, fmt::format("its values '{}' are in the byte order of other machines; hint: save "
                                 "array.astype(array.dtype.newbyteorder('<'))",
                                 descr));
  fail_numpy(name,
             fmt::format("no tensor has values of the type '{}'; valid: booleans, whole, real and complex numbers",
                         descr.substr(0, 60)));
}

/// Reads the Python literal that a header is: {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }
class HeaderText {
 public:
  HeaderText(std::string_view text, const std::string& name) : text_(text), name_(name) {}

  ArrayHeader parse() {
    ArrayHeader header;
    bool has_descr = false;
    bool has_order = false;
    bool has_shape = false;
    expect('{');
    while (!accept('}')) {
      const std::string_view key = quoted();
      expect(':');
      if (key == "descr") {
        skip_spaces();
        if (!text_.empty() && text_.front() == '[') fail_numpy(name_, "its values are records; valid: numbers");
        header.type = to_scalar_type(quoted(), name_);
        has_descr = true;
      } else if (key == "fortran_order") {
        header.fortran_order = boolean();
        has_order = true;
      } else if (key == "shape") {
        header.shape = numbers();
        has_shape = true;
      } else {
        fail();
      }
      if (!accept(',')) {
        expect('}');
        break;
      }
    }
    skip_spaces();
    if (!text_.empty() || !has_descr || !has_order || !has_shape) fail();
    return header;
  }

 private:
  [[noreturn]] void fail() const { fail_numpy(name_, "its header is damaged"); }
  void skip_spaces() {
    while (!text_.empty() && (text_.front() == ' ' || text_.front() == '\n')) text_.remove_prefix(1);
  }
  bool accept(char letter) {
    skip_spaces();
    if (text_.empty() || text_.front() != letter) return false;
    text_.remove_prefix(1);
    return true;
  }
  void expect(char letter) {
    if (!accept(letter)) fail();
  }
  std::string_view quoted() {
    skip_spaces();
    if (text_.empty() || (text_.front() != '\'' && text_.front() != '"')) fail();
    const size_t end = text_.find(text_.front(), 1);
    if (end == std::string_view::npos) fail();
    const std::string_view word = text_.substr(1, end - 1);
    text_.remove_prefix(end + 1);
    return word;
  }
  bool boolean() {
    skip_spaces();
    for (const auto& [word, value] : {std::pair<std::string_view, bool>{"True", true}, {"False", false}})
      if (text_.starts_with(word)) {
        text_.remove_prefix(word.size());
        return value;
      }
    fail();
  }
  std::vector<int64_t> numbers() {
    std::vector<int64_t> values;
    expect('(');
    while (!accept(')')) {
      skip_spaces();
      int64_t value = 0;
      const auto [end, error] = std::from_chars(text_.data(), text_.data() + text_.size(), value);
      if (error != std::errc() || value < 0) fail();
      text_.remove_prefix(static_cast<size_t>(end - text_.data()));
      values.push_back(value);
      if (!accept(',')) {
        expect(')');
        break;
      }
    }
    return values;
  }

  std::string_view text_;
  const std::string& name_;
};

ArrayHeader parse_header(std::string_view bytes, const std::string& name) {
  constexpr std::string_view kMagic = "\x93NUMPY";
  if (!bytes.starts_with(kMagic)) fail_numpy(name, "it is no .npy file");
  const auto byte = [&](size_t place) -> size_t {
    if (place >= bytes.size()) fail_numpy(name, "it is cut short");
    return static_cast<unsigned char>(bytes[place]);
  };
  const size_t version = byte(6);
  if (version < 1 || version > 3)
    fail_numpy(name, fmt::format("it has version {} of the format; valid: 1 to 3", version));
  const size_t begin = version == 1 ? 10 : 12;
  size_t length = byte(8) | byte(9) << 8;
  if (version > 1) length |= byte(10) << 16 | byte(11) << 24;
  if (begin + length > bytes.size()) fail_numpy(name, "it is cut short");
  ArrayHeader header = HeaderText(bytes.substr(begin, length), name).parse();
  header.begin = begin + length;
  constexpr size_t kMostDimensions = 64;  // of NumPy
  if (header.shape.size() > kMostDimensions)
    fail_numpy(name, fmt::format("its header promises {} dimensions; valid: at most {}", header.shape.size(),
                                 kMostDimensions));
  const auto promised = bytes_of_shape(header.shape, c10::elementSize(header.type));
  if (!promised) fail_numpy(name, "its header promises more values than memory can hold");
  header.bytes = *promised;
  const size_t found = bytes.size() - header.begin;
  if (found < header.bytes)
    fail_numpy(name, fmt::format("it is cut short: {} bytes of values, expected {}", found, header.bytes));
  if (found > header.bytes)
    fail_numpy(name, fmt::format("{} bytes follow the values that its header promises", found - header.bytes));
  return header;
}

at::Tensor copy_values(std::string_view bytes, const ArrayHeader& header) {
  std::vector<int64_t> shape = header.shape;
  if (header.fortran_order) std::reverse(shape.begin(), shape.end());
  at::Tensor values = at::empty(shape, at::TensorOptions().dtype(header.type));
  if (header.bytes > 0) std::memcpy(values.mutable_data_ptr(), bytes.data() + header.begin, header.bytes);
  if (header.type == at::kBool) {
    // Other bytes than 0 and 1 would be neither true nor false.
    auto* truths = static_cast<uint8_t*>(values.mutable_data_ptr());
    for (size_t i = 0; i < header.bytes; ++i) truths[i] = truths[i] != 0 ? 1 : 0;
  }
  if (!header.fortran_order) return values;
  std::vector<int64_t> reversed(shape.size());
  for (size_t i = 0; i < reversed.size(); ++i) reversed[i] = static_cast<int64_t>(reversed.size() - 1 - i);
  return values.permute(reversed).contiguous();
}

/// An open .npz file, which is a zip archive of .npy files.
class ZipFile {
 public:
  explicit ZipFile(const std::string& path) : path_(path) {
    struct stat status {};
    if (::fstat(open_regular_file(path, "data").number(), &status) != 0) fail_numpy(path, std::strerror(errno));
    left_ = static_cast<uint64_t>(status.st_size);
    archive_ = unzOpen64(path.c_str());
    if (archive_ == nullptr) fail_numpy(path, "it is cut short, or no .npz file");
  }
  ~ZipFile() { unzClose(archive_); }
  ZipFile(const ZipFile&) = delete;
  ZipFile& operator=(const ZipFile&) = delete;

  /// The next file in it, name and content.
  std::optional<std::pair<std::string, std::string>> next() {
    const int found = is_first_ ? unzGoToFirstFile(archive_) : unzGoToNextFile(archive_);
    if (found == UNZ_END_OF_LIST_OF_FILE) return std::nullopt;
    is_first_ = false;
    unz_file_info64 info{};
    std::array<char, 1024> name{};
    if (found != UNZ_OK ||
        unzGetCurrentFileInfo64(archive_, &info, name.data(), name.size() - 1, nullptr, 0, nullptr, 0) != UNZ_OK)
      fail_numpy(path_, "its list of arrays is damaged");
    const std::string whole = fmt::format("{} in {}", name.data(), path_);
    // Each byte of the file is one array's, so that all of them are not larger than the file can be.
    if (info.compressed_size > left_)
      fail_numpy(whole, "it is damaged: the arrays have more bytes together than the file, or overlap");
    left_ -= info.compressed_size;
    // Deflate compresses by 1032 at most: do not allocate what a damaged header says.
    if (info.uncompressed_size > 1032 * info.compressed_size + 1024)
      fail_numpy(whole, "it is damaged: it promises more bytes than its compressed ones can be");
    if (unzOpenCurrentFile(archive_) != UNZ_OK)
      fail_numpy(whole, "it is damaged, or compressed in another way than NumPy does");
    std::string bytes(info.uncompressed_size, '\0');
    size_t filled = 0;
    while (filled < bytes.size()) {
      const auto piece = static_cast<unsigned>(std::min<size_t>(bytes.size() - filled, size_t{1} << 24));
      const int count = unzReadCurrentFile(archive_, bytes.data() + filled, piece);
      if (count <= 0) fail_numpy(whole, "it is damaged or cut short");
      filled += static_cast<size_t>(count);
    }
    char extra = 0;
    const bool has_more = unzReadCurrentFile(archive_, &extra, 1) != 0;
    if (unzCloseCurrentFile(archive_) != UNZ_OK || has_more) fail_numpy(whole, "it is damaged: its checksum differs");
    return std::pair(std::string(name.data()), std::move(bytes));
  }

 private:
  std::string path_;
  unzFile archive_ = nullptr;
  bool is_first_ = true;
  uint64_t left_ = 0;  ///< bytes of the file that no array has had yet
};

}  // namespace

at::Tensor parse_npy(std::string_view bytes, const std::string& name) {
  return copy_values(bytes, parse_header(bytes, name));
}

at::Tensor read_npy(const std::string& path) { return parse_npy(MappedFile(path).text(), path); }

at::Tensor map_npy(const std::string& path) {
  auto file = std::make_shared<MappedFile>(path);
  const std::string_view bytes = file->text();
  const ArrayHeader header = parse_header(bytes, path);
  const bool is_aligned = header.begin % c10::elementSize(header.type) == 0;
  if (header.fortran_order || header.type == at::kBool || header.bytes == 0 || !is_aligned)
    return copy_values(bytes, header);
  return at::from_blob(
      const_cast<char*>(bytes.data()) + header.begin, header.shape, [file](void*) {},
      at::TensorOptions().dtype(header.type));
}

std::string npy_bytes(const at::Tensor& tensor) {
  // NumPy has no type of 16 bits like bfloat16, nor any of 8.
  const bool is_known =
      std::ranges::any_of(kTypes, [&](const auto& type) { return type.second == tensor.scalar_type(); });
  const at::Tensor values =
      (is_known ? tensor : tensor.to(at::kFloat)).detach().to(at::kCPU).resolve_conj().contiguous();
  const auto* const type =
      std::ranges::find_if(kTypes, [&](const auto& candidate) { return candidate.second == values.scalar_type(); });
  std::string header = fmt::format(
      "{{'descr': '{}{}', 'fortran_order': False, 'shape': ({}{}), }}", values.element_size() == 1 ? '|' : '<',
      type->first, fmt::join(values.sizes().begin(), values.sizes().end(), ", "), values.dim() == 1 ? "," : "");
  constexpr std::string_view kStart("\x93NUMPY\x01\x00", 8);
  constexpr size_t kAlignment = 64;
  const size_t before = kStart.size() + sizeof(uint16_t) + 1;
  header.append(kAlignment - (before + header.size()) % kAlignment, ' ');
  header += '\n';
  const auto length = static_cast<uint16_t>(header.size());
  std::string bytes(kStart);
  bytes.append(reinterpret_cast<const char*>(&length), sizeof(length));
  bytes += header;
  bytes.append(static_cast<const char*>(values.const_data_ptr()), values.nbytes());
  return bytes;
}

Batch read_npz(const std::string& path) {
  ZipFile archive(path);
  Batch arrays;
  while (auto member = archive.next()) {
    auto& [name, bytes] = *member;
    const std::string whole = fmt::format("{} in {}", name, path);
    if (!name.ends_with(".npy")) fail_numpy(whole, "it is no .npy file");
    name.resize(name.size() - 4);
    if (arrays.find(name) != nullptr) fail_numpy(whole, "two arrays have this name");
    arrays.set(name, parse_npy(bytes, whole));
  }
  if (arrays.empty()) fail_numpy(path, "it has no arrays");
  return arrays;
}

}  // namespace levin::data
