// Parquet files, by Arrow's library: the one source that includes it, and it alone differs where Levin is built
// without.

#include <levin/core/data/tables/read_table.h>

#include <levin/core/base/error.h>

#ifdef LEVIN_HAS_PARQUET

#include <levin/core/base/file_system.h>
#include <levin/core/data/tables/column_values.h>

#include <arrow/array.h>
#include <arrow/compute/cast.h>
#include <arrow/compute/exec.h>
#include <arrow/io/file.h>
#include <arrow/memory_pool.h>
#include <arrow/record_batch.h>
#include <arrow/type.h>
#include <fmt/format.h>
#include <parquet/arrow/reader.h>
#include <parquet/arrow/schema.h>
#include <parquet/exception.h>
#include <parquet/file_reader.h>
#include <parquet/metadata.h>

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

namespace levin::data {

namespace {

/// Rows that are in memory at a time as Arrow has them.
constexpr int64_t kBatchRows = 1 << 16;
constexpr std::string_view kMagic = "PAR1";
constexpr std::string_view kEncryptedMagic = "PARE";

/// What Arrow says of one file as levin::Error.
class Checked {
 public:
  explicit Checked(const std::string& path) : path_(path) {}
  void operator()(const arrow::Status& status) const {
    if (status.IsOutOfMemory())
      throw Error("data", fmt::format("cannot read {}: a damaged file, or a page of it, needs more memory than a table "
                                      "of that size may; got '{}'",
                                      path_, status.message()));
    if (!status.ok()) throw Error("data", fmt::format("cannot read {}: {}", path_, status.message()));
  }
  template <class T>
  T operator()(arrow::Result<T> result) const {
    (*this)(result.status());
    return std::move(result).ValueUnsafe();
  }

 private:
  const std::string& path_;
};

/// Bytes that Arrow may hold at a time while it reads a file. A page says how long it is, and may say anything.
int64_t memory_limit(int64_t columns, int64_t file_bytes) {
  constexpr int64_t kMebibyte = 1 << 20;
  return 512 * kMebibyte + 4 * kMebibyte * columns + 4 * file_bytes;
}

/// What Arrow says of a file that is no Parquet file is long, and of one that is cut short little.
void check_ends(const std::string& path, int file) {
  struct stat status {};
  std::array<char, kMagic.size()> first{};
  std::array<char, kMagic.size()> last{};
  const bool is_read = fstat(file, &status) == 0 && pread(file, first.data(), first.size(), 0) == std::ssize(first) &&
                       pread(file, last.data(), last.size(), status.st_size - std::ssize(last)) == std::ssize(last);
  const std::string_view begin(first.data(), first.size());
  const std::string_view end(last.data(), last.size());
  if (!is_read || (begin != kMagic && begin != kEncryptedMagic))
    throw Error("data",
                fmt::format("{} is no Parquet file; hint: other tables are read as CSV files, whose names do not "
                            "end in .parquet",
                            path));
  if (end == kEncryptedMagic) throw Error("data", fmt::format("{} is encrypted, which is not read", path));
  if (end != kMagic)
    throw Error("data", fmt::format("{} is cut short; got no {} at its end, where a Parquet file says what it holds",
                                    path, kMagic));
}

bool is_text(const arrow::DataType& type) {
  if (type.id() == arrow::Type::DICTIONARY)
    return is_text(*static_cast<const arrow::DictionaryType&>(type).value_type());
  return type.id() == arrow::Type::STRING || type.id() == arrow::Type::LARGE_STRING ||
         type.id() == arrow::Type::STRING_VIEW;
}

/// What a column has where nobody says it; nothing for what is neither numbers nor words.
std::optional<ColumnType> natural_type(const arrow::DataType& type) {
  if (is_text(type) || type.id() == arrow::Type::BOOL) return ColumnType::kCategory;
  if (arrow::is_numeric(type.id()) || arrow::is_decimal(type.id()) || type.id() == arrow::Type::NA)
    return ColumnType::kNumber;
  return std::nullopt;
}

/// A reader of tables for one file.
class ParquetTable {
 public:
  ParquetTable(const std::string& path, const TableOptions& options)
      : path_(path), options_(options), checked_(path), missing_(options.missing) {
    for (const std::string& word : options.missing)
      if (const auto number = parse_number(word)) missing_numbers_.push_back(*number);
  }

