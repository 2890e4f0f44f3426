#include <levin/core/nn/linear_cross_entropy.h>

#include <levin/core/base/error.h>
#include <levin/core/nn/cut_context.h>
#include <levin/core/nn/cut_sequence.h>
#include <levin/core/nn/few_class_cross_entropy.h>
#include <levin/core/nn/weight_behaviour.h>

#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mv.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <optional>
#include <utility>

namespace levin::nn::functional {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;

/// Logits of a chunk: 2^23, 32 MiB of float32.
constexpr int64_t kChunkElements = int64_t{1} << 23;
/// Logits that element-wise passes go through together, so that they stay in a core's cache.
constexpr int64_t kCachedElements = int64_t{1} << 17;

struct Gradients {
  at::Tensor input = {};   ///< [rows, features]
  at::Tensor weight = {};  ///< [classes, features]
  at::Tensor bias = {};    ///< [classes]
};

/// What is asked for.
struct Wanted {
  bool input = false;
  bool weight = false;
  bool bias = false;
  bool any() const { return input || weight || bias; }
};

struct Problem {
  at::Tensor input;   ///< [rows, features]
  at::Tensor weight;  ///< [classes, features]
  at::Tensor bias;
  at::Tensor class_weights;
  at::Tensor target;  ///< [rows]
  LinearCrossEntropyOptions options;
};

/// The losses of rows of logits, and their gradients, which overwrite the logits.
class ChunkLoss {
 public:
  ChunkLoss(const Problem& problem, at::Tensor row_weights, at::Tensor scale, bool wants_gradients)
      : problem_(problem),
        row_weights_(std::move(row_weights)),
        scale_(std::move(scale)),
        wants_gradients_(wants_gradients) {
    const LinearCrossEntropyOptions& options = problem.options;
    const auto classes = static_cast<double>(problem.weight.size(0));
    if (options.label_smoothing > 0) {
      smoothing_ = options.label_smoothing / classes;
      if (problem.class_weights.defined())
        smoothing_weights_ = problem.class_weights.to(row_weights_.scalar_type()) * smoothing_;
    }
  }

  /// Adds the loss of `logits` [rows, classes], of the targets from row `begin` on, to `sum`, and replaces them.
  void run(at::Tensor logits, int64_t begin, at::Tensor& sum) const {
    const int64_t rows = logits.size(0);
    const LinearCrossEntropyOptions& options = problem_.options;
    const at::Tensor targets = problem_.target.narrow(0, begin, rows);
    const at::Tensor is_counted = targets != options.ignore_index;
    const at::Tensor places = targets.masked_fill(is_counted.logical_not(), 0).unsqueeze(1);
    const at::Tensor counted = is_counted.to(logits.scalar_type());  // bools times a double would be float32
    const at::Tensor weights = row_weights_.narrow(0, begin, rows);

    const at::Tensor largest = logits.amax(1, /*keepdim=*/true);
    logits.sub_(largest);
    const at::Tensor of_target = logits.gather(1, places).squeeze(1);
    const double hit = 1 - options.label_smoothing;
    at::Tensor share = weights * hit;  // what the coefficients of a row's classes add up to
    at::Tensor attained = of_target * share;
    if (smoothing_ > 0) {
      if (smoothing_weights_.defined()) {
        share = share + counted * smoothing_weights_.sum();
        attained = attained + counted * at::mv(logits, smoothing_weights_);
      } else {
        share = share + counted * options.label_smoothing;
        attained = attained + counted * logits.sum(1) * smoothing_;
      }
    }
    logits.exp_();
    const at::Tensor total = logits.sum(1);
    const at::Tensor log_total = total.log();
    sum.add_((log_total * share - attained).sum() * scale_);
    at::Tensor factor = share * scale_;
    if (options.z_loss > 0) {
      const at::Tensor z = log_total + largest.squeeze(1);
      sum.add_((z.square() * counted).sum() * z_scale_);
      factor = factor + z * counted * z_scale_ * 2;
    }
    if (!wants_gradients_) return;
    logits.mul_((factor / total).unsqueeze(1));
    if (smoothing_weights_.defined())
      logits.sub_((counted * scale_).unsqueeze(1) * smoothing_weights_);
    else if (smoothing_ > 0)
      logits.sub_((counted * scale_ * smoothing_).unsqueeze(1));
    logits.scatter_add_(1, places, (weights * scale_ * -hit).unsqueeze(1));
  }

