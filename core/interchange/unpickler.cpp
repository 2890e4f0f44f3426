#include <levin/core/interchange/unpickler.h>

#include <levin/core/base/error.h>
#include <levin/core/base/shape_bytes.h>

#include <ATen/ops/_validate_sparse_compressed_tensor_args.h>
#include <ATen/ops/_validate_sparse_coo_tensor_args.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sparse_compressed_tensor.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/ScalarType.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <exception>
#include <map>
#include <optional>
#include <set>

namespace levin {
namespace {

using Kind = PickleValue::Kind;

constexpr size_t kMostDimensions = 64;

[[noreturn]] void fail(const std::string& what) {
  throw Error("weights", fmt::format("a pickle is damaged, or is none: {}", what));
}

int64_t integer_of(const PickleValue* value) {
  if (!value->is(Kind::kInt) && !value->is(Kind::kBool)) fail(fmt::format("{} in place of an int", value->kind_name()));
  return value->integer;
}

std::vector<int64_t> integers_of(const PickleValue* value) {
  if (!value->is(Kind::kTuple) && !value->is(Kind::kList))
    fail(fmt::format("{} in place of a tuple of int", value->kind_name()));
  if (value->items.size() > kMostDimensions) fail(fmt::format("a tensor of {} dimensions", value->items.size()));
  std::vector<int64_t> integers;
  for (const PickleValue* item : value->items) integers.push_back(integer_of(item));
  return integers;
}

const at::Tensor& tensor_of(const PickleValue* value) {
  if (!value->is(Kind::kTensor)) fail(fmt::format("{} in place of a tensor", value->kind_name()));
  return value->tensor;
}

/// A view of a storage's bytes, after the check that they suffice.
at::Tensor view_of(const PickleValue* storage, at::ScalarType type, int64_t offset, const std::vector<int64_t>& sizes,
                   const std::vector<int64_t>& strides) {
  if (!storage->is(Kind::kStorage)) fail(fmt::format("{} in place of a storage", storage->kind_name()));
  if (sizes.size() != strides.size()) fail("a tensor whose shape and strides differ in length");
  const auto item = static_cast<int64_t>(c10::elementSize(type));
  if (!bytes_of_shape(sizes, c10::elementSize(type))) fail("a tensor of negative size, or larger than all memory");
  // Exact: 128 bits hold what 64 dimensions of 64-bit numbers sum up to.
  __int128 last = offset;
  __int128 count = 1;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (strides[i] < 0) fail("a tensor of negative stride");
    last += static_cast<__int128>(std::max<int64_t>(0, sizes[i] - 1)) * strides[i];
    count *= sizes[i];
  }
  if (offset < 0 || offset > INT64_MAX / item || (count != 0 && (last + 1) * item > storage->integer))
    fail(fmt::format("a tensor that reaches beyond its storage of {} bytes", storage->integer));
  const c10::InferenceMode ordinary(false);
  at::Tensor view = at::empty({0}, at::TensorOptions().dtype(type));
  if (count == 0) return view.new_empty(sizes);
  // A view that repeats elements (expanded) may still claim more than memory has once it is copied.
  if (count * item > static_cast<__int128>(storage->integer) * 1024 + (1 << 20))
    fail("a tensor that repeats its elements without end");
  view.set_(storage->tensor.storage(), offset, sizes, strides);
  return view;
}

/// The shape of a sparse tensor, which has no storage to be compared with.
std::vector<int64_t> sparse_shape_of(const PickleValue* value) {
  std::vector<int64_t> shape = integers_of(value);
  if (!bytes_of_shape(shape, sizeof(c10::complex<double>)))
    fail("a tensor of negative size, or larger than all memory");
  return shape;
}

/// Python's "latin1" text as bytes.
std::string latin1_bytes(const std::string& text) {
  std::string bytes;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c < 0x80) {
      bytes += text[i];
    } else if ((c == 0xC2 || c == 0xC3) && i + 1 < text.size()) {
      bytes += static_cast<char>(((c & 3U) << 6U) | (static_cast<unsigned char>(text[++i]) & 0x3FU));
    } else {
      fail("bytes that are no latin1 text");
    }
  }
  return bytes;
}

