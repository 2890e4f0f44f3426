#include <levin/core/accelerators/out_operators.h>

#include <string>
#include <unordered_map>
#include <vector>

namespace levin {
namespace {

/// The operators with out= arguments, by name without the overload.
const std::unordered_map<std::string, std::vector<c10::OperatorHandle>>& out_operators() {
  static const auto all = [] {
    std::unordered_map<std::string, std::vector<c10::OperatorHandle>> found;
    for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
      if (name.overload_name.find("out") == std::string::npos && name.overload_name.find("grad_input") != 0) continue;
      const auto op = c10::Dispatcher::singleton().findSchema(name);
      if (!op || op->schema().arguments().empty() || !op->schema().arguments().back().is_out()) continue;
      if (op->hasKernelForDispatchKey(c10::DispatchKey::CPU)) found[name.name].push_back(*op);
    }
    return found;
  }();
  return all;
}

bool takes_results_of(const c10::FunctionSchema& out, const c10::FunctionSchema& schema) {
  const size_t count = schema.arguments().size();
  const size_t results = schema.returns().size();
  if (out.arguments().size() != count + results) return false;
  for (size_t i = 0; i < count; ++i)
    if (out.arguments()[i].name() != schema.arguments()[i].name() ||
        *out.arguments()[i].type() != *schema.arguments()[i].type())
      return false;
  for (size_t i = count; i < count + results; ++i)
    if (!out.arguments()[i].is_out()) return false;
  return true;
}

}  // namespace

std::optional<c10::OperatorHandle> find_out_operator(const c10::OperatorHandle& op) {
  // Those of most losses use the result as scratch memory, and resize it.
  const std::string& name = op.schema().name();
  if (name.find("_loss") != std::string::npos && name.find("nll_loss_") == std::string::npos) return std::nullopt;
  if (name.find("binary_cross_entropy") != std::string::npos) return std::nullopt;
  const auto found = out_operators().find(op.schema().name());
  if (found == out_operators().end()) return std::nullopt;
  for (const auto& candidate : found->second)
    if (takes_results_of(candidate.schema(), op.schema())) return candidate;
  return std::nullopt;
}

}  // namespace levin
