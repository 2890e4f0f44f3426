#pragma once

#include <levin/core/interfaces/strategy.h>

#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

namespace c10d {
class Backend;
class Logger;
class ProcessGroup;
class Reducer;
}  // namespace c10d

namespace levin {

struct GradientReducerOptions {
  int64_t bucket_bytes = 25 << 20;       ///< gradients are combined in pieces of about this size
  int64_t first_bucket_bytes = 1 << 20;  ///< the first to be ready is smaller, so that communication starts early
  bool find_unused_parameters = false;   ///< parameters that the loss does not depend on are found at each step
  bool may_find_none_unused = false;     ///< that there are none is no reason for a warning
  bool static_graph = false;             ///< every step uses the same parameters in the same way
  bool reduces_window = false;           ///< gives Strategy::WindowTotals
  bool completes_backward = false;       ///< see complete_backward
  /// Few gradients that lie in memory which the ranks reduce in are combined in place, see GradientReducer. Not with
  /// find_unused_parameters, static_graph or a communication hook.
  bool in_place = false;
  bool in_place_of_any_size = false;  ///< with `in_place`: of any number of gradients
  /// Parameters that are left to average_sparse_gradients.
  std::unordered_set<const c10::TensorImpl*> sparse = {};
  /// May set a communication hook; called once, by the constructor.
  std::function<void(c10d::Reducer&)> configure = {};
};

/// Averages the gradients of a module over the ranks while backward runs: c10d's Reducer, with buckets that gradients
/// are views of.
///
/// Gradients that all fit into the first bucket are combined once backward is done in any case. Where the ranks share
/// memory and `in_place` asks for it, they are then combined where autograd has put them, to the same bits: without
/// hooks, and without a copy into a bucket. So are those of recorded steps (`graph`), however many there are: hooks
/// cannot be replayed.
class GradientReducer {
 public:
  using Parameters = std::vector<std::pair<std::string, at::Tensor>>;

  /// Returns why gradients of these parameters are not combined in place, in words; empty where they are.
  static std::string why_not_in_place(const Parameters& parameters, c10d::ProcessGroup& group,
                                      const GradientReducerOptions& options);

  /// Averages the gradients of these parameters, of all those of a module, over the ranks, where they lie. Every rank
  /// gives the same ones; else levin::Error is thrown on one at least.
  static void combine_in_place(const std::vector<at::Tensor>& parameters, const Parameters& all,
                               c10d::ProcessGroup& group);

  /// Takes the parameters that require gradients now; every rank makes it at the same time, of the same model.
  GradientReducer(const Parameters& parameters, c10::intrusive_ptr<c10d::ProcessGroup> group,
                  GradientReducerOptions options);
  ~GradientReducer();

  /// Whether the parameters that require gradients are still those it was made for.
  bool fits(const Parameters& parameters) const;

  /// Called before the forward pass of a step after which gradients are combined.
  void before_forward();
  /// Called before its backward pass, which must start from the tensor that this returns: the loss, where need be with
  /// what the ranks tell each other attached. Without `window.sync` gradients are only added up.
  at::Tensor before_backward(const at::Tensor& loss, const AccumulationWindow& window, const LossWeight& window_weight);
  /// Called after that backward: gradients that are combined in place are from here on means. Throws levin::Error where
  /// a parameter has none.
  void after_backward(bool sync);
  /// Throws levin::Error naming a parameter whose gradient is sparse though it is not among the options' `sparse`: what
  /// c10d's Reducer ends a backward for.
  void require_dense_gradients() const;
  bool reduces_window() const { return options_.reduces_window; }
  /// The parameters that it leaves out, as they are sparse.
  const std::vector<at::Tensor>& sparse() const { return sparse_; }
  /// Returns what the ranks told each other in the window just reduced.
  Strategy::WindowTotals window_totals() const;
  /// Makes a loss of zero that reaches every parameter, for a rank that has none.
  at::Tensor zero_loss() const;
  /// Called after a backward that may have left out parameters: this rank adds nothing to their means. Only with
  /// `completes_backward`.
  void complete_backward();

 private:
  void make_reducer();
  /// Whether c10d's Reducer combines gradients.
  bool uses_reducer() const { return backend_ == nullptr && !parameters_.empty(); }

  std::vector<at::Tensor> trained_;     ///< all that it was made for
  std::vector<at::Tensor> sparse_;      ///< those of `trained_` that it leaves out
  std::vector<at::Tensor> parameters_;  ///< those that it combines
  std::vector<std::string> names_;      ///< of these
  at::Tensor window_inputs_;            ///< a parameter whose gradient is {weight of the window, has_next}
  GradientReducerOptions options_;
  c10::intrusive_ptr<c10d::Backend> backend_;     ///< that combines in place; nullptr: the reducer does
  c10::intrusive_ptr<c10d::ProcessGroup> group_;  ///< that the reducer combines in
  std::shared_ptr<c10d::Reducer> reducer_;        ///< of a static graph: made before the first step
  std::shared_ptr<c10d::Logger> logger_;          ///< the reducer writes to it when it looks for unused parameters
  bool first_backward_ = true;
  std::vector<uint8_t> reached_;  ///< of each parameter, since before_backward
  std::vector<unsigned> hooks_;   ///< of each parameter
};

}  // namespace levin
