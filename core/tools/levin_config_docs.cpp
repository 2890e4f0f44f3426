// levin-config-docs: prints docs/configuration.md, from the descriptions that also read YAML and print --help.

#include <levin/core/base/standard_output.h>
#include <levin/core/cli/data_command.h>
#include <levin/core/data/blended_data.h>
#include <levin/core/data/cache/cache_registry.h>
#include <levin/core/data/cifar10.h>
#include <levin/core/data/cifar100.h>
#include <levin/core/data/combined_data.h>
#include <levin/core/data/csv.h>
#include <levin/core/data/data_loader.h>
#include <levin/core/data/fashion_mnist.h>
#include <levin/core/data/image_folder.h>
#include <levin/core/data/instruction_data.h>
#include <levin/core/data/json_lines.h>
#include <levin/core/data/numpy_arrays.h>
#include <levin/core/data/tar_shards.h>
#include <levin/core/data/text_lines.h>
#include <levin/core/data/token_text.h>
#include <levin/core/data/transforms/batch_mix.h>
#include <levin/core/data/transforms/transform_registry.h>
#include <levin/core/interfaces/callback.h>
#include <levin/core/interfaces/logger.h>
#include <levin/core/interfaces/profiler.h>
#include <levin/core/interfaces/strategy.h>
#include <levin/core/optim/named_optimizer.h>
#include <levin/core/optim/scheduler_option.h>
#include <levin/core/optim/schedulers.h>
#include <levin/core/options/options.h>
#include <levin/core/options/registries.h>
#include <levin/core/precision/precision.h>
#include <levin/core/profilers/profiler_schedule.h>
#include <levin/core/sweep/executor_registry.h>
#include <levin/core/sweep/sweep_options.h>

#include <iostream>
#include <string>
#include <vector>

