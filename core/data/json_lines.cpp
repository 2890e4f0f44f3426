#include <levin/core/data/json_lines.h>

#include <levin/core/base/error.h>
#include <levin/core/data/image_index.h>
#include <levin/core/data/json/json_examples.h>
#include <levin/core/data/json_fields.h>
#include <levin/core/data/loader_fields.h>

#include <fmt/format.h>

#include <utility>

namespace levin::data {

void JsonLinesOptions::describe(Schema<JsonLinesOptions>& schema) {
  using O = JsonLinesOptions;
  describe_json_fields(schema);
  schema.field("columns", &O::columns,
               "columns to read and their kinds, {text: text, label: integer}; empty: those of the first 1000 rows",
               {{"text", JsonColumn::kText},
                {"integer", JsonColumn::kInteger},
                {"number", JsonColumn::kNumber},
                {"boolean", JsonColumn::kBoolean},
                {"integers", JsonColumn::kIntegers},
                {"numbers", JsonColumn::kNumbers}});
  describe_cache_folder(schema);
  describe_loader_fields(schema);
}

JsonLines::JsonLines(const Options& options) : options_(options), columns_(options.columns) {
  if (options_.files.empty() && options_.val_files.empty() && options_.test_files.empty())
    throw ConfigError("data.files is not set; hint: [data/*.jsonl]");
}

std::shared_ptr<const JsonRows> JsonLines::open(const std::vector<std::string>& files) const {
  return std::make_shared<const JsonRows>(files, options_.cache_folder.value_or(default_index_folder()));
}

void JsonLines::prepare_data() {
  for (const auto* files : {&options_.files, &options_.val_files, &options_.test_files})
    if (!files->empty()) open(*files);
}

void JsonLines::find_columns_in(const JsonRows& rows) {
  if (columns_.empty()) columns_ = find_columns(rows);
}

JsonLines::Examples JsonLines::all_of(const std::vector<std::string>& files) {
  if (files.empty()) return nullptr;
  const auto rows = open(files);
  find_columns_in(*rows);
  return std::make_shared<JsonExamples>(rows, RowSelection(rows->size(), 0, RowSelection::Part::kAll), columns_);
}

void JsonLines::setup(Stage stage) {
  if (stage == Stage::kTest || stage == Stage::kPredict) {
    if (test_ == nullptr) test_ = all_of(options_.test_files);
    return;
  }
  if (train_ != nullptr || validation_ != nullptr) return;
  if (!options_.files.empty()) {
    const auto rows = open(options_.files);
    find_columns_in(*rows);
    const int64_t held_out = options_.val_files.empty() ? held_out_rows(rows->size(), options_.val_fraction) : 0;
    const auto part = [&](RowSelection::Part which) {
      return std::make_shared<JsonExamples>(rows, RowSelection(rows->size(), held_out, which), columns_);
    };
    train_ = part(RowSelection::Part::kOthers);
    if (held_out > 0) validation_ = part(RowSelection::Part::kHeldOut);
  }
  if (!options_.val_files.empty()) validation_ = all_of(options_.val_files);
}

DataLoader JsonLines::train_dataloader() {
  return train_ == nullptr ? DataLoader() : unlisted_loader(train_, training_loader_options(options_));
}

DataLoader JsonLines::evaluation_loader(const Examples& examples) const {
  return examples == nullptr ? DataLoader() : DataLoader(examples, evaluation_loader_options(options_));
}

DataLoaders JsonLines::val_dataloader() { return evaluation_loader(validation_); }
DataLoaders JsonLines::test_dataloader() { return evaluation_loader(test_); }
DataLoaders JsonLines::predict_dataloader() { return evaluation_loader(test_); }

}  // namespace levin::data
