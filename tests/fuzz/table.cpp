#include "tests/fuzz/fuzz.h"

#include <levin/core/data/tables/read_table.h>

// A CSV file as a table of numbers and categories.
void levin::fuzzing::fuzz(std::string_view input) {
  const std::string path = write_file("table.csv", input);
  reads([&] { data::read_csv(path); });
  reads([&] {
    data::read_csv(path, {.delimiter = ';', .header = false, .types = {{"0", data::ColumnType::kNumber}}});
  });
}
