#pragma once

#include <levin/core/tools/report/series.h>

#include <cstdint>
#include <string>

namespace levin::report {

/// What was passed over in a metrics.csv.
struct MetricsCsvFaults {
  bool is_torn = false;      ///< the last row has no end: the run still trains, or was killed
  int64_t damaged_rows = 0;  ///< rows with too many or too few cells, or with a cell that is no number
};

/// Reads what CsvLogger writes (columns `epoch`, `step` and the metrics; a cell without a value is empty). An empty
/// file has no metrics. Throws levin::Error when the file cannot be read or has other columns.
MetricsCsvFaults read_metrics_csv(const std::string& path, SeriesTable& table);

}  // namespace levin::report
