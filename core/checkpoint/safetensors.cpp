#include <levin/core/checkpoint/safetensors.h>

#include <levin/core/base/error.h>
#include <levin/core/base/file_system.h>
#include <levin/core/base/shape_bytes.h>

#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/ScalarType.h>
#include <c10/util/accumulate.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <optional>
#include <set>

namespace levin {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian");

using Json = nlohmann::json;

constexpr uint64_t kLengthBytes = 8;
/// A line of the processor's cache. Reading from the page cache is 7 % faster where both sides begin at one.
constexpr uint64_t kAlignment = 64;
/// The reference implementation reads no longer header.
constexpr uint64_t kLongestHeader = 100'000'000;
constexpr const char* kMetadataKey = "__metadata__";

struct TypeName {
  const char* name;
  at::ScalarType type;
};

constexpr std::array kTypes{
    TypeName{"F64", at::kDouble},
    TypeName{"F32", at::kFloat},
    TypeName{"F16", at::kHalf},
    TypeName{"BF16", at::kBFloat16},
    TypeName{"F8_E4M3", at::kFloat8_e4m3fn},
    TypeName{"F8_E5M2", at::kFloat8_e5m2},
    TypeName{"I64", at::kLong},
    TypeName{"I32", at::kInt},
    TypeName{"I16", at::kShort},
    TypeName{"I8", at::kChar},
    TypeName{"U64", at::kUInt64},
    TypeName{"U32", at::kUInt32},
    TypeName{"U16", at::kUInt16},
    TypeName{"U8", at::kByte},
    TypeName{"BOOL", at::kBool},
    TypeName{"C64", at::kComplexFloat},
};

std::string valid_types() {
  std::vector<std::string> names;
  for (const auto& type : kTypes) names.emplace_back(type.name);
  return join(names);
}

std::string quoted(const std::string& text) {
  try {
    return Json(text).dump();
  } catch (const Json::type_error&) {
    throw Error("checkpoint", "cannot save a tensor whose name is not UTF-8 text");
  }
}

constexpr int64_t kCopyBuffer = int64_t{16} << 20;

at::ScalarType dtype_of(const TensorLeaf& leaf) {
  return leaf.saved != nullptr ? leaf.saved->dtype() : leaf.value.scalar_type();
}

at::IntArrayRef shape_of(const TensorLeaf& leaf) {
  return leaf.saved != nullptr ? at::IntArrayRef(leaf.saved->shape()) : leaf.value.sizes();
}

/// The tensor's elements in row-major order in host memory; the tensor itself where it is so already.
at::Tensor row_major(const at::Tensor& tensor) {
  return tensor.detach().to(at::kCPU).resolve_conj().resolve_neg().contiguous();
}

void check_writable(const std::string& name, const TensorLeaf& leaf) {
  if (name == kMetadataKey)
    throw Error("checkpoint", fmt::format("cannot save a tensor of the name '{}', which safetensors reserves", name));
  if (leaf.saved != nullptr) return;
  const at::Tensor& tensor = leaf.value;
  if (!tensor.defined() || tensor.layout() != at::kStrided || tensor.is_quantized())
    throw Error("checkpoint", fmt::format("cannot save tensor '{}'; got {}; valid: a dense tensor", name,
                                          tensor.defined() ? "a sparse or quantized tensor" : "an undefined tensor"));
  const bool known = std::any_of(kTypes.begin(), kTypes.end(),
                                 [&](const TypeName& candidate) { return candidate.type == tensor.scalar_type(); });
  if (!known)
    throw Error("checkpoint", fmt::format("cannot save tensor '{}'; got element type {}; valid: {}", name,
                                          c10::toString(tensor.scalar_type()), valid_types()));
}

std::string header_of(const std::vector<const NamedLeaf*>& tensors,
                      const std::map<std::string, std::string>& metadata) {
  std::string header = "{";
  if (!metadata.empty()) {
    header += fmt::format("\"{}\":{{", kMetadataKey);
    for (const auto& [key, value] : metadata)
      header += fmt::format("{}{}:{}", header.back() == '{' ? "" : ",", quoted(key), quoted(value));
    header += "}";
  }
  uint64_t offset = 0;
  for (const auto* item : tensors) {
    const auto& [name, leaf] = *item;
    const at::IntArrayRef shape = shape_of(leaf);
    const uint64_t end =
        offset + static_cast<uint64_t>(c10::multiply_integers(shape)) * c10::elementSize(dtype_of(leaf));
    header += fmt::format("{}{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}",
                          header.size() == 1 ? "" : ",", quoted(name), safetensors_type_name(dtype_of(leaf)),
                          fmt::join(shape.begin(), shape.end(), ","), offset, end);
    offset = end;
  }
  header += "}";
  header.resize((kLengthBytes + header.size() + kAlignment - 1) / kAlignment * kAlignment - kLengthBytes, ' ');
  return header;
}

uint64_t unsigned_of(const Json& value) {
  if (!value.is_number_unsigned()) throw Json::other_error::create(501, "expected a whole number", &value);
  return value.get<uint64_t>();
}

void append_elements(WritableFile& file, const TensorLeaf& leaf) {
  if (leaf.saved == nullptr) {
    const at::Tensor source = row_major(leaf.value);
    file.append(source.const_data_ptr(), source.nbytes());
    return;
  }
  const int64_t count = c10::multiply_integers(leaf.saved->shape());
  const int64_t step = kCopyBuffer / static_cast<int64_t>(c10::elementSize(leaf.saved->dtype()));
  const at::Tensor buffer = at::empty({std::min(count, step)}, leaf.saved->dtype());
  for (int64_t offset = 0; offset < count; offset += step) {
    const at::Tensor part = buffer.narrow(0, 0, std::min(step, count - offset));
    leaf.saved->read(offset, part);
    file.append(part.const_data_ptr(), part.nbytes());
  }
}

[[noreturn]] void throw_not_safetensors(const std::string& path, std::string_view what) {
  throw Error("checkpoint", fmt::format("{} is not a whole safetensors file; got {}", path, what));
}

}  // namespace

