#include <levin/core/nn/move_to_device.h>
#include <levin/levin.h>

struct LocalSgdOptions {
  int64_t period = 8;
  levin::StartMethod start_method = levin::StartMethod::kSubprocess;
  std::string backend = "auto";
  double timeout = 1800;
  double start_timeout = 120;
  double stall_report = 60;
  double hang_timeout = 600;

  static void describe(levin::Schema<LocalSgdOptions>& schema) {
    schema.field("period", &LocalSgdOptions::period, "steps between two averages of the weights").at_least(1);
    levin::describe_rank_options(schema);
  }
};

/// Local SGD (Stich, "Local SGD converges fast and communicates little", 2019, arXiv:1805.09767): each rank trains on
/// its own part of the data, and every `period` steps the ranks average their weights.
class LocalSgd : public levin::RankedStrategy, public levin::DividedModel {
 public:
  using Options = LocalSgdOptions;
  explicit LocalSgd(const Options& options = {})
      : RankedStrategy("local_sgd", levin::rank_options(options)), options_(options) {}

  std::string name() const override { return "local_sgd"; }
  levin::StrategyCapabilities capabilities() const override {
    auto capabilities = RankedStrategy::capabilities();
    capabilities.iterable_datasets = false;  // all ranks take as many steps
    return capabilities;
  }
  levin::DividedModel& divided_model() override { return *this; }

  void setup_module(levin::Module& module) override {
    levin::move_to_device(module, root_device());
    steps_ = 0;
    weights_ = module.parameters();
    for (const auto& buffer : module.buffers())
      if (buffer.is_floating_point()) weights_.push_back(buffer);
    for (const auto& tensor : weights_) collective().broadcast(tensor.detach(), /*root=*/0)->wait();
  }
  void finish_step() override {  // on every rank, when its optimizer has stepped
    if (++steps_ % options_.period == 0) average();
  }
  levin::State state_dict() const override { return steps_; }
  void load_state_dict(const levin::State& state) override { steps_ = state.as_int(); }

  // What is evaluated, saved and left behind is the average.
  void prepare_evaluation(levin::Module&) override { average(); }
  levin::State module_state(levin::Module& module) override {
    average();
    return DividedModel::module_state(module);
  }
  void release_module() override { average(); }

 private:
  void average() {
    std::vector<std::unique_ptr<levin::Work>> under_way;
    for (const auto& tensor : weights_)
      under_way.push_back(collective().all_reduce(tensor.detach(), levin::ReduceOp::kMean));
    for (const auto& work : under_way) work->wait();
  }

  const Options options_;
  std::vector<torch::Tensor> weights_;
  int64_t steps_ = 0;
};
