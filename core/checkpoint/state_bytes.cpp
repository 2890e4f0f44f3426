#include <levin/core/checkpoint/state_bytes.h>

#include <levin/core/base/error.h>
#include <levin/core/base/shape_bytes.h>
#include <levin/core/checkpoint/safetensors.h>
#include <levin/core/checkpoint/state_json.h>

#include <ATen/ops/empty.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

namespace levin {
namespace {

// Layout: the length of the JSON text, the text, then for each tensor its file, name, element type, sizes and elements.
// Numbers are int64 in the machine's byte order: all ranks of a job run on the same kind of machine.

void put(std::string& bytes, int64_t value) { bytes.append(reinterpret_cast<const char*>(&value), sizeof value); }

void put(std::string& bytes, const std::string& text) {
  put(bytes, static_cast<int64_t>(text.size()));
  bytes += text;
}

/// The elements as they are sent: they say the whole value of dense tensors only, and of a quantized one they are not
/// even as many bytes as nbytes().
at::Tensor values_of(const at::Tensor& tensor) {
  if (tensor.layout() != at::kStrided || tensor.is_quantized())
    throw Error("checkpoint",
                fmt::format("only dense tensors can be sent to another rank; got {}; hint: to_dense() or dequantize()",
                            tensor.toString()));
  return tensor.detach().cpu().resolve_conj().resolve_neg().contiguous();
}

class BytesReader {
 public:
  explicit BytesReader(const std::string& bytes) : bytes_(bytes) {}

  bool at_end() const { return position_ == bytes_.size(); }

  const char* take(int64_t size) {
    if (size < 0 || static_cast<uint64_t>(size) > bytes_.size() - position_)
      throw Error("checkpoint", "the state that another rank sent is cut short");
    const char* start = bytes_.data() + position_;
    position_ += static_cast<size_t>(size);
    return start;
  }
  int64_t number() {
    int64_t value = 0;
    std::memcpy(&value, take(sizeof value), sizeof value);
    return value;
  }
  std::string text() {
    const int64_t size = number();
    return {take(size), static_cast<size_t>(size)};
  }
  std::vector<int64_t> numbers() {
    const int64_t count = number();
    if (static_cast<uint64_t>(count) > bytes_.size()) take(-1);
    std::vector<int64_t> values(static_cast<size_t>(count));
    for (int64_t& value : values) value = number();
    return values;
  }
  at::Tensor tensor() {
    const int64_t type = number();
    if (type < 0 || type >= static_cast<int64_t>(at::ScalarType::NumOptions) ||
        type == static_cast<int64_t>(at::ScalarType::Undefined) || c10::isQIntType(static_cast<at::ScalarType>(type)))
      throw Error("checkpoint", "the state that another rank sent has a tensor of an unknown type");
    const std::vector<int64_t> sizes = numbers();
    // Whatever its type, an element has a byte or more.
    if (const auto least = bytes_of_shape(sizes, 1); !least || *least > bytes_.size() - position_) take(-1);
    at::Tensor made;
    try {
      made = at::empty(sizes, static_cast<at::ScalarType>(type));
    } catch (const c10::Error&) {
      throw Error("checkpoint", "the state that another rank sent has a tensor that cannot be made");
    }
    const auto length = static_cast<int64_t>(made.nbytes());
    if (const char* elements = take(length); length > 0)
      std::memcpy(made.mutable_data_ptr(), elements, static_cast<size_t>(length));
    return made;
  }

 private:
  const std::string& bytes_;
  size_t position_ = 0;
};

}  // namespace

std::string state_to_bytes(const State& tree) {
  TensorsByFile tensors;
  std::string bytes;
  State root = State::map();
  root["tree"] = tree;
  put(bytes, encode_state(root, tensors));
  for (const auto& [file, items] : tensors) {
    for (const auto& [name, leaf] : items) {
      const at::Tensor whole = values_of(leaf.tensor());
      put(bytes, file);
      put(bytes, name);
      put(bytes, static_cast<int64_t>(whole.scalar_type()));
      put(bytes, whole.dim());
      for (const int64_t size : whole.sizes()) put(bytes, size);
      bytes.append(static_cast<const char*>(whole.const_data_ptr()), whole.nbytes());
    }
  }
  return bytes;
}

State state_from_bytes(const std::string& bytes) {
  BytesReader reader(bytes);
  const std::string json = reader.text();
  std::map<std::pair<std::string, std::string>, at::Tensor> tensors;
  while (!reader.at_end()) {
    std::string file = reader.text();
    std::string name = reader.text();
    tensors.emplace(std::pair(std::move(file), std::move(name)), reader.tensor());
  }
  const State root = decode_state(json, "the state of another rank", [&](const TensorReference& reference) -> State {
    const auto found = tensors.find({reference.file, reference.name});
    if (found == tensors.end())
      throw Error("checkpoint", "the state that another rank sent lacks the tensor '" + reference.name + "'");
    return found->second;
  });
  return root.at("tree");
}

}  // namespace levin