std::optional<at::ScalarType> numpy_type(const std::string& code) {
  static const std::map<std::string, at::ScalarType> kTypes{
      {"f8", at::kDouble},       {"f4", at::kFloat},         {"f2", at::kHalf},   {"i8", at::kLong},
      {"i4", at::kInt},          {"i2", at::kShort},         {"i1", at::kChar},   {"u1", at::kByte},
      {"u2", at::kUInt16},       {"u4", at::kUInt32},        {"u8", at::kUInt64}, {"b1", at::kBool},
      {"c8", at::kComplexFloat}, {"c16", at::kComplexDouble}};
  const auto found = kTypes.find(code);
  return found == kTypes.end() ? std::nullopt : std::optional(found->second);
}

/// The element type of a pickled numpy.dtype; nothing for others than little-endian numbers.
std::optional<at::ScalarType> numpy_type(const PickleValue* dtype) {
  if (!dtype->is(Kind::kObject) || dtype->text != "numpy.dtype" || dtype->items.empty()) return {};
  if (const PickleValue* state = dtype->state; state != nullptr && state->items.size() > 1)
    if (state->items[1]->text == ">") return {};
  return numpy_type(dtype->items[0]->text);
}

bool is_numpy(std::string_view name, std::string_view function) {
  return name == fmt::format("numpy.core.multiarray.{}", function) ||
         name == fmt::format("numpy._core.multiarray.{}", function);
}

}  // namespace

at::ScalarType torch_type(std::string_view name) {
  static const std::map<std::string_view, at::ScalarType> kTypes{
      {"FloatStorage", at::kFloat},
      {"DoubleStorage", at::kDouble},
      {"HalfStorage", at::kHalf},
      {"BFloat16Storage", at::kBFloat16},
      {"LongStorage", at::kLong},
      {"IntStorage", at::kInt},
      {"ShortStorage", at::kShort},
      {"CharStorage", at::kChar},
      {"ByteStorage", at::kByte},
      {"BoolStorage", at::kBool},
      {"ComplexFloatStorage", at::kComplexFloat},
      {"ComplexDoubleStorage", at::kComplexDouble},
      {"UntypedStorage", at::kByte},
      {"float32", at::kFloat},
      {"float64", at::kDouble},
      {"float16", at::kHalf},
      {"bfloat16", at::kBFloat16},
      {"int64", at::kLong},
      {"int32", at::kInt},
      {"int16", at::kShort},
      {"int8", at::kChar},
      {"uint8", at::kByte},
      {"uint16", at::kUInt16},
      {"uint32", at::kUInt32},
      {"uint64", at::kUInt64},
      {"bool", at::kBool},
      {"complex32", at::kComplexHalf},
      {"complex64", at::kComplexFloat},
      {"complex128", at::kComplexDouble},
      {"float8_e4m3fn", at::kFloat8_e4m3fn},
      {"float8_e5m2", at::kFloat8_e5m2},
      {"float8_e4m3fnuz", at::kFloat8_e4m3fnuz},
      {"float8_e5m2fnuz", at::kFloat8_e5m2fnuz},
      {"float8_e8m0fnu", at::kFloat8_e8m0fnu},
  };
  const size_t dot = name.rfind('.');
  const auto found = kTypes.find(dot == std::string_view::npos ? name : name.substr(dot + 1));
  if (found == kTypes.end())
    throw Error("weights",
                fmt::format("tensors of the element type '{}' cannot be read; hint: quantized ones are to be "
                            "dequantized before they are saved",
                            name));
  return found->second;
}

// ---- Bytes and the stack

