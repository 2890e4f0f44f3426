#include <levin/core/base/error.h>

#include <levin/core/base/utf8.h>

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace levin {
namespace {

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substitution = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substitution});
    }
  }
  return row[b.size()];
}

}  // namespace

Error::Error(std::string_view component, std::string_view message)
    : std::runtime_error(error_text(fmt::format("[{}] {}", component, message))), component_(component) {}

std::string nearest_name(std::string_view name, std::span<const std::string> candidates) {
  std::string best;
  // A third of the letters may differ, two in a short name, but never all of them.
  size_t best_distance = std::min(std::max<size_t>(2, name.size() / 3) + 1, name.size());
  for (const auto& candidate : candidates) {
    const size_t distance = edit_distance(name, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

std::string valid_names_hint(std::string_view name, std::span<const std::string> candidates) {
  const std::string nearest = nearest_name(name, candidates);
  std::string hint = nearest.empty() ? "" : fmt::format("; did you mean '{}'?", nearest);
  if (!candidates.empty()) hint += fmt::format("; valid: {}", join(candidates));
  return hint;
}

std::string counted(int64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

std::string join(std::span<const std::string> parts, std::string_view separator) {
  std::string joined;
  for (const auto& part : parts) {
    if (&part != parts.data()) joined += separator;
    joined += part;
  }
  return joined;
}

namespace detail {
void check_failed(const char* file, int line, const char* condition, std::string_view message) {
  throw InternalError(fmt::format("[internal] {}; the invariant `{}` does not hold at {}:{}; please report it", message,
                                  condition, file, line));
}
}  // namespace detail
}  // namespace levin
