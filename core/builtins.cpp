#include <levin/core/builtins.h>

#include <levin/callbacks/backbone_finetuning.h>
#include <levin/callbacks/batch_size_finder.h>
#include <levin/callbacks/data_summary.h>
#include <levin/callbacks/device_stats_monitor.h>
#include <levin/callbacks/early_stopping.h>
#include <levin/callbacks/goodput_monitor.h>
#include <levin/callbacks/gradient_accumulation_scheduler.h>
#include <levin/callbacks/gradient_norm_monitor.h>
#include <levin/callbacks/learning_rate_finder.h>
#include <levin/callbacks/learning_rate_monitor.h>
#include <levin/callbacks/model_checkpoint.h>
#include <levin/callbacks/model_graph.h>
#include <levin/callbacks/model_pruning.h>
#include <levin/callbacks/model_summary.h>
#include <levin/callbacks/nan_monitor.h>
#include <levin/callbacks/pause_training.h>
#include <levin/callbacks/prediction_writer.h>
#include <levin/callbacks/progress_bar.h>
#include <levin/callbacks/spike_detection.h>
#include <levin/callbacks/stochastic_weight_averaging.h>
#include <levin/callbacks/throughput_monitor.h>
#include <levin/callbacks/timer.h>
#include <levin/callbacks/weight_averaging.h>
#include <levin/core/optim/named_optimizer.h>
#include <levin/core/options/registries.h>
#include <levin/core/precision/mixed_precision.h>
#include <levin/core/precision/true_precision.h>
#include <levin/core/profilers/nvtx_profiler.h>
#include <levin/core/profilers/pytorch_profiler.h>
#include <levin/core/profilers/simple_profiler.h>
#include <levin/loggers/console_logger.h>
#include <levin/loggers/csv_logger.h>
#include <levin/loggers/mlflow_logger.h>
#include <levin/loggers/tensorboard_logger.h>
#include <levin/loggers/wandb_logger.h>
#include <levin/strategies/context/context_parallel.h>
#include <levin/strategies/data_parallel.h>
#include <levin/strategies/ddp/ddp.h>
#include <levin/strategies/ddp/ddp2.h>
#include <levin/strategies/ddp/horovod.h>
#include <levin/strategies/environments/cluster_environments.h>
#include <levin/strategies/parameter_server/parameter_server.h>
#include <levin/strategies/pipeline/pipeline.h>
#include <levin/strategies/sharded/sharded.h>
#include <levin/strategies/single_device.h>
#include <levin/strategies/tensor/tensor_parallel.h>

