#include <levin/core/interchange/pickler.h>

#include <levin/core/base/error.h>
#include <levin/core/base/file_system.h>
#include <levin/core/base/state.h>

#include <ATen/ops/empty.h>
#include <caffe2/serialize/inline_container.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <exception>
#include <filesystem>
#include <limits>
#include <utility>

namespace levin {
namespace {

constexpr int kDeepestPickle = 500;

/// The class of a typed storage; nullptr for element types that came after them.
const char* storage_class(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return "FloatStorage";
    case at::kDouble:
      return "DoubleStorage";
    case at::kHalf:
      return "HalfStorage";
    case at::kBFloat16:
      return "BFloat16Storage";
    case at::kLong:
      return "LongStorage";
    case at::kInt:
      return "IntStorage";
    case at::kShort:
      return "ShortStorage";
    case at::kChar:
      return "CharStorage";
    case at::kByte:
      return "ByteStorage";
    case at::kBool:
      return "BoolStorage";
    case at::kComplexFloat:
      return "ComplexFloatStorage";
    case at::kComplexDouble:
      return "ComplexDoubleStorage";
    default:
      return nullptr;
  }
}

std::string type_name_of(at::ScalarType type) {
  switch (type) {
    case at::kUInt16:
      return "torch.uint16";
    case at::kUInt32:
      return "torch.uint32";
    case at::kUInt64:
      return "torch.uint64";
    case at::kComplexHalf:
      return "torch.complex32";
    case at::kFloat8_e4m3fn:
      return "torch.float8_e4m3fn";
    case at::kFloat8_e5m2:
      return "torch.float8_e5m2";
    case at::kFloat8_e4m3fnuz:
      return "torch.float8_e4m3fnuz";
    case at::kFloat8_e5m2fnuz:
      return "torch.float8_e5m2fnuz";
    case at::kFloat8_e8m0fnu:
      return "torch.float8_e8m0fnu";
    default:
      throw Error("weights", fmt::format("a tensor of element type {} cannot be written", c10::toString(type)));
  }
}

}  // namespace

void Pickler::defer(const PickleValue* value, std::shared_ptr<const SavedTensor> saved) {
  deferred_[value] = std::move(saved);
}

std::string Pickler::pickle(const PickleValue& root) {
  bytes_ = "\x80\x02";
  append_value(root, 0);
  bytes_ += '.';
  return std::move(bytes_);
}

template <class T>
void Pickler::append(T number) {
  bytes_.append(reinterpret_cast<const char*>(&number), sizeof(number));
}

void Pickler::append_text(std::string_view text) {
  bytes_ += 'X';
  append(static_cast<uint32_t>(text.size()));
  bytes_ += text;
}

void Pickler::append_integer(int64_t number) {
  if (number >= std::numeric_limits<int32_t>::min() && number <= std::numeric_limits<int32_t>::max()) {
    bytes_ += 'J';
    append(static_cast<int32_t>(number));
  } else {
    bytes_ += "\x8a\x08";
    append(number);
  }
}

void Pickler::append_integers(at::IntArrayRef numbers) {
  bytes_ += '(';
  for (const int64_t number : numbers) append_integer(number);
  bytes_ += 't';
}

void Pickler::append_name(const std::string& name) {
  if (const auto found = names_.find(name); found != names_.end()) {
    bytes_ += 'j';
    append(found->second);
    return;
  }
  const size_t dot = name.rfind('.');
  if (dot == std::string::npos || name.find('\n') != std::string::npos)
    throw Error("weights", fmt::format("'{}' is no name of a class", name));
  bytes_ += fmt::format("c{}\n{}\nr", name.substr(0, dot), name.substr(dot + 1));
  names_[name] = memo_;
  append(memo_++);
}

void Pickler::remember(const PickleValue& value) {
  remembered_[&value] = memo_;
  bytes_ += 'r';
  append(memo_++);
}

void Pickler::append_items(const std::vector<PickleValue*>& items, char end) {
  bytes_ += '(';
  for (const PickleValue* item : items) append_value(*item, level_ + 1);
  bytes_ += end;
}