  void set_z_scale(at::Tensor z_scale) { z_scale_ = std::move(z_scale); }

 private:
  const Problem& problem_;
  at::Tensor row_weights_;  ///< [rows], 0 for those that do not count
  at::Tensor scale_;        ///< of one weight in the result
  at::Tensor z_scale_;
  double smoothing_ = 0;
  at::Tensor smoothing_weights_;
  bool wants_gradients_;
};

/// The loss, and its gradients where they are wanted, in one pass over the rows.
at::Tensor compute(const Problem& problem, const Wanted& wanted, Gradients& gradients) {
  const at::Tensor& input = problem.input;
  const at::Tensor& weight = problem.weight;
  const LinearCrossEntropyOptions& options = problem.options;
  const int64_t rows = input.size(0);
  const int64_t classes = weight.size(0);
  // Reduced types are multiplied as they are; everything else is in float32, or float64.
  const at::ScalarType type = input.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const auto sums = input.options().dtype(type);
  const bool is_converted = input.scalar_type() != type;

  const at::Tensor counted = problem.target != options.ignore_index;
  at::Tensor row_weights = counted.to(type);
  if (problem.class_weights.defined())
    row_weights = row_weights *
                  problem.class_weights.to(type).index_select(0, problem.target.masked_fill(counted.logical_not(), 0));
  const at::Tensor total = row_weights.sum();
  const at::Tensor one = at::ones_like(total);
  // Where nothing counts the gradients are zeros.
  const at::Tensor scale = options.sum ? one : total.reciprocal().masked_fill(total == 0, 0);

  const bool on_cpu = input.device().is_cpu();
  int64_t chunk = options.chunk > 0 ? options.chunk : kChunkElements / classes;
  chunk = std::clamp<int64_t>(chunk, 1, std::max<int64_t>(rows, 1));
  const int64_t cached = on_cpu ? std::clamp<int64_t>(kCachedElements / classes, 1, chunk) : chunk;

  ChunkLoss chunk_loss(problem, row_weights, scale, wanted.any());
  if (options.z_loss > 0)
    chunk_loss.set_z_scale(options.z_loss * (options.sum ? one : counted.sum().clamp_min(1).to(type).reciprocal()));

  if (wanted.input) gradients.input = at::empty_like(input);
  if (wanted.weight) gradients.weight = at::zeros(weight.sizes(), sums);
  if (wanted.bias) gradients.bias = at::zeros({classes}, sums);
  at::Tensor loss = at::zeros({}, sums);
  const at::Tensor buffer = at::empty({chunk, classes}, sums);
  for (int64_t begin = 0; begin < rows; begin += chunk) {
    const int64_t count = std::min(chunk, rows - begin);
    const at::Tensor inputs = input.narrow(0, begin, count);
    at::Tensor logits = buffer.narrow(0, 0, count);
    if (is_converted)
      logits.copy_(at::mm(inputs, weight.t()));
    else
      at::mm_out(logits, inputs, weight.t());
    if (problem.bias.defined()) logits.add_(problem.bias.to(type));
    for (int64_t row = 0; row < count; row += cached) {
      const int64_t some = std::min(cached, count - row);
      chunk_loss.run(logits.narrow(0, row, some), begin + row, loss);
    }
    if (wanted.bias) gradients.bias.add_(logits.sum(0));
    if (!wanted.input && !wanted.weight) continue;
    const at::Tensor slopes = logits.to(input.scalar_type());
    if (wanted.input) {
      at::Tensor target = gradients.input.narrow(0, begin, count);
      at::mm_out(target, slopes, weight);
    }
    if (wanted.weight && is_converted)
      gradients.weight.add_(at::mm(slopes.t(), inputs));
    else if (wanted.weight)
      gradients.weight.addmm_(slopes.t(), inputs);
  }
  if (wanted.weight) gradients.weight = gradients.weight.to(weight.scalar_type());
  if (wanted.bias) gradients.bias = gradients.bias.to(problem.bias.scalar_type());
  if (!options.sum) loss = loss + total * 0 / total;  // NaN where nothing counts
  return loss;
}

Wanted wanted_of(const Problem& problem) {
  return {.input = problem.input.requires_grad(),
          .weight = problem.weight.requires_grad(),
          .bias = problem.bias.defined() && problem.bias.requires_grad()};
}

std::vector<at::Tensor> listed(const Gradients& gradients) {
  return {gradients.input, gradients.weight, gradients.bias};
}

std::optional<at::Tensor> optional_of(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional<at::Tensor>(tensor) : std::nullopt;
}

/// As LibTorch has it, with all logits: for gradients of gradients.
at::Tensor plain_loss(const Problem& problem) {
  const LinearCrossEntropyOptions& options = problem.options;
  at::Tensor logits = at::linear(problem.input, problem.weight, problem.bias);
  logits = logits.to(logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  at::Tensor loss = at::cross_entropy_loss(logits, problem.target, optional_of(problem.class_weights),
                                           options.sum ? at::Reduction::Sum : at::Reduction::Mean, options.ignore_index,
                                           options.label_smoothing);
  if (options.z_loss > 0) {
    const at::Tensor counted = (problem.target != options.ignore_index).to(logits.scalar_type());
    const at::Tensor z = (at::logsumexp(logits, 1).square() * counted).sum();
    loss = loss + options.z_loss * (options.sum ? z : z / counted.sum());
  }
  return loss;
}

struct LinearCrossEntropy : torch::autograd::Function<LinearCrossEntropy> {
  static Problem problem_of(AutogradContext* context) {
    const auto saved = context->get_saved_variables();
    const auto& data = context->saved_data;
    return {.input = saved[0],
            .weight = saved[1],
            .bias = saved[2],
            .class_weights = saved[3],
            .target = saved[4],
            .options = {.ignore_index = data.at("ignore_index").toInt(),
                        .label_smoothing = data.at("label_smoothing").toDouble(),
                        .z_loss = data.at("z_loss").toDouble(),
                        .sum = data.at("sum").toBool(),
                        .chunk = data.at("chunk").toInt()}};
  }

  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias, const std::optional<at::Tensor>& class_weights,
                            const at::Tensor& target, const LinearCrossEntropyOptions& options, bool records) {
    const at::NoGradGuard no_gradients;
    const Problem problem{input,  weight, bias.value_or(at::Tensor()), class_weights.value_or(at::Tensor()),
                          target, options};
    const Wanted wanted = records ? wanted_of(problem) : Wanted{};
    Gradients gradients;
    at::Tensor loss = compute(problem, wanted, gradients);
    context->save_for_backward({input, weight, problem.bias, problem.class_weights, target});
    auto& data = context->saved_data;
    data["ignore_index"] = options.ignore_index;
    data["label_smoothing"] = options.label_smoothing;
    data["z_loss"] = options.z_loss;
    data["sum"] = options.sum;
    data["chunk"] = options.chunk;
    // Not as saved tensors: the first backward takes them away, so that none is there twice.
    if (wanted.any()) data["gradients"] = listed(gradients);
    return loss;
  }

  static tensor_list backward(AutogradContext* context, tensor_list slopes) {
    auto& data = context->saved_data;
    tensor_list results(7);
    if (at::GradMode::is_enabled()) {  // The gradient takes part in another loss.
      const Problem problem = problem_of(context);
      const std::array<at::Tensor, 3> all{problem.input, problem.weight, problem.bias};
      const auto is_trained = [](const at::Tensor& tensor) { return tensor.defined() && tensor.requires_grad(); };
      std::vector<at::Tensor> trained;
      std::copy_if(all.begin(), all.end(), std::back_inserter(trained), is_trained);
      const auto found = torch::autograd::grad({plain_loss(problem)}, trained, {slopes[0]}, /*retain_graph=*/true,
                                               /*create_graph=*/true);
      size_t next = 0;
      for (size_t i = 0; i < all.size(); ++i)
        if (is_trained(all[i])) results[i] = found[next++];
      return results;
    }
    std::vector<at::Tensor> computed;
    if (const auto found = data.find("gradients"); found != data.end()) {
      computed = found->second.toTensorVector();
      data.erase(found);
    } else {  // another backward of a graph that was kept
      const Problem problem = problem_of(context);
      Gradients gradients;
      compute(problem, wanted_of(problem), gradients);
      computed = listed(gradients);
    }
    for (size_t i = 0; i < computed.size(); ++i)
      if (computed[i].defined()) results[i] = computed[i].mul_(slopes[0].to(computed[i].scalar_type()));
    return results;
  }
};

void check(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& target,
           const LinearCrossEntropyOptions& options) {
  const auto fail = [](const std::string& what) { throw Error("nn", "linear_cross_entropy: " + what); };
  if (weight.dim() != 2 || input.dim() < 1 || input.size(-1) != weight.size(1))
    fail(fmt::format("input is [..., features] and weight [classes, features]; got {} and {}", c10::str(input.sizes()),
                     c10::str(weight.sizes())));
  if (target.sizes() != input.sizes().slice(0, input.dim() - 1))
    fail(fmt::format("target has the sizes of input without its last; got {} for {}", c10::str(target.sizes()),
                     c10::str(input.sizes())));
  for (const at::Tensor& tensor : {options.bias, options.class_weights})
    if (tensor.defined() && (tensor.dim() != 1 || tensor.size(0) != weight.size(0)))
      fail(fmt::format("bias and class_weights are [classes]; got {} for {} classes", c10::str(tensor.sizes()),
                       weight.size(0)));
  if (options.label_smoothing < 0 || options.label_smoothing > 1 || options.z_loss < 0)
    fail(fmt::format("label_smoothing is from 0 to 1 and z_loss 0 or above; got {} and {}", options.label_smoothing,
                     options.z_loss));
}

/// With a weight whose behaviours are around operators, such as one that is cut over ranks.
at::Tensor cross_entropy_by_operators(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& target,
                                      const LinearCrossEntropyOptions& options) {
  if (options.z_loss > 0)
    throw Error("nn", "linear_cross_entropy: z_loss does not work with a weight that is cut over ranks; valid: 0");
  const at::Tensor logits = at::linear(input, weight, optional_of(options.bias));
  return at::cross_entropy_loss(
      logits.reshape({-1, logits.size(-1)}), target.reshape({-1}), optional_of(options.class_weights),
      options.sum ? at::Reduction::Sum : at::Reduction::Mean, options.ignore_index, options.label_smoothing);
}

/// Throws where there is a target that is no class. Looks at values, and so is asked where the kernels have thrown.
void check_classes(const at::Tensor& target, int64_t classes, int64_t ignore_index) {
  if (!target.device().is_cpu()) return;
  const at::Tensor is_wrong = (target < 0).logical_or_(target >= classes).logical_and_(target != ignore_index);
  if (is_wrong.any().item<bool>())
    throw_no_such_class(target.masked_select(is_wrong)[0].item<int64_t>(), classes, ignore_index);
}

}  // namespace