const char* safetensors_type_name(at::ScalarType type) {
  for (const auto& candidate : kTypes)
    if (candidate.type == type) return candidate.name;
  throw Error("checkpoint",
              fmt::format("safetensors has no element type {}; valid: {}", c10::toString(type), valid_types()));
}

std::optional<at::ScalarType> safetensors_type(std::string_view name) {
  for (const auto& candidate : kTypes)
    if (candidate.name == name) return candidate.type;
  return {};
}

void check_fits_safetensors(const std::string& name, const at::Tensor& tensor) {
  check_writable(name, TensorLeaf{tensor});
  quoted(name);
}

void write_safetensors(WritableFile& file, const std::vector<NamedTensor>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  std::vector<NamedLeaf> leaves;
  for (const auto& [name, tensor] : tensors) leaves.emplace_back(name, TensorLeaf{tensor});
  write_safetensors(file, leaves, metadata);
}

void write_safetensors(WritableFile& file, const std::vector<NamedLeaf>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  std::set<std::string_view> names;
  std::vector<const NamedLeaf*> order;
  for (const auto& item : tensors) {
    check_writable(item.first, item.second);
    if (!names.insert(item.first).second)
      throw Error("checkpoint", fmt::format("cannot save two tensors of the name '{}' in one file", item.first));
    order.push_back(&item);
  }
  const auto rank = [](const NamedLeaf* item) {
    const size_t width = c10::elementSize(dtype_of(item->second));
    const uint64_t bytes = static_cast<uint64_t>(c10::multiply_integers(shape_of(item->second))) * width;
    return std::pair(bytes % kAlignment != 0, ~width);
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](const NamedLeaf* a, const NamedLeaf* b) { return rank(a) < rank(b); });

  const std::string header = header_of(order, metadata);
  if (header.size() > kLongestHeader)
    throw Error("checkpoint",
                fmt::format("cannot save {} tensors in one file; got a header of {} bytes; valid: at most "
                            "{} bytes",
                            tensors.size(), header.size(), kLongestHeader));
  const uint64_t length = header.size();
  file.append(&length, sizeof(length));
  file.append(header);
  for (const auto* item : order) append_elements(file, item->second);
}

SafetensorsFile::SafetensorsFile(const std::string& path) : file_(path) {
  if (file_.size() < kLengthBytes)
    throw_not_safetensors(path, fmt::format("{} bytes, too few for the header's length", file_.size()));
  uint64_t length = 0;
  file_.read(0, &length, sizeof(length));
  if (length > kLongestHeader || length > file_.size() - kLengthBytes)
    throw_not_safetensors(path, fmt::format("a header of {} bytes in a file of {} bytes", length, file_.size()));
  data_start_ = kLengthBytes + length;
  std::string header(length, '\0');
  file_.read(kLengthBytes, header.data(), header.size());
  try {
    parse_header(header);
  } catch (const Json::exception& error) {
    throw_not_safetensors(path, fmt::format("a header that cannot be understood ({})", error.what()));
  }
  check_layout();
}

