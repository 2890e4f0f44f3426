#include <levin/core/base/tree_budget.h>

#include <levin/core/base/error.h>

#include <fmt/format.h>

namespace levin {

TreeBudget::Level TreeBudget::enter() {
  if (depth_ >= limits_.depth)
    throw Error(component_,
                fmt::format("values lie too deep inside each other; got more than {} levels", limits_.depth));
  return Level(depth_);
}

void TreeBudget::visit(uint64_t values) {
  if (values > limits_.visits - visits_)
    throw Error(component_,
                fmt::format("values share parts, or lie inside themselves, so that they stand for too many; "
                            "got more than {}",
                            limits_.visits));
  visits_ += values;
}

void TreeBudget::copy(uint64_t bytes) {
  if (bytes > limits_.bytes - bytes_)
    throw Error(component_, fmt::format("values are copied again and again; got more than {} bytes", limits_.bytes));
  bytes_ += bytes;
}

bool is_too_deep_json(std::string_view text) {
  constexpr TreeLimits kLimits;
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char letter = text[i];
    if (in_string) {
      if (letter == '\\')
        ++i;
      else if (letter == '"')
        in_string = false;
    } else if (letter == '"') {
      in_string = true;
    } else if (letter == '[' || letter == '{') {
      if (++depth > kLimits.depth) return true;
    } else if (letter == ']' || letter == '}') {
      --depth;
    }
  }
  return false;
}

}  // namespace levin