namespace levin {

void register_builtins(Registries& registries) {
  registries.callbacks.add<ModelCheckpoint>("model_checkpoint", "saves checkpoints, the best ones by a metric");
  registries.callbacks.add<EarlyStopping>("early_stopping", "ends training when a metric stops getting better");
  registries.callbacks.add<ProgressBar>("progress_bar", "shows progress, rate and metrics");
  registries.callbacks.add<ModelSummary>("model_summary", "prints the layers and their parameters before training");
  registries.callbacks.add<DataSummary>(
      "data_summary", "writes tensors, classes and a picture of the first batches to the run's folder");
  registries.callbacks.add<LearningRateMonitor>("learning_rate_monitor", "logs the learning rates");
  registries.callbacks.add<DeviceStatsMonitor>("device_stats_monitor",
                                               "logs what GPUs, processes and hosts do while training goes on");
  registries.callbacks.add<BatchSizeFinder>("batch_size_finder",
                                            "before training, finds the batch size that fits into memory");
  registries.callbacks.add<LearningRateFinder>("learning_rate_finder",
                                               "before training, finds the learning rate at which the loss falls most");
  registries.callbacks.add<PauseTraining>("pause_training", "ends training early in a way that it can go on later");
  registries.callbacks.add<PredictionWriter>("prediction_writer", "writes predictions to files as they come");
  registries.callbacks.add<ModelGraph>("model_graph", "hands the graph of the model to the loggers");
  registries.callbacks.add<Timer>("timer", "measures the time of each stage and ends training after a given time");
  registries.callbacks.add<GradientAccumulationScheduler>("gradient_accumulation_scheduler",
                                                          "batches an optimizer step, by epoch");
  registries.callbacks.add<GradientNormMonitor>("gradient_norm_monitor", "logs the norm of the gradients");
  registries.callbacks.add<GoodputMonitor>("goodput_monitor", "logs which share of a job's time became progress");
  registries.callbacks.add<ThroughputMonitor>("throughput_monitor", "logs samples a second, FLOPs and MFU");
  registries.callbacks.add<NanMonitor>("nan_monitor", "names the first value that is not finite");
  registries.callbacks.add<SpikeDetection>("spike_detection", "finds batches whose loss is far off the mean");
  registries.callbacks.add<WeightAveraging>("weight_averaging", "keeps an exponential moving average of the weights");
  registries.callbacks.add<StochasticWeightAveraging>("stochastic_weight_averaging",
                                                      "averages the weights of the last epochs");
  registries.callbacks.add<ModelPruning>("model_pruning", "sets the weights that matter least to zero");
  registries.callbacks.add<BackboneFinetuning>("backbone_finetuning",
                                               "trains a part of the model from a later epoch on");

  registries.loggers.add<CsvLogger>("csv", "metrics.csv in the run's folder");
  registries.loggers.add<TensorBoardLogger>("tensorboard", "event files in the run's folder");
  registries.loggers.add<MlflowLogger>("mlflow", "an MLflow server");
  registries.loggers.add<WandbLogger>("wandb", "Weights & Biases, as files for `wandb sync`");
  registries.loggers.add<ConsoleLogger>("console", "a line on standard error");

  registries.strategies.add<SingleDevice>("single_device", "one process on one device");
  registries.strategies.add<DataParallel>("dp", "replicas in one process, each with a part of the batch");
  const auto add_start_methods = [&registries](const std::string& family) {
    const auto with = [](const char* start_method) {
      Config options = Config::mapping();
      options.set("start_method", Config::scalar(start_method));
      return options;
    };
    registries.strategies.add_alias(family + "_spawn", family, with("fork"),
                                    "as " + family + ", with forked processes that end with the call");
    registries.strategies.add_alias(family + "_threads", family, with("thread"),
                                    "as " + family + ", with threads of one process");
  };
  registries.strategies.add<Ddp>("ddp", "a process for each device; gradients are averaged while backward runs");
  add_start_methods("ddp");
  registries.strategies.add<Ddp2>("ddp2", "a process on each host: dp inside of it, ddp between them");
  registries.strategies.add<Sharded>("sharded", "ddp in which ranks divide optimizer state, gradients and parameters");
  add_start_methods("sharded");
  registries.strategies.add<Pipeline>("pipeline",
                                      "a levin::Sequential cut into stages, a process each (or a launcher's ranks)");
  add_start_methods("pipeline");
  registries.strategies.add<TensorParallel>("tensor", "ranks divide layers that say how, and see the same examples");
  add_start_methods("tensor");
  registries.strategies.add<ContextParallel>("context", "ranks divide sequences, and see the same examples");
  add_start_methods("context");
  registries.strategies.add<ParameterServer>("parameter_server",
                                             "workers compute gradients; servers among them run the optimizer");
  add_start_methods("parameter_server");
  registries.strategies.add<Horovod>("horovod", "ddp with the options and habits of Horovod");
  registries.profilers.add<SimpleProfiler>("simple", "a table of the time of each hook, callback, phase and unit");
  registries.profilers.add<PyTorchProfiler>("pytorch", "traces of operators and kernels in a few steps");
  registries.profilers.add<NvtxProfiler>("nvtx", "ranges for NVIDIA Nsight Systems");

  optim::register_builtin_optimizers(registries.optimizers);

  registries.detect_environment = [] { return levin::detect_environment(); };

  registries.precisions.add<Float32Precision>("32-true", "single precision");
  registries.precisions.add<Float64Precision>("64-true", "double precision");
  registries.precisions.add<Float16Precision>("16-true", "half precision throughout");
  registries.precisions.add<BFloat16Precision>("bf16-true", "bfloat16 throughout");
  registries.precisions.add<Float16MixedPrecision>("16-mixed",
                                                   "half precision where it is safe, with dynamic loss scaling");
  registries.precisions.add<BFloat16MixedPrecision>("bf16-mixed", "bfloat16 where it is safe");
}

Registries& registries() {
  static Registries* instance = [] {
    auto* made = new Registries;  // outlives every static object that may still make something by name
    register_builtins(*made);
    return made;
  }();
  return *instance;
}

}  // namespace levin
