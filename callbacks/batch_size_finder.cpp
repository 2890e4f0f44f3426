#include <levin/callbacks/batch_size_finder.h>

#include <levin/callbacks/batch_size_search.h>
#include <levin/core/base/error.h>
#include <levin/core/base/log.h>
#include <levin/core/interfaces/module.h>
#include <levin/core/trainer/dry_run.h>
#include <levin/core/trainer/trainer.h>

#include <fmt/format.h>

#include <algorithm>

namespace levin {
namespace {

constexpr const char* kSizeFinder = "batch_size_finder";

bool has_option(const Configurable& object, const std::string& name) {
  const Config& options = object.init_options();
  return options.is_mapping() && options.find(name) != nullptr;
}

}  // namespace

void BatchSizeFinderOptions::describe(Schema<BatchSizeFinderOptions>& schema) {
  using O = BatchSizeFinderOptions;
  schema.field("mode", &O::mode, "power: the largest found by doubling; binsearch: the largest that fits")
      .one_of({"power", "binsearch"});
  schema.field("steps_per_trial", &O::steps_per_trial, "optimizer steps per size").at_least(1);
  schema.field("init_val", &O::init_val, "the first size to try").at_least(1);
  schema.field("max_trials", &O::max_trials, "sizes to try at most").at_least(1);
  schema.field("margin", &O::margin, "binsearch: fraction of the fitting size to leave free").at_least(0).below(1);
  schema.field("max_val", &O::max_val, "largest size to try").at_least(1);
  schema.field("update_attr", &O::update_attr, "train with the result; false: only report it");
  schema.field("batch_arg_name", &O::batch_arg_name, "option of the data module or model that the report names");
}

BatchSizeFinder::BatchSizeFinder(const Options& options) : options_(options) {
  schema_of<Options>().validate(options, kSizeFinder);
}

void BatchSizeFinder::on_load_checkpoint(Trainer& trainer, Module&, const State& checkpoint) {
  const State* own = checkpoint.at("callbacks").find(state_key());
  if (own == nullptr || !options_.update_attr) return;
  if (const State& size = own->at("batch_size"); !size.is_null()) trainer.set_train_batch_size(size.as_int());
}

void BatchSizeFinder::on_fit_start(Trainer& trainer, Module& module) {
  if (trainer.resumed()) {
    log::rank_zero_info(fmt::format("{}: resuming with the batch size of the checkpoint", kSizeFinder));
    return;
  }
  batch_size_.reset();
  report_.clear();
  if (trainer.options().fast_dev_run.batches() > 0) {
    log::rank_zero_warning(fmt::format("{}: no search, because of fast_dev_run", kSizeFinder));
    return;
  }
  const std::string nothing = fmt::format("{}: nothing found, and the batch size stays as it is: ", kSizeFinder);
  const auto how = search(trainer);
  if (!how) {
    report_ = nothing + "the search was interrupted";
  } else if (!batch_size_) {
    report_ = nothing + *how;
  } else {
    report_ = fmt::format("{}: {} examples in a batch of one rank ({})\n  {}", kSizeFinder, *batch_size_, *how,
                          how_to_set(trainer, module));
    try {
      if (options_.update_attr) trainer.set_train_batch_size(*batch_size_);
    } catch (const ConfigError& conflict) {
      batch_size_.reset();
      report_ +=
          fmt::format("\n  training goes on with the batch size it had, because with this one {}", conflict.what());
    }
  }
  if (batch_size_)
    log::rank_zero_info(report_);
  else
    log::rank_zero_warning(report_);
}

std::optional<std::string> BatchSizeFinder::search(Trainer& trainer) {
  int64_t limit = options_.max_val;
  // Only full batches tell: of more examples than there are, none can be made.
  const auto examples = trainer.train_dataloader().num_examples();
  if (examples) limit = std::min(limit, *examples / trainer.train_ranks());
  if (limit == 0) return "the data set has fewer examples than there are ranks";
  BatchSizeSearch search({.first = options_.init_val,
                          .limit = limit,
                          .max_trials = options_.max_trials,
                          .bisect = options_.mode == "binsearch",
                          .margin = options_.margin});
  bool data_ended = false;
  while (const auto size = search.next()) {
    const Fit fit = try_size(trainer, *size);
    if (fit == Fit::kInterrupted) return std::nullopt;
    log::rank_zero_info(fmt::format("{}: {} {}", kSizeFinder, *size,
                                    fit == Fit::kYes        ? "fits"
                                    : fit == Fit::kNoMemory ? "runs out of memory"
                                                            : "is more than there are data for"));
    if (fit == Fit::kYes) search.fits(*size);
    if (fit == Fit::kNoMemory) search.runs_out_of_memory(*size);
    if (fit == Fit::kNoData) search.runs_out_of_data(*size);
    data_ended = data_ended || fit == Fit::kNoData;
  }
  batch_size_ = search.result();
  if (!batch_size_)
    return data_ended ? "there are no data for a batch"
                      : fmt::format(
                            "{} ran out of memory; hint: a smaller model, activation checkpointing or another "
                            "precision",
                            search.smallest_failure());
  std::string reason = fmt::format("{}, {} sizes tried", options_.mode, search.trials());
  if (search.smallest_failure() > 0)
    reason += fmt::format("; {} ran out of memory", search.smallest_failure());
  else if (data_ended || (examples && *batch_size_ == *examples / trainer.train_ranks()))
    reason += "; the data set has no more examples";
  else if (*batch_size_ == limit)
    reason += "; no larger one is tried, see max_val";
  return reason;
}

BatchSizeFinder::Fit BatchSizeFinder::try_size(Trainer& trainer, int64_t batch_size) const {
  DryRun dry_run(trainer, {.batch_size = batch_size, .may_run_out_of_memory = true});
  for (int64_t step = 0; step < options_.steps_per_trial; ++step) {
    switch (dry_run.step()) {
      case DryRun::Result::kDone:
        break;
      case DryRun::Result::kNoData:
        return Fit::kNoData;
      case DryRun::Result::kOutOfMemory:
        return Fit::kNoMemory;
      case DryRun::Result::kInterrupted:
        return Fit::kInterrupted;
    }
  }
  return Fit::kYes;
}

std::string BatchSizeFinder::how_to_set(Trainer& trainer, const Module& module) const {
  const auto setting = [](const char* section, const std::string& name, int64_t value) {
    return fmt::format("to set it: --{0}.{1}={2}, or in YAML {0}: {{{1}: {2}}}", section, name, value);
  };
  if (!trainer.train_dataloader().parts().empty()) {
    const DataLoader found = trainer.train_dataloader().with_batch_size(*batch_size_);
    std::vector<std::string> sizes;
    for (const auto& [name, part] : found.parts())
      sizes.push_back(fmt::format("{} {}", name, part.batch_size(/*world_size=*/1)));
    return "to set it: the batch_size of each part: " + join(sizes);
  }
  const DataModule* data = trainer.data_module();
  if (data != nullptr && trainer.train_dataloader().options().global_batch_size &&
      has_option(*data, "global_batch_size"))
    return setting("data", "global_batch_size", *batch_size_ * trainer.train_ranks());
  if (data != nullptr && has_option(*data, options_.batch_arg_name))
    return setting("data", options_.batch_arg_name, *batch_size_);
  if (has_option(module, options_.batch_arg_name)) return setting("model", options_.batch_arg_name, *batch_size_);
  return "to set it: where the training loader is made";
}

State BatchSizeFinder::state_dict() const {
  State state = State::map();
  state["batch_size"] = batch_size_ ? State(*batch_size_) : State();
  state["report"] = report_;
  return state;
}

void BatchSizeFinder::load_state_dict(const State& state) {
  const State& size = state.at("batch_size");
  batch_size_ = size.is_null() ? std::nullopt : std::optional(size.as_int());
  report_ = state.at("report").as_string();
}

}  // namespace levin