std::string_view Unpickler::take(uint64_t size) {
  if (size > bytes_.size() - at_) fail("it ends too soon");
  const std::string_view taken = bytes_.substr(at_, size);
  at_ += size;
  return taken;
}

std::string_view Unpickler::take_line() {
  const size_t end = bytes_.find('\n', at_);
  if (end == std::string_view::npos) fail("it ends too soon");
  const std::string_view line = bytes_.substr(at_, end - at_);
  at_ = end + 1;
  return line;
}

template <class T>
T Unpickler::take_number() {
  T number;
  std::memcpy(&number, take(sizeof(T)).data(), sizeof(T));
  return number;
}

PickleValue* Unpickler::pop() {
  PickleValue* const value = top();
  stack_.pop_back();
  return value;
}

PickleValue* Unpickler::top() {
  if (stack_.empty() || stack_.back()->is(Kind::kMark)) fail("a value is missing");
  return stack_.back();
}

Unpickler::Items Unpickler::pop_mark() {
  auto mark = stack_.end();
  while (mark != stack_.begin() && !(*(mark - 1))->is(Kind::kMark)) --mark;
  if (mark == stack_.begin()) fail("a mark is missing");
  Items items(mark, stack_.end());
  stack_.erase(mark - 1, stack_.end());
  return items;
}

void Unpickler::push_integer(std::string_view bytes) {
  if (bytes.size() > sizeof(int64_t)) return push(document_.text(bytes, Kind::kBigInt));
  const bool negative = !bytes.empty() && (static_cast<unsigned char>(bytes.back()) & 0x80U) != 0;
  uint64_t number = negative ? ~uint64_t{0} : 0;
  if (!bytes.empty()) std::memcpy(&number, bytes.data(), bytes.size());
  push(document_.integer(static_cast<int64_t>(number)));
}

void Unpickler::push_tuple(size_t size) {
  Items items(size);
  for (size_t i = size; i > 0; --i) items[i - 1] = pop();
  push(document_.list(std::move(items), Kind::kTuple));
}

void Unpickler::put(uint64_t index) { memo_[index] = top(); }

void Unpickler::get(uint64_t index) {
  const auto found = memo_.find(index);
  if (found == memo_.end()) fail("it refers to a value that is not there");
  push(found->second);
}

void Unpickler::add_items(Items items, bool to_set) {
  PickleValue* const target = top();
  const bool fits = target->is(Kind::kObject) || target->is(to_set ? Kind::kSet : Kind::kList);
  if (!fits) fail(fmt::format("items are added to {}", target->kind_name()));
  // Of an object they come after what it was made from.
  target->items.insert(target->items.end(), items.begin(), items.end());
}

void Unpickler::add_pairs(const Items& items) {
  PickleValue* const target = top();
  if (!target->is(Kind::kDict) && !target->is(Kind::kObject))
    fail(fmt::format("keys are added to {}", target->kind_name()));
  if (items.size() % 2 != 0) fail("a key without a value");
  for (size_t i = 0; i < items.size(); i += 2) target->pairs.emplace_back(items[i], items[i + 1]);
  // Of a class derived from dict.
  if (target->is(Kind::kObject) && target->items.empty()) target->kind = Kind::kDict;
}

// ---- Opcodes

PickleValue* Unpickler::read() {
  stack_.clear();
  memo_.clear();
  for (;;) {
    const auto opcode = take_number<uint8_t>();
    if (opcode == '.') {
      PickleValue* const result = pop();
      if (!stack_.empty()) fail("values are left over");
      return result;
    }
    if (!run_data(opcode) && !run_structure(opcode))
      fail(fmt::format("byte {:#04x} at {} is no opcode that makes data", opcode, at_ - 1));
  }
}

