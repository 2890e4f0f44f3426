#include <levin/core/data/json/json_examples.h>

#include <levin/core/base/error.h>
#include <levin/core/base/utf8.h>
#include <levin/core/data/pad_collate.h>

#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace levin::data {

namespace {

constexpr int64_t kSampledRows = 1000;
constexpr size_t kShownBytes = 60;

bool is_integer(const nlohmann::json& value) {
  if (!value.is_number_integer()) return false;
  return !value.is_number_unsigned() ||
         value.get<uint64_t>() <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
}

bool is_list_of(const nlohmann::json& value, bool (*is_kind)(const nlohmann::json&)) {
  return value.is_array() && std::all_of(value.begin(), value.end(), is_kind);
}

bool is_number(const nlohmann::json& value) { return value.is_number(); }

bool has_kind(const nlohmann::json& value, JsonColumn kind) {
  switch (kind) {
    case JsonColumn::kText:
      return !value.is_null();
    case JsonColumn::kInteger:
      return is_integer(value);
    case JsonColumn::kNumber:
      return value.is_number();
    case JsonColumn::kBoolean:
      return value.is_boolean();
    case JsonColumn::kIntegers:
      return is_list_of(value, is_integer);
    case JsonColumn::kNumbers:
      return is_list_of(value, is_number);
  }
  return false;
}

JsonColumn kind_of(const nlohmann::json& value) {
  for (const JsonColumn kind : {JsonColumn::kInteger, JsonColumn::kNumber, JsonColumn::kBoolean})
    if (has_kind(value, kind)) return kind;
  if (value.is_array() && !value.empty())
    for (const JsonColumn kind : {JsonColumn::kIntegers, JsonColumn::kNumbers})
      if (has_kind(value, kind)) return kind;
  return JsonColumn::kText;
}

const char* name_of(JsonColumn kind) {
  switch (kind) {
    case JsonColumn::kText:
      return "text";
    case JsonColumn::kInteger:
      return "integer";
    case JsonColumn::kNumber:
      return "number";
    case JsonColumn::kBoolean:
      return "boolean";
    case JsonColumn::kIntegers:
      return "integers";
    case JsonColumn::kNumbers:
      return "numbers";
  }
  return "";
}

/// The kind that has both; nothing where there is none.
std::optional<JsonColumn> common_kind(JsonColumn a, JsonColumn b) {
  const auto both = [&](JsonColumn one, JsonColumn other) {
    return (a == one && b == other) || (a == other && b == one);
  };
  if (a == b) return a;
  if (both(JsonColumn::kInteger, JsonColumn::kNumber)) return JsonColumn::kNumber;
  if (both(JsonColumn::kIntegers, JsonColumn::kNumbers)) return JsonColumn::kNumbers;
  return std::nullopt;
}

/// Whether a column has whole numbers, of which some are too large for int64: as a rule identifiers or hashes. (The
/// largest ones are read as real numbers.)
class WholeNumbers {
 public:
  void note(const nlohmann::json& value) {
    if (value.is_array())
      for (const nlohmann::json& item : value) note(item);
    if (!value.is_number()) return;
    if (is_integer(value)) {
      has_some_ = true;
    } else if (std::abs(value.get<double>()) >= kLimit && std::nearbyint(value.get<double>()) == value.get<double>()) {
      has_some_ = has_some_ || value.is_number_integer();
      has_large_ = true;
    }
  }
  bool are_too_large() const { return has_some_ && has_large_; }

 private:
  static constexpr double kLimit = 9223372036854775808.0;
  bool has_some_ = false;
  bool has_large_ = false;
};

/// Returns numbers as float. Throws levin::Error for what is finite in the file alone.
std::vector<float> floats(const std::vector<double>& numbers, const std::string& place, const std::string& column) {
  std::vector<float> result;
  for (const double number : numbers) {
    result.push_back(static_cast<float>(number));
    if (!std::isfinite(result.back()))
      throw Error("data",
                  fmt::format("{}: the column '{}' has a number that float32 does not hold; got {:g}; valid: up "
                              "to 3.4e38",
                              place, column, number));
  }
  return result;
}

}  // namespace

