#include <levin/core/accelerators/operator_trace.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <sstream>
#include <unordered_set>
#include <utility>

namespace levin {
namespace {

bool same_number(double a, double b) { return std::memcmp(&a, &b, sizeof a) == 0; }

std::string printed(const c10::IValue& value) {
  std::ostringstream text;
  text << value;
  return text.str();
}

std::string of_argument(const OperatorCall& call, size_t index) {
  if (!call.op) return "";
  const auto& arguments = call.op->schema().arguments();
  return index < arguments.size() ? fmt::format("argument '{}' of {}", arguments[index].name(), call.place())
                                  : call.place();
}

}  // namespace

bool same_values(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes()) return false;
  const at::Tensor x = a.contiguous();
  const at::Tensor y = b.contiguous();
  return x.nbytes() == 0 || std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

std::string name_of(const c10::OperatorHandle& op, const std::string* unit) {
  const auto& schema = op.schema();
  std::string name = schema.name();
  if (!schema.overload_name().empty()) name += "." + schema.overload_name();
  return unit == nullptr ? name : name + " in unit " + *unit;
}

std::string OperatorCall::name() const { return op ? name_of(*op) : "work of the host"; }
std::string OperatorCall::place() const { return op ? name_of(*op, unit) : name(); }

bool OperatorCall::is_one_of(std::span<const std::string_view> names) const {
  return op && std::find(names.begin(), names.end(), op->schema().name()) != names.end();
}

bool OperatorCall::makes_empty() const {
  constexpr std::array<std::string_view, 6> kNames = {
      "aten::empty",     "aten::empty_strided",     "aten::empty_like",
      "aten::new_empty", "aten::new_empty_strided", "aten::empty_permuted"};
  return is_one_of(kNames);
}

bool OperatorCall::makes_constant() const {
  constexpr std::array<std::string_view, 10> kNames = {
      "aten::ones",      "aten::ones_like", "aten::zeros",         "aten::zeros_like", "aten::full",
      "aten::full_like", "aten::arange",    "aten::scalar_tensor", "aten::new_zeros",  "aten::new_ones"};
  return is_one_of(kNames);
}

size_t OperatorTrace::number_of(const at::Tensor& tensor) {
  const auto [place, is_new] = numbers_.try_emplace(tensor.storage().unsafeGetStorageImpl(), storages.size());
  if (is_new) storages.push_back({.storage = tensor.storage(), .maker = std::nullopt});
  return place->second;
}

std::optional<size_t> OperatorTrace::find(const at::Tensor& tensor) const {
  const auto found = numbers_.find(tensor.storage().unsafeGetStorageImpl());
  return found == numbers_.end() ? std::nullopt : std::optional(found->second);
}

void OperatorTrace::replace(size_t number, const at::Storage& by) {
  const c10::StorageImpl* const before = storages[number].storage.unsafeGetStorageImpl();
  const auto move = [&](const at::Tensor& tensor) {
    if (tensor.storage().unsafeGetStorageImpl() == before) tensor.unsafeGetTensorImpl()->set_storage_keep_dtype(by);
  };
  for (const OperatorCall& call : calls)
    for (const auto* values : {&call.arguments, &call.results})
      for (const c10::IValue& value : *values) for_each_tensor(value, move);
  numbers_.erase(before);
  numbers_.emplace(by.unsafeGetStorageImpl(), number);
  storages[number].storage = by;
}

size_t OperatorTrace::part_of(size_t call) const {
  return static_cast<size_t>(std::upper_bound(part_ends.begin(), part_ends.end(), call) - part_ends.begin());
}

bool OperatorTrace::is_held(size_t number) const {
  return storages[number].storage.use_count() > storages[number].aliases + 1;
}

std::string OperatorTrace::lost_memory() const {
  for (size_t number = inputs; number < storages.size(); ++number) {
    if (storages[number].maker || is_held(number)) continue;
    for (const OperatorCall& call : calls)
      if (std::find(call.reads.begin(), call.reads.end(), number) != call.reads.end()) return call.place();
  }
  return "";
}

void OperatorTrace::add_generator(const at::Generator& generator) {
  if (std::find(generators.begin(), generators.end(), generator) == generators.end()) generators.push_back(generator);
}

std::vector<int64_t> OperatorTrace::holders(const std::vector<at::Tensor>& known) const {
  std::unordered_set<const c10::TensorImpl*> seen;
  std::unordered_map<const c10::StorageImpl*, int64_t> own;
  const auto count = [&](const at::Tensor& tensor) {
    if (tensor.defined() && tensor.has_storage() && seen.insert(tensor.unsafeGetTensorImpl()).second)
      ++own[tensor.storage().unsafeGetStorageImpl()];
  };
  for (const OperatorCall& call : calls)
    for (const auto* values : {&call.arguments, &call.results})
      for (const c10::IValue& value : *values) for_each_tensor(value, count);
  for (const at::Tensor& tensor : known) count(tensor);
  std::vector<int64_t> holders;
  for (const TracedStorage& traced : storages)
    holders.push_back(static_cast<int64_t>(traced.storage.use_count()) - own[traced.storage.unsafeGetStorageImpl()] -
                      1);
  return holders;
}

std::string OperatorTrace::name_of_storage(size_t number) const {
  const auto& maker = storages[number].maker;
  return maker ? fmt::format("what {} gave", calls[*maker].place()) : "a tensor of the batch";
}

std::string OperatorTrace::difference(const OperatorTrace& other, size_t part) const {
  const size_t first = first_call(part);
  if (first != other.first_call(part)) return "operators moved between the parts of the step";
  for (size_t i = first; i < part_ends[part] && i < other.part_ends[part]; ++i) {
    const OperatorCall& mine = calls[i];
    const OperatorCall& its = other.calls[i];
    if (mine.name() != its.name())
      return fmt::format("an ordinary step runs {} where the recorded one ran {}", its.place(), mine.place());
    if (mine.grad_mode != its.grad_mode || mine.default_dtype != its.default_dtype)
      return fmt::format("{} runs with another gradient mode or default type than recorded", mine.place());
    if (mine.arguments.size() != its.arguments.size()) return mine.place() + " has other arguments than recorded";
    for (size_t a = 0; a < mine.arguments.size(); ++a) {
      const std::string what = difference(mine.arguments[a], other, its.arguments[a]);
      if (!what.empty()) return of_argument(mine, a) + what;
    }
  }
  if (part_ends[part] < other.part_ends[part])
    return fmt::format("an ordinary step also runs {}", other.calls[part_ends[part]].place());
  if (other.part_ends[part] < part_ends[part])
    return fmt::format("an ordinary step does not run {}", calls[other.part_ends[part]].place());
  return "";
}

std::string OperatorTrace::difference(const c10::IValue& mine, const OperatorTrace& other,
                                      const c10::IValue& its) const {
  if (mine.isTensor() && its.isTensor()) {
    const at::Tensor& a = mine.toTensor();
    const at::Tensor& b = its.toTensor();
    if (a.defined() != b.defined()) return " is there now and then only";
    if (!a.defined()) return "";
    if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes() || a.strides() != b.strides() ||
        a.storage_offset() != b.storage_offset())
      return fmt::format(" has another type or shape than recorded; got {}, recorded {}", c10::str(b.sizes()),
                         c10::str(a.sizes()));
    const auto number = find(a);
    if (!number || number != other.find(b) ||
        (!storages[*number].maker && *number >= inputs &&
         storages[*number].storage.unsafeGetStorageImpl() != other.storages[*number].storage.unsafeGetStorageImpl()))
      return " is another tensor than recorded";
    return "";
  }
  if (mine.isList() && its.isList()) {
    const auto a = mine.toListRef();
    const auto b = its.toListRef();
    if (a.size() != b.size()) return " has another length than recorded";
    for (size_t i = 0; i < a.size(); ++i) {
      std::string what = difference(a[i], other, b[i]);
      if (!what.empty()) return what;
    }
    return "";
  }
  const bool same = mine.isDouble() && its.isDouble() ? same_number(mine.toDouble(), its.toDouble())
                    : mine.tagKind() != its.tagKind() ? false
                                                      : mine == its;
  return same ? "" : fmt::format(" changes from step to step; got {}, recorded {}", printed(its), printed(mine));
}

}  // namespace levin
