#include <levin/core/metrics/retrieval.h>

#include <levin/core/base/error.h>
#include <levin/core/metrics/input_checks.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_unique2.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/argsort.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/util/StringUtil.h>
#include <fmt/format.h>

#include <limits>
#include <tuple>

namespace levin::metrics {
namespace {

constexpr size_t kResultScores = 0;
constexpr size_t kRelevance = 1;
constexpr size_t kQueries = 2;

at::Tensor stable_order(const at::Tensor& keys, bool descending) {
  return at::argsort(keys, /*stable=*/true, /*dim=*/0, descending);
}

}  // namespace

void RetrievalOptions::describe(Schema<RetrievalOptions>& schema) {
  schema.field("top_k", &RetrievalOptions::top_k, "only the best k results of a query count; null: all").at_least(1);
  schema
      .field("empty_target_action", &RetrievalOptions::empty_target_action,
             "value of a query without relevant results: 0, 1, or left out")
      .one_of({"neg", "pos", "skip"});
}

RetrievalMetric::RetrievalMetric(const char* name, const Options& options)
    : name_(name), options_(detail::checked_options(options, name)) {
  add_state("scores", at::empty({0}, at::kFloat), Reduction::kConcatenate);
  add_state("relevance", at::empty({0}, at::kLong), Reduction::kConcatenate);
  add_state("queries", at::empty({0}, at::kLong), Reduction::kConcatenate);
}

RetrievalMetric& RetrievalMetric::update(const at::Tensor& scores, const at::Tensor& relevance,
                                         const at::Tensor& queries) {
  const UpdateScope scope(*this);
  const auto holds_integers = [](const at::Tensor& tensor) {
    return at::isIntegralType(tensor.scalar_type(), /*includeBool=*/true);
  };
  if (scores.sizes() != relevance.sizes() || scores.sizes() != queries.sizes() || !scores.is_floating_point() ||
      !holds_integers(relevance) || !holds_integers(queries))
    throw Error("metrics",
                fmt::format("{}: results do not fit; got scores {}, relevance {} and queries {}; valid: one shape, "
                            "floating-point scores, integers for the others",
                            name_, c10::str(scores.sizes(), " ", scores.scalar_type()),
                            c10::str(relevance.sizes(), " ", relevance.scalar_type()),
                            c10::str(queries.sizes(), " ", queries.scalar_type())));
  detail::check_same_device(name_, "scores and relevance", scores, relevance);
  detail::check_same_device(name_, "scores and queries", scores, queries);
  ensure_device(scores.device());
  append_rows(kResultScores, detail::without_rounding(scores).reshape(-1));
  append_rows(kRelevance, relevance.reshape(-1).to(at::kLong));
  append_rows(kQueries, queries.reshape(-1).to(at::kLong));
  return *this;
}

at::Tensor RetrievalMetric::Ranked::per_query(const at::Tensor& of_results) const {
  return at::zeros({queries}, of_results.options()).scatter_add_(0, query, of_results);
}

at::Tensor RetrievalMetric::compute() const {
  const at::Tensor undefined =
      at::full({}, std::numeric_limits<double>::quiet_NaN(), state(kResultScores).options().dtype(at::kDouble));
  if (state(kResultScores).numel() == 0 || at::isnan(state(kResultScores)).any().item<bool>()) return undefined;
  // By query, then score, then the least relevant first: sorts that keep the order, the last key first.
  at::Tensor order = stable_order(state(kRelevance), /*descending=*/false);
  order = order.index_select(0, stable_order(state(kResultScores).index_select(0, order), /*descending=*/true));
  order = order.index_select(0, stable_order(state(kQueries).index_select(0, order), /*descending=*/false));
  const auto [distinct, query, sizes] = at::_unique2(state(kQueries).index_select(0, order), /*sorted=*/true,
                                                     /*return_inverse=*/true, /*return_counts=*/true);
  const at::Tensor firsts = (sizes.cumsum(0) - sizes).index_select(0, query);
  Ranked ranked{.scores = state(kResultScores).index_select(0, order),
                .relevance = state(kRelevance).index_select(0, order),
                .query = query,
                .place = at::arange(1, query.numel() + 1, query.options()) - firsts,
                .counts = {},
                .queries = distinct.numel()};
  ranked.counts = options_.top_k ? ranked.place <= *options_.top_k : at::ones_like(ranked.place, at::kBool);
  const at::Tensor has_relevant = ranked.per_query((ranked.relevance != 0).to(at::kLong)) > 0;
  const at::Tensor found = at::where(has_relevant, values(ranked), options_.empty_target_action == "pos" ? 1.0 : 0.0);
  if (options_.empty_target_action != "skip") return found.mean();
  return found.sum() / has_relevant.sum();
}

at::Tensor RetrievalMRR::values(const Ranked& ranked) const {
  const at::Tensor hits = (ranked.relevance != 0).logical_and(ranked.counts);
  const at::Tensor reciprocals = at::where(hits, 1.0 / ranked.place.to(at::kDouble), 0.0);
  return at::zeros({ranked.queries}, reciprocals.options()).scatter_reduce(0, ranked.query, reciprocals, "amax");
}

at::Tensor RetrievalMAP::values(const Ranked& ranked) const {
  const at::Tensor hits = (ranked.relevance != 0).logical_and(ranked.counts).to(at::kLong);
  const at::Tensor so_far = hits.cumsum(0);
  const at::Tensor of_query = ranked.per_query(hits);
  const at::Tensor before_query = (of_query.cumsum(0) - of_query).index_select(0, ranked.query);
  const at::Tensor precisions = hits * (so_far - before_query).to(at::kDouble) / ranked.place;
  return ranked.per_query(precisions) / of_query.clamp_min(1);
}

at::Tensor RetrievalNDCG::values(const Ranked& ranked) const {
  const at::Tensor discounts = at::where(ranked.counts, 1.0 / (ranked.place.to(at::kDouble) + 1).log2(), 0.0);
  const at::Tensor relevance = ranked.relevance.to(at::kDouble);
  // Results of one query and score are a run; each has the mean discount of its run.
  const at::Tensor first = at::ones({1}, ranked.query.options().dtype(at::kBool));
  const int64_t rest = ranked.query.numel() - 1;
  const auto differs = [rest](const at::Tensor& values) {
    return values.narrow(0, 1, rest) != values.narrow(0, 0, rest);
  };
  const at::Tensor begins = at::cat({first, differs(ranked.query).logical_or(differs(ranked.scores))});
  const at::Tensor run = begins.to(at::kLong).cumsum(0) - 1;
  const auto per_run = [&](const at::Tensor& of_results) {
    return at::zeros({ranked.query.numel()}, of_results.options())
        .scatter_add_(0, run, of_results)
        .index_select(0, run);
  };
  const at::Tensor shared = per_run(discounts) / per_run(at::ones_like(discounts));
  const at::Tensor gain = ranked.per_query(shared * relevance);
  // The best order: places stay, relevance descends within a query.
  at::Tensor order = stable_order(ranked.relevance, /*descending=*/true);
  order = order.index_select(0, stable_order(ranked.query.index_select(0, order), /*descending=*/false));
  return gain / ranked.per_query(discounts * relevance.index_select(0, order));
}

}  // namespace levin::metrics
