#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/ScalarType.h>
#include <c10/core/Storage.h>

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace levin {

/// One call of an operator, or work of the host in its place.
struct OperatorCall {
  std::optional<c10::OperatorHandle> op;  ///< nothing: host_work
  torch::jit::Stack arguments;            ///< tensors are aliases of the trace's own
  torch::jit::Stack results;
  std::function<void()> host_work;
  bool grad_mode = false;
  at::ScalarType default_dtype = at::kFloat;
  std::vector<size_t> reads;          ///< storages of the arguments, those written too
  std::vector<size_t> writes;         ///< storages of arguments that are changed in place
  std::vector<size_t> makes;          ///< storages that nobody has seen before
  const std::string* unit = nullptr;  ///< whose forward called it, where that is known

  /// Returns "aten::mul.Tensor".
  std::string name() const;
  /// Returns "aten::mul.Tensor in unit net.2 (Linear)".
  std::string place() const;
  /// Whether the operator has one of these names, without an overload.
  bool is_one_of(std::span<const std::string_view> names) const;
  /// Whether it makes memory and writes nothing into it.
  bool makes_empty() const;
  /// Whether it gives the same in each step, whatever its arguments hold.
  bool makes_constant() const;
};

/// Memory that calls use.
struct TracedStorage {
  at::Storage storage;
  std::optional<size_t> maker;  ///< the call that made it; nothing: it was there before
  size_t aliases = 0;           ///< tensors of the trace that refer to it
};

/// The calls of a recorded step in order, and the memory that they use, numbered as it is first seen.
class OperatorTrace {
 public:
  std::vector<OperatorCall> calls;
  std::vector<TracedStorage> storages;
  std::vector<size_t> part_ends;          ///< of each part, the number of calls up to its end
  size_t inputs = 0;                      ///< the first so many storages are those of the batch
  std::vector<at::Generator> generators;  ///< that operators were given, each once

  /// Returns the number of a tensor's storage, a new one where it has not been seen.
  size_t number_of(const at::Tensor& tensor);
  std::optional<size_t> find(const at::Tensor& tensor) const;
  /// Puts another storage in the place of one, in all calls.
  void replace(size_t number, const at::Storage& by);
  /// Whether somebody beside the trace refers to a storage.
  bool is_held(size_t number) const;
  /// Names the first call that uses memory, other than the batch's, which the step did not make and to which nobody
  /// else refers any more; empty where there is none.
  std::string lost_memory() const;
  void add_generator(const at::Generator& generator);

  /// Returns how many tensors refer to each storage, beside those of the trace and `known`.
  std::vector<int64_t> holders(const std::vector<at::Tensor>& known) const;
  /// Returns what that memory is in messages.
  std::string name_of_storage(size_t number) const;
  /// Returns in which call of a part the other trace does something else, in words; empty where there is none. What
  /// differs in memory alone is not seen.
  std::string difference(const OperatorTrace& other, size_t part) const;
  /// Returns the number of a part's first call.
  size_t first_call(size_t part) const { return part == 0 ? 0 : part_ends[part - 1]; }
  /// Returns the part that a call belongs to.
  size_t part_of(size_t call) const;

 private:
  std::string difference(const c10::IValue& mine, const OperatorTrace& other, const c10::IValue& its) const;

  std::unordered_map<const c10::StorageImpl*, size_t> numbers_;
};

/// Whether two tensors hold the same bits.
bool same_values(const at::Tensor& a, const at::Tensor& b);

/// Returns the name of an operator, " in unit " and that of the unit where there is one.
std::string name_of(const c10::OperatorHandle& op, const std::string* unit = nullptr);

/// Visits the tensors in a value, of lists too.
template <class Visit>
void for_each_tensor(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) visit(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector())
      if (tensor.defined()) visit(tensor);
  } else if (value.isList()) {
    for (const c10::IValue& item : value.toListRef()) for_each_tensor(item, visit);
  }
}

}  // namespace levin
