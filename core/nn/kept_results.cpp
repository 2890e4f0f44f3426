#include <levin/core/nn/kept_results.h>

#include <levin/core/base/error.h>
#include <levin/core/base/log.h>
#include <levin/core/base/thread_generator.h>
#include <levin/core/base/weight_conversion.h>

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/core/enum_tag.h>
#include <c10/util/hash.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string_view>

namespace levin {
namespace {

/// What operators that LibTorch takes apart become, below autograd.
const std::map<std::string, std::vector<std::string>>& composed_operators() {
  static const std::vector<std::string> products = {"aten::mm",      "aten::addmm", "aten::bmm",
                                                    "aten::baddbmm", "aten::mv",    "aten::linear"};
  static const std::map<std::string, std::vector<std::string>> all = {
      {"linear", products},
      {"matmul", products},
      {"scaled_dot_product_attention", {"aten::_scaled_dot_product_*", "levin::document_attention"}}};
  return all;
}

thread_local int64_t given_operators = 0;

std::vector<std::string> names_of_operators() {
  std::set<std::string> names;
  for (const auto& [name, operators] : composed_operators()) names.insert(name);
  constexpr std::string_view kNamespace = "aten::";
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames())
    names.insert(name.name.starts_with(kNamespace) ? name.name.substr(kNamespace.size()) : name.name);
  return {names.begin(), names.end()};
}

std::string full_name(const std::string& name) { return name.find("::") == std::string::npos ? "aten::" + name : name; }

bool can_be_kept(const std::string& name) {
  auto& dispatcher = c10::Dispatcher::singleton();
  const auto operators = dispatcher.getAllOpNames();
  return std::any_of(operators.begin(), operators.end(), [&](const c10::OperatorName& overload) {
    const auto op = overload.name == full_name(name) ? dispatcher.findSchema(overload) : std::nullopt;
    return op && gives_new_tensors(op->schema());
  });
}

bool draws(const c10::OperatorHandle& op) { return op.hasTag(at::Tag::nondeterministic_seeded); }

/// One that autograd may make a result of its own, with the same memory and count of modifications.
at::Tensor alias_of_result(const at::Tensor& tensor) {
  auto* const impl = tensor.unsafeGetTensorImpl();
  return at::Tensor(impl->shallow_copy_and_detach(impl->version_counter(), /*allow_tensor_metadata_change=*/true));
}

at::Generator generator_of(const std::optional<at::Device>& device) {
  return device ? at::globalContext().defaultGenerator(*device) : default_cpu_generator();
}

at::Tensor random_state(const std::optional<at::Device>& device) {
  at::Generator generator = generator_of(device);
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

void set_random_state(const std::optional<at::Device>& device, const at::Tensor& state) {
  at::Generator generator = generator_of(device);
  const std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

}  // namespace

bool gives_new_tensors(const c10::FunctionSchema& schema) {
  const auto has_alias = [](const c10::Argument& argument) { return argument.alias_info() != nullptr; };
  return std::none_of(schema.arguments().begin(), schema.arguments().end(), has_alias) &&
         std::none_of(schema.returns().begin(), schema.returns().end(), has_alias);
}

OperatorChoice::OperatorChoice(const std::vector<std::string>& names, const std::string& option) {
  static const std::vector<std::string> usual = {"linear", "matmul", "scaled_dot_product_attention"};
  if (names.empty()) return;
  const auto known = names_of_operators();
  for (const std::string& name : names) {
    // Levin's are there once they have run; one that never does is warned of.
    const bool is_levins = name.starts_with("levin::");
    if (!is_levins && !std::binary_search(known.begin(), known.end(), name)) {
      std::string nearest = nearest_name(name, usual);
      if (nearest.empty()) nearest = nearest_name(name, known);
      throw ConfigError(
          fmt::format("{}: there is no operator '{}'{}; valid: linear, matmul, "
                      "scaled_dot_product_attention, and names of LibTorch's operators, such as mm",
                      option, name, nearest.empty() ? "" : fmt::format("; did you mean '{}'?", nearest)));
    }
    if (!is_levins && composed_operators().find(name) == composed_operators().end() && !can_be_kept(name))
      throw ConfigError(fmt::format(
          "{}: '{}' writes to its arguments or gives views of them, so that there is nothing to keep; valid: "
          "operators that give new tensors",
          option, name));
    auto& entry = *names_.emplace_back(std::make_unique<Name>());
    entry.given = name;
    const auto composed = composed_operators().find(name);
    if (composed != composed_operators().end())
      entry.operators = composed->second;
    else
      entry.operators = {full_name(name)};
  }
}

int64_t operators_given() { return given_operators; }

bool OperatorChoice::contains(const c10::OperatorHandle& op, size_t /*index*/) const {
  const std::string& name = op.schema().name();
  bool found = false;
  for (const auto& entry : names_)
    for (const std::string& wanted : entry->operators) {
      const bool is_met = wanted.ends_with('*')
                              ? name.starts_with(std::string_view(wanted).substr(0, wanted.size() - 1))
                              : name == wanted;
      if (!is_met) continue;
      entry->is_met = true;
      found = true;
    }
  return found;
}

void OperatorChoice::begin_second_forward() const {
  if (has_warned_.exchange(true)) return;
  for (const auto& entry : names_)
    if (!entry->is_met)
      log::warning(fmt::format(
          "activation_checkpointing.keep: no unit that is checkpointed ran '{}', so that nothing is kept of "
          "it; hint: the profiler's table has the operators that run",
          entry->given));
}

OperatorInterceptor::Scope KeptResults::keep() {
  gives_ = false;
  index_ = history_ = 0;
  return Scope(this);
}

OperatorInterceptor::Scope KeptResults::give(bool for_good) {
  gives_ = true;
  for_good_ = for_good;
  next_ = index_ = history_ = 0;
  return Scope(this);
}

void KeptResults::call(const c10::OperatorHandle& op, c10::DispatchKeySet after, torch::jit::Stack* stack) {
  const bool hands_over = op.schema().name() == "aten::_unsafe_view";
  const bool is_new = gives_new_tensors(op.schema()) && !is_converting_weight();
  if (is_new) history_ = c10::hash_combine(history_, std::hash<const void*>()(&op.schema()));
  if (!is_new || !choice_->contains(op, index_++)) {
    std::optional<Pause> pause;
    if (is_new && choice_->passes_over_inner()) pause.emplace();
    op.redispatchBoxed(after, stack);
    pause.reset();
    if (hands_over) leave_kept(stack->back());
    return;
  }
  if (gives_ && next_ < calls_.size()) {
    Call& kept = calls_[next_++];
    if (kept.history == history_ && give_results(kept, op, *stack)) {
      if (for_good_) kept.results.clear();
      return;
    }
  }
  {
    const Pause once;
    op.redispatchBoxed(after, stack);
  }
  if (hands_over) leave_kept(stack->back());
  if (!gives_) keep_results(op, *stack);
}

/// matmul hands the memory of a product over so, with a count of modifications of its own, and torch::nn::Linear then
/// adds its bias in place: what is kept stays as it was.
void KeptResults::leave_kept(c10::IValue& handed_over) const {
  const at::Tensor& tensor = handed_over.toTensor();
  const auto is_its = [&](const Result& result) {
    return result.tensor.defined() && result.tensor.is_alias_of(tensor);
  };
  const auto has_it = [&](const Call& call) { return std::any_of(call.results.begin(), call.results.end(), is_its); };
  if (std::none_of(calls_.begin(), calls_.end(), has_it)) return;
  const Pause once;
  handed_over = tensor.clone();
}

void KeptResults::keep_results(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  Call call{.op = op, .history = history_};
  std::optional<at::Device> device;
  const auto first = stack.end() - static_cast<std::ptrdiff_t>(op.schema().returns().size());
  // A list is left out: its operator runs again.
  if (std::any_of(first, stack.end(), [](const c10::IValue& value) { return value.isList(); })) {
    calls_.push_back(std::move(call));
    return;
  }
  for (auto value = first; value != stack.end(); ++value) {
    Result& result = call.results.emplace_back();
    if (!value->isTensor()) {
      result.other = *value;
      continue;
    }
    const at::Tensor& tensor = value->toTensor();
    if (!tensor.defined()) continue;
    result.tensor = alias_of_result(tensor);
    result.version = result.tensor._version();
    if (!tensor.is_cpu()) device = tensor.device();
  }
  if (draws(op)) {
    call.random.emplace_back(std::nullopt, random_state({}));
    if (device) call.random.emplace_back(device, random_state(device));
  }
  calls_.push_back(std::move(call));
}

/// False where its operator must run again.
bool KeptResults::give_results(Call& kept, const c10::OperatorHandle& op, torch::jit::Stack& stack) const {
  const auto& schema = op.schema();
  const bool is_same = kept.op == op && kept.results.size() == schema.returns().size();
  const auto was_modified = [](const Result& result) {
    return result.tensor.defined() && result.tensor._version() != result.version;
  };
  if (!is_same || std::any_of(kept.results.begin(), kept.results.end(), was_modified)) return false;
  torch::jit::drop(stack, schema.arguments().size());
  for (size_t i = 0; i < kept.results.size(); ++i) {
    const Result& result = kept.results[i];
    const bool is_tensor = schema.returns()[i].type()->kind() == c10::TypeKind::TensorType;
    stack.push_back(!is_tensor ? result.other
                               : c10::IValue(result.tensor.defined() ? alias_of_result(result.tensor) : at::Tensor()));
  }
  for (const auto& [device, state] : kept.random) set_random_state(device, state);
  ++given_operators;
  return true;
}

}  // namespace levin
