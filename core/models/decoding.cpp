#include <levin/core/models/decoding.h>

#include <levin/core/accelerators/accelerator_registry.h>
#include <levin/core/accelerators/memory_stats.h>
#include <levin/core/base/error.h>
#include <levin/core/nn/cut_logits.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace levin {
namespace {

constexpr int64_t kCacheStep = 256;

at::Tensor weight_of(const nn::CausalLanguageModel& model) { return model->parameters().front(); }

int64_t longest_of(const std::vector<std::vector<int64_t>>& prompts) {
  size_t longest = 0;
  for (const auto& prompt : prompts) longest = std::max(longest, prompt.size());
  return static_cast<int64_t>(longest);
}

/// In doubles: a number of tokens may be any.
double cache_bytes(const nn::LanguageModelOptions& options, double places, int64_t rows, size_t element) {
  const nn::AttentionOptions& attention = options.block.attention;
  const int64_t heads = attention.key_value_heads > 0 ? attention.key_value_heads : attention.heads;
  const int64_t head_dim = attention.head_dim > 0 ? attention.head_dim : attention.width / attention.heads;
  double all = 0;
  for (int64_t layer = 0; layer < options.layers; ++layer) {
    const bool slides = attention.sliding_window > 0 &&
                        (options.has_sliding_window.empty() || options.has_sliding_window[static_cast<size_t>(layer)]);
    all += slides ? std::min(places, static_cast<double>(attention.sliding_window)) : places;
  }
  return 2 * all * static_cast<double>(rows * heads * head_dim) * static_cast<double>(element);
}

int64_t available_bytes(const at::Device& device) {
  if (device.is_cpu()) return available_host_memory();
  const MemoryStats stats = accelerator_of(device).memory_stats(device);
  return stats.total - stats.allocated;
}

}  // namespace

Decoding::Decoding(nn::CausalLanguageModel model, const std::vector<std::vector<int64_t>>& prompts, int64_t most_new,
                   int64_t rows, const GenerateOptions& options)
    : model_(std::move(model)), options_(options), device_(weight_of(model_).device()), cache_({.step = kCacheStep}) {
  const int64_t longest = longest_of(prompts);
  const double places = static_cast<double>(longest) + static_cast<double>(most_new);
  const double bytes = cache_bytes(model_->options(), places, rows, weight_of(model_).element_size());
  const int64_t available = available_bytes(device_);
  if (bytes > static_cast<double>(available))
    throw Error("generate", fmt::format("the key/value cache of {} of up to {:.0f} tokens does not fit into memory; "
                                        "got {:.0f} MiB, valid: up to {} MiB; hint: a smaller max_new_tokens, or "
                                        "fewer prompts at a time",
                                        counted(rows, "text"), places, bytes / (1 << 20), mebibytes(available)));

  const auto count = static_cast<int64_t>(prompts.size());
  tokens_ = at::zeros({count, longest}, at::kLong);
  positions_ = at::full({count, longest}, -1, at::kLong);
  bool is_padded = false;
  for (int64_t row = 0; row < count; ++row) {
    const auto& prompt = prompts[static_cast<size_t>(row)];
    const auto length = static_cast<int64_t>(prompt.size());
    std::copy(prompt.begin(), prompt.end(), tokens_.data_ptr<int64_t>() + (row + 1) * longest - length);
    positions_[row].narrow(0, longest - length, length).copy_(at::arange(length));
    is_padded = is_padded || length < longest;
  }
  if (!is_padded) positions_ = positions_[0];
  tokens_ = tokens_.to(device_);
  positions_ = positions_.to(device_);
}

at::Tensor Decoding::step(const at::Tensor& tokens, const at::Tensor& positions) {
  const nn::KeyValueCache::Step step(cache_, positions);
  const at::Tensor logits = full_logits(model_->last_logits(tokens, positions)).to(at::kFloat).contiguous();
  if (options_.on_logits) options_.on_logits(logits);
  return logits;
}

at::Tensor Decoding::prompt_logits() {
  at::Tensor logits = step(tokens_, positions_);
  tokens_.reset();
  positions_ = positions_.narrow(-1, positions_.size(-1) - 1, 1);
  return logits;
}

at::Tensor Decoding::next_logits(const at::Tensor& tokens) {
  positions_ = positions_ + 1;
  return step(tokens.unsqueeze(1), positions_);
}

void Decoding::select_rows(const at::Tensor& rows) {
  cache_.select_rows(rows);
  if (positions_.dim() == 2) positions_ = positions_.index_select(0, rows);
}

}  // namespace levin
