#include <levin/strategies/ddp/sparse_gradients.h>

#include <levin/core/base/gradient_groups.h>
#include <levin/core/comm/collective.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>

namespace levin {
namespace {

/// What a rank has of a gradient, as it tells the others.
struct Kind {
  static constexpr int64_t kNone = 0;
  static constexpr int64_t kSparse = 1;
  static constexpr int64_t kDense = 2;
  static constexpr int64_t kFields = 3;

  int64_t layout = kNone;
  int64_t sparse_dim = 0;
  int64_t rows = 0;
};

Kind kind_of(const at::Tensor& parameter) {
  const at::Tensor values = gradient_values(parameter);
  if (!values.defined()) return {};
  const at::Tensor& gradient = parameter.grad();
  if (!gradient.is_sparse()) return {.layout = Kind::kDense};
  return {.layout = Kind::kSparse, .sparse_dim = gradient.sparse_dim(), .rows = values.size(0)};
}

/// The kinds of each parameter's gradient, of all ranks.
std::vector<std::vector<Kind>> exchange_kinds(const std::vector<at::Tensor>& parameters, Collective& ranks) {
  const auto count = static_cast<int64_t>(parameters.size());
  at::Tensor own = at::zeros({count, Kind::kFields}, at::kLong);
  auto* field = own.mutable_data_ptr<int64_t>();
  for (const at::Tensor& parameter : parameters) {
    const Kind kind = kind_of(parameter);
    for (const int64_t value : {kind.layout, kind.sparse_dim, kind.rows}) *field++ = value;
  }
  own = own.to(parameters.front().device());
  at::Tensor all = at::empty({ranks.world_size(), count, Kind::kFields}, own.options());
  ranks.all_gather(all, own)->wait();
  all = all.cpu();
  const auto* read = all.const_data_ptr<int64_t>();
  std::vector<std::vector<Kind>> kinds(parameters.size());
  for (int64_t rank = 0; rank < ranks.world_size(); ++rank)
    for (auto& of_parameter : kinds) {
      of_parameter.push_back({.layout = read[0], .sparse_dim = read[1], .rows = read[2]});
      read += Kind::kFields;
    }
  return kinds;
}

/// Gathers tensors of `rows[rank]` rows, one rank's after the other's.
at::Tensor gather_rows(const at::Tensor& own, const std::vector<int64_t>& rows, int64_t most, Collective& ranks) {
  std::vector<int64_t> sizes = own.sizes().vec();
  sizes.front() = most;
  at::Tensor padded = own;
  if (own.size(0) < most) {
    padded = at::zeros(sizes, own.options());
    padded.narrow(0, 0, own.size(0)).copy_(own);
  }
  sizes.insert(sizes.begin(), ranks.world_size());
  const at::Tensor all = at::empty(sizes, own.options());
  ranks.all_gather(all, padded.contiguous())->wait();
  std::vector<at::Tensor> parts;
  for (size_t rank = 0; rank < rows.size(); ++rank)
    parts.push_back(all[static_cast<int64_t>(rank)].narrow(0, 0, rows[rank]));
  return at::cat(parts);
}

at::Tensor mean_of_rows(const at::Tensor& parameter, const std::vector<Kind>& kinds, Collective& ranks) {
  std::vector<int64_t> rows;
  int64_t sparse_dim = 0;
  for (const Kind& kind : kinds) {
    rows.push_back(kind.rows);
    sparse_dim = std::max(sparse_dim, kind.sparse_dim);
  }
  const int64_t most = *std::max_element(rows.begin(), rows.end());
  at::Tensor indices;
  at::Tensor values;
  if (const at::Tensor& gradient = parameter.grad(); gradient.defined()) {
    indices = gradient._indices().t();
    values = gradient._values() / static_cast<double>(ranks.world_size());
  } else {
    std::vector<int64_t> sizes = parameter.sizes().slice(sparse_dim).vec();
    sizes.insert(sizes.begin(), 0);
    indices = at::zeros({0, sparse_dim}, parameter.options().dtype(at::kLong).requires_grad(false));
    values = at::zeros(sizes, parameter.options().requires_grad(false));
  }
  if (most > 0) {
    indices = gather_rows(indices, rows, most, ranks);
    values = gather_rows(values, rows, most, ranks);
  }
  return at::sparse_coo_tensor(indices.t(), values, parameter.sizes()).coalesce();
}

at::Tensor dense_mean(const at::Tensor& parameter, Collective& ranks) {
  const at::Tensor& gradient = parameter.grad();
  at::Tensor mean = gradient.defined() ? dense_gradient(gradient)
                                       : at::zeros_like(parameter, at::TensorOptions().requires_grad(false));
  ranks.all_reduce(mean, ReduceOp::kMean)->wait();
  return mean;
}

}  // namespace

void average_sparse_gradients(const std::vector<at::Tensor>& parameters, Collective& ranks) {
  if (parameters.empty()) return;
  const at::NoGradGuard no_grad;
  const auto kinds = exchange_kinds(parameters, ranks);
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto any = [&](int64_t layout) {
      return std::any_of(kinds[i].begin(), kinds[i].end(), [&](const Kind& kind) { return kind.layout == layout; });
    };
    if (any(Kind::kDense))
      parameters[i].mutable_grad() = dense_mean(parameters[i], ranks);
    else if (any(Kind::kSparse))
      parameters[i].mutable_grad() = mean_of_rows(parameters[i], kinds[i], ranks);
  }
}

}  // namespace levin
