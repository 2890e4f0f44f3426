#include <levin/core/data/csv.h>

#include <levin/core/base/error.h>
#include <levin/core/data/loader_fields.h>
#include <levin/core/data/read_column.h>
#include <levin/core/data/row_split.h>
#include <levin/core/data/tables/read_table.h>

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <span>
#include <unordered_map>
#include <utility>

namespace levin::data {

namespace {

constexpr int64_t kUnknownCategory = 0;

std::vector<int64_t> all_rows(const Table& table) {
  std::vector<int64_t> rows(static_cast<size_t>(table.num_rows()));
  std::iota(rows.begin(), rows.end(), int64_t{0});
  return rows;
}

/// The categories that these rows have, in their order.
std::vector<std::string> categories_in(const TableColumn& column, const std::vector<int64_t>& rows) {
  std::vector<bool> is_there(column.categories.size());
  const auto* values = column.values.const_data_ptr<int64_t>();
  for (const int64_t row : rows)
    if (values[row] >= 0) is_there[static_cast<size_t>(values[row])] = true;
  std::vector<std::string> names;
  for (size_t i = 0; i < is_there.size(); ++i)
    if (is_there[i]) names.push_back(column.categories[i]);
  return names;
}

/// For each category of the column its place in `known`, or -1.
std::vector<int64_t> places_of(const TableColumn& column, const std::vector<std::string>& known) {
  std::unordered_map<std::string_view, int64_t> places;
  for (size_t i = 0; i < known.size(); ++i) places.emplace(known[i], static_cast<int64_t>(i));
  std::vector<int64_t> found;
  for (const std::string& category : column.categories) {
    const auto place = places.find(category);
    found.push_back(place == places.end() ? -1 : place->second);
  }
  return found;
}

const TableColumn& require_column(const Table& table, const std::string& name) {
  if (const TableColumn* column = table.find(name)) return *column;
  throw Error("data", fmt::format("{} has no column '{}'{}", table.path, name, valid_names_hint(name, table.names())));
}

[[noreturn]] void fail(const Table& table, int64_t row, const std::string& what) {
  throw Error("data", fmt::format("{}:{}: {}", table.path, table.lines[static_cast<size_t>(row)], what));
}

[[noreturn]] void fail_missing(const Table& table, const TableColumn& column, int64_t row) {
  fail(table, row, fmt::format("the target '{}' is missing; hint: leave such rows out of the file", column.name));
}

/// Of finite values, whatever their size; equal ones have a deviation of zero. As distances from the first value in
/// units of the largest one, nothing overflows or becomes zero.
std::pair<double, double> mean_and_deviation(std::vector<double> values) {
  if (values.empty()) return {0, 0};
  const double half = values.front() / 2;
  double unit = 0;
  for (double& value : values) unit = std::max(unit, std::abs(value = value / 2 - half));
  if (unit == 0) return {2 * half, 0};
  double sum = 0;
  for (double& value : values) sum += value /= unit;
  const auto count = static_cast<double>(values.size());
  const double mean = sum / count;
  double squares = 0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  return {2 * (half + unit * mean), unit * (2 * std::sqrt(squares / count))};
}

/// A value as the data set has it.
float to_float(const Table& table, const std::string& column, int64_t row, double value) {
  const auto as_float = static_cast<float>(value);
  if (std::isinf(as_float))
    fail(table, row,
         fmt::format("the value of '{}' is beyond what 32-bit floating point holds; got {}; valid: numbers "
                     "below 3.4e38; hint: scale the column, or normalize: true for an input",
                     column, value));
  return as_float;
}

}  // namespace

void CsvOptions::describe(Schema<CsvOptions>& schema) {
  using O = CsvOptions;
  schema.field("path", &O::path, "CSV or (.parquet) Parquet file with the training rows");
  schema.field("val_path", &O::val_path, "file of validation rows; null: val_fraction of the training rows");
  schema.field("test_path", &O::test_path, "file of test rows; null: test_fraction of the training rows");
  schema.field("target", &O::target, "the column to predict; null: none");
  schema.field("target_type", &O::target_type, "type of the target; auto: numbers if all values are numbers",
               {{"auto", TargetType::kAuto}, {"number", TargetType::kNumber}, {"category", TargetType::kCategory}});
  schema.field("numbers", &O::numbers, "numeric columns, beside those whose first 1000 values are numbers");
  schema.field("categories", &O::categories, "categorical columns, also if their values are numbers");
  schema.field("ignore", &O::ignore, "columns left out");
  schema.field("weight", &O::weight, "column of weights for the sampler `weighted`, not an input; null: none");
  schema.field("missing", &O::missing, "words that stand for a missing value");
  schema.field("delimiter", &O::delimiter, "the character between fields")
      .require("one byte, not a quote or a line end", [](const std::string& text) {
        return text.size() == 1 && text != "\"" && text != "\n" && text != "\r";
      });
  schema.field("header", &O::header, "names of the columns in the first row; false: 0, 1, ...");
  schema.field("normalize", &O::normalize, "normalize numbers to mean 0 and deviation 1");
  schema.field("val_fraction", &O::val_fraction, "fraction of the rows held out for validation, without val_path")
      .at_least(0)
      .below(1);
  schema.field("test_fraction", &O::test_fraction, "fraction of the rows held out for tests, without test_path")
      .at_least(0)
      .below(1);
  schema.field("split_seed", &O::split_seed, "seed of the rows held out");
  schema.field("stratify", &O::stratify, "stratify the parts by the classes of the target");
  describe_sampler_field(schema);
  describe_loader_fields(schema);
}

Csv::Csv(const Options& options) : options_(options), sampling_(make_sampling(options.sampler)) {
  if (options_.path.empty()) throw ConfigError("data.path is not set; hint: a CSV file or a Parquet file");
  if (options_.val_fraction + options_.test_fraction >= 1)
    throw ConfigError(fmt::format("data.val_fraction and data.test_fraction must be below 1 together; got {} and {}",
                                  options_.val_fraction, options_.test_fraction));
  std::set<std::string> named;
  for (const auto* list : {&options_.numbers, &options_.categories, &options_.ignore})
    for (const std::string& name : *list)
      if (!named.insert(name).second)
        throw ConfigError(
            fmt::format("data.numbers, data.categories and data.ignore name the column '{}' more than once", name));
  if (options_.target && named.contains(*options_.target))
    throw ConfigError(
        fmt::format("data.target is '{0}', which data.numbers, data.categories or data.ignore name too; "
                    "hint: data.target_type says what a target has",
                    *options_.target));
  if (options_.weight && (named.contains(*options_.weight) || options_.weight == options_.target))
    throw ConfigError(
        fmt::format("data.weight is '{}', which another option names too; hint: a column of weights is no "
                    "input and no target",
                    *options_.weight));
  if (options_.stratify && !options_.target)
    throw ConfigError("data.stratify needs the classes of a target, and data.target is not set");
}

Table Csv::read_training() const {
  TableOptions reading{.delimiter = options_.delimiter.front(),
                       .header = options_.header,
                       .ignore = options_.ignore,
                       .missing = options_.missing};
  for (const std::string& name : options_.numbers) reading.types.emplace(name, ColumnType::kNumber);
  for (const std::string& name : options_.categories) reading.types.emplace(name, ColumnType::kCategory);
  if (options_.weight) reading.types.emplace(*options_.weight, ColumnType::kNumber);
  if (options_.target && options_.target_type != TargetType::kAuto)
    reading.types.emplace(*options_.target,
                          options_.target_type == TargetType::kNumber ? ColumnType::kNumber : ColumnType::kCategory);
  Table table = read_table(options_.path, reading);
  if (options_.target) require_column(table, *options_.target);
  if (options_.weight) require_column(table, *options_.weight);
  return table;
}

RowSplit Csv::split(const Table& table) const {
  const double val_fraction = options_.val_path ? 0 : options_.val_fraction;
  const double test_fraction = options_.test_path ? 0 : options_.test_fraction;
  if (!options_.stratify) return split_rows(table.num_rows(), val_fraction, test_fraction, options_.split_seed);
  const TableColumn& target = require_column(table, *options_.target);
  if (target.type != ColumnType::kCategory)
    throw Error("data", fmt::format("data.stratify needs classes, and the target '{}' has numbers; hint: "
                                    "target_type: category",
                                    target.name));
  const auto* values = target.values.const_data_ptr<int64_t>();
  const std::span labels(values, static_cast<size_t>(table.num_rows()));
  if (const auto missing = std::find(labels.begin(), labels.end(), -1); missing != labels.end())
    fail_missing(table, target, missing - labels.begin());
  return split_rows_by_class(labels, val_fraction, test_fraction, options_.split_seed, target.categories);
}

Table Csv::read_held_out(const std::string& path, bool with_target) const {
  TableOptions reading{.delimiter = options_.delimiter.front(), .header = options_.header, .missing = options_.missing};
  for (const NumberColumn& column : numbers_) reading.types.emplace(column.name, ColumnType::kNumber);
  for (const CategoryColumn& column : categories_) reading.types.emplace(column.name, ColumnType::kCategory);
  if (options_.target && with_target) reading.types.emplace(*options_.target, target_type_);
  for (const auto& column : reading.types) reading.columns.push_back(column.first);
  return read_table(path, reading);
}

void Csv::learn(const Table& table, const std::vector<int64_t>& rows) {
  numbers_.clear();
  categories_.clear();
  classes_.clear();
  for (const TableColumn& column : table.columns) {
    const bool is_target = options_.target == column.name;
    if (is_target) target_type_ = column.type;
    if (options_.weight == column.name) continue;
    if (column.type == ColumnType::kCategory) {
      auto found = categories_in(column, rows);
      if (is_target)
        classes_ = std::move(found);
      else
        categories_.push_back({.name = column.name, .categories = std::move(found)});
      continue;
    }
    if (is_target) continue;
    const auto* values = column.values.const_data_ptr<double>();
    std::vector<double> known;
    for (const int64_t row : rows)
      if (!std::isnan(values[row])) known.push_back(values[row]);
    const auto [mean, deviation] = mean_and_deviation(std::move(known));
    numbers_.push_back({.name = column.name, .mean = mean, .std = deviation > 0 ? deviation : 1});
  }
  if (numbers_.empty() && categories_.empty())
    throw Error("data", fmt::format("{} has no column beside the target and those left out", table.path));
  has_learned_ = true;
}

Csv::Rows Csv::select(const Table& table, const std::vector<int64_t>& rows, bool with_target, bool with_weight) const {
  const auto count = static_cast<int64_t>(rows.size());
  if (count == 0) return nullptr;
  Batch batch;
  if (const auto width = std::ssize(numbers_); width > 0) {
    at::Tensor numbers = at::empty({count, width}, at::kFloat);
    at::Tensor missing = at::empty({count, width}, at::kFloat);
    auto* number = numbers.mutable_data_ptr<float>();
    auto* is_missing = missing.mutable_data_ptr<float>();
    for (int64_t place = 0; place < width; ++place) {
      const NumberColumn& known = numbers_[static_cast<size_t>(place)];
      const auto* values = require_column(table, known.name).values.const_data_ptr<double>();
      for (int64_t i = 0; i < count; ++i) {
        const double value = values[rows[static_cast<size_t>(i)]];
        const double there = std::isnan(value) ? known.mean : value;
        const double shown = options_.normalize ? (there - known.mean) / known.std : there;
        number[i * width + place] = to_float(table, known.name, rows[static_cast<size_t>(i)], shown);
        is_missing[i * width + place] = std::isnan(value) ? 1 : 0;
      }
    }
    batch.set("numbers", numbers);
    batch.set("missing", missing);
  }
  if (const auto width = std::ssize(categories_); width > 0) {
    at::Tensor categories = at::empty({count, width}, at::kLong);
    auto* category = categories.mutable_data_ptr<int64_t>();
    for (int64_t place = 0; place < width; ++place) {
      const CategoryColumn& known = categories_[static_cast<size_t>(place)];
      const TableColumn& column = require_column(table, known.name);
      const auto places = places_of(column, known.categories);
      const auto* values = column.values.const_data_ptr<int64_t>();
      for (int64_t i = 0; i < count; ++i) {
        const int64_t value = values[rows[static_cast<size_t>(i)]];
        category[i * width + place] = value < 0 ? kUnknownCategory : places[static_cast<size_t>(value)] + 1;
      }
    }
    batch.set("categories", categories);
  }
  if (options_.weight && with_weight) {
    const TableColumn& column = require_column(table, *options_.weight);
    at::Tensor weights = at::empty({count}, at::kFloat);
    const auto* values = column.values.const_data_ptr<double>();
    for (int64_t i = 0; i < count; ++i) {
      const int64_t row = rows[static_cast<size_t>(i)];
      if (std::isnan(values[row])) fail(table, row, fmt::format("the weight '{}' is missing", column.name));
      weights.mutable_data_ptr<float>()[i] = to_float(table, column.name, row, values[row]);
    }
    batch.set("weight", weights);
  }
  if (!options_.target || !with_target) return std::make_shared<TensorDataset>(std::move(batch));

  const TableColumn& column = require_column(table, *options_.target);
  if (column.type == ColumnType::kNumber) {
    at::Tensor targets = at::empty({count}, at::kFloat);
    const auto* values = column.values.const_data_ptr<double>();
    for (int64_t i = 0; i < count; ++i) {
      const int64_t row = rows[static_cast<size_t>(i)];
      if (std::isnan(values[row])) fail_missing(table, column, row);
      targets.mutable_data_ptr<float>()[i] = to_float(table, column.name, row, values[row]);
    }
    batch.set("target", targets);
  } else {
    at::Tensor labels = at::empty({count}, at::kLong);
    const auto* values = column.values.const_data_ptr<int64_t>();
    const auto places = places_of(column, classes_);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t row = rows[static_cast<size_t>(i)];
      if (values[row] < 0) fail_missing(table, column, row);
      const int64_t place = places[static_cast<size_t>(values[row])];
      if (place < 0)
        fail(table, row,
             fmt::format("the target '{}' has a class that no training row has; got {}; valid: {}", column.name,
                         column.categories[static_cast<size_t>(values[row])], join(classes_)));
      labels.mutable_data_ptr<int64_t>()[i] = place;
    }
    batch.set("label", labels);
  }
  return std::make_shared<TensorDataset>(std::move(batch));
}

