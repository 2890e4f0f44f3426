#pragma once

#include <levin/core/base/schema.h>
#include <levin/core/data/data_loader.h>

#include <cstdint>
#include <memory>

namespace levin::data {

/// Describes the fields that data modules of JSON lines have in common.
template <class Options>
void describe_json_fields(Schema<Options>& schema) {
  using O = Options;
  schema.field("files", &O::files,
               "training files: JSON lines, also .gz and .zst, or Arrow; names and patterns, data/*.jsonl");
  schema.field("val_files", &O::val_files, "files of validation; empty: val_fraction of the training rows");
  schema.field("test_files", &O::test_files, "files of tests and prediction; empty: none");
  schema
      .field("val_fraction", &O::val_fraction,
             "fraction of the training rows held out for validation, without val_files")
      .at_least(0)
      .below(1);
}

/// Describes the field `cache_folder` of such a data module.
template <class Options>
void describe_cache_folder(Schema<Options>& schema) {
  schema.field("cache_folder", &Options::cache_folder,
               "folder for what cannot be beside the files; null: ~/.cache/levin");
}

/// Returns a loader of a data set of any size, which is shuffled, where the options say so, by a PermutationSampler.
DataLoader unlisted_loader(std::shared_ptr<const Dataset> dataset, DataLoaderOptions options);

/// Returns how many of `rows` a val_fraction holds out; at least one is left.
int64_t held_out_rows(int64_t rows, double val_fraction);

}  // namespace levin::data
