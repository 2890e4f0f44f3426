#pragma once

#include <levin/core/data/tables/table.h>

#include <string>

namespace levin::data {

/// Reads a CSV file. A column without a given type has numbers where all of its values in the first 1000 rows are, else
/// categories. Throws levin::Error, led by file and line, where a row has more or fewer fields than the first, a value
/// of a column of numbers is none, or two columns have one name; and when the file has no rows, or `types`,
/// `columns` or `ignore` name a column that it lacks.
Table read_csv(const std::string& path, const TableOptions& options = {});

/// Reads a Parquet file, some rows at a time, and of these the columns that are wanted alone. Without a given type,
/// columns of numbers (whole, floating-point or decimal) have numbers, those of texts and of true and false categories,
/// which are "false" and "true"; with one, either is made the other. Missing is what is null, NaN or one of the words
/// of `missing`. Throws levin::Error, led by the file and where it can be by the number of the row, for what read_csv
/// refuses, for columns of times, bytes and nested values that are not left out, for what is no Parquet file or is
/// damaged, where Arrow would need more than 512 MiB, 4 MiB a column and four times the file's size at a time, and
/// where this Levin was built without Arrow (LEVIN_PARQUET).
Table read_parquet(const std::string& path, const TableOptions& options = {});

/// Reads a file whose name ends in ".parquet" as read_parquet does, any other as read_csv.
Table read_table(const std::string& path, const TableOptions& options = {});

}  // namespace levin::data
