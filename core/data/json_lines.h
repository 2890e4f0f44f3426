#pragma once

#include <levin/core/base/schema.h>
#include <levin/core/data/data_module.h>
#include <levin/core/data/json/json_column.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace levin::data {

class JsonRows;

/// Options of JsonLines, explained in describe().
struct JsonLinesOptions {
  std::vector<std::string> files = {};
  std::vector<std::string> val_files = {};
  std::vector<std::string> test_files = {};
  double val_fraction = 0;
  std::map<std::string, JsonColumn> columns = {};
  std::optional<std::string> cache_folder = {};
  int64_t batch_size = 64;
  std::optional<int64_t> global_batch_size = {};
  int64_t num_workers = 0;
  int64_t prefetch_factor = 2;
  bool shuffle = true;
  bool drop_last = false;
  bool pin_memory = false;
  double timeout = 0;
  bool persistent_workers = true;
  OnError on_error = OnError::kRaise;

  static void describe(Schema<JsonLinesOptions>& schema);
};

/// Rows of JSON lines, of files of any size that may be packed by gzip or Zstandard; batches: each column as a tensor
/// or as texts, see JsonColumn. Where the rows are is kept beside the files, in `.NAME.rows`, so that they are read in
/// any order and not held in memory.
class JsonLines : public DataModule {
 public:
  using Options = JsonLinesOptions;
  explicit JsonLines(const Options& options);

  void prepare_data() override;
  void setup(Stage stage) override;
  DataLoader train_dataloader() override;
  DataLoaders val_dataloader() override;
  DataLoaders test_dataloader() override;
  DataLoaders predict_dataloader() override;

  /// Returns the columns and what they have; known after setup.
  const std::map<std::string, JsonColumn>& columns() const { return columns_; }

 private:
  using Examples = std::shared_ptr<const Dataset>;
  std::shared_ptr<const JsonRows> open(const std::vector<std::string>& files) const;
  Examples all_of(const std::vector<std::string>& files);
  void find_columns_in(const JsonRows& rows);
  DataLoader evaluation_loader(const Examples& examples) const;

  Options options_;
  std::map<std::string, JsonColumn> columns_;
  Examples train_;
  Examples validation_;
  Examples test_;
};

}  // namespace levin::data
