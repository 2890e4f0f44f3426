#include <levin/core/nn/saved_tensor_scope.h>

#include <levin/core/nn/anomaly_units.h>

#include <torch/csrc/autograd/engine.h>

#include <utility>

namespace levin {
namespace {

// Operations ask on the thread that runs them; backward has a scope of its own where it runs a forward again.
thread_local SavedTensorScope* current_scope = nullptr;

/// Leaves all work to the engine that was there before: LibTorch's, or PyTorch's own in a Python process. Threads of
/// devices are started once in a process, for the first engine that runs a backward, so that there must be only one
/// that does.
class Engine final : public torch::autograd::Engine {
 public:
  ~Engine() override { stop(); }

  torch::autograd::variable_list execute(const torch::autograd::edge_list& roots,
                                         const torch::autograd::variable_list& inputs, bool keep_graph,
                                         bool create_graph, bool accumulate_grad,
                                         const torch::autograd::edge_list& outputs) override {
    return former_.execute(roots, inputs, keep_graph, create_graph, accumulate_grad, outputs);
  }

  c10::intrusive_ptr<at::ivalue::Future> execute_with_graph_task(
      const std::shared_ptr<torch::autograd::GraphTask>& graph_task, std::shared_ptr<torch::autograd::Node> graph_root,
      torch::autograd::InputBuffer&& input_buffer) override {
    return former_.execute_with_graph_task(graph_task, std::move(graph_root), std::move(input_buffer));
  }

  std::unique_ptr<torch::autograd::SavedVariableHooks> get_default_saved_variable_hooks() override {
    return current_scope == nullptr ? former_.get_default_saved_variable_hooks() : current_scope->make_keeper();
  }

  std::unique_ptr<torch::autograd::AnomalyMetadata> make_anomaly_metadata() override {
    auto metadata = AnomalyUnits::make_metadata();
    return metadata != nullptr ? std::move(metadata) : former_.make_anomaly_metadata();
  }

  /// Made while the former engine is the process's.
  static torch::autograd::Engine& instance() {
    static Engine engine(torch::autograd::Engine::get_default_engine());
    return engine;
  }

 private:
  explicit Engine(torch::autograd::Engine& former) : former_(former) {}

  torch::autograd::Engine& former_;
};

}  // namespace

void install_autograd_engine() {
  [[maybe_unused]] static const bool installed = [] {
    Engine::instance();
    torch::autograd::set_default_engine_stub(&Engine::instance);
    return true;
  }();
}

// What a program computes before it trains may go on into training.
[[maybe_unused]] static const bool installed_at_start = [] {
  install_autograd_engine();
  return true;
}();

SavedTensorScope::SavedTensorScope() : outer_(current_scope) {
  install_autograd_engine();
  current_scope = this;
}

SavedTensorScope::~SavedTensorScope() { current_scope = outer_; }

SavedTensorScope* SavedTensorScope::current() { return current_scope; }

}  // namespace levin
