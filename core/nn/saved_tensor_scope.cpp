#include <levin/core/nn/saved_tensor_scope.h>

#include <levin/core/nn/anomaly_units.h>

#include <torch/csrc/autograd/engine.h>

namespace levin {
namespace {

// Operations ask on the thread that runs them; backward has a scope of its own where it runs a forward again.
thread_local SavedTensorScope* current_scope = nullptr;

class Engine final : public torch::autograd::Engine {
 public:
  ~Engine() override { stop(); }

  std::unique_ptr<torch::autograd::SavedVariableHooks> get_default_saved_variable_hooks() override {
    return current_scope == nullptr ? nullptr : current_scope->make_keeper();
  }

  std::unique_ptr<torch::autograd::AnomalyMetadata> make_anomaly_metadata() override {
    auto metadata = AnomalyUnits::make_metadata();
    return metadata != nullptr ? std::move(metadata) : torch::autograd::Engine::make_anomaly_metadata();
  }

  static torch::autograd::Engine& instance() {
    static Engine engine;
    return engine;
  }
};

}  // namespace

void install_autograd_engine() {
  [[maybe_unused]] static const bool installed = [] {
    torch::autograd::set_default_engine_stub(&Engine::instance);
    return true;
  }();
}

// LibTorch starts the threads of devices once in a process, for the engine that runs the first backward; a program may
// run one before it trains.
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
