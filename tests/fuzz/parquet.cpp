#include "tests/fuzz/fuzz.h"

#include <levin/core/data/tables/read_table.h>

// A table that Arrow reads. Its library is not instrumented: what is looked for is an end without a message.
void levin::fuzzing::fuzz(std::string_view input) {
  const std::string path = write_file("table.parquet", input);
  reads([&] { data::read_parquet(path); });
  reads([&] {
    data::read_parquet(path, {.types = {{"b", data::ColumnType::kNumber}, {"c", data::ColumnType::kCategory}}});
  });
}