namespace {

constexpr const char* kIntroduction = R"(# Configuration

<!-- Written by scripts/docs from the descriptions in the sources: change those, not this page. -->

A program made with `levin::Cli` reads YAML files (`--config FILE`, several times, later ones win) and options on the
command line (`--trainer.max_epochs=3`), which come last: mappings merge key by key, lists are replaced
([several files](usage.md#several-files-and-the-command-line)). `--print_config` shows the result and where each value comes
from; `--help TOPIC` has the options of a program's own models, data and callbacks too (`--help all`: everything).

| key | type | default | meaning |
|---|---|---|---|
| `seed` | integer or null | null | seeds weights, data order and random transforms; null draws one and prints it |
| `model` | name, or mapping of a name and options | the program's first | `{name: mlp, hidden: 128}` |
| `data` | name, or mapping of a name and options | the program's first | `{name: fashion_mnist, batch_size: 64}` |
| `trainer` | mapping | | the options below |
| `ckpt` | string or null | null | `last`, `best`, `auto` (`last`, or a fresh start where there is none) or a path |
| `inspect` | mapping | | the options of [inspect](#inspect), for the command `data` |
| `sweep` | mapping | | the options of [sweep](#sweep), for the command `sweep` |

A name with options is written `{name: NAME, option: value}` or `{NAME: {option: value}}`. On the command line a value is
YAML too: `--trainer.devices='[0, 2]'`; an option that is a string or a path has the text as it is. A member of the lists `callbacks` and `logger` is reached by its name:
`--trainer.callbacks.early_stopping.patience=5`.

The tables list options as the structs of C++ declare them. Designated initialisers (`{.max_epochs = 3, .logger = false}`) need
that order: g++ refuses another one, clang warns.
)";

/// Text in a table's cell.
std::string cell(const std::string& text) {
  std::string escaped;
  for (const char c : text) escaped += c == '|' ? std::string("\\|") : std::string(1, c);
  return escaped;
}

void print_options(const std::vector<levin::FieldDoc>& fields) {
  if (fields.empty()) {
    std::cout << "\nNo options.\n";
    return;
  }
  std::cout << "\n| option | type | default | must be | meaning |\n|---|---|---|---|---|\n";
  for (const auto& field : fields) {
    const std::string default_value = field.default_value.empty() ? "" : "`" + cell(field.default_value) + "`";
    std::cout << "| `" << field.name << "` | " << cell(field.type) << " | " << default_value << " | "
              << cell(field.constraint) << " | " << cell(field.doc) << " |\n";
  }
}

void print_heading(const std::string& title, const std::string& text) {
  std::cout << "\n## " << title << "\n" << (text.empty() ? "" : "\n" + text + "\n");
}

template <class Options>
void print_struct(const std::string& name) {
  std::cout << "\n### `" << name << "`\n";
  print_options(levin::schema_of<Options>().fields());
}

template <class Base>
void print_registry(const std::string& title, const std::string& text, const levin::Registry<Base>& registry,
                    const std::vector<levin::FieldDoc>& common = {}) {
  print_heading(title, text);
  if (!common.empty()) print_options(common);
  for (const auto& item : registry.items()) {
    std::cout << "\n### `" << item.name << "`\n" << (item.doc.empty() ? "" : "\n" + item.doc + "\n");
    if (item.alias_of.is_null())
      print_options(item.fields);
    else
      std::cout << "\nAnother name of `" << item.alias_of.to_flow() << "`.\n";
  }
}

}  // namespace

int main() {
  auto& registries = levin::registries();
  std::cout << kIntroduction;
  print_heading("trainer", "");
  print_options(levin::schema_of<levin::TrainerOptions>().fields());
  print_struct<levin::AdapterOptions>("adapters");
  print_struct<levin::ActivationCheckpointingOptions>("activation_checkpointing");
  print_registry("Callbacks", "`trainer: {callbacks: [NAME, NAME: {option: value}]}`", registries.callbacks);
  print_registry("Loggers", "`trainer: {logger: [NAME, NAME: {option: value}]}`", registries.loggers);
  print_registry("Strategies", "`trainer: {strategy: {name: NAME, option: value}}`", registries.strategies);
  print_registry("Precisions", "`trainer: {precision: NAME}`", registries.precisions);
  print_registry("Profilers", "`trainer: {profiler: NAME}` or `trainer: {profiler: {name: NAME, option: value}}`",
                 registries.profilers);
  print_struct<levin::ProfilerSchedule>("schedule");

  print_heading("inspect", "What the command `data` shows ([data.md](data-modules.md#looking-at-data)).");
  print_options(levin::schema_of<levin::DataCommandOptions>().fields());

  print_heading("sweep", "What the command `sweep` runs ([sweeps.md](sweeps.md)).");
  print_options(levin::schema_of<levin::sweep::SweepOptions>().fields());
  print_struct<levin::sweep::SuccessiveHalvingOptions>("successive_halving");
  print_struct<levin::sweep::LearningRateScalingOptions>("learning_rate_scaling");
  print_registry("Executors", "`sweep: {executor: NAME}` or `sweep: {executor: {name: NAME, option: value}}`",
                 levin::sweep::executor_registry());

  print_heading("Data",
                "Options of the data modules, data sets and loaders that come with Levin; a program chooses the "
                "names under which it\nregisters data modules.");
  print_struct<levin::data::FashionMnistOptions>("levin::data::FashionMnist");
  print_struct<levin::data::MnistOptions>("levin::data::Mnist");
  print_struct<levin::data::Cifar10Options>("levin::data::Cifar10");
  print_struct<levin::data::Cifar100Options>("levin::data::Cifar100");
  print_struct<levin::data::ImageFolderOptions>("levin::data::ImageFolder");
  print_struct<levin::data::TarShardsOptions>("levin::data::TarShards");
  print_struct<levin::data::CsvOptions>("levin::data::Csv");
  print_struct<levin::data::NumpyArraysOptions>("levin::data::NumpyArrays");
  print_struct<levin::data::JsonLinesOptions>("levin::data::JsonLines");
  print_struct<levin::data::InstructionDataOptions>("levin::data::InstructionData");
  print_struct<levin::data::TokenTextOptions>("levin::data::TokenText");
  print_struct<levin::data::CombinedDataOptions>("levin::data::CombinedData");
  print_struct<levin::data::BlendedDataOptions>("levin::data::BlendedData");
  print_struct<levin::data::TextLinesOptions>("levin::data::TextLines");
  print_struct<levin::DataLoaderOptions>("levin::DataLoader");

  print_registry("Transforms", "`data: {transforms: [NAME, NAME: {option: value}]}` of data modules that have images.",
                 levin::data::transform_registry());

  print_registry("Samplers",
                 "`data: {sampler: NAME}` or `data: {sampler: {NAME: {option: value}}}` of data modules that have it.",
                 levin::data::sampling_registry());

  print_registry("Mixtures", "`data: {mix: [NAME, NAME: {option: value}]}` of data modules that have images.",
                 levin::data::mix_registry());

  print_registry("Caches",
                 "`data: {cache: NAME}` or `data: {cache: {name: NAME, option: value}}` of data modules that decode.",
                 levin::data::cache_registry());

  print_registry(
      "Optimizers",
      "`optimizer: NAME` or `optimizer: {name: NAME, option: value}`, at the top level or of `trainer`. In code "
      "they are\n`levin::optim::SGD`, `Adam`, `AdamW` and so on, made in `configure_optimizers`, with structs of "
      "these options.",
      registries.optimizers);

  print_registry(
      "Schedulers",
      "`scheduler: NAME` or `scheduler: {name: NAME, option: value}`, beside `optimizer`; in code\n"
      "`.scheduler = {.name = \"cosine\", .interval = levin::Interval::kStep}` in `configure_optimizers`, with "
      "options in `.options`.\nEvery scheduler has these options too:",
      levin::optim::scheduler_registry(), levin::optim::common_scheduler_fields());
  return levin::finish_standard_output(0);
}
