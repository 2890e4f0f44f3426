#include <levin/core/data/tables/column_values.h>

#include <levin/core/base/error.h>

#include <ATen/ops/from_blob.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <memory>
#include <set>
#include <utility>

namespace levin::data {

namespace {

constexpr int64_t kMissingCategory = -1;

/// The number that up to 15 digits with a point or without are; nothing for any other text. Both the digits and the
/// power of ten are exact then, so that their quotient is the nearest number (Clinger, "How to read floating point
/// numbers accurately", 1990). Most numbers of tables are such, and are read so in half the time.
std::optional<double> parse_short_number(std::string_view text) {
  constexpr std::array<double, 16> kPowers{1e0, 1e1, 1e2,  1e3,  1e4,  1e5,  1e6,  1e7,
                                           1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15};
  const bool is_negative = text.starts_with('-');
  if (is_negative) text.remove_prefix(1);
  if (text.empty() || text.size() > kPowers.size() || text.front() == '.' || text.back() == '.') return std::nullopt;
  int64_t digits = 0;
  size_t point = text.size() - 1;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] >= '0' && text[i] <= '9')
      digits = digits * 10 + (text[i] - '0');
    else if (text[i] == '.' && point == text.size() - 1)
      point = i;
    else
      return std::nullopt;
  }
  // Without a point there may be 16 digits, which are not exact.
  if (point == text.size() - 1 && text.size() == kPowers.size()) return std::nullopt;
  const double value = static_cast<double>(digits) / kPowers[text.size() - 1 - point];
  return is_negative ? -value : value;
}

std::optional<int64_t> parse_whole_number(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

/// A tensor over a vector that it keeps.
template <class T>
at::Tensor to_tensor(std::vector<T> values, at::ScalarType type) {
  auto kept = std::make_shared<std::vector<T>>(std::move(values));
  return at::from_blob(
      kept->data(), {static_cast<int64_t>(kept->size())}, [kept](void*) {}, at::TensorOptions().dtype(type));
}

}  // namespace

std::optional<double> parse_number(std::string_view text) {
  if (const auto number = parse_short_number(text)) return number;
  if (text.starts_with('+')) text.remove_prefix(1);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) return std::nullopt;
  return value;
}

MissingWords::MissingWords(const std::vector<std::string>& words) : words_(words) {
  for (const std::string& word : words) {
    if (word.empty())
      has_empty_ = true;
    else
      first_bytes_.set(static_cast<unsigned char>(word.front()));
  }
}

bool MissingWords::contains(std::string_view text) const {
  if (text.empty()) return has_empty_;
  return first_bytes_.test(static_cast<unsigned char>(text.front())) &&
         std::find(words_.begin(), words_.end(), text) != words_.end();
}

void ColumnValues::add(std::string_view text, const MissingWords& missing, const std::string& path, int64_t line) {
  if (missing.contains(text)) {
    add_missing();
  } else if (*type == ColumnType::kCategory) {
    codes.push_back(code_of(text));
  } else if (const auto number = parse_number(text)) {
    numbers.push_back(*number);
  } else {
    fail_number(path, line, name, text);
  }
}

void ColumnValues::add_missing() {
  if (*type == ColumnType::kCategory)
    codes.push_back(kMissingCategory);
  else
    numbers.push_back(std::numeric_limits<double>::quiet_NaN());
}

int64_t ColumnValues::code_of(std::string_view text) {
  auto found = categories_.find(text);
  if (found == categories_.end())
    found = categories_.emplace(std::string(text), static_cast<int64_t>(categories_.size())).first;
  return found->second;
}

void ColumnValues::reserve(size_t rows) {
  if (*type == ColumnType::kNumber)
    numbers.reserve(rows);
  else
    codes.reserve(rows);
}

TableColumn ColumnValues::finish() {
  if (*type == ColumnType::kNumber)
    return {.name = name, .type = *type, .values = to_tensor(std::move(numbers), at::kDouble)};
  std::vector<std::string> names;
  for (const auto& category : categories_) names.push_back(category.first);
  const bool are_whole_numbers = std::all_of(
      names.begin(), names.end(), [](const std::string& word) { return parse_whole_number(word).has_value(); });
  std::sort(names.begin(), names.end(), [&](const std::string& a, const std::string& b) {
    if (!are_whole_numbers) return a < b;
    return std::pair(*parse_whole_number(a), a) < std::pair(*parse_whole_number(b), b);
  });
  std::vector<int64_t> places(names.size());
  for (size_t i = 0; i < names.size(); ++i)
    places[static_cast<size_t>(categories_[names[i]])] = static_cast<int64_t>(i);
  for (int64_t& code : codes)
    if (code != kMissingCategory) code = places[static_cast<size_t>(code)];
  return {
      .name = name, .type = *type, .values = to_tensor(std::move(codes), at::kLong), .categories = std::move(names)};
}

std::vector<ColumnValues> make_columns(const std::vector<std::string>& names, const TableOptions& options,
                                       const std::string& path, const std::string& place) {
  const auto contains = [](const std::vector<std::string>& list, const std::string& name) {
    return std::find(list.begin(), list.end(), name) != list.end();
  };
  std::set<std::string> valid;
  std::vector<ColumnValues> columns;
  for (const std::string& name : names) {
    if (!valid.insert(name).second) throw Error("data", fmt::format("{}: two columns have the name '{}'", place, name));
    ColumnValues column;
    column.name = name;
    if (const auto given = options.types.find(name); given != options.types.end()) column.type = given->second;
    column.is_ignored = contains(options.ignore, name) || !(options.columns.empty() || contains(options.columns, name));
    columns.push_back(std::move(column));
  }
  const auto require = [&](const std::string& name) {
    if (!valid.contains(name))
      throw Error("data", fmt::format("{} has no column '{}'{}", path, name,
                                      valid_names_hint(name, std::vector<std::string>(valid.begin(), valid.end()))));
  };
  for (const auto& given : options.types) require(given.first);
  for (const std::string& name : options.columns) require(name);
  for (const std::string& name : options.ignore) require(name);
  return columns;
}

void fail_number(const std::string& path, int64_t line, const std::string& column, std::string_view text) {
  throw Error("data", fmt::format("{}:{}: column '{}': '{}' is no number; hint: words for what is not known are in "
                                  "`missing`, columns of words in `categories`",
                                  path, line, column, text.substr(0, 60)));
}

}  // namespace levin::data
