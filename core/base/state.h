#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace levin {

/// Distribution of a checkpoint's tensor over the ranks.
struct Placement {
  enum class Kind {
    kReplicated,  ///< the same on every rank; rank 0 writes it
    kSharded,     ///< this rank holds the elements from `offset` on of a flattened tensor of `global_shape`
    kRankLocal,   ///< each rank has its own
  };
  Kind kind = Kind::kReplicated;
  std::string shard_name = {};             ///< the whole tensor's name, for kSharded
  int64_t offset = 0;                      ///< in elements of the flattened whole, for kSharded
  std::vector<int64_t> global_shape = {};  ///< for kSharded
};

/// A tensor in a checkpoint's files, read on demand, whole or in part; open_checkpoint puts them into its tree. All
/// methods may be called from several threads.
class SavedTensor {
 public:
  virtual ~SavedTensor() = default;
  virtual at::ScalarType dtype() const = 0;
  virtual const std::vector<int64_t>& shape() const = 0;
  /// Returns the dimensions by their strides in memory when saved, widest first; empty for row-major order.
  virtual const std::vector<int64_t>& dimension_order() const = 0;
  /// Reads the elements from `offset` on of the flattened tensor into `target`, as many as that has: a contiguous
  /// tensor of the same type, on any device. Throws levin::Error for a range that is not there, another type, or a
  /// file that is missing or damaged.
  virtual void read(int64_t offset, at::Tensor target) const = 0;
  /// Reads the whole tensor to the CPU, anew at each call.
  virtual at::Tensor read_whole() const = 0;
  /// Returns the whole tensor on the CPU; the first call reads it.
  virtual const at::Tensor& whole() const = 0;
};

/// A tensor in the state tree. Restored by copying in place, so that tensors keep identity and strides.
struct TensorLeaf {
  at::Tensor value = {};  ///< undefined when `saved` is set
  Placement placement = {};
  std::shared_ptr<const SavedTensor> saved = nullptr;

  /// Returns `value`, or reads the saved tensor whole.
  const at::Tensor& tensor() const { return saved != nullptr ? saved->whole() : value; }
};

/// One node of the tree that a checkpoint holds: nothing, a plain value, a tensor, a list or a mapping by name.
class State {
 public:
  using List = std::vector<State>;
  using Map = std::map<std::string, State, std::less<>>;

  State() = default;
  State(bool value) : value_(value) {}                               // NOLINT(google-explicit-constructor)
  State(int value) : value_(int64_t{value}) {}                       // NOLINT(google-explicit-constructor)
  State(int64_t value) : value_(value) {}                            // NOLINT(google-explicit-constructor)
  State(double value) : value_(value) {}                             // NOLINT(google-explicit-constructor)
  State(const char* value) : value_(std::string(value)) {}           // NOLINT(google-explicit-constructor)
  State(std::string value) : value_(std::move(value)) {}             // NOLINT(google-explicit-constructor)
  State(at::Tensor value) : value_(TensorLeaf{std::move(value)}) {}  // NOLINT(google-explicit-constructor)
  State(TensorLeaf value) : value_(std::move(value)) {}              // NOLINT(google-explicit-constructor)
  State(List value) : value_(std::move(value)) {}                    // NOLINT(google-explicit-constructor)
  State(Map value) : value_(std::move(value)) {}                     // NOLINT(google-explicit-constructor)

  static State map() { return State(Map{}); }
  static State list() { return State(List{}); }

  bool is_null() const { return std::holds_alternative<std::monostate>(value_); }
  bool is_bool() const { return std::holds_alternative<bool>(value_); }
  bool is_int() const { return std::holds_alternative<int64_t>(value_); }
  bool is_double() const { return std::holds_alternative<double>(value_); }
  bool is_string() const { return std::holds_alternative<std::string>(value_); }
  bool is_tensor() const { return std::holds_alternative<TensorLeaf>(value_); }
  bool is_list() const { return std::holds_alternative<List>(value_); }
  bool is_map() const { return std::holds_alternative<Map>(value_); }

  // Typed access. Each throws levin::Error "[checkpoint] expected an integer; got a string" on another type.
  bool as_bool() const;
  int64_t as_int() const;
  /// Returns a number; an integer is one too.
  double as_double() const;
  const std::string& as_string() const;
  /// Returns the tensor; the first call reads a saved one whole. To read a part, use `as_leaf().saved`.
  const at::Tensor& as_tensor() const;
  const TensorLeaf& as_leaf() const;
  const List& as_list() const;
  List& as_list();
  const Map& as_map() const;
  Map& as_map();

  /// Returns the value of a key; adds a null one where there is none, and turns a null node into a mapping.
  State& operator[](std::string_view key);
  /// Returns the value of a key; throws levin::Error naming it and the keys there are.
  const State& at(std::string_view key) const;
  /// Returns the value of a key, or nullptr.
  const State* find(std::string_view key) const;
  bool contains(std::string_view key) const { return find(key) != nullptr; }
  void push_back(State item);

  const char* type_name() const;

 private:
  std::variant<std::monostate, bool, int64_t, double, std::string, TensorLeaf, List, Map> value_;
};

/// Interface of objects whose state a checkpoint keeps.
class Stateful {
 public:
  virtual ~Stateful() = default;
  virtual State state_dict() const { return {}; }
  virtual void load_state_dict(const State& /*state*/) {}
};

/// Copies `source` into `target` in place; throws levin::Error naming `name` when shapes or types differ.
void copy_in_place(at::Tensor& target, const at::Tensor& source, std::string_view name);

}  // namespace levin