void Pickler::append_pairs(const std::vector<PickleValue::Pair>& pairs) {
  if (pairs.empty()) return;
  bytes_ += '(';
  for (const auto& [key, value] : pairs) {
    append_value(*key, level_ + 1);
    append_value(*value, level_ + 1);
  }
  bytes_ += 'u';
}

void Pickler::append_value(const PickleValue& value, int level) {
  if (level > kDeepestPickle) throw Error("weights", "a value lies too deep inside of others to be written");
  const int outer = std::exchange(level_, level);
  using Kind = PickleValue::Kind;
  switch (value.kind) {
    case Kind::kNone:
      bytes_ += 'N';
      break;
    case Kind::kBool:
      bytes_ += value.integer != 0 ? '\x88' : '\x89';
      break;
    case Kind::kInt:
      append_integer(value.integer);
      break;
    case Kind::kBigInt:
      bytes_ += '\x8b';
      append(static_cast<uint32_t>(value.text.size()));
      bytes_ += value.text;
      break;
    case Kind::kFloat: {
      bytes_ += 'G';
      auto number = std::bit_cast<std::array<char, sizeof(double)>>(value.number);
      std::reverse(number.begin(), number.end());
      bytes_.append(number.data(), number.size());
      break;
    }
    case Kind::kText:
      append_text(value.text);
      break;
    case Kind::kName:
      append_name(value.text);
      break;
    default:
      append_collection(value);
  }
  level_ = outer;
}

void Pickler::append_collection(const PickleValue& value) {
  using Kind = PickleValue::Kind;
  if (const auto found = remembered_.find(&value); found != remembered_.end()) {
    bytes_ += 'j';
    append(found->second);
    return;
  }
  switch (value.kind) {
    case Kind::kTuple:
      if (value.text == "torch.Size") append_name(value.text);
      append_items(value.items, 't');
      if (value.text == "torch.Size") bytes_ += "\x85R";
      break;
    case Kind::kList:
      bytes_ += ']';
      remember(value);
      append_items(value.items, 'e');
      break;
    case Kind::kSet:
      append_name("builtins.set");
      bytes_ += ']';
      append_items(value.items, 'e');
      bytes_ += "\x85R";
      break;
    case Kind::kDict:
      if (value.text == "collections.OrderedDict" || value.text == "collections.Counter") {
        append_name(value.text);
        bytes_ += ")R";
      } else {
        bytes_ += '}';
      }
      remember(value);
      append_pairs(value.pairs);
      if (value.state != nullptr && value.text == "collections.OrderedDict") {
        append_value(*value.state, level_ + 1);
        bytes_ += 'b';
      }
      break;
    case Kind::kTensor:
      append_tensor(value);
      remember(value);
      break;
    case Kind::kObject:
      append_name(value.text);
      append_items(value.items, 't');
      bytes_ += value.text == "argparse.Namespace" ? '\x81' : 'R';
      remember(value);
      append_pairs(value.pairs);
      if (value.state != nullptr) {
        append_value(*value.state, level_ + 1);
        bytes_ += 'b';
      }
      break;
    case Kind::kComplex:
    case Kind::kBytes:
    default:
      throw Error("weights", fmt::format("{} cannot be written", value.kind_name()));
  }
}

void Pickler::append_tensor(const PickleValue& value) {
  if (!value.is_parameter) return append_rebuilt(value);
  append_name("torch._utils._rebuild_parameter");
  bytes_ += '(';
  append_rebuilt(value);
  bytes_ += value.requires_grad ? '\x88' : '\x89';
  append_name("collections.OrderedDict");
  bytes_ += ")RtR";
}