/// The opcodes that make a single value.
bool Unpickler::run_data(uint8_t opcode) {
  switch (opcode) {
    case 'N':
      push(document_.none());
      return true;
    case 0x88:
    case 0x89:
      push(document_.boolean(opcode == 0x88));
      return true;
    case 'K':
      push(document_.integer(take_number<uint8_t>()));
      return true;
    case 'M':
      push(document_.integer(take_number<uint16_t>()));
      return true;
    case 'J':
      push(document_.integer(take_number<int32_t>()));
      return true;
    case 0x8a:
      push_integer(take(take_number<uint8_t>()));
      return true;
    case 0x8b:
      push_integer(take(take_number<uint32_t>()));
      return true;
    case 'G': {
      const std::string_view bytes = take(sizeof(uint64_t));
      std::array<char, sizeof(uint64_t)> turned{};
      std::reverse_copy(bytes.begin(), bytes.end(), turned.begin());
      push(document_.number(std::bit_cast<double>(turned)));
      return true;
    }
    case 'X':
    case 'T':
      push(document_.text(take(take_number<uint32_t>())));
      return true;
    case 0x8c:
    case 'U':
      push(document_.text(take(take_number<uint8_t>())));
      return true;
    case 0x8d:
      push(document_.text(take(take_number<uint64_t>())));
      return true;
    case 'B':
      push(document_.text(take(take_number<uint32_t>()), Kind::kBytes));
      return true;
    case 'C':
      push(document_.text(take(take_number<uint8_t>()), Kind::kBytes));
      return true;
    case 0x8e:
    case 0x96:
      push(document_.text(take(take_number<uint64_t>()), Kind::kBytes));
      return true;
    case 'c': {
      const std::string module(take_line());
      push(document_.text(fmt::format("{}.{}", module, take_line()), Kind::kName));
      return true;
    }
    case 0x93: {
      const PickleValue* const name = pop();
      const PickleValue* const module = pop();
      if (!name->is(Kind::kText) || !module->is(Kind::kText)) fail("a class whose name is no text");
      budget_.copy(module->text.size() + name->text.size());
      push(document_.text(fmt::format("{}.{}", module->text, name->text), Kind::kName));
      return true;
    }
    case ']':
      push(document_.list());
      return true;
    case '}':
      push(document_.dict());
      return true;
    case 0x8f:
      push(document_.list({}, Kind::kSet));
      return true;
    case ')':
      push(document_.list({}, Kind::kTuple));
      return true;
    case '(':
      push(document_.make(Kind::kMark));
      return true;
    default:
      return false;
  }
}

/// The opcodes that put values together.
bool Unpickler::run_structure(uint8_t opcode) {
  switch (opcode) {
    case 0x80:  // the protocol
      take(1);
      return true;
    case 0x95:  // a frame
      take(sizeof(uint64_t));
      return true;
    case 't':
      push(document_.list(pop_mark(), Kind::kTuple));
      return true;
    case 'l':
      push(document_.list(pop_mark()));
      return true;
    case 0x91:
      push(document_.list(pop_mark(), Kind::kSet));
      return true;
    case 'd': {
      const Items items = pop_mark();
      push(document_.dict());
      add_pairs(items);
      return true;
    }
    case 0x85:
    case 0x86:
    case 0x87:
      push_tuple(opcode - 0x84U);
      return true;
    case 'a': {
      PickleValue* const item = pop();
      add_items({item}, /*to_set=*/false);
      return true;
    }
    case 'e':
      add_items(pop_mark(), /*to_set=*/false);
      return true;
    case 0x90:
      add_items(pop_mark(), /*to_set=*/true);
      return true;
    case 's': {
      PickleValue* const value = pop();
      PickleValue* const key = pop();
      add_pairs({key, value});
      return true;
    }
    case 'u':
      add_pairs(pop_mark());
      return true;
    case 'q':
      put(take_number<uint8_t>());
      return true;
    case 'r':
      put(take_number<uint32_t>());
      return true;
    case 0x94:
      put(memo_.size());
      return true;
    case 'h':
      get(take_number<uint8_t>());
      return true;
    case 'j':
      get(take_number<uint32_t>());
      return true;
    case '0':
      pop();
      return true;
    case '1':
      pop_mark();
      return true;
    case '2':
      push(top());
      return true;
    case 'R': {
      const PickleValue* const arguments = pop();
      const PickleValue* const function = pop();
      push(call(function, arguments));
      return true;
    }
    case 0x81: {
      const PickleValue* const arguments = pop();
      const PickleValue* const name = pop();
      push(call(name, arguments));
      return true;
    }
    case 0x92: {
      pop();  // arguments by name
      const PickleValue* const arguments = pop();
      const PickleValue* const name = pop();
      push(make_object(name, arguments));
      return true;
    }
    case 'b': {
      PickleValue* const state = pop();
      build(top(), state);
      return true;
    }
    case 'Q': {
      const PickleValue* const id = pop();
      if (find_storage_ == nullptr) fail("it refers to something outside of it");
      for (const PickleValue* part : id->items) budget_.copy(part->text.size());
      push(find_storage_(*id));
      return true;
    }
    default:
      return false;
  }
}

