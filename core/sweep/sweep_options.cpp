#include <levin/core/sweep/sweep_options.h>

namespace levin::sweep {

void SuccessiveHalvingOptions::describe(Schema<SuccessiveHalvingOptions>& schema) {
  using O = SuccessiveHalvingOptions;
  schema.field("min_epochs", &O::min_epochs, "epochs of the first rung").at_least(1);
  schema.field("reduction_factor", &O::reduction_factor, "ratio of runs, and of epochs, between two rungs").above(1);
}

void LearningRateScalingOptions::describe(Schema<LearningRateScalingOptions>& schema) {
  using O = LearningRateScalingOptions;
  schema.field("option", &O::option, "the learning rate");
  schema.field("batch_size", &O::batch_size, "global batch size for which it is given").at_least(1);
  schema.field("rule", &O::rule, "linear: proportional to the global batch size; sqrt: to its square root")
      .one_of({"linear", "sqrt"});
}

void SweepOptions::describe(Schema<SweepOptions>& schema) {
  using O = SweepOptions;
  schema.field("grid", &O::grid, "{model.lr: [0.001, 0.003]}: a run for each combination of the values");
  schema.field("list", &O::list, "[{model.lr: 0.001, seed: 3}]: a run for each, with each combination of the grid");
  schema.field("random", &O::random,
               "{model.lr: {log_uniform: [0.0001, 0.1]}}: drawn `samples` times; also uniform, int_uniform (bounds "
               "included) and choice");
  schema.field("samples", &O::samples, "draws from `random`, each with each combination of the grid").at_least(1);
  schema.field("sample_seed", &O::sample_seed, "seed of the draws").at_least(0);
  schema.field("exclude", &O::exclude, "[{model.lr: 0.1, data.batch_size: [16, 32]}]: combinations left out");
  schema.field("only_when", &O::only_when, "conditions of varied options: {model.channels: {model.name: cnn}}");
  schema.field("repeats", &O::repeats, "runs of each combination, with seed, seed + 1, ...").at_least(1);
  schema.field("global_batch_size", &O::global_batch_size, "fixed global batch size; sets data.batch_size of each run")
      .at_least(1);
  schema.field(
      "learning_rate_scaling", &O::learning_rate_scaling,
      "scaling of the learning rate with the global batch size: {option: model.lr, batch_size: 256, rule: linear}");
  schema.field("monitor", &O::monitor, "metric by which runs are compared");
  schema.field("mode", &O::mode, "direction of improvement; min: smaller is better; max: larger")
      .one_of({"min", "max"});
  schema.field("successive_halving", &O::successive_halving,
               "{min_epochs: 1, reduction_factor: 3}: ends bad runs early; {}: with these values");
  schema.field("name", &O::name, "name of the sweep's folder below default_root_dir/sweeps; empty: version_N");
  schema.field("dir", &O::dir, "the sweep's folder, instead of name");
  schema.field("parallel", &O::parallel, "runs at a time; they divide cores and GPUs").at_least(1);
  schema.field("executor", &O::executor, "where runs go: local, slurm, or one that the program has registered");
  schema.field("command", &O::command, "command in front of each run's command line");
}

}  // namespace levin::sweep
