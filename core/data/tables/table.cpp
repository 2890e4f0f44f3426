#include <levin/core/data/tables/table.h>

#include <levin/core/base/error.h>
#include <levin/core/data/tables/csv_parser.h>

#include <ATen/ops/from_blob.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bitset>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace levin::data {

namespace {

/// Rows that say which columns have numbers.
constexpr size_t kSampleRows = 1000;
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

std::optional<double> parse_number(std::string_view text) {
  if (const auto number = parse_short_number(text)) return number;
  if (text.starts_with('+')) text.remove_prefix(1);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) return std::nullopt;
  return value;
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

/// The words for values that are missing. Few fields begin as one of them does, so that most are told by a byte.
class MissingWords {
 public:
  explicit MissingWords(const std::vector<std::string>& words) : words_(words) {
    for (const std::string& word : words) {
      if (word.empty())
        has_empty_ = true;
      else
        first_bytes_.set(static_cast<unsigned char>(word.front()));
    }
  }
  bool contains(std::string_view text) const {
    if (text.empty()) return has_empty_;
    return first_bytes_.test(static_cast<unsigned char>(text.front())) &&
           std::find(words_.begin(), words_.end(), text) != words_.end();
  }

 private:
  const std::vector<std::string>& words_;
  std::bitset<256> first_bytes_;
  bool has_empty_ = false;
};

struct TextHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};

/// The values of one column as they come.
struct ColumnValues {
  std::string name;
  bool is_ignored = false;
  std::optional<ColumnType> type = {};  ///< unknown until the sample is full
  std::vector<std::string> sample = {};
  std::vector<double> numbers = {};
  std::vector<int64_t> codes = {};  ///< in the order in which categories were first seen
  std::unordered_map<std::string, int64_t, TextHash, std::equal_to<>> categories = {};

  void add_category(std::string_view text) {
    auto found = categories.find(text);
    if (found == categories.end())
      found = categories.emplace(std::string(text), static_cast<int64_t>(categories.size())).first;
    codes.push_back(found->second);
  }

  TableColumn finish() {
    if (*type == ColumnType::kNumber)
      return {.name = name, .type = *type, .values = to_tensor(std::move(numbers), at::kDouble)};
    std::vector<std::string> names;
    for (const auto& category : categories) names.push_back(category.first);
    const bool are_whole_numbers = std::all_of(
        names.begin(), names.end(), [](const std::string& word) { return parse_whole_number(word).has_value(); });
    std::sort(names.begin(), names.end(), [&](const std::string& a, const std::string& b) {
      if (!are_whole_numbers) return a < b;
      return std::pair(*parse_whole_number(a), a) < std::pair(*parse_whole_number(b), b);
    });
    std::vector<int64_t> places(names.size());
    for (size_t i = 0; i < names.size(); ++i)
      places[static_cast<size_t>(categories[names[i]])] = static_cast<int64_t>(i);
    for (int64_t& code : codes)
      if (code != kMissingCategory) code = places[static_cast<size_t>(code)];
    return {
        .name = name, .type = *type, .values = to_tensor(std::move(codes), at::kLong), .categories = std::move(names)};
  }
};

class TableBuilder : public CsvHandler {
 public:
  TableBuilder(const std::string& path, const TableOptions& options)
      : path_(path), options_(options), missing_(options.missing), in_header_(options.header) {}

  void field(std::string_view text, int64_t line) override {
    if (!has_columns_) {
      first_row_.emplace_back(text);
      return;
    }
    if (lines_.size() < kSampleRows) sample_bytes_ += text.size() + 1;
    if (place_ < columns_.size()) add(columns_[place_], text, line);
    ++place_;
  }

  void end_row(int64_t line) override {
    if (!has_columns_) {
      make_columns(line);
      if (in_header_) return;
      for (const std::string& text : std::exchange(first_row_, {})) field(text, line);
    }
    if (place_ != columns_.size())
      throw Error("data", fmt::format("{}:{}: the row has {}, the {} {}; hint: a field with the delimiter '{}' in it "
                                      "stands in quotes",
                                      path_, line, counted(static_cast<int64_t>(place_), "field"),
                                      options_.header ? "header" : "first row", columns_.size(), options_.delimiter));
    place_ = 0;
    lines_.push_back(line);
    if (lines_.size() == kSampleRows) {
      decide_types();
      reserve();
    }
  }

