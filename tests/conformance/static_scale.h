#include <levin/levin.h>

#include <set>

struct StaticScaleOptions {
  double scale = 1024;

  static void describe(levin::Schema<StaticScaleOptions>& schema) {
    schema.field("scale", &StaticScaleOptions::scale, "what the loss is multiplied by").above(0);
  }
};

/// Half precision where it is safe, with a loss scale that never changes (Micikevicius et al., "Mixed precision
/// training", 2018, arXiv:1710.03740). Nothing looks for gradients that are not finite.
class StaticScale : public levin::MixedPrecision {
 public:
  using Options = StaticScaleOptions;
  explicit StaticScale(const Options& options = {})
      : MixedPrecision(at::kHalf, /*scaling=*/std::nullopt), options_(options) {}

  std::string name() const override { return "16-static"; }
  bool scales_loss() const override { return true; }
  at::Tensor scale_loss(const at::Tensor& loss) override { return loss * options_.scale; }

  levin::StepScaling unscale(torch::optim::Optimizer& optimizer) override {
    if (!unscaled_.insert(&optimizer).second) return {};  // the window's gradients have no scale any more
    const torch::NoGradGuard no_grad;
    for (auto& group : optimizer.param_groups())
      for (auto& parameter : group.params())
        if (parameter.grad().defined()) parameter.mutable_grad().div_(options_.scale);
    return MixedPrecision::unscale(optimizer);
  }
  void end_window() override { unscaled_.clear(); }
  void abandon_window() override { unscaled_.clear(); }

 private:
  const Options options_;
  std::set<const torch::optim::Optimizer*> unscaled_;
};
