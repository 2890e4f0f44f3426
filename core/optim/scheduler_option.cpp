#include <levin/core/optim/scheduler_option.h>

#include <levin/core/base/error.h>
#include <levin/core/base/spec.h>
#include <levin/core/optim/schedulers.h>

#include <fmt/format.h>

#include <optional>

namespace levin {
namespace {

/// What stands beside the options of the schedule.
struct CommonOptions {
  std::optional<Interval> interval = {};
  int64_t frequency = 1;
  std::string monitor = {};
  bool strict = true;
  int64_t warmup_steps = 0;

  static void describe(Schema<CommonOptions>& schema) {
    schema.field("interval", &CommonOptions::interval,
                 "when the learning rate changes: null is step with warmup_steps, else epoch",
                 {{"epoch", Interval::kEpoch}, {"step", Interval::kStep}});
    schema.field("frequency", &CommonOptions::frequency, "intervals between two changes").at_least(1);
    schema.field("monitor", &CommonOptions::monitor, "the metric that reduce_on_plateau follows");
    schema.field("strict", &CommonOptions::strict, "make a metric that was not logged an error; false: a warning");
    schema.field("warmup_steps", &CommonOptions::warmup_steps, "linear warm-up before the schedule (optimizer steps)")
        .at_least(0);
  }
};

}  // namespace

SchedulerConfig ConfigCodec<SchedulerConfig>::parse(const Config& node, const std::string& path) {
  if (node.is_null()) return {};
  const auto [name, given] = detail::split_named_config(node, path, optim::scheduler_registry().kind());
  const auto& item = optim::scheduler_registry().require(name.text(), name.origin());
  Config common = Config::mapping(node.origin());
  Config own = given.is_null() ? Config::mapping(node.origin()) : given;
  for (const std::string& option : schema_of<CommonOptions>().names()) {
    if (const Config* value = own.is_mapping() ? own.find(option) : nullptr) {
      common.set(option, *value, value->origin());
      own.erase(option);
    }
  }
  const auto options = parse_options<CommonOptions>(common, path);
  const bool warms_up = options.warmup_steps > 0;
  if (warms_up && options.interval == Interval::kEpoch)
    throw ConfigError(fmt::format(
        "{}.warmup_steps counts optimizer steps, and {}.interval is epoch; hint: interval: step, or the scheduler "
        "sequential with linear_warmup for a warm-up of epochs",
        path, path));
  return {.name = name.text(),
          .interval = options.interval.value_or(warms_up ? Interval::kStep : Interval::kEpoch),
          .frequency = options.frequency,
          .monitor = options.monitor,
          .strict = options.strict,
          .options = item.resolve(own, path),
          .warmup_steps = options.warmup_steps};
}

Config ConfigCodec<SchedulerConfig>::dump(const SchedulerConfig& value) {
  if (!value) return Config::null();
  Config node = Config::mapping();
  node.set("name", Config::scalar(value.scheduler != nullptr ? value.scheduler->init_name() : value.name));
  node.merge(schema_of<CommonOptions>().dump({.interval = value.interval,
                                              .frequency = value.frequency,
                                              .monitor = value.monitor,
                                              .strict = value.strict,
                                              .warmup_steps = value.warmup_steps}));
  const Config& options = value.scheduler != nullptr ? value.scheduler->init_options() : value.options;
  if (options.is_mapping()) node.merge(options);
  return node;
}

std::vector<FieldDoc> optim::common_scheduler_fields() { return schema_of<CommonOptions>().fields(); }

}  // namespace levin