  Table read() {
    Descriptor file = open_regular_file(path_, "data");
    check_ends(path_, file.number());
    open(std::move(file));
    const std::vector<int> places = choose_columns();
    std::vector<int> row_groups(static_cast<size_t>(reader_->num_row_groups()));
    std::iota(row_groups.begin(), row_groups.end(), 0);
    const auto batches = checked_(reader_->GetRecordBatchReader(row_groups, places));
    int64_t rows = 0;
    while (const auto batch = checked_(batches->Next())) {
      size_t place = 0;
      for (ColumnValues& column : columns_)
        if (!column.is_ignored) add(column, batch->column(static_cast<int>(place++)), rows);
      rows += batch->num_rows();
    }
    if (rows == 0) throw Error("data", fmt::format("{} has no rows", path_));
    Table table{.path = path_};
    for (ColumnValues& column : columns_)
      if (!column.is_ignored) table.columns.push_back(column.finish());
    table.lines.resize(static_cast<size_t>(rows));
    std::iota(table.lines.begin(), table.lines.end(), int64_t{1});
    return table;
  }

 private:
  /// Makes reader_, which reads a buffer at a time, whatever the row groups are.
  void open(Descriptor file) {
    std::shared_ptr<arrow::io::ReadableFile> source = checked_(arrow::io::ReadableFile::Open(file.number()));
    file.release();  // the reader closes it
    file_bytes_ = checked_(source->GetSize());
    const auto metadata = parquet::ReadMetaData(source);
    pool_ = std::make_unique<arrow::CappedMemoryPool>(&own_pool_, memory_limit(metadata->num_columns(), file_bytes_));
    parquet::ReaderProperties reading(pool_.get());
    reading.enable_buffered_stream();
    parquet::arrow::FileReaderBuilder builder;
    checked_(builder.Open(source, reading, metadata));
    parquet::ArrowReaderProperties properties(/*use_threads=*/false);
    properties.set_pre_buffer(false);
    properties.set_batch_size(kBatchRows);
    // Texts come as positions among the distinct ones, of which each is looked at once.
    const parquet::SchemaDescriptor& schema = *builder.raw_reader()->metadata()->schema();
    for (int i = 0; i < schema.num_columns(); ++i) {
      const parquet::ColumnDescriptor& column = *schema.Column(i);
      const auto meaning = column.logical_type();
      if (column.physical_type() == parquet::Type::BYTE_ARRAY && meaning != nullptr && meaning->is_string())
        properties.set_read_dictionary(i, true);
    }
    reader_ = checked_(builder.memory_pool(pool_.get())->properties(properties)->Build());
  }

  /// Makes columns_. Returns the places in the file of those that are read.
  std::vector<int> choose_columns() {
    const auto& fields = reader_->manifest().schema_fields;
    std::vector<std::string> names;
    for (const auto& field : fields) names.push_back(field.field->name());
    columns_ = make_columns(names, options_, path_, path_);
    const int64_t rows = reader_->parquet_reader()->metadata()->num_rows();
    std::vector<int> places;
    for (size_t i = 0; i < fields.size(); ++i) {
      ColumnValues& column = columns_[i];
      if (column.is_ignored) continue;
      const arrow::DataType& type = *fields[i].field->type();
      const auto natural = natural_type(type);
      if (!natural || !fields[i].is_leaf())
        throw Error("data", fmt::format("{}: column '{}' has neither numbers nor words; got {}; valid: numbers, texts, "
                                        "true and false; hint: leave it out with `ignore`, or write it as numbers",
                                        path_, column.name, type.ToString()));
      if (!column.type) column.type = *natural;
      // What the file says of its length may be anything.
      column.reserve(static_cast<size_t>(std::clamp<int64_t>(rows, 0, file_bytes_)));
      places.push_back(fields[i].column_index);
    }
    return places;
  }

  void add(ColumnValues& column, const std::shared_ptr<arrow::Array>& values, int64_t rows_before) {
    if (values->type_id() == arrow::Type::DICTIONARY && is_text(*values->type()))
      add_distinct_texts(column, static_cast<const arrow::DictionaryArray&>(*values), rows_before);
    else if (*column.type == ColumnType::kNumber && !is_text(*values->type()) && !arrow::is_decimal(values->type_id()))
      add_numbers(column, values, rows_before);
    else
      add_texts(column, values, rows_before);
  }