// ---- Classes

PickleValue* Unpickler::call(const PickleValue* function, const PickleValue* arguments) {
  if (!arguments->is(Kind::kTuple)) fail("arguments that are no tuple");
  if (!function->is(Kind::kName)) return make_object(function, arguments);
  const auto level = budget_.enter();  // what rebuilds a tensor of a class calls what rebuilds the tensor
  const std::string& name = function->text;
  PickleValue* made = make_container(name, arguments->items);
  if (made == nullptr) made = make_tensor(name, arguments->items);
  if (made == nullptr) made = make_numpy(name, arguments->items);
  return made != nullptr ? made : make_object(function, arguments);
}

PickleValue* Unpickler::make_container(const std::string& name, const Items& arguments) {
  const size_t dot = name.rfind('.');
  const std::string_view module = std::string_view(name).substr(0, dot);
  const std::string_view type = std::string_view(name).substr(dot + 1);
  const bool builtin = module == "builtins" || module == "__builtin__";
  if (name == "collections.OrderedDict" || name == "collections.defaultdict" || name == "collections.Counter" ||
      (builtin && type == "dict")) {
    PickleValue* const dict = builtin ? document_.dict() : document_.text(name, Kind::kDict);
    const PickleValue* const first = arguments.empty() ? nullptr : arguments.back();
    if (first != nullptr) budget_.copy((first->pairs.size() + first->items.size()) * sizeof(PickleValue::Pair));
    if (first != nullptr && first->is(Kind::kDict)) dict->pairs = first->pairs;
    if (first != nullptr && first->is(Kind::kList))
      for (const PickleValue* pair : first->items) {
        if (pair->items.size() != 2) fail("a dict made from what are no pairs");
        dict->pairs.emplace_back(pair->items[0], pair->items[1]);
      }
    return dict;
  }
  const bool from_items = arguments.size() == 1 && (arguments[0]->is(Kind::kList) || arguments[0]->is(Kind::kTuple));
  if (from_items) budget_.copy(arguments[0]->items.size() * sizeof(PickleValue*));
  const Items items = from_items ? arguments[0]->items : Items();
  if (!from_items && !arguments.empty() && name != "_codecs.encode" && name != "builtins.complex") return nullptr;
  if (name == "torch.Size" || (builtin && type == "tuple")) {
    PickleValue* const tuple = document_.list(items, Kind::kTuple);
    if (type == "Size") tuple->text = name;
    return tuple;
  }
  if (builtin && type == "bytes" && arguments.empty()) return document_.text("", Kind::kBytes);
  if (builtin && type == "list") return document_.list(items);
  if (builtin && (type == "set" || type == "frozenset")) return document_.list(items, Kind::kSet);
  if (name == "_codecs.encode" && !arguments.empty()) {
    budget_.copy(arguments[0]->text.size());
    return document_.text(latin1_bytes(arguments[0]->text), Kind::kBytes);
  }
  if (builtin && type == "complex" && arguments.size() == 2) {
    PickleValue* const number = document_.make(Kind::kComplex);
    number->number = arguments[0]->number;
    number->imaginary = arguments[1]->number;
    return number;
  }
  return nullptr;
}

