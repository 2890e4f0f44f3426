#include "tests/fuzz/fuzz.h"

#include <levin/core/base/csv.h>

// A table, as metrics.csv and sweep.csv are. Its records are the same when they are written and read again.
void levin::fuzzing::fuzz(std::string_view input) {
  const std::vector<CsvRow> rows = parse_csv(input);
  std::string text;
  for (const CsvRow& row : rows) text += csv_line(row);
  if (parse_csv(text) != rows) fail("csv_line gives another table");
}