std::map<std::string, JsonColumn> find_columns(const JsonRows& rows) {
  std::map<std::string, JsonColumn> columns;
  std::map<std::string, WholeNumbers> whole;
  for (int64_t row = 0; row < std::min(rows.size(), kSampledRows); ++row) {
    const nlohmann::json object = rows.row(row);
    for (const auto& [name, value] : object.items()) {
      if (value.is_null() || (value.is_array() && value.empty() && columns.contains(name))) continue;
      WholeNumbers& of_column = whole[name];
      of_column.note(value);
      if (of_column.are_too_large())
        throw Error("data",
                    fmt::format("{}: the column '{}' has whole numbers that int64 does not hold, and that float32 "
                                "would round; got {}; hint: columns: {{{}: number}} takes them so, text as they "
                                "are written",
                                rows.place(row), name, shown_text(value.dump(), kShownBytes), name));
      const JsonColumn kind = kind_of(value);
      const auto [known, is_new] = columns.emplace(name, kind);
      if (is_new) continue;
      const auto common = common_kind(known->second, kind);
      if (!common)
        throw Error("data", fmt::format("{}: the column '{}' has the {} {} after values of the kind {}; hint: columns, "
                                        "those to read and what they have",
                                        rows.place(row), name, name_of(kind), shown_text(value.dump(), kShownBytes),
                                        name_of(known->second)));
      known->second = *common;
    }
  }
  if (columns.empty()) throw Error("data", fmt::format("{}: the first rows have no columns", rows.place(0)));
  return columns;
}

JsonExamples::JsonExamples(std::shared_ptr<const JsonRows> rows, RowSelection selection,
                           std::map<std::string, JsonColumn> columns)
    : rows_(std::move(rows)), selection_(selection), columns_(std::move(columns)) {}

Batch JsonExamples::get(int64_t index, Generator& /*generator*/) const {
  const int64_t row = selection_.row(index);
  const nlohmann::json object = rows_->row(row);
  Batch example;
  for (const auto& [name, kind] : columns_) {
    const auto found = object.find(name);
    if (found == object.end() || found->is_null()) {
      std::vector<std::string> names;
      for (const auto& item : object.items()) names.push_back(item.key());
      throw Error("data", fmt::format("{}: the row has no '{}'; it has {}; hint: columns, those that all rows have",
                                      rows_->place(row), name, shown_names(names)));
    }
    if (!has_kind(*found, kind))
      throw Error("data", fmt::format("{}: the column '{}' has the kind {}; got {}", rows_->place(row), name,
                                      name_of(kind), shown_text(found->dump(), kShownBytes)));
    switch (kind) {
      case JsonColumn::kText:
        example.set_texts(name, {found->is_string() ? found->get<std::string>() : found->dump()});
        break;
      case JsonColumn::kInteger:
        example.set(name, at::scalar_tensor(found->get<int64_t>(), at::kLong));
        break;
      case JsonColumn::kNumber:
        example.set(name,
                    at::scalar_tensor(floats({found->get<double>()}, rows_->place(row), name).front(), at::kFloat));
        break;
      case JsonColumn::kBoolean:
        example.set(name, at::scalar_tensor(found->get<bool>(), at::kBool));
        break;
      case JsonColumn::kIntegers:
        example.set(name, at::tensor(found->get<std::vector<int64_t>>(), at::kLong));
        break;
      case JsonColumn::kNumbers:
        example.set(name, at::tensor(floats(found->get<std::vector<double>>(), rows_->place(row), name), at::kFloat));
        break;
    }
  }
  return example;
}

CollateFunction JsonExamples::collate() const {
  std::vector<std::string> lists;
  for (const auto& [name, kind] : columns_)
    if (kind == JsonColumn::kIntegers || kind == JsonColumn::kNumbers) lists.push_back(name);
  if (lists.empty()) return nullptr;
  return pad_collate({.fields = std::move(lists)});
}

}  // namespace levin::data