PickleValue* Unpickler::make_tensor(const std::string& name, const Items& arguments) {
  if (!name.starts_with("torch._")) return nullptr;
  const auto require = [&](size_t count) {
    if (arguments.size() < count) fail(fmt::format("{} with {} arguments", name, arguments.size()));
  };
  const bool second = name == "torch._utils._rebuild_tensor_v2";
  const bool third = name == "torch._utils._rebuild_tensor_v3";
  if (second || third || name == "torch._utils._rebuild_tensor") {
    require(third ? 7 : 4);
    if (!arguments[0]->is(Kind::kStorage)) fail(fmt::format("{} in place of a storage", arguments[0]->kind_name()));
    // A storage that knows its elements has their type as `text`.
    const at::ScalarType type = torch_type(third ? arguments[6]->text : arguments[0]->text);
    PickleValue* const made = document_.tensor(
        view_of(arguments[0], type, integer_of(arguments[1]), integers_of(arguments[2]), integers_of(arguments[3])));
    made->requires_grad = arguments.size() > 4 && arguments[4]->integer != 0;
    const size_t metadata = third ? 7 : 6;
    if (arguments.size() > metadata) {
      budget_.visit(arguments[metadata]->pairs.size());
      const PickleValue* const conj = arguments[metadata]->find("conj");
      const PickleValue* const neg = arguments[metadata]->find("neg");
      if (conj != nullptr && conj->integer != 0 && made->tensor.is_complex()) made->tensor = made->tensor.conj();
      if (neg != nullptr && neg->integer != 0) made->tensor = made->tensor._neg_view();
    }
    return made;
  }
  if (name == "torch._utils._rebuild_parameter" || name == "torch._utils._rebuild_parameter_with_state") {
    require(2);
    PickleValue* const made = document_.tensor(tensor_of(arguments[0]));
    made->is_parameter = true;
    made->requires_grad = integer_of(arguments[1]) != 0;
    return made;
  }
  if (name == "torch._utils._rebuild_sparse_tensor") {
    require(2);
    return elements_known_ ? sparse_tensor(arguments) : document_.none();
  }
  if (name == "torch._tensor._rebuild_from_type_v2") {
    require(3);
    return call(arguments[0], arguments[2]);
  }
  return nullptr;
}

PickleValue* Unpickler::sparse_tensor(const Items& arguments) {
  const PickleValue* const layout = arguments[0];
  const std::string kind = layout->items.empty() ? layout->text : layout->items[0]->text;
  const Items& data = arguments[1]->items;
  // Each time the indices are looked through.
  for (const PickleValue* part : data)
    if (part->is(Kind::kTensor)) budget_.copy(part->tensor.nbytes());
  const c10::InferenceMode ordinary(false);
  try {
    if (kind == "torch.sparse_coo") {
      if (data.size() < 3) fail("a sparse tensor without indices, values and shape");
      // Indices beyond the shape would be used as they are.
      const std::vector<int64_t> shape = sparse_shape_of(data[2]);
      at::_validate_sparse_coo_tensor_args(tensor_of(data[0]), tensor_of(data[1]), shape);
      return document_.tensor(at::sparse_coo_tensor(tensor_of(data[0]), tensor_of(data[1]), shape));
    }
    static const std::map<std::string, at::Layout> kLayouts{{"torch.sparse_csr", at::kSparseCsr},
                                                            {"torch.sparse_csc", at::kSparseCsc},
                                                            {"torch.sparse_bsr", at::kSparseBsr},
                                                            {"torch.sparse_bsc", at::kSparseBsc}};
    const auto found = kLayouts.find(kind);
    if (found == kLayouts.end() || data.size() < 4) fail(fmt::format("a sparse tensor of layout '{}'", kind));
    const std::vector<int64_t> shape = sparse_shape_of(data[3]);
    at::_validate_sparse_compressed_tensor_args(tensor_of(data[0]), tensor_of(data[1]), tensor_of(data[2]), shape,
                                                found->second);
    return document_.tensor(at::sparse_compressed_tensor(
        tensor_of(data[0]), tensor_of(data[1]), tensor_of(data[2]), shape,
        at::TensorOptions().dtype(tensor_of(data[2]).scalar_type()).layout(found->second)));
  } catch (const c10::Error& error) {
    fail(fmt::format("a sparse tensor that contradicts itself ({})", error.what_without_backtrace()));
  }
}