at::Tensor linear_cross_entropy(const at::Tensor& given, const at::Tensor& weight, const at::Tensor& targets,
                                const LinearCrossEntropyOptions& options) {
  if (is_context_part(given) && is_context_part(targets))  // each rank has the loss of its positions
    return linear_cross_entropy(local_part(given), weight, local_part(targets), options);
  if (has_weight_behaviours(weight)) return cross_entropy_by_operators(given, weight, targets, options);
  const at::Tensor target = full_sequence(targets);
  const at::Tensor input = full_sequence(given);
  check(input, weight, target, options);
  at::Tensor rows = input.reshape({-1, input.size(-1)});
  at::Tensor classes = weight;
  at::Tensor bias = options.bias;
  const c10::DeviceType device = input.device().type();
  const bool has_autocast = at::autocast::is_autocast_enabled(device);
  if (has_autocast) {
    const at::ScalarType type = at::autocast::get_autocast_dtype(device);
    rows = at::autocast::cached_cast(type, rows, device);
    classes = at::autocast::cached_cast(type, classes, device);
    if (bias.defined()) bias = at::autocast::cached_cast(type, bias, device);
  }
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(
      at::autocast::get_autocast_dispatch_key_from_device_type(device));
  try {
    return LinearCrossEntropy::apply(rows, classes, optional_of(bias), optional_of(options.class_weights),
                                     target.reshape({-1}), options, at::GradMode::is_enabled());
  } catch (const c10::Error&) {
    check_classes(target, weight.size(0), options.ignore_index);
    throw;
  }
}

}  // namespace levin::nn::functional