void Pickler::append_rebuilt(const PickleValue& value) {
  const auto deferred = deferred_.find(&value);
  const bool is_deferred = deferred != deferred_.end();
  // What is deferred becomes a storage of its own, and so does what is not simply laid out in the host's memory.
  at::Tensor tensor = value.tensor.detach();
  if (!is_deferred) {
    if (tensor.layout() != at::kStrided || tensor.is_quantized())
      throw Error("weights", "sparse and quantized tensors cannot be written");
    tensor = tensor.to(at::kCPU).resolve_conj().resolve_neg();
  }
  const at::ScalarType type = tensor.scalar_type();
  const auto item = static_cast<int64_t>(tensor.element_size());
  size_t key = storages_.size();
  int64_t storage_bytes = tensor.numel() * item;
  int64_t offset = 0;
  std::vector<int64_t> strides =
      at::empty(tensor.sizes(), at::TensorOptions().dtype(type).device(at::kMeta)).strides().vec();
  if (is_deferred) {
    storages_.push_back({.saved = deferred->second});
  } else if (tensor.numel() == 0) {
    storages_.push_back({.bytes = tensor});
  } else {
    // Tensors that share a storage share it in the file too, unless they are a small part of it.
    const bool whole = static_cast<int64_t>(tensor.storage().nbytes()) <= 2 * storage_bytes;
    const auto place = std::make_pair(tensor.storage().data(), type);
    const auto found = keys_.find(place);
    if (whole || found != keys_.end()) {
      storage_bytes = static_cast<int64_t>(tensor.storage().nbytes()) / item * item;
      offset = tensor.storage_offset();
      strides = tensor.strides().vec();
    }
    if (found != keys_.end()) {
      key = found->second;
    } else if (whole) {
      at::Tensor all = tensor.new_empty({0});
      all.set_(tensor.storage(), 0, {storage_bytes / item}, {1});
      storages_.push_back({.bytes = all});
      keys_[place] = key;
    } else {
      storages_.push_back({.bytes = tensor.contiguous()});
    }
  }
  const char* const storage = storage_class(type);
  append_name(storage != nullptr ? "torch._utils._rebuild_tensor_v2" : "torch._utils._rebuild_tensor_v3");
  bytes_ += "((";
  append_text("storage");
  append_name(storage != nullptr ? fmt::format("torch.{}", storage) : "torch.storage.UntypedStorage");
  append_text(std::to_string(key));
  append_text("cpu");
  append_integer(storage != nullptr ? storage_bytes / item : storage_bytes);
  bytes_ += "tQ";
  append_integer(offset);
  append_integers(tensor.sizes());
  append_integers(strides);
  bytes_ += value.requires_grad && !value.is_parameter ? '\x88' : '\x89';
  append_name("collections.OrderedDict");
  bytes_ += ")R";
  if (storage == nullptr) append_name(type_name_of(type));
  bytes_ += "tR";
}

void write_torch_file(const std::string& path, const PickleValue& root, Pickler pickler) {
  FileSystem& files = FileSystem::current();
  const std::string pickle = pickler.pickle(root);
  const auto parent = std::filesystem::path(path).parent_path();
  if (!parent.empty()) files.create_directories(parent.string());
  files.replace_file(path, [&](WritableFile& file) {
    std::exception_ptr failure;
    {
      // The writer is C, through which nothing may be thrown.
      caffe2::serialize::PyTorchStreamWriter writer([&](const void* data, size_t size) -> size_t {
        try {
          if (failure == nullptr) file.append(data, size);
        } catch (...) {
          failure = std::current_exception();
        }
        return size;
      });
      writer.writeRecord("data.pkl", pickle.data(), pickle.size());
      writer.writeRecord("byteorder", "little", 6);
      for (size_t i = 0; i < pickler.storages().size() && failure == nullptr; ++i) {
        const StorageToWrite& storage = pickler.storages()[i];
        const at::Tensor bytes = storage.saved != nullptr ? storage.saved->read_whole().contiguous() : storage.bytes;
        writer.writeRecord("data/" + std::to_string(i), bytes.const_data_ptr(), bytes.nbytes());
      }
      writer.writeEndOfFile();
    }
    if (failure != nullptr) std::rethrow_exception(failure);
    file.sync();
  });
}

}  // namespace levin
