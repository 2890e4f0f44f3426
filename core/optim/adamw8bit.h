#pragma once

#include <levin/core/optim/element_optimizer.h>

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace levin::optim {

/// Options of AdamW8bit, with the names and defaults of bitsandbytes.optim.AdamW8bit.
struct AdamW8bitOptions {
  double lr = 1e-3;
  std::array<double, 2> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 1e-2;    ///< decoupled: the weights shrink by lr * weight_decay in every step
  int64_t min_8bit_size = 4096;  ///< tensors of fewer elements have state of 32 bits
  bool maximize = false;

  bool operator==(const AdamW8bitOptions&) const = default;
  static void describe(Schema<AdamW8bitOptions>& schema);
};

/// AdamW whose state takes 2 bytes a weight in place of 8: both means are numbers of 8 bits with a scale for each 256
/// of them (block_quantization.h; Dettmers et al., 2022, arXiv:2110.02861).
///
/// Blocks begin where a tensor begins, or the part of it that a strategy gives a rank. State that is saved is of plain
/// numbers, like AdamW's, which have the same codes when they are loaded: a checkpoint restores the bits on the same
/// number of ranks, and is quantized again in other blocks on another.
class AdamW8bit final : public ElementOptimizerOf<AdamW8bitOptions> {
 public:
  explicit AdamW8bit(std::vector<at::Tensor> params, const AdamW8bitOptions& options = {});
  explicit AdamW8bit(Groups groups);

  /// Both means in float32, copies in the host's memory.
  State parameter_states(const ParameterNames& names) const override;
  void load_parameter_states(const ParameterNames& names, const State& states) override;
  /// The codes and scales.
  State held_states(const ParameterNames& names) const override;

 protected:
  void update_parameter(const AdamW8bitOptions& options, double step, const at::Tensor& param, const at::Tensor& grad,
                        const std::array<at::Tensor, 3>& states) override;
  std::span<const StateField> state_fields(size_t group) const override;
  /// The scales have a row for each mean and a column for each block; small parameters have none.
  std::optional<std::vector<int64_t>> state_sizes(size_t group, const StateField& field,
                                                  const at::Tensor& param) const override;
  c10::ScalarType state_type(size_t group, const StateField& field, const at::Tensor& param) const override;

 private:
  bool is_quantized(size_t group, const at::Tensor& param) const {
    return param.numel() >= group_options(group).min_8bit_size;
  }
};

}  // namespace levin::optim