  Table finish() {
    if (lines_.empty())
      throw Error("data", fmt::format("{} has no rows{}", path_, has_columns_ ? " below its header" : ""));
    decide_types();
    Table table{.path = path_, .lines = std::move(lines_)};
    for (ColumnValues& column : columns_)
      if (!column.is_ignored) table.columns.push_back(column.finish());
    return table;
  }

 private:
  void make_columns(int64_t line) {
    std::set<std::string> names;
    for (size_t i = 0; i < first_row_.size(); ++i) {
      // The first column of a file that pandas wrote often has no name.
      ColumnValues column{.name = in_header_ && !first_row_[i].empty() ? first_row_[i] : std::to_string(i)};
      if (!names.insert(column.name).second)
        throw Error("data", fmt::format("{}:{}: two columns have the name '{}'", path_, line, column.name));
      if (const auto given = options_.types.find(column.name); given != options_.types.end())
        column.type = given->second;
      column.is_ignored =
          std::find(options_.ignore.begin(), options_.ignore.end(), column.name) != options_.ignore.end();
      columns_.push_back(std::move(column));
    }
    const std::vector<std::string> valid(names.begin(), names.end());
    const auto require = [&](const std::string& name) {
      if (!names.contains(name))
        throw Error("data", fmt::format("{} has no column '{}'{}", path_, name, valid_names_hint(name, valid)));
    };
    for (const auto& given : options_.types) require(given.first);
    for (const std::string& name : options_.ignore) require(name);
    has_columns_ = true;
    if (in_header_) first_row_.clear();
  }

  void add(ColumnValues& column, std::string_view text, int64_t line) {
    if (column.is_ignored) return;
    if (!column.type) {
      column.sample.emplace_back(text);
    } else if (*column.type == ColumnType::kCategory) {
      if (missing_.contains(text))
        column.codes.push_back(kMissingCategory);
      else
        column.add_category(text);
    } else if (missing_.contains(text)) {
      column.numbers.push_back(std::numeric_limits<double>::quiet_NaN());
    } else if (const auto number = parse_number(text)) {
      column.numbers.push_back(*number);
    } else {
      throw Error("data", fmt::format("{}:{}: column '{}': '{}' is no number; hint: words for what is not known are in "
                                      "`missing`, columns of words in `categories`",
                                      path_, line, column.name, text.substr(0, 60)));
    }
  }

  void decide_types() {
    for (ColumnValues& column : columns_) {
      if (column.type || column.is_ignored) continue;
      const bool has_words = std::any_of(column.sample.begin(), column.sample.end(), [&](const std::string& text) {
        return !missing_.contains(text) && !parse_number(text);
      });
      column.type = has_words ? ColumnType::kCategory : ColumnType::kNumber;
      const std::vector<std::string> sample = std::exchange(column.sample, {});
      for (size_t row = 0; row < sample.size(); ++row) add(column, sample[row], lines_[row]);
    }
  }

  /// Makes room for as many rows as the file has if they are as long as those of the sample, so that what is read is
  /// not moved again and again.
  void reserve() {
    std::error_code error;
    const auto bytes = std::filesystem::file_size(path_, error);
    if (error) return;
    const size_t rows = kSampleRows + bytes / std::max<size_t>(sample_bytes_ / kSampleRows, 1);
    lines_.reserve(rows);
    for (ColumnValues& column : columns_) {
      if (column.is_ignored) continue;
      if (*column.type == ColumnType::kNumber)
        column.numbers.reserve(rows);
      else
        column.codes.reserve(rows);
    }
  }

  const std::string& path_;
  const TableOptions& options_;
  const MissingWords missing_;
  const bool in_header_;  ///< the first row has names
  bool has_columns_ = false;
  std::vector<std::string> first_row_;
  std::vector<ColumnValues> columns_;
  std::vector<int64_t> lines_;
  size_t place_ = 0;         ///< of the next field in its row
  size_t sample_bytes_ = 0;  ///< of the rows that say which columns have numbers
};

}  // namespace

const TableColumn* Table::find(const std::string& name) const {
  const auto found =
      std::find_if(columns.begin(), columns.end(), [&](const TableColumn& column) { return column.name == name; });
  return found == columns.end() ? nullptr : &*found;
}

std::vector<std::string> Table::names() const {
  std::vector<std::string> names;
  for (const TableColumn& column : columns) names.push_back(column.name);
  return names;
}

Table read_csv(const std::string& path, const TableOptions& options) {
  TableBuilder builder(path, options);
  parse_csv(path, options.delimiter, builder);
  return builder.finish();
}

}  // namespace levin::data