  void add_numbers(ColumnValues& column, const std::shared_ptr<arrow::Array>& values, int64_t rows_before) {
    const auto cast = cast_to(values, arrow::float64());
    const auto& numbers = static_cast<const arrow::DoubleArray&>(*cast);
    const double* const first = numbers.raw_values();
    for (int64_t i = 0; i < numbers.length(); ++i) {
      if (numbers.IsNull(i) || is_missing(first[i]))
        column.add_missing();
      else if (std::isinf(first[i]))
        fail_number(path_, rows_before + i + 1, column.name, first[i] < 0 ? "-inf" : "inf");
      else
        column.numbers.push_back(first[i]);
    }
  }

  bool is_missing(double number) const {
    return std::find(missing_numbers_.begin(), missing_numbers_.end(), number) != missing_numbers_.end();
  }

  /// Decimals as well: their texts are exact, and Arrow's cast to a double is not the nearest one.
  void add_texts(ColumnValues& column, const std::shared_ptr<arrow::Array>& values, int64_t rows_before) {
    const auto cast = cast_to(values, arrow::utf8());
    const auto& texts = static_cast<const arrow::StringArray&>(*cast);
    for (int64_t i = 0; i < texts.length(); ++i) {
      if (texts.IsNull(i))
        column.add_missing();
      else
        column.add(texts.GetView(i), missing_, path_, rows_before + i + 1);
    }
  }

  void add_distinct_texts(ColumnValues& column, const arrow::DictionaryArray& values, int64_t rows_before) {
    const auto cast = cast_to(values.dictionary(), arrow::utf8());
    const auto& texts = static_cast<const arrow::StringArray&>(*cast);
    constexpr int64_t kNotYet = -2;
    std::vector<int64_t> codes(static_cast<size_t>(texts.length()), kNotYet);
    for (int64_t i = 0; i < values.length(); ++i) {
      if (values.IsNull(i)) {
        column.add_missing();
        continue;
      }
      const int64_t place = values.GetValueIndex(i);
      // Arrow does not compare them in every case.
      if (place < 0 || place >= texts.length())
        throw Error("data", fmt::format("{}:{}: column '{}' is damaged; got position {} among {} texts", path_,
                                        rows_before + i + 1, column.name, place, texts.length()));
      if (texts.IsNull(place)) {
        column.add_missing();
        continue;
      }
      if (*column.type == ColumnType::kNumber) {
        column.add(texts.GetView(place), missing_, path_, rows_before + i + 1);
        continue;
      }
      int64_t& code = codes[static_cast<size_t>(place)];
      if (code != kNotYet) {
        column.codes.push_back(code);
      } else {
        column.add(texts.GetView(place), missing_, path_, rows_before + i + 1);
        code = column.codes.back();
      }
    }
  }

  std::shared_ptr<arrow::Array> cast_to(const std::shared_ptr<arrow::Array>& values,
                                        const std::shared_ptr<arrow::DataType>& type) const {
    if (values->type()->Equals(*type)) return values;
    // Whole numbers beyond 2^53 become the nearest double, as they do in a CSV file.
    arrow::compute::ExecContext context(pool_.get());
    return checked_(arrow::compute::Cast(values, arrow::compute::CastOptions::Unsafe(type), &context)).make_array();
  }

  const std::string& path_;
  const TableOptions& options_;
  const Checked checked_;
  const MissingWords missing_;
  std::vector<double> missing_numbers_;                           ///< the words of these that are numbers, such as -999
  arrow::ProxyMemoryPool own_pool_{arrow::system_memory_pool()};  ///< counts what this table takes
  std::unique_ptr<arrow::MemoryPool> pool_;
  std::unique_ptr<parquet::arrow::FileReader> reader_;
  int64_t file_bytes_ = 0;
  std::vector<ColumnValues> columns_;
};

}  // namespace

Table read_parquet(const std::string& path, const TableOptions& options) {
  try {
    return ParquetTable(path, options).read();
  } catch (const parquet::ParquetException& error) {
    throw Error("data", fmt::format("cannot read {}: {}", path, error.what()));
  }
}

}  // namespace levin::data

#else

#include <fmt/format.h>

namespace levin::data {

Table read_parquet(const std::string& path, const TableOptions& /*options*/) {
  throw Error("data",
              fmt::format("cannot read {}: this Levin was built without Arrow, which reads Parquet files; hint: "
                          "`pip install pyarrow`, build with -DLEVIN_PARQUET=ON -DLEVIN_ARROW=DIR (the folder "
                          "pyarrow); or make a CSV file of it",
                          path));
}

}  // namespace levin::data

#endif