void Csv::setup(Stage stage) {
  const bool fits = stage == Stage::kFit || stage == Stage::kValidate;
  const bool predicts = stage == Stage::kPredict;
  if (fits ? train_ != nullptr : predicts ? predict_ != nullptr : test_ != nullptr) return;
  std::optional<Table> table;
  RowSplit parts;
  if (fits || !has_learned_ || !options_.test_path) {
    table = read_training();
    parts = split(*table);
    if (parts.train.empty()) throw Error("data", fmt::format("no row of {} is left for training", options_.path));
    learn(*table, parts.train);
  }
  if (fits) {
    train_ = select(*table, parts.train, true, true);
    validation_ = select(*table, parts.validation, true);
    if (options_.val_path) {
      const Table held_out = read_held_out(*options_.val_path, true);
      validation_ = select(held_out, all_rows(held_out), true);
    }
    return;
  }
  Rows& rows = predicts ? predict_ : test_;
  if (options_.test_path) {
    const Table held_out = read_held_out(*options_.test_path, !predicts);
    rows = select(held_out, all_rows(held_out), !predicts);
  } else {
    rows = select(*table, parts.test, !predicts);
  }
}

DataLoader Csv::train_dataloader() {
  if (train_ == nullptr) return {};
  return sampled_loader(train_, training_loader_options(options_), sampling_.get(),
                        [this](const std::string& name) { return read_column(*train_, name); });
}

DataLoader Csv::evaluation_loader(const Rows& rows) const {
  return rows == nullptr ? DataLoader() : DataLoader(rows, evaluation_loader_options(options_));
}

DataLoaders Csv::val_dataloader() { return evaluation_loader(validation_); }
DataLoaders Csv::test_dataloader() { return evaluation_loader(test_); }
DataLoaders Csv::predict_dataloader() { return evaluation_loader(predict_); }

}  // namespace levin::data
