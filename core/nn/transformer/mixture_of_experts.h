#pragma once

#include <levin/core/nn/transformer/mlp.h>
#include <levin/core/nn/unit.h>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>

#include <cstdint>

namespace levin::nn {

/// What the router's logits become.
enum class ExpertScores {
  kSoftmax,  ///< over all experts, as in Mixtral
  kSigmoid,  ///< of each expert by itself, as in DeepSeek-V3
};

struct MixtureOfExpertsOptions {
  int64_t width = 0;    ///< features of the input and of the output
  int64_t hidden = 0;   ///< features inside of an expert
  int64_t experts = 0;  ///< how many there are
  int64_t active = 2;   ///< how many see a token
  ExpertScores scores = ExpertScores::kSoftmax;
  bool normalize = true;          ///< scores of a token's experts are divided by their sum
  double scale = 1;               ///< of the experts' sum
  int64_t shared_hidden = 0;      ///< hidden features of an Mlp that sees every token besides; 0: none
  bool has_balance_bias = false;  ///< experts are chosen by their scores plus `balance_bias`
  Activation activation = Activation::kSilu;
  double initial_std = 0;  ///< deviation of the initial weights; 0: as torch::nn::Linear
};

/// Weights of all experts. A token's features x become down(act(gate(x)) · up(x)).
struct ExpertsImpl : torch::nn::Module {
  explicit ExpertsImpl(const MixtureOfExpertsOptions& options);
  /// Rows [rows, width], those of an expert behind those of the one before it. `counts`: on the host, how many each
  /// has.
  at::Tensor forward(const at::Tensor& rows, at::IntArrayRef counts);

  at::Tensor gate_up_proj;  ///< [experts, 2 · hidden, width]: gate, then up
  at::Tensor down_proj;     ///< [experts, width, hidden]

 private:
  Activation activation_;
};
TORCH_MODULE(Experts);

/// Several MLPs, of which a router chooses `active` ones for each token (Shazeer et al., "Outrageously Large Neural
/// Networks", 2017, arXiv:1701.06538). None is full: every token gets its experts. Parameters have the names that
/// transformers gives them in Mixtral. A step on a device waits for the numbers of tokens; steps are not recorded.
struct MixtureOfExpertsImpl : torch::nn::Module {
  explicit MixtureOfExpertsImpl(const MixtureOfExpertsOptions& options);
  /// [..., width] stays so. Throws levin::Error on the CPU for logits that are not numbers.
  at::Tensor forward(const at::Tensor& x);

  /// Of the last forward: experts · Σ share of the tokens that an expert sees · mean probability of the expert, which
  /// is `active` where all are alike (Fedus et al., "Switch Transformers", 2021, arXiv:2101.03961, equation 4). To be
  /// added to the loss with a factor of about 0.01.
  at::Tensor balance_loss() const;
  /// Of the last forward: the mean square of the logits' log-sum-exp (Zoph et al., "ST-MoE", 2022, arXiv:2202.08906),
  /// with a factor of about 0.001.
  at::Tensor z_loss() const;
  /// Moves `balance_bias` by `rate` for experts that have seen less than the mean of `load` up, and for others down
  /// (Wang et al., 2024, arXiv:2408.15664): in place of a loss. `load`: of this module, added up over the ranks that
  /// have different data, and set to zero afterwards.
  void move_balance_bias(double rate);

  torch::nn::Linear gate{nullptr};  ///< weight [experts, width], without bias
  Experts experts{nullptr};
  Mlp shared_experts{nullptr};
  at::Tensor load;          ///< int64 [experts]: tokens that each has seen in training; not saved
  at::Tensor balance_bias;  ///< [experts], or undefined

 private:
  at::Tensor mix(const at::Tensor& tokens);

  MixtureOfExpertsOptions options_;
  at::Tensor last_logits_, last_choice_;
};
LEVIN_UNIT(MixtureOfExperts);

/// Sums over all MixtureOfExperts of a module. Throw levin::Error where there is none, or none has run.
at::Tensor balance_loss(const torch::nn::Module& module);
at::Tensor router_z_loss(const torch::nn::Module& module);

}  // namespace levin::nn
