#include <levin/callbacks/prediction_writer.h>

#include <levin/core/base/csv.h>
#include <levin/core/base/error.h>
#include <levin/core/base/file_system.h>
#include <levin/core/base/image_bytes.h>
#include <levin/core/base/log.h>
#include <levin/core/base/png.h>
#include <levin/core/checkpoint/safetensors.h>
#include <levin/core/comm/collective.h>
#include <levin/core/data/arrays/numpy_file.h>
#include <levin/core/data/joined_predictions.h>
#include <levin/core/interfaces/divided_examples.h>
#include <levin/core/interfaces/divided_model.h>
#include <levin/core/interfaces/strategy.h>
#include <levin/core/trainer/trainer.h>

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <regex>
#include <utility>

namespace levin {
namespace {

constexpr std::string_view kPart = "batch_";
constexpr std::string_view kRank = "_rank_";

/// Whether a file is of a batch that a rank predicted: `batch_000000000_rank_0000.npy`.
bool is_part(const std::string& name) {
  static const std::regex kNames(R"(batch_\d{9,}_rank_\d{4,}\D.*)");
  return std::regex_match(name, kNames);
}

/// A number of a column, int64 or float64, as text that reads back as the same number.
std::string number_text(const at::Tensor& column, int64_t row) {
  if (column.scalar_type() == at::kLong) return fmt::format("{}", column.const_data_ptr<int64_t>()[row]);
  return fmt::format("{}", column.const_data_ptr<double>()[row]);
}

/// A row for each example: a column for each text, then one for each number; tensors of other numbers of rows do not
/// fit into the table.
std::string csv_of(const Batch& batch) {
  CsvRow header;
  std::vector<at::Tensor> columns;
  for (const auto& [name, texts] : batch.text_items()) header.push_back(name);
  const int64_t rows = batch.size();
  for (const auto& [name, tensor] : batch.items()) {
    const int64_t own_rows = tensor.dim() == 0 ? 1 : tensor.size(0);
    if (own_rows != rows)
      throw Error(
          "prediction_writer",
          fmt::format("a CSV file has a row for each example; got {} examples and {} rows of '{}'; valid: another "
                      "format",
                      rows, own_rows, name));
    const bool is_whole = at::isIntegralType(tensor.scalar_type(), /*includeBool=*/true);
    const at::Tensor numbers = tensor.to(is_whole ? at::kLong : at::kDouble);
    const at::Tensor flat = tensor.dim() <= 1 ? numbers.reshape({rows, 1}) : numbers.flatten(1);
    for (int64_t i = 0; i < flat.size(1); ++i) {
      header.push_back(tensor.dim() <= 1 ? name : fmt::format("{}[{}]", name, i));
      columns.push_back(flat.select(1, i).contiguous());
    }
  }
  std::string text = csv_line(header);
  for (int64_t row = 0; row < rows; ++row) {
    CsvRow cells;
    for (const auto& [name, texts] : batch.text_items()) cells.push_back(texts[static_cast<size_t>(row)]);
    for (const auto& column : columns) cells.push_back(number_text(column, row));
    text += csv_line(cells);
  }
  return text;
}

/// Writes one table of several with the same columns, one of which is in memory at a time.
void write_joined_tables(const std::vector<std::string>& paths, WritableFile& file) {
  std::string header;
  for (const auto& path : paths) {
    const std::string table = FileSystem::current().read_file(path);
    const size_t end = table.find('\n') + 1;
    if (header.empty())
      file.append(header = table.substr(0, end));
    else if (table.compare(0, end, header) != 0)
      throw Error("prediction_writer",
                  fmt::format("{} has other columns than {}, so that they are no one table; hint: merge: false", path,
                              paths.front()));
    file.append(std::string_view(table).substr(end));
  }
}

/// Writes a batch on the host, or all in one; `path` lacks the ending. Texts, which files of tensors cannot hold, are a
/// table beside them.
void write_batch(const Batch& batch, const std::string& path, PredictionFormat format) {
  FileSystem& files = FileSystem::current();
  if (format != PredictionFormat::kCsv && !batch.text_items().empty())
    files.replace_file(path + ".csv", csv_of_texts(batch.text_items()));
  if (format != PredictionFormat::kCsv && batch.items().empty()) return;
  switch (format) {
    case PredictionFormat::kSafetensors:
      files.replace_file(path + ".safetensors", [&](WritableFile& file) { write_safetensors(file, batch.items()); });
      break;
    case PredictionFormat::kCsv:
      files.replace_file(path + ".csv", csv_of(batch));
      break;
    case PredictionFormat::kNpy:
      for (const auto& [name, tensor] : batch.items())
        files.replace_file(fmt::format("{}.{}.npy", path, name), data::npy_bytes(tensor));
      break;
    case PredictionFormat::kPng:
      for (const auto& [name, tensor] : batch.items()) {
        if (tensor.dim() != 4)
          throw Error("prediction_writer",
                      fmt::format("'{}' of shape {} holds no images; valid: [examples, channels, height, width]", name,
                                  c10::str(tensor.sizes())));
        for (int64_t i = 0; i < tensor.size(0); ++i)
          files.replace_file(fmt::format("{}.{}.{:04}.png", path, name, i), encode_png(image_bytes(tensor[i])));
      }
      break;
  }
}

/// The batch on the CPU, without what predict_step has left undefined.
Batch on_host(Batch batch) {
  std::erase_if(batch.items(), [](const Batch::Item& item) { return !item.second.defined(); });
  return batch.to(at::Device(at::kCPU));
}

}  // namespace

void PredictionWriterOptions::describe(Schema<PredictionWriterOptions>& schema) {
  using O = PredictionWriterOptions;
  schema.field("output_dir", &O::output_dir, "folder of the files; empty: `predictions` in the run's folder");
  schema.field("format", &O::format,
               "format of the files; csv: a column for each text and number; png: an image for each example",
               {{"safetensors", PredictionFormat::kSafetensors},
                {"csv", PredictionFormat::kCsv},
                {"npy", PredictionFormat::kNpy},
                {"png", PredictionFormat::kPng}});
  schema.field("merge", &O::merge,
               "one file of all predictions, in order; needs their memory (csv: no) and a shared folder");
}

PredictionWriter::PredictionWriter(const Options& options) : options_(options) {
  schema_of<Options>().validate(options, "prediction_writer");
  if (options.merge && options.format == PredictionFormat::kPng)
    throw ConfigError(
        "prediction_writer.merge makes one file of all, which images in png cannot be; hint: leave it out");
}

void PredictionWriter::on_predict_start(Trainer& trainer, Module& /*module*/) {
  root_ = options_.output_dir;
  if (root_.empty()) {
    if (trainer.run_directory().empty())
      throw ConfigError("prediction_writer has no folder to write to, as this run has none; hint: give it output_dir");
    root_ = trainer.run_directory() + "/predictions";
  }
  FileSystem& files = FileSystem::current();
  for (int64_t loader = 0; loader < std::ssize(trainer.num_evaluation_batches()); ++loader) {
    const std::string path = folder(trainer, loader);
    files.create_directories(path);
    // Files of a former prediction would be taken for some of this one.
    if (trainer.is_global_zero())
      for (const auto& name : files.list(path))
        if (is_part(name)) files.remove_all(path + "/" + name);
  }
  trainer.strategy().collective().barrier();
}

std::string PredictionWriter::folder(const Trainer& trainer, int64_t loader) const {
  return trainer.num_evaluation_batches().size() == 1 ? root_ : fmt::format("{}/loader_{}", root_, loader);
}

void PredictionWriter::on_predict_batch_end(Trainer& trainer, Module& /*module*/, const Batch& prediction,
                                            const Batch& /*batch*/, int64_t batch_idx, int64_t dataloader_idx) {
  if (!trainer.strategy().divided_model().owns_outputs()) return;
  if (!counts_examples(trainer.strategy())) return;
  const Batch host = on_host(prediction);
  if (host.empty()) return;
  const std::string path =
      fmt::format("{}/{}{:09}{}{:04}", folder(trainer, dataloader_idx), kPart, batch_idx, kRank, trainer.global_rank());
  // Tables are joined as they are, tensors from files that hold them.
  const bool is_table = options_.format == PredictionFormat::kCsv;
  write_batch(host, path, options_.merge && !is_table ? PredictionFormat::kSafetensors : options_.format);
}

void PredictionWriter::on_predict_end(Trainer& trainer, Module& /*module*/) {
  trainer.strategy().collective().barrier();
  if (!trainer.is_global_zero()) return;
  if (options_.merge)
    for (int64_t loader = 0; loader < std::ssize(trainer.num_evaluation_batches()); ++loader)
      merge(folder(trainer, loader));
  log::rank_zero_info(fmt::format("predictions are in {}", root_));
}

void PredictionWriter::merge(const std::string& folder) const {
  FileSystem& files = FileSystem::current();
  std::vector<std::string> parts;   // of tensors
  std::vector<std::string> tables;  // of texts and, in that format, numbers
  for (const auto& name : files.list(folder))
    if (is_part(name)) (name.ends_with(".csv") ? tables : parts).push_back(folder + "/" + name);
  std::sort(parts.begin(), parts.end());  // by batch, then by rank
  std::sort(tables.begin(), tables.end());
  if (!tables.empty() || options_.format == PredictionFormat::kCsv)
    files.replace_file(folder + "/predictions.csv", [&](WritableFile& file) { write_joined_tables(tables, file); });
  for (const auto& path : tables) files.remove_all(path);
  if (options_.format == PredictionFormat::kCsv || (parts.empty() && !tables.empty())) return;
  std::vector<Batch> batches;
  for (auto part = parts.begin(); part != parts.end();) {
    const std::string batch = part->substr(0, part->rfind(kRank));
    std::vector<Batch> of_ranks;
    for (; part != parts.end() && part->starts_with(batch); ++part) {
      const SafetensorsFile file(*part);
      Batch& own = of_ranks.emplace_back();
      for (const auto& name : file.names()) own.set(name, file.read(name));
    }
    if (are_slices_of_one_batch(of_ranks))
      batches.push_back(Batch::concatenate(of_ranks));
    else
      std::move(of_ranks.begin(), of_ranks.end(), std::back_inserter(batches));
  }
  JoinedPredictions joined = join_predictions(batches);
  for (const auto& note : joined.notes) log::warning(fmt::format("{}: {}", folder, note));
  Batch all;
  all.items() = std::move(joined.tensors);
  write_batch(all, folder + "/predictions", options_.format);
  for (const auto& path : parts) files.remove_all(path);
}

}  // namespace levin
