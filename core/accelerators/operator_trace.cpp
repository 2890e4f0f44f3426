#include <levin/core/accelerators/operator_trace.h>

#include <fmt/format.h>

#include <cstring>
#include <sstream>
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
  return index < arguments.size() ? fmt::format("argument '{}' of {}", arguments[index].name(), call.name())
                                  : call.name();
}

}  // namespace

std::string OperatorCall::name() const {
  if (!op) return "work of the host";
  const auto& schema = op->schema();
  return schema.overload_name().empty() ? schema.name() : schema.name() + "." + schema.overload_name();
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

void OperatorTrace::replace(size_t number, at::Storage by) {
  numbers_.erase(storages[number].storage.unsafeGetStorageImpl());
  numbers_.emplace(by.unsafeGetStorageImpl(), number);
  storages[number].storage = std::move(by);
}

std::string OperatorTrace::difference(const OperatorTrace& other) const {
  for (size_t i = 0; i < calls.size() && i < other.calls.size(); ++i) {
    const OperatorCall& mine = calls[i];
    const OperatorCall& its = other.calls[i];
    if (mine.name() != its.name())
      return fmt::format("an ordinary step runs {} where the recorded one ran {}", its.name(), mine.name());
    if (mine.grad_mode != its.grad_mode || mine.default_dtype != its.default_dtype)
      return fmt::format("{} runs with another gradient mode or default type than recorded", mine.name());
    if (mine.arguments.size() != its.arguments.size()) return mine.name() + " has other arguments than recorded";
    for (size_t a = 0; a < mine.arguments.size(); ++a) {
      const std::string what = difference(mine.arguments[a], other, its.arguments[a]);
      if (!what.empty()) return of_argument(mine, a) + what;
    }
  }
  if (calls.size() < other.calls.size())
    return fmt::format("an ordinary step also runs {}", other.calls[calls.size()].name());
  if (other.calls.size() < calls.size())
    return fmt::format("an ordinary step does not run {}", calls[other.calls.size()].name());
  return part_ends == other.part_ends ? "" : "operators moved between forward, backward and update";
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
        (!storages[*number].maker && storages[*number].storage.unsafeGetStorageImpl() !=
                                         other.storages[*number].storage.unsafeGetStorageImpl()))
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
