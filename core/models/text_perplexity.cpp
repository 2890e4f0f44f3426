#include <levin/core/models/text_perplexity.h>

#include <levin/core/base/error.h>
#include <levin/core/base/file_system.h>
#include <levin/core/data/tokens/tokenizer.h>
#include <levin/core/models/evaluation_mode.h>
#include <levin/core/models/tokenizer_check.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

namespace levin {
namespace {

TextPerplexityOptions checked_options(TextPerplexityOptions options, const nn::LanguageModelOptions& model) {
  constexpr int64_t kMost = 1024;
  const auto fail = [](const std::string& what) { throw ConfigError("text_perplexity: " + what); };
  const int64_t positions = model.learned_positions > 0 ? model.learned_positions : model.max_positions;
  if (options.length == 0) options.length = positions > 0 ? std::min(positions, kMost) : kMost;
  if (options.length < 2) fail(fmt::format("length is at least 2; got {}", options.length));
  if (positions > 0 && options.length > positions)
    fail(fmt::format("length is at most the positions of the model; got {}, valid: up to {}", options.length,
                     positions));
  if (options.stride == 0) options.stride = options.length;
  if (options.stride < 1 || options.stride > options.length)
    fail(
        fmt::format("stride is at least 1 and at most length; got {}, valid: 1 to {}", options.stride, options.length));
  if (options.batch_size < 1) fail(fmt::format("batch_size is at least 1; got {}", options.batch_size));
  return options;
}

}  // namespace

double text_perplexity(nn::CausalLanguageModel model, const data::Tokenizer& tokenizer, const std::string& path,
                       const TextPerplexityOptions& given) {
  const nn::LanguageModelOptions& described = model->options();
  const TextPerplexityOptions options = checked_options(given, described);
  check_tokenizer(tokenizer, described);
  open_regular_file(path, "models");
  const at::Tensor ids = at::tensor(
      tokenizer.encode(FileSystem::current().read_file(path), {.add_special_tokens = options.add_special_tokens}),
      at::kLong);
  const int64_t count = ids.size(0);
  if (count < 2)
    throw Error("models",
                fmt::format("a perplexity needs a text of two tokens; got {} in {}", counted(count, "token"), path));

  const at::NoGradGuard no_gradients;
  const EvaluationMode evaluation(*model);
  const at::Device device = model->parameters().front().device();
  double sum = 0;
  int64_t tokens = 0;
  std::vector<at::Tensor> rows;
  std::vector<at::Tensor> targets;
  const auto run = [&] {
    if (rows.empty()) return;
    const at::Tensor next = at::stack(targets);
    const int64_t counting = next.ne(-100).sum().item<int64_t>();
    if (counting > 0)
      sum += model->loss(at::stack(rows).to(device), next.to(device)).item<double>() * static_cast<double>(counting);
    tokens += counting;
    rows.clear();
    targets.clear();
  };
  int64_t counted_until = 1;  // the first token follows nothing
  for (int64_t begin = 0; counted_until < count; begin += options.stride) {
    const int64_t length = std::min(options.length, count - begin);
    if (length < options.length) run();  // windows of one batch have one length
    if (length > 1) {
      at::Tensor next = at::full({length - 1}, -100, at::kLong);
      const int64_t first = std::max(counted_until, begin + 1);
      const int64_t number = begin + length - first;
      next.narrow(0, length - 1 - number, number).copy_(ids.narrow(0, first, number));
      rows.push_back(ids.narrow(0, begin, length - 1));
      targets.push_back(next);
    }
    counted_until = begin + length;
    if (static_cast<int64_t>(rows.size()) == options.batch_size) run();
  }
  run();
  return std::exp(sum / static_cast<double>(tokens));
}

}  // namespace levin
