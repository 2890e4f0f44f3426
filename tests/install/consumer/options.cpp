// Names one field of every struct of options that programs fill in: compiled with -Wall -Wextra -Werror, this shows
// that leaving out the others is no warning.

#include <levin/levin.h>

namespace {

template <class... Options>
void use(const Options&... /*options*/) {}

}  // namespace

void name_one_field_of_each();
void name_one_field_of_each() {
  use(levin::TrainerOptions{.max_epochs = 1}, levin::TrainerOptions{.logger = false},
      levin::DataLoaderOptions{.batch_size = 8}, levin::data::FashionMnistOptions{.batch_size = 8},
      levin::data::MnistOptions{.augment = true}, levin::data::Cifar10Options{.pin_memory = true},
      levin::data::TextLinesOptions{.max_length = 8}, levin::GridOptions{.padding = 1});
  use(levin::StepParts{.loss = {}}, levin::LogOptions{.prog_bar = true}, levin::BackwardOptions{.retain_graph = true},
      levin::ToggleOptions{.sync_grad = false}, levin::OptimizerConfig{.optimizer = {}},
      levin::SchedulerConfig{.name = "cosine"}, levin::ActivationCheckpointingOptions{.every = 2},
      levin::MetricValue{.name = "x"}, levin::RunInfo{.name = "x"}, levin::ClusterPlace{.rank = 1},
      levin::StrategySetup{.devices = {}}, levin::CheckpointEvent{.path = "x"}, levin::NamedUnit{.path = "x"});
  use(levin::EarlyStoppingOptions{.monitor = "x"}, levin::ModelCheckpointOptions{.monitor = "x"},
      levin::ProgressBarOptions{.refresh_rate = 1}, levin::ModelSummaryOptions{.max_depth = 1},
      levin::LearningRateMonitorOptions{.logging_interval = "step"}, levin::LearningRateFinderOptions{.min_lr = 1e-6},
      levin::BatchSizeFinderOptions{.mode = "power"}, levin::DeviceStatsMonitorOptions{.interval = 1},
      levin::GradientNormMonitorOptions{.norm = 2}, levin::ThroughputMonitorOptions{.window = 10},
      levin::NanMonitorOptions{.action = "stop"}, levin::SpikeDetectionOptions{.window = 10},
      levin::StochasticWeightAveragingOptions{.swa_lrs = 0.1}, levin::WeightAveragingOptions{.decay = 0.9},
      levin::BackboneFinetuningOptions{.backbone = "x"}, levin::TimerOptions{.interval = "step"},
      levin::GradientAccumulationSchedulerOptions{.scheduling = 2}, levin::LambdaCallbackOptions{.on_fit_start = {}});
  use(levin::CsvLoggerOptions{.flush_every = 1}, levin::TensorBoardLoggerOptions{.flush_seconds = 1},
      levin::ConsoleLoggerOptions{.digits = 3}, levin::MlflowLoggerOptions{.run_name = "x"},
      levin::WandbLoggerOptions{.project = "x"}, levin::SimpleProfilerOptions{.units = false},
      levin::PyTorchProfilerOptions{.dirpath = "x"}, levin::NvtxProfilerOptions{.units = false},
      levin::ProfilerSchedule{.wait = 1});
  use(levin::DataParallelOptions{.scale_lr = "sqrt"}, levin::DdpOptions{.bucket_cap_mb = 1},
      levin::HorovodOptions{.backend = "gloo"}, levin::ShardedOptions{.stage = 2},
      levin::PipelineOptions{.micro_batches = 2});
  use(levin::optim::SGDOptions{.momentum = 0.9}, levin::optim::AdamOptions{.lr = 1e-3},
      levin::optim::AdamWOptions{.lr = 1e-3}, levin::optim::AdagradOptions{.lr = 1e-3},
      levin::optim::StepOptions{.gamma = 0.5}, levin::optim::MultiStepOptions{.gamma = 0.5},
      levin::optim::ExponentialOptions{.gamma = 0.5}, levin::optim::LinearWarmupOptions{.total_iters = 5},
      levin::optim::CosineOptions{.eta_min = 0}, levin::optim::CosineWarmRestartsOptions{.t_0 = 5},
      levin::optim::OneCycleOptions{.max_lr = 0.1}, levin::optim::ReduceOnPlateauOptions{.mode = "min"},
      levin::optim::SwaSchedulerOptions{.swa_lrs = 0.1}, levin::optim::ChainedOptions{.schedulers = {}},
      levin::optim::SequentialOptions{.milestones = {1}}, levin::optim::GroupOverrides{.lr = 0.1},
      levin::optim::GroupRule{.pattern = "*"});
  use(levin::metrics::AccuracyOptions{.num_classes = 2}, levin::metrics::AurocOptions{.num_classes = 2},
      levin::metrics::ConfusionMatrixOptions{.num_classes = 2}, levin::metrics::ClassScoreOptions{.num_classes = 2},
      levin::metrics::MeanSquaredErrorOptions{.squared = false}, levin::metrics::PerplexityOptions{.ignore_index = 0});
}
