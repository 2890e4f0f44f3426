#include <levin/core/cli/cli.h>

#include <levin/build_info.h>
#include <levin/core/base/error.h>
#include <levin/core/base/log.h>
#include <levin/core/base/seed.h>
#include <levin/core/base/setting_variables.h>
#include <levin/core/base/signals.h>
#include <levin/core/base/standard_output.h>
#include <levin/core/base/utf8.h>
#include <levin/core/cli/cli_arguments.h>
#include <levin/core/cli/cli_completion.h>
#include <levin/core/cli/cli_config.h>
#include <levin/core/cli/cli_help.h>
#include <levin/core/cli/cli_results.h>
#include <levin/core/cli/data_command.h>
#include <levin/core/cli/export_command.h>
#include <levin/core/cli/json_schema.h>
#include <levin/core/comm/rank_failure.h>
#include <levin/core/data/batch.h>
#include <levin/core/data/data_parts.h>
#include <levin/core/devices/accounting_allocator.h>
#include <levin/core/interfaces/cluster_environment.h>
#include <levin/core/optim/schedulers.h>
#include <levin/core/options/registries.h>
#include <levin/core/planning/choose_strategy.h>
#include <levin/core/planning/memory_check.h>
#include <levin/core/planning/memory_planner.h>
#include <levin/core/planning/strategy_choice.h>
#include <levin/core/sweep/sweep.h>
#include <levin/core/trainer/metrics_table.h>
#include <levin/core/trainer/trainer.h>

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <iostream>
#include <string_view>
#include <utility>