PickleValue* Unpickler::make_numpy(const std::string& name, const Items& arguments) {
  if (!is_numpy(name, "scalar") || arguments.size() != 2) return nullptr;
  const auto type = numpy_type(arguments[0]);
  const std::string& bytes = arguments[1]->text;
  if (!type || bytes.size() != c10::elementSize(*type)) return nullptr;
  const c10::InferenceMode ordinary(false);
  const at::Tensor value = at::empty({}, at::TensorOptions().dtype(*type));
  std::memcpy(value.mutable_data_ptr(), bytes.data(), bytes.size());
  if (c10::isComplexType(*type)) {
    PickleValue* const made = document_.make(Kind::kComplex);
    const auto number = value.item<c10::complex<double>>();
    made->number = number.real();
    made->imaginary = number.imag();
    return made;
  }
  if (*type == at::kBool) return document_.boolean(bytes[0] != 0);
  if (c10::isFloatingType(*type)) return document_.number(value.item<double>());
  return document_.integer(*type == at::kUInt64 ? std::bit_cast<int64_t>(*value.const_data_ptr<uint64_t>())
                                                : value.item<int64_t>());
}

PickleValue* Unpickler::make_object(const PickleValue* name, const PickleValue* arguments) {
  budget_.copy(name->text.size() + arguments->items.size() * sizeof(PickleValue*));
  PickleValue* const object = document_.text(name->text, Kind::kObject);
  object->items = arguments->is(Kind::kTuple) ? arguments->items : Items();
  return object;
}

void Unpickler::build(PickleValue* value, PickleValue* state) {
  value->state = state;
  if (!value->is(Kind::kObject) || !is_numpy(value->text, "_reconstruct")) return;
  // (version, shape, dtype, whether in Fortran's order, elements)
  if (state->items.size() != 5 || !state->items[4]->is(Kind::kBytes)) return;
  const auto type = numpy_type(state->items[2]);
  if (!type) return;
  const std::vector<int64_t> shape = integers_of(state->items[1]);
  const std::string& bytes = state->items[4]->text;
  if (bytes_of_shape(shape, c10::elementSize(*type)) != bytes.size()) fail("an array whose shape and elements differ");
  budget_.copy(bytes.size());
  const c10::InferenceMode ordinary(false);
  const bool fortran = state->items[3]->integer != 0;
  const std::vector<int64_t> stored = fortran ? std::vector<int64_t>(shape.rbegin(), shape.rend()) : shape;
  at::Tensor tensor = at::empty(stored, at::TensorOptions().dtype(*type));
  if (!bytes.empty()) std::memcpy(tensor.mutable_data_ptr(), bytes.data(), bytes.size());
  if (fortran) {
    std::vector<int64_t> order(shape.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int64_t>(order.size() - 1 - i);
    tensor = tensor.permute(order);
  }
  value->kind = Kind::kTensor;
  value->tensor = tensor;
  value->is_array = true;
}

}  // namespace levin
