#include <levin/core/data/cache/example_bytes.h>

#include <levin/core/base/error.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/ScalarType.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

namespace levin::data {

namespace {

constexpr size_t kAlignment = 64;
constexpr uint64_t kMostDimensions = 64;
constexpr std::array kTypes = {at::kByte,     at::kChar, at::kShort,        at::kInt,
                               at::kLong,     at::kHalf, at::kFloat,        at::kDouble,
                               at::kBFloat16, at::kBool, at::kComplexFloat, at::kComplexDouble};

void append(std::string& bytes, uint64_t number) {
  bytes.append(reinterpret_cast<const char*>(&number), sizeof(number));
}

void append_text(std::string& bytes, std::string_view text) {
  append(bytes, text.size());
  bytes += text;
}

size_t aligned(size_t size) { return (size + kAlignment - 1) / kAlignment * kAlignment; }

/// Reads numbers and texts one behind the other, as far as there are any.
class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : bytes_(bytes) {}

  uint64_t number() {
    uint64_t value = 0;
    const std::string_view bytes = text(sizeof(value));
    if (!bytes.empty()) std::memcpy(&value, bytes.data(), bytes.size());
    return value;
  }
  std::string_view text(uint64_t size) {
    if (size > bytes_.size() - place_) {
      failed_ = true;
      return {};
    }
    const std::string_view found = bytes_.substr(place_, size);
    place_ += size;
    return found;
  }
  size_t place() const { return place_; }
  bool failed() const { return failed_; }

 private:
  std::string_view bytes_;
  size_t place_ = 0;
  bool failed_ = false;
};

/// Whether shape and strides are those of memory without gaps and overlaps.
bool is_dense(const std::vector<int64_t>& shape, const std::vector<int64_t>& strides, int64_t most_elements) {
  std::vector<size_t> order(shape.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return strides[a] < strides[b]; });
  int64_t expected = 1;
  for (const size_t i : order) {
    if (shape[i] < 1 || strides[i] < 0) return false;
    if (shape[i] == 1) continue;
    if (strides[i] != expected || shape[i] > most_elements / expected) return false;
    expected *= shape[i];
  }
  return true;
}

}  // namespace

int64_t num_bytes(const Batch& example) {
  int64_t bytes = 0;
  for (const auto& [name, tensor] : example.items()) bytes += static_cast<int64_t>(tensor.nbytes());
  for (const auto& [name, texts] : example.text_items())
    for (const std::string& text : texts) bytes += std::ssize(text);
  return bytes;
}

Batch with_dense_memory(const Batch& example) {
  Batch dense;
  dense.text_items() = example.text_items();
  dense.items().reserve(example.items().size());
  for (const auto& [name, tensor] : example.items()) {
    if (!tensor.defined() || !tensor.is_cpu() || tensor.layout() != at::kStrided ||
        std::find(kTypes.begin(), kTypes.end(), tensor.scalar_type()) == kTypes.end())
      throw Error("data", fmt::format("the tensor '{}' of an example is {}; a cache keeps dense tensors on the CPU",
                                      name, tensor.defined() ? tensor.toString() : "undefined"));
    // Keeps the order of dimensions where the memory has no gaps; else it becomes contiguous.
    dense.items().emplace_back(name, tensor.detach().resolve_conj().resolve_neg().clone(at::MemoryFormat::Preserve));
  }
  return dense;
}

// The number of texts; for each its name, its number and the texts; the number of tensors; for each its name, type,
// shape, strides and place; then their values, aligned.
std::string to_bytes(const Batch& example) {
  std::string bytes;
  append(bytes, example.text_items().size());
  for (const auto& [name, texts] : example.text_items()) {
    append_text(bytes, name);
    append(bytes, texts.size());
    for (const std::string& text : texts) append_text(bytes, text);
  }
  size_t head = bytes.size() + sizeof(uint64_t);
  for (const auto& [name, tensor] : example.items())
    head += name.size() + sizeof(uint64_t) * (4 + 2 * static_cast<size_t>(tensor.dim()));
  size_t end = aligned(head);
  append(bytes, example.items().size());
  for (const auto& [name, tensor] : example.items()) {
    append_text(bytes, name);
    append(bytes, static_cast<uint64_t>(tensor.scalar_type()));
    append(bytes, static_cast<uint64_t>(tensor.dim()));
    for (const int64_t size : tensor.sizes()) append(bytes, static_cast<uint64_t>(size));
    for (const int64_t stride : tensor.strides()) append(bytes, static_cast<uint64_t>(stride));
    append(bytes, end);
    end = aligned(end + tensor.nbytes());
  }
  for (const auto& [name, tensor] : example.items()) {
    bytes.resize(aligned(bytes.size()));
    bytes.append(static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes());
  }
  return bytes;
}

std::optional<Batch> example_of_bytes(const std::shared_ptr<char[]>& memory, size_t offset, size_t size) {
  ByteReader reader({memory.get() + offset, size});
  Batch example;
  const uint64_t num_texts = reader.number();
  for (uint64_t i = 0; i < num_texts && !reader.failed(); ++i) {
    const std::string name(reader.text(reader.number()));
    const uint64_t count = reader.number();
    std::vector<std::string> texts;
    for (uint64_t j = 0; j < count && !reader.failed(); ++j) texts.emplace_back(reader.text(reader.number()));
    example.set_texts(name, std::move(texts));
  }
  const uint64_t count = reader.number();
  for (uint64_t i = 0; i < count && !reader.failed(); ++i) {
    const std::string name(reader.text(reader.number()));
    const uint64_t type_number = reader.number();
    const uint64_t dimensions = reader.number();
    const auto type = std::find_if(kTypes.begin(), kTypes.end(),
                                   [&](at::ScalarType known) { return static_cast<uint64_t>(known) == type_number; });
    if (type == kTypes.end() || dimensions > kMostDimensions) return std::nullopt;
    std::vector<int64_t> shape(dimensions);
    std::vector<int64_t> strides(dimensions);
    for (auto& value : shape) value = static_cast<int64_t>(reader.number());
    for (auto& value : strides) value = static_cast<int64_t>(reader.number());
    const uint64_t place = reader.number();
    if (reader.failed() || place > size || place % kAlignment != 0) return std::nullopt;
    const auto options = at::TensorOptions().dtype(*type);
    const bool is_empty = std::find(shape.begin(), shape.end(), 0) != shape.end();
    if (is_empty) {
      if (std::any_of(shape.begin(), shape.end(), [](int64_t value) { return value < 0; })) return std::nullopt;
      try {
        example.set(name, at::empty(shape, options));
      } catch (const std::exception&) {  // of shapes beyond all memory
        return std::nullopt;
      }
      continue;
    }
    const auto most_elements = static_cast<int64_t>((size - place) / c10::elementSize(*type));
    if (!is_dense(shape, strides, most_elements) || (dimensions == 0 && most_elements < 1)) return std::nullopt;
    example.set(name, at::from_blob(
                          memory.get() + offset + place, shape, strides, [memory](void*) { static_cast<void>(memory); },
                          options));
  }
  if (reader.failed()) return std::nullopt;
  return example;
}

}  // namespace levin::data
