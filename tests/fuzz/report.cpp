#include "tests/fuzz/fuzz.h"

#include <levin/core/tools/report/metrics_csv.h>
#include <levin/core/tools/report/series.h>
#include <levin/core/tools/report/sweep_folder.h>

// Tables from which levin-report makes a page.
void levin::fuzzing::fuzz(std::string_view input) {
  const std::string metrics = write_file("metrics.csv", input);
  reads([&] {
    report::SeriesTable table;
    report::read_metrics_csv(metrics, table);
  });
  write_file("sweep.csv", input);
  write_file("sweep.yaml", "monitor: val/loss\n");
  reads([] { report::read_sweep_folder(folder()); });
}
