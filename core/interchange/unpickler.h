#pragma once

#include <levin/core/base/tree_budget.h>
#include <levin/core/interchange/pickle_value.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace levin {

/// Reads pickles (protocols 2 to 5) without running anything: it knows the opcodes that make data and the classes of
/// PyTorch, NumPy and the standard library that hold it. Of every other class it makes a kObject. Bytes that are no
/// such pickle are a levin::Error, whatever they are, and so are those that have values copied again and again.
class Unpickler {
 public:
  /// Gives the value of a persistent id: a kStorage, for what torch.save writes.
  using FindStorage = std::function<PickleValue*(const PickleValue& id)>;

  /// `document` gets the values; `bytes` outlive this. `elements_known` false: the storages' elements are still to
  /// come, so that sparse tensors, whose indices are checked, are None.
  Unpickler(PickleDocument& document, std::string_view bytes, FindStorage find_storage = {}, bool elements_known = true)
      : document_(document),
        bytes_(bytes),
        find_storage_(std::move(find_storage)),
        elements_known_(elements_known),
        // What Python writes has little copied, and nothing many times.
        budget_("weights", {.bytes = (uint64_t{64} << 20) + 16 * bytes.size()}) {}

  /// Reads one pickle, from where the last one ended.
  PickleValue* read();
  /// The offset of the first byte after it.
  uint64_t position() const { return at_; }

 private:
  using Kind = PickleValue::Kind;
  using Items = std::vector<PickleValue*>;

  std::string_view take(uint64_t size);
  std::string_view take_line();
  template <class T>
  T take_number();

  void push(PickleValue* value) { stack_.push_back(value); }
  PickleValue* pop();
  PickleValue* top();
  /// Takes what is above the last mark, and the mark.
  Items pop_mark();
  void push_integer(std::string_view bytes);
  void push_tuple(size_t size);
  void put(uint64_t index);
  void get(uint64_t index);
  void add_items(Items items, bool to_set);
  void add_pairs(const Items& items);
  bool run_data(uint8_t opcode);
  bool run_structure(uint8_t opcode);

  PickleValue* call(const PickleValue* function, const PickleValue* arguments);
  PickleValue* make_container(const std::string& name, const Items& arguments);
  PickleValue* make_tensor(const std::string& name, const Items& arguments);
  PickleValue* make_numpy(const std::string& name, const Items& arguments);
  PickleValue* make_object(const PickleValue* name, const PickleValue* arguments);
  void build(PickleValue* value, PickleValue* state);
  PickleValue* sparse_tensor(const Items& arguments);

  PickleDocument& document_;
  std::string_view bytes_;
  FindStorage find_storage_;
  bool elements_known_;
  TreeBudget budget_;
  uint64_t at_ = 0;
  Items stack_;
  std::unordered_map<uint64_t, PickleValue*> memo_;
};

/// Returns the element type of "torch.float32" or of "FloatStorage"; throws levin::Error for another name.
at::ScalarType torch_type(std::string_view name);

}  // namespace levin
