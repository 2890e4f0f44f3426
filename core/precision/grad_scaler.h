#pragma once

#include <levin/core/base/schema.h>
#include <levin/core/base/state.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace levin {

/// Options of GradScaler, explained in describe().
struct GradScalerOptions {
  double init_scale = 65536;
  double growth_factor = 2;
  double backoff_factor = 0.5;
  int64_t growth_interval = 2000;
  static void describe(Schema<GradScalerOptions>& schema);
};

/// Dynamic loss scaling (Micikevicius et al., 2018, arXiv:1710.03740): the loss is multiplied by a scale, so that small
/// gradients do not vanish in half precision; a step whose gradients overflowed is skipped and the scale reduced.
/// Nothing here waits for a device: the scale, and whether a step is skipped, are decided there.
class GradScaler : public Stateful {
 public:
  explicit GradScaler(const GradScalerOptions& options);

  /// Sets the device of the scale. Called before the first use.
  void set_device(const at::Device& device);

  at::Tensor scale(const at::Tensor& loss) const;
  /// Divides the parameters' gradients by the scale, in place. Returns a one-element tensor on the device: 1 where a
  /// gradient was not finite, else 0. Parameters without a gradient are left out.
  at::Tensor unscale(const std::vector<at::Tensor>& parameters);
  /// Multiplies the parameters' gradients by the scale again, in place. `found_inf`, where defined: what `unscale`
  /// returned; where that is 1, all become NaN, since clipping may have made them finite.
  void restore(const std::vector<at::Tensor>& parameters, const at::Tensor& found_inf) const;
  /// Adapts the scale after the steps of a window, by the results of `unscale` for its optimizers. `scaled`: parameters
  /// whose gradients have the scale and go on adding up: they get the new one.
  void update(const std::vector<at::Tensor>& found_inf, const std::vector<at::Tensor>& scaled = {});

  /// Returns the present scale; waits for the device.
  double current_scale() const;
  /// Numbers of skipped windows.
  struct Skipped {
    int64_t all = 0;
    int64_t in_a_row = 0;
  };
  Skipped skipped() const;
  bool on_host() const { return scale_.is_cpu(); }

  State state_dict() const override;
  void load_state_dict(const State& state) override;

 private:
  const GradScalerOptions options_;
  at::Tensor scale_;           ///< float32, one element
  at::Tensor growth_tracker_;  ///< int32: steps since the last change of the scale
  at::Tensor skipped_;         ///< float64: {all, in a row}
};

}  // namespace levin
