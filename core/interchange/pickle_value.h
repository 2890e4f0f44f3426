#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace levin {

/// A value of Python as data: nothing of it is ever run. Values belong to a PickleDocument, may share parts and, as in
/// Python, may lie inside of themselves.
struct PickleValue {
  enum class Kind {
    kNone,
    kBool,
    kInt,
    kBigInt,  ///< an integer of more than 64 bits: its little-endian bytes are `text`
    kFloat,
    kComplex,  ///< `number` and `imaginary`
    kText,
    kBytes,
    kTuple,
    kList,
    kSet,
    kDict,
    kTensor,
    kName,    ///< a class, function or constant, such as "torch.float32"
    kObject,  ///< of any other class: its name as `text`, `items` it was made from, `state`
    kStorage,
    kMark,
  };
  using Pair = std::pair<PickleValue*, PickleValue*>;

  Kind kind = Kind::kNone;
  int64_t integer = 0;  ///< also of kBool
  double number = 0;
  double imaginary = 0;
  std::string text = {};  ///< of a dict and a list its class where that is none of the plain ones
  std::vector<PickleValue*> items = {};
  std::vector<Pair> pairs = {};  ///< of a dict, in its order
  PickleValue* state = nullptr;  ///< what __setstate__ would get
  at::Tensor tensor = {};        ///< also the bytes of a kStorage
  bool is_parameter = false;     ///< a tensor that is a Parameter
  bool requires_grad = false;
  bool is_array = false;  ///< a tensor that is an array of NumPy

  bool is(Kind other) const { return kind == other; }
  /// Returns the value of a text key of a dict, or nullptr.
  const PickleValue* find(std::string_view key) const;
  const char* kind_name() const;
};

/// Owns values, in any shape they refer to each other.
class PickleDocument {
 public:
  /// Values that a document may hold, since a byte of a pickle can make one.
  static constexpr size_t kMaxValues = 20'000'000;

  // Makes a value. Throws levin::Error beyond kMaxValues.
  PickleValue* make(PickleValue::Kind kind);
  PickleValue* none() { return make(PickleValue::Kind::kNone); }
  PickleValue* boolean(bool value);
  PickleValue* integer(int64_t value);
  PickleValue* number(double value);
  PickleValue* text(std::string_view value, PickleValue::Kind kind = PickleValue::Kind::kText);
  PickleValue* tensor(at::Tensor value);
  PickleValue* list(std::vector<PickleValue*> items = {}, PickleValue::Kind kind = PickleValue::Kind::kList);
  PickleValue* dict(const std::vector<std::pair<std::string, PickleValue*>>& pairs = {});
  PickleValue* ordered_dict();
  /// Adds a pair with a text key to a dict.
  void put(PickleValue* dict, std::string_view key, PickleValue* value);

 private:
  std::deque<PickleValue> values_;
};

}  // namespace levin