void SafetensorsFile::parse_header(const std::string& header) {
  const Json tree = Json::parse(header);
  if (!tree.is_object()) throw_not_safetensors(file_.path(), "a header that is no JSON object");
  for (const auto& [name, value] : tree.items()) {
    if (name == kMetadataKey) {
      metadata_ = value.get<std::map<std::string, std::string>>();
      continue;
    }
    const auto& type_name = value.at("dtype").get_ref<const std::string&>();
    const auto type = safetensors_type(type_name);
    if (!type)
      throw Error("checkpoint", fmt::format("{} holds tensor '{}' of an unknown element type; got {}; valid: {}",
                                            file_.path(), name, type_name, valid_types()));
    Entry entry{*type, {}, 0, 0};
    for (const auto& size : value.at("shape")) {
      const uint64_t number = unsigned_of(size);
      if (number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
        throw_not_safetensors(file_.path(), fmt::format("tensor '{}' of a size beyond all memory", name));
      entry.shape.push_back(static_cast<int64_t>(number));
    }
    const Json& offsets = value.at("data_offsets");
    if (!offsets.is_array() || offsets.size() != 2)
      throw_not_safetensors(file_.path(), fmt::format("tensor '{}' without two offsets", name));
    entry.begin = unsigned_of(offsets[0]);
    entry.end = unsigned_of(offsets[1]);
    const auto bytes = bytes_of_shape(entry.shape, c10::elementSize(entry.type));
    if (entry.begin > entry.end || bytes != entry.end - entry.begin)
      throw_not_safetensors(file_.path(), fmt::format("tensor '{}' of shape [{}] and type {} at bytes {} to {}", name,
                                                      fmt::join(entry.shape, ", "), type_name, entry.begin, entry.end));
    entries_.emplace(name, std::move(entry));
  }
}

void SafetensorsFile::check_layout() {
  for (const auto& [name, entry] : entries_) names_.push_back(name);
  std::stable_sort(names_.begin(), names_.end(), [this](const std::string& a, const std::string& b) {
    const Entry& first = entries_.at(a);
    const Entry& second = entries_.at(b);
    return std::pair(first.begin, first.end) < std::pair(second.begin, second.end);
  });
  uint64_t end = 0;
  for (const auto& name : names_) {
    const Entry& entry = entries_.at(name);
    if (entry.begin != end)
      throw_not_safetensors(file_.path(), fmt::format("{} before tensor '{}' at byte {} of the data",
                                                      entry.begin < end ? "an overlap" : "a gap", name, entry.begin));
    end = entry.end;
  }
  const uint64_t available = file_.size() - data_start_;
  if (end != available)
    throw_not_safetensors(file_.path(), fmt::format("{} bytes of data where the header says {}", available, end));
}

const SafetensorsFile::Entry& SafetensorsFile::entry(std::string_view name) const {
  const auto found = entries_.find(name);
  if (found != entries_.end()) return found->second;
  const std::string nearest = nearest_name(name, names_);
  throw Error("checkpoint", fmt::format("{} holds no tensor '{}'{}", file_.path(), name,
                                        nearest.empty() ? "" : fmt::format("; did you mean '{}'?", nearest)));
}

at::Tensor SafetensorsFile::read(std::string_view name) const {
  const Entry& found = entry(name);
  // Tensors made under inference mode could not be updated in place later.
  const c10::InferenceMode guard(false);
  at::Tensor tensor = at::empty(found.shape, at::TensorOptions(found.type));
  file_.read(data_start_ + found.begin, tensor.mutable_data_ptr(), found.end - found.begin);
  return tensor;
}

void SafetensorsFile::read_elements(std::string_view name, int64_t offset, at::Tensor target) const {
  const Entry& found = entry(name);
  LEVIN_CHECK(target.is_cpu() && target.is_contiguous() && target.scalar_type() == found.type,
              "elements are read into a contiguous tensor of their type on the CPU");
  const uint64_t begin = found.begin + static_cast<uint64_t>(offset) * c10::elementSize(found.type);
  LEVIN_CHECK(offset >= 0 && begin <= found.end && target.nbytes() <= found.end - begin,
              "elements beyond the end of a saved tensor");
  if (target.nbytes() > 0) file_.read(data_start_ + begin, target.mutable_data_ptr(), target.nbytes());
}

}  // namespace levin
