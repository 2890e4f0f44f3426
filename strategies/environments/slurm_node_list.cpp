#include <levin/strategies/environments/slurm_node_list.h>

#include <levin/core/base/error.h>

#include <fmt/format.h>

#include <charconv>
#include <optional>

namespace levin {
namespace {

/// Digits only, so without a sign.
std::optional<int64_t> parse_digits(std::string_view text) {
  int64_t number = 0;
  if (text.empty() || text.find_first_not_of("0123456789") != std::string_view::npos) return std::nullopt;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), number);
  if (parsed.ec != std::errc()) return std::nullopt;
  return number;
}

/// The parts between commas.
std::vector<std::string_view> split(std::string_view text) {
  std::vector<std::string_view> parts;
  for (size_t comma = text.find(','); comma != std::string_view::npos; comma = text.find(',')) {
    parts.push_back(text.substr(0, comma));
    text.remove_prefix(comma + 1);
  }
  parts.push_back(text);
  return parts;
}

/// Reads a node list from left to right.
class NodeListParser {
 public:
  NodeListParser(std::string_view list, size_t most_nodes) : list_(list), most_nodes_(most_nodes) {}

  std::vector<std::string> parse() {
    std::vector<std::string> nodes;
    for (size_t begin = 0; begin <= list_.size();) {
      const size_t end = end_of_name(begin);
      if (end == begin) fail("a name is empty");
      const auto names = expand_name(list_.substr(begin, end - begin));
      nodes.insert(nodes.end(), names.begin(), names.end());
      check_count(nodes.size());
      begin = end + 1;
    }
    return nodes;
  }

 private:
  [[noreturn]] void fail(const std::string& reason) const {
    throw Error(
        "environment",
        fmt::format("SLURM: cannot read the list of nodes; got '{}': {}; valid: node[01-03,7],login", list_, reason));
  }

  void check_count(size_t count) const {
    if (count > most_nodes_) fail(fmt::format("these are more than {} nodes", most_nodes_));
  }

  /// Where the name that begins there ends: at a comma outside of brackets, or at the list's end.
  size_t end_of_name(size_t begin) const {
    bool in_brackets = false;
    for (size_t i = begin; i < list_.size(); ++i) {
      const char character = list_[i];
      if (character == ',' && !in_brackets) return i;
      if (character != '[' && character != ']') continue;
      if ((character == '[') == in_brackets) fail(fmt::format("'{}' is out of place", character));
      in_brackets = character == '[';
    }
    if (in_brackets) fail("']' is missing");
    return list_.size();
  }

  /// The names for which "rack[1-2]node[01-02]x" stands.
  std::vector<std::string> expand_name(std::string_view name) const {
    std::vector<std::string> names = {""};
    while (!name.empty()) {
      const size_t open = name.find('[');
      const std::string_view plain = name.substr(0, open);
      for (std::string& each : names) each += plain;
      if (open == std::string_view::npos) break;
      const size_t close = name.find(']');
      const auto numbers = expand_brackets(name.substr(open + 1, close - open - 1));
      check_count(names.size() * numbers.size());
      std::vector<std::string> longer;
      longer.reserve(names.size() * numbers.size());
      for (const std::string& each : names)
        for (const std::string& number : numbers) longer.push_back(each + number);
      names = std::move(longer);
      name.remove_prefix(close + 1);
    }
    return names;
  }

  /// "01-03,7" is 01, 02, 03, 7: numbers have as many digits as the first of their range.
  std::vector<std::string> expand_brackets(std::string_view ranges) const {
    std::vector<std::string> numbers;
    for (const std::string_view range : split(ranges)) {
      const size_t dash = range.find('-');
      const std::string_view first_digits = range.substr(0, dash);
      const auto first = parse_digits(first_digits);
      const auto last = dash == std::string_view::npos ? first : parse_digits(range.substr(dash + 1));
      if (!first || !last || *last < *first) fail(fmt::format("'{}' is no range of numbers", range));
      if (*last - *first >= static_cast<int64_t>(most_nodes_)) check_count(most_nodes_ + 1);
      for (int64_t number = *first; number <= *last; ++number)
        numbers.push_back(fmt::format("{:0{}}", number, first_digits.size()));
      check_count(numbers.size());
    }
    return numbers;
  }

  const std::string_view list_;
  const size_t most_nodes_;
};

}  // namespace

std::vector<std::string> expand_node_list(std::string_view list, size_t most_nodes) {
  return NodeListParser(list, most_nodes).parse();
}

std::vector<int64_t> expand_tasks_per_node(std::string_view text) {
  std::vector<int64_t> tasks;
  for (std::string_view part : split(text)) {
    int64_t nodes = 1;
    if (const size_t open = part.find("(x"); open != std::string_view::npos && part.ends_with(')')) {
      nodes = parse_digits(part.substr(open + 2, part.size() - open - 3)).value_or(0);
      part = part.substr(0, open);
    }
    const auto count = parse_digits(part);
    if (!count || nodes < 1 || nodes > static_cast<int64_t>(kMostNodes - tasks.size()))
      throw Error("environment",
                  fmt::format("SLURM: cannot read the number of tasks on each node; got '{}'; valid: 2(x3),1", text));
    tasks.insert(tasks.end(), static_cast<size_t>(nodes), *count);
  }
  return tasks;
}

}  // namespace levin