namespace levin {
namespace {

constexpr int kSuccess = 0;
constexpr int kFailure = 1;
constexpr int kUsageError = 2;
constexpr int kSignalBase = 128;

/// What a command works with.
struct Run {
  const Config& config;
  const ConfigNames& names;
  Trainer& trainer;
  std::shared_ptr<Module> module;
  std::shared_ptr<DataModule> data;  ///< nullptr: the module has the data hooks
  std::string ckpt;
  std::shared_ptr<MemoryPlanner> planner;  ///< of the command plan
};

std::shared_ptr<Module> make_module(const Config& config, const ConfigNames& names) {
  return make_section(names.modules, *config.find("model"), "model");
}

std::shared_ptr<DataModule> make_data(const Config& config, const ConfigNames& names) {
  const Config* data = config.find("data");
  if (data == nullptr) return nullptr;
  auto made = make_section(names.data, *data, "data");
  if (auto* combined = dynamic_cast<data::DataParts*>(made.get())) combined->make_parts(names.data);
  return made;
}

struct Command {
  const char* name;
  const char* doc;
  bool needs_trained_weights;
  bool can_resume;  ///< an interrupted run leaves a checkpoint
  /// Does the work and returns what to print at its end.
  std::string (*run)(const Run& run);
  bool plans = false;             ///< the trainer is that of a MemoryPlanner
  bool sweeps = false;            ///< it starts programs that train, and trains nothing itself
  const char* section = nullptr;  ///< of its own options, a topic of the help
};

std::string fit(const Run& run) {
  run.trainer.fit(run.module, run.data, run.ckpt);
  return fit_ending(run.trainer);
}

std::string validate(const Run& run) {
  return metrics_table(run.trainer.validate(run.module, run.data, run.ckpt, /*verbose=*/false));
}

std::string test(const Run& run) {
  return metrics_table(run.trainer.test(run.module, run.data, run.ckpt, /*verbose=*/false));
}

std::string predict(const Run& run) {
  const auto predictions = run.trainer.predict(run.module, run.data, run.ckpt);
  if (!run.trainer.is_global_zero()) return "";
  return save_predictions(predictions, run.trainer.run_directory()) +
         (run.trainer.interrupted() ? "interrupted: the batches after it have no predictions\n" : "");
}

std::string tune(const Run& run) {
  std::string ending;
  for (const std::string& report : run.trainer.tune(run.module, run.data, run.ckpt)) ending += report + "\n";
  return ending;
}

/// No rank starts: the model is traced in this process.
std::string export_file(const Run& run) {
  const Config* section = run.config.find("export");
  const auto options = parse_options<ExportCommandOptions>(section != nullptr ? *section : Config::null(), "export");
  if (options.output.empty()) throw ConfigError("export needs a file to write; hint: -o model.onnx");
  return export_ending(
      run.trainer.export_model(run.module, run.data, options.output, run.ckpt,
                               {.format = options.format, .external_data_bytes = options.external_data_bytes}));
}

/// No rank starts: the data are those of one.
std::string look_at_data(const Run& run) {
  const Config* section = run.config.find("inspect");
  const auto options = parse_options<DataCommandOptions>(section != nullptr ? *section : Config::null(), "inspect");
  return inspect_data(*run.module, run.data.get(), options, global_seed());
}

PlanOptions plan_options(const Config& config) {
  const Config* section = config.find("plan");
  return parse_options<PlanOptions>(section != nullptr ? *section : Config::null(), "plan");
}

/// The planner runs as a finder. What it said may then be measured, by a trainer as it is configured.
std::string plan(const Run& run) {
  std::string ending = tune(run);
  const int64_t steps = plan_options(run.config).measure_steps;
  if (steps == 0 || run.trainer.interrupted()) return ending;
  // Before the module is made, so that it is counted.
  AccountingAllocator::install();
  auto configured = parse_options<TrainerOptions>(*run.config.find("trainer"), "trainer");
  if (is_limited_auto(configured.strategy.config()))
    configured = with_mesh(configured, choose_mesh(run.planner->needs(), configured).way);
  const auto check = make<MemoryCheck>();
  Trainer trainer(checking_options(configured, steps, check));
  trainer.fit(make_module(run.config, run.names), make_data(run.config, run.names));
  // Ranks that are further runs of the program have planned as well.
  if (!trainer.is_global_zero()) return "";
  return ending + check_report(*check, configured, trainer.strategy(), run.planner->needs());
}

constexpr std::array<Command, 9> kCommands = {{
    {"fit", "trains the model, with validation", false, true, fit},
    {"validate", "one pass over the validation data", true, false, validate},
    {"test", "one pass over the test data", true, false, test},
    {"predict", "writes the predictions for the prediction data", true, false, predict},
    {"tune", "runs the finders (batch size, learning rate) and trains nothing", false, false, tune},
    {"plan", "predicts memory and communication of each mesh, and the cheapest that fits", false, false, plan, true,
     false, "plan"},
    {"export", "writes the model to -o FILE, as TorchScript (.pt) or ONNX (.onnx)", true, false, export_file, false,
     false, "export"},
    {"data", "shows what the data are: a batch, its picture, classes, examples a second", false, false, look_at_data,
     false, false, "inspect"},
    {"sweep", "trains with many configurations, several at a time, and compares them", false, true, nullptr, false,
     true, "sweep"},
}};

const Command* find_command(const std::string& name) {
  for (const auto& command : kCommands)
    if (name == command.name) return &command;
  return nullptr;
}

/// Seeds everything with the configuration's seed, or with a random one, which the configuration then holds.
void apply_seed(Config& config) {
  Config& seed = *config.find("seed");
  if (seed.is_null()) {
    // Below 2^31, so that it can be given back everywhere.
    seed = ConfigCodec<int64_t>::dump(static_cast<int64_t>(global_seed() & 0x7fffffff));
    // Rank 0's seed is everybody's: the others draw one too, before they know it.
    const auto environment = registries().detect_environment();
    if (environment == nullptr || environment->rank() == 0)
      log::info("seed " + seed.text() + ", drawn at random; hint: --seed=" + seed.text() + " repeats this run");
  }
  seed_everything(static_cast<uint64_t>(ConfigCodec<int64_t>::parse(seed, "seed")));
}

using Settings = std::vector<std::pair<std::string, Config>>;

/// Makes all objects. `planner`: of the command plan, whose trainer measures; may be unset. `trains`: a strategy that
/// is to fit into a memory is chosen, which takes a measurement. `needs_data`: a data module is made.
CliRun build_run(const std::string& command, Config config, const ConfigNames& names,
                 std::shared_ptr<MemoryPlanner>* planner = nullptr, bool trains = true, bool needs_data = true) {
  if (names.modules.items().empty())
    throw ConfigError("this program has no model; hint: cli.modules.add<MyModule>(\"name\") before cli.run");
  // The seed comes first: the module draws its weights when it is made.
  apply_seed(config);
  auto options = parse_options<TrainerOptions>(*config.find("trainer"), "trainer");
  if (planner != nullptr) {
    *planner = std::make_shared<MemoryPlanner>(plan_options(config), options);
    options = planning_options(options, *planner);
  } else if (is_limited_auto(options.strategy.config())) {
    if (trains) {
      options = choose_strategy(options, make_module(config, names), make_data(config, names));
      apply_seed(config);  // the run's own module has the weights that it has without a measurement
    } else {
      options.strategy = "auto";
    }
  }
  const auto trainer = std::make_shared<Trainer>(options);
  trainer->set_config(config);
  const Config& ckpt = *config.find("ckpt");
  return {.command = command,
          .config = config,
          .trainer = trainer,
          .module = make_module(config, names),
          .data = needs_data ? make_data(config, names) : nullptr,
          .ckpt = ckpt.is_null() ? "" : ckpt.text()};
}

int execute(const Command& command, const CliRun& built, const ConfigNames& names,
            const std::shared_ptr<MemoryPlanner>& planner) {
  Trainer& trainer = *built.trainer;
  const Run run{.config = built.config,
                .names = names,
                .trainer = trainer,
                .module = built.module,
                .data = built.data,
                .ckpt = built.ckpt,
                .planner = planner};
  if (command.needs_trained_weights && run.ckpt.empty() && trainer.options().init_from.path.empty())
    log::rank_zero_warning(std::string(command.name) +
                           " without --ckpt uses weights that were never trained; hint: --ckpt best");

  const std::string ending = command.run(run);
  if (trainer.is_global_zero()) std::cout << printable_text(ending) << std::flush;
  // A signal that came when training had ended by itself leaves nothing to resume.
  if (command.can_resume ? trainer.status() != TrainerStatus::kInterrupted : !trainer.interrupted()) return kSuccess;
  if (command.can_resume) log::rank_zero_info("interrupted; hint: --ckpt last goes on from here");
  return kSignalBase + trainer.interrupt_signal();
}

/// Trains with the configurations of the section `sweep`.
int execute_sweep(const std::function<Config(const Settings&)>& configure) {
  sweep::Sweep sweep([&](const sweep::Settings& further) {
    Settings settings;
    for (const auto& [option, value] : further) settings.emplace_back(option, value);
    return configure(settings);
  });
  sweep.run();
  std::cout << sweep.report() << std::flush;
  if (sweep.interrupted_by() != 0) {
    log::info("interrupted; hint: the same command goes on from here");
    return kSignalBase + sweep.interrupted_by();
  }
  return sweep.has_failures() ? kFailure : kSuccess;
}

/// Launchers before torchrun told a rank its place on the host by a word of the command line, and the rest by
/// variables.
void adopt_local_rank(const std::string& local_rank) {
  if (!local_rank.empty() && std::getenv("RANK") != nullptr && std::getenv("WORLD_SIZE") != nullptr)
    setenv("LOCAL_RANK", local_rank.c_str(), /*replace=*/0);
}

/// Whether this rank tells the user of another one's failure. That is for rank 0, whose words the user reads; where it
/// is gone itself, or the launcher is, for the first rank of each host.
bool speaks_of(const RankFailure& failure) {
  if (log::rank() == 0) return true;
  if (!failure.gone || failure.rank > 0) return false;
  const auto environment = registries().detect_environment();
  return environment == nullptr || environment->local_rank() == 0;
}

Settings settings_of(const CliArguments& arguments) {
  Settings settings;
  for (const auto& setting : arguments.settings) settings.emplace_back(setting.path, setting.value);
  return settings;
}

int report(const std::string& message, int status) {
  std::fprintf(stderr, "error: %s\n", printable_text(message).c_str());
  return status;
}

}  // namespace

Cli::Cli()
    : callbacks(registries().callbacks),
      loggers(registries().loggers),
      strategies(registries().strategies),
      precisions(registries().precisions),
      profilers(registries().profilers),
      optimizers(registries().optimizers),
      schedulers(optim::scheduler_registry()) {}

int Cli::run(int argc, char** argv) {
  try {
    return finish_standard_output(run_command(argc, argv));
  } catch (const RankFailedError& error) {
    // The rank that failed says why, if it can.
    const int signal = SignalScope::received();
    const int status = signal != 0 ? kSignalBase + signal : kFailure;
    return speaks_of(error.failure()) ? report(error.what(), status) : status;
  } catch (const ConfigError& error) {
    return report(error.what(), kUsageError);
  } catch (const c10::Error& error) {
    return report(error.what_without_backtrace(), kFailure);
  } catch (const std::exception& error) {
    const int signal = SignalScope::received();
    return report(error.what(), signal != 0 ? kSignalBase + signal : kFailure);
  } catch (...) {
    return report("something was thrown that is no std::exception", kFailure);
  }
}

std::vector<std::string> Cli::command_names() const {
  std::vector<std::string> names;
  for (const auto& command : kCommands) names.emplace_back(command.name);
  for (const auto& command : own_commands_) names.push_back(command.name);
  return names;
}

void Cli::add_command(const std::string& name, const std::string& doc, std::function<void(const CliRun&)> run,
                      bool needs_data) {
  add_own({.name = name, .doc = doc, .run = std::move(run), .needs_data = needs_data});
}

void Cli::add_own(OwnCommand command) {
  const auto refuse = [&](const char* what, const std::vector<std::string>& names) {
    if (std::find(names.begin(), names.end(), command.name) != names.end())
      throw ConfigError(fmt::format("cli.add_command: there is a {} '{}' already; valid: a name that is none of {}",
                                    what, command.name, join(names)));
  };
  refuse("command", command_names());
  if (command.section) refuse("section of the configuration", top_level_keys());
  own_commands_.push_back(std::move(command));
}

ConfigNames Cli::config_names() const {
  ConfigNames names = names_of(*this);
  for (const auto& command : own_commands_)
    if (command.section) names.sections.push_back(*command.section);
  return names;
}

void Cli::link(const std::string& source, const std::string& target, std::function<Config(const Config&)> compute) {
  links_.push_back({source, target, std::move(compute)});
}

Config Cli::configure(const std::vector<std::string>& files, const Settings& settings) const {
  const ConfigNames names = config_names();
  std::vector<CliArguments::Setting> all = environment_settings();
  for (const auto& [path, value] : settings) all.push_back({path, value});
  Config merged = merge_sources(files, all, names, defaults);
  for (const auto& link : links_) {
    const Config resolved = resolve_config(merged, names);
    const Config* value = resolved.find_path(link.source);
    if (value == nullptr)
      throw ConfigError(
          fmt::format("cli.link: there is no option '{}' for '{}' to follow; hint: --print_config lists all",
                      link.source, link.target));
    const Config computed = link.compute ? link.compute(*value) : *value;
    const Config* const given = merged.find_path(link.target);
    const std::string place = given == nullptr ? "" : given->origin().prefix();
    const bool is_given = given != nullptr;
    merged.set_path(link.target, Config::parse(computed.to_flow(), {.source = "as " + link.source}, true));
    // The configuration that a run has written has the same.
    if (is_given &&
        resolved.find_path(link.target)->to_flow() != resolve_config(merged, names).find_path(link.target)->to_flow())
      throw ConfigError(fmt::format("{}{} follows {}; hint: leave it out", place, link.target, link.source));
  }
  return resolve_config(merged, names);
}

CliRun Cli::build(int argc, char** argv) {
  const auto arguments = parse_arguments(argc, argv, {});
  const ConfigNames names = config_names();
  return build_run("", configure(arguments.config_files, settings_of(arguments)), names);
}

int Cli::run_command(int argc, char** argv) {
  const ConfigNames names = config_names();
  const auto arguments = parse_arguments(argc, argv, command_names(), names.sections);
  adopt_local_rank(arguments.local_rank);
  if (arguments.version) {
    std::cout << arguments.program << ": Levin " << LEVIN_VERSION << ", LibTorch " << LEVIN_LIBTORCH_VERSION << "\n";
    return kSuccess;
  }
  if (arguments.print_schema) {
    std::cout << json_schema(names) << "\n";
    return kSuccess;
  }
  if (!arguments.completion.empty()) {
    std::cout << completion_script(arguments.completion, arguments.program, command_names(), names);
    return kSuccess;
  }
  const Command* command = find_command(arguments.command);
  if (arguments.help) {
    HelpContents contents{.program = arguments.program, .commands = {}, .names = names};
    for (const auto& each : kCommands) contents.commands.emplace_back(each.name, each.doc);
    for (const auto& each : own_commands_) contents.commands.emplace_back(each.name, each.doc);
    // A command with options of its own is a topic.
    std::string topic = arguments.help_topic;
    if (topic.empty() && command != nullptr && command->section != nullptr) topic = command->section;
    for (const auto& section : names.sections)
      if (topic.empty() && section.name == arguments.command) topic = section.name;
    std::cout << help_text(contents, topic);
    // The word is a section of the configuration, too.
    if (topic == "inspect" && arguments.command == "data") std::cout << help_text(contents, "data");
    return kSuccess;
  }
  const Config config = configure(arguments.config_files, settings_of(arguments));
  if (arguments.print_config) {
    std::cout << config.to_yaml(/*with_origins=*/true);
    return kSuccess;
  }
  if (arguments.command.empty())
    throw ConfigError("command line: no command; valid: " + join(command_names()) + "; hint: --help");
  if (command != nullptr && command->sweeps)
    return execute_sweep([&](const Settings& further) {
      Settings settings = settings_of(arguments);
      settings.insert(settings.end(), further.begin(), further.end());
      return configure(arguments.config_files, settings);
    });
  std::shared_ptr<MemoryPlanner> planner;
  const auto own = std::find_if(own_commands_.begin(), own_commands_.end(),
                                [&](const OwnCommand& each) { return each.name == arguments.command; });
  const bool needs_data = own == own_commands_.end() || own->needs_data;
  const bool trains =
      command != nullptr ? !(command->needs_trained_weights || command->run == look_at_data) : needs_data;
  const CliRun run = build_run(arguments.command, config, names,
                               command != nullptr && command->plans ? &planner : nullptr, trains, needs_data);
  if (before_command) before_command(run);
  int status = kSuccess;
  if (command != nullptr) {
    status = execute(*command, run, names, planner);
  } else {
    own->run(run);
    if (run.trainer->status() == TrainerStatus::kInterrupted) status = kSignalBase + run.trainer->interrupt_signal();
  }
  if (after_command) after_command(run);
  return status;
}

}  // namespace levin
