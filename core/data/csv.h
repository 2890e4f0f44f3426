#pragma once

#include <levin/core/base/schema.h>
#include <levin/core/data/class_names.h>
#include <levin/core/data/data_module.h>
#include <levin/core/data/sampling.h>
#include <levin/core/data/tables/table.h>
#include <levin/core/data/tensor_dataset.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace levin::data {

struct RowSplit;

/// What the target of a table is.
enum class TargetType { kAuto, kNumber, kCategory };

/// Options of Csv, explained in describe().
struct CsvOptions {
  std::string path = {};
  std::optional<std::string> val_path = {};
  std::optional<std::string> test_path = {};
  std::optional<std::string> target = {};
  TargetType target_type = TargetType::kAuto;
  std::vector<std::string> numbers = {};
  std::vector<std::string> categories = {};
  std::vector<std::string> ignore = {};
  std::optional<std::string> weight = {};
  std::vector<std::string> missing = TableOptions().missing;
  std::string delimiter = ",";
  bool header = true;
  bool normalize = true;
  double val_fraction = 0.1;
  double test_fraction = 0;
  uint64_t split_seed = 0;
  bool stratify = false;
  std::optional<Spec<Sampling>> sampler = {};
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

  static void describe(Schema<CsvOptions>& schema);
};

/// Rows of a CSV file or a Parquet file (read_table), in memory. Batches: "numbers" float [N, columns of numbers], 0 or
/// the mean where missing, and "missing" float of that shape, 1 there and else 0; "categories" int64 [N, columns of
/// categories], 0 where missing or not in the training rows; of the target "target" float [N] or "label" int64 [N]; in
/// training "weight" float [N] of the column of weights. A tensor that has no column is left out; so is the target in
/// prediction. Means, deviations and categories are those of the training rows.
class Csv : public DataModule, public ClassNames {
 public:
  using Options = CsvOptions;
  explicit Csv(const Options& options);

  void setup(Stage stage) override;
  DataLoader train_dataloader() override;
  DataLoaders val_dataloader() override;
  DataLoaders test_dataloader() override;
  DataLoaders predict_dataloader() override;

  /// A column of numbers among the inputs.
  struct NumberColumn {
    std::string name = {};
    double mean = 0;
    double std = 1;
  };
  /// A column of categories among the inputs. The value i + 1 of a batch means `categories[i]`.
  struct CategoryColumn {
    std::string name = {};
    std::vector<std::string> categories = {};
  };
  // What follows is known after setup.
  /// Returns the columns of "numbers".
  const std::vector<NumberColumn>& numbers() const { return numbers_; }
  /// Returns the columns of "categories".
  const std::vector<CategoryColumn>& categories() const { return categories_; }
  /// Returns the classes of "label", in the order of their numbers; empty where the target is a number.
  const std::vector<std::string>& classes() const override { return classes_; }

 private:
  using Rows = std::shared_ptr<const TensorDataset>;
  Table read_training() const;
  RowSplit split(const Table& table) const;
  Table read_held_out(const std::string& path, bool with_target) const;
  void learn(const Table& table, const std::vector<int64_t>& rows);
  Rows select(const Table& table, const std::vector<int64_t>& rows, bool with_target, bool with_weight = false) const;
  DataLoader evaluation_loader(const Rows& rows) const;

  Options options_;
  std::shared_ptr<const Sampling> sampling_;  ///< nullptr: as shuffle says
  bool has_learned_ = false;
  ColumnType target_type_ = ColumnType::kNumber;
  std::vector<NumberColumn> numbers_;
  std::vector<CategoryColumn> categories_;
  std::vector<std::string> classes_;
  Rows train_;
  Rows validation_;
  Rows test_;
  Rows predict_;
};

}  // namespace levin::data
