#include <levin/core/metrics/text_scores.h>

#include <levin/core/base/error.h>
#include <levin/core/metrics/input_checks.h>
#include <levin/core/metrics/text_units.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <string_view>
#include <utility>

namespace levin::metrics {
namespace {

at::Tensor text_score(double value) { return at::full({}, value, at::kDouble); }

constexpr double kNoTexts = std::numeric_limits<double>::quiet_NaN();

}  // namespace

TextScoreMetric::TextScoreMetric(const char* name, int64_t sums) : name_(name) {
  add_state("sums", at::zeros({sums}, at::kDouble), Reduction::kSum);
}

TextScoreMetric& TextScoreMetric::update(const std::vector<std::string>& predictions,
                                         const std::vector<std::vector<std::string>>& references) {
  const UpdateScope scope(*this);
  detail::check_text_pairs(name_, predictions.size(), references.size());
  for (size_t i = 0; i < references.size(); ++i)
    if (references[i].empty())
      throw Error("metrics", fmt::format("{}: prediction {} has no reference; valid: at least one", name_, i));
  const at::Tensor added = at::zeros_like(state(0));
  for (size_t i = 0; i < predictions.size(); ++i) add(predictions[i], references[i], added.mutable_data_ptr<double>());
  state(0).add_(added);
  return *this;
}

TextScoreMetric& TextScoreMetric::update(const std::vector<std::string>& predictions,
                                         const std::vector<std::string>& targets) {
  return update(predictions, detail::as_references(targets));
}

// ---- BLEU. Sums: words predicted, words of references, then for each length matches and sequences predicted.

void BleuOptions::describe(Schema<BleuOptions>& schema) {
  schema.field("n_gram", &BleuOptions::n_gram, "longest sequences of words that are compared").at_least(1);
  schema.field("smooth", &BleuOptions::smooth, "add one to the matches and counts of several words");
}

Bleu::Bleu(const Options& options)
    : TextScoreMetric("Bleu", 2 + 2 * detail::checked_options(options, "Bleu").n_gram), options_(options) {}

void Bleu::add(const std::string& prediction, const std::vector<std::string>& references, double* sums) const {
  const auto words = detail::words_of(prediction);
  const detail::NGrams predicted(words, options_.n_gram);
  detail::NGrams meant({}, options_.n_gram);
  const auto size = static_cast<int64_t>(words.size());
  int64_t closest = -1;
  for (const auto& reference : references) {
    const auto reference_words = detail::words_of(reference);
    const auto other = static_cast<int64_t>(reference_words.size());
    if (closest < 0 || std::abs(other - size) < std::abs(closest - size)) closest = other;
    meant.merge_largest(detail::NGrams(reference_words, options_.n_gram));
  }
  sums[0] += static_cast<double>(size);
  sums[1] += static_cast<double>(closest);
  for (int64_t n = 1; n <= options_.n_gram; ++n) {
    sums[2 * n] += static_cast<double>(predicted.matches(meant, n));
    sums[2 * n + 1] += static_cast<double>(predicted.count(n));
  }
}

at::Tensor Bleu::compute() const {
  const at::Tensor on_host = sums().cpu();
  const double* all = on_host.const_data_ptr<double>();
  if (all[0] + all[1] == 0) return text_score(kNoTexts);
  double logarithms = 0;
  for (int64_t n = 1; n <= options_.n_gram; ++n) {
    const double more = options_.smooth && n > 1 ? 1 : 0;
    const double matches = all[2 * n];
    if (matches == 0) return text_score(0);
    logarithms += std::log((matches + more) / (all[2 * n + 1] + more)) / static_cast<double>(options_.n_gram);
  }
  const double shortness = all[0] > all[1] ? 0 : 1 - all[1] / all[0];
  return text_score(std::exp(logarithms + shortness));
}

// ---- chrF++. Sums: for each length of characters, then of words, matches, sequences predicted and of the reference.

void ChrfOptions::describe(Schema<ChrfOptions>& schema) {
  schema.field("n_char_order", &ChrfOptions::n_char_order, "longest sequences of characters").at_least(1);
  schema.field("n_word_order", &ChrfOptions::n_word_order, "longest sequences of words; 0: chrF, else chrF++")
      .at_least(0);
  schema.field("beta", &ChrfOptions::beta, "how many times recall counts as much as precision").above(0);
  schema.field("whitespace", &ChrfOptions::whitespace, "whether spaces are characters");
}

Chrf::Chrf(const Options& options)
    : TextScoreMetric("Chrf", 3 * (detail::checked_options(options, "Chrf").n_char_order + options.n_word_order) + 1),
      options_(options) {}

namespace {

/// As sacreBLEU splits it off: at the end of a word, else at its beginning.
detail::TextUnits words_and_punctuation(std::string_view text) {
  constexpr std::string_view kPunctuation = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~";
  detail::TextUnits units;
  for (const std::string_view word : detail::words_of(text)) {
    const bool is_one = detail::characters_of(word).size() == 1;
    if (!is_one && kPunctuation.find(word.back()) != std::string_view::npos) {
      units.push_back(word.substr(0, word.size() - 1));
      units.push_back(word.substr(word.size() - 1));
    } else if (!is_one && kPunctuation.find(word.front()) != std::string_view::npos) {
      units.push_back(word.substr(0, 1));
      units.push_back(word.substr(1));
    } else {
      units.push_back(word);
    }
  }
  return units;
}

detail::TextUnits characters_to_compare(std::string_view text, bool whitespace) {
  if (whitespace) return detail::characters_of(text);
  const auto words = detail::words_of(text);
  if (words.empty()) return {};
  const char* const end = words.back().data() + words.back().size();
  auto characters = detail::characters_of({words.front().data(), end});
  std::erase(characters, " ");
  return characters;
}

struct TextSequences {
  detail::NGrams characters;
  detail::NGrams words;
  TextSequences(std::string_view text, const ChrfOptions& options)
      : characters(characters_to_compare(text, options.whitespace), options.n_char_order),
        words(words_and_punctuation(text), options.n_word_order) {}
};

}  // namespace

double Chrf::score(const double* sums) const {
  constexpr double kLeast = 1e-16;
  const int64_t lengths = options_.n_char_order + options_.n_word_order;
  const double square = options_.beta * options_.beta;
  double scores = 0;
  for (int64_t i = 0; i < lengths; ++i) {
    const double* of_length = sums + 3 * i;
    const double precision = of_length[1] > 0 ? of_length[0] / of_length[1] : 0;
    const double recall = of_length[2] > 0 ? of_length[0] / of_length[2] : 0;
    scores += (1 + square) * precision * recall / std::max(square * precision + recall, kLeast);
  }
  return scores / static_cast<double>(lengths);
}

void Chrf::add(const std::string& prediction, const std::vector<std::string>& references, double* sums) const {
  const TextSequences predicted(prediction, options_);
  const auto lengths = static_cast<size_t>(options_.n_char_order + options_.n_word_order);
  std::vector<double> best;
  for (const auto& reference : references) {
    const TextSequences meant(reference, options_);
    std::vector<double> found;
    const auto add_lengths = [&](const detail::NGrams& written, const detail::NGrams& target, int64_t longest) {
      for (int64_t n = 1; n <= longest; ++n)
        for (const int64_t number : {written.matches(target, n), written.count(n), target.count(n)})
          found.push_back(static_cast<double>(number));
    };
    add_lengths(predicted.characters, meant.characters, options_.n_char_order);
    add_lengths(predicted.words, meant.words, options_.n_word_order);
    if (best.empty() || score(found.data()) > score(best.data())) best = std::move(found);
  }
  for (size_t i = 0; i < 3 * lengths; ++i) sums[i] += best[i];
  sums[3 * lengths] += 1;
}

at::Tensor Chrf::compute() const {
  const at::Tensor on_host = sums().cpu();
  const double* all = on_host.const_data_ptr<double>();
  const bool has_texts = all[on_host.numel() - 1] > 0;
  return text_score(has_texts ? score(all) : kNoTexts);
}

// ---- ROUGE-L. Sums: the values, and predictions.

void RougeLOptions::describe(Schema<RougeLOptions>& schema) {
  schema.field("value", &RougeLOptions::value, "harmonic mean, or one of its parts")
      .one_of({"fmeasure", "precision", "recall"});
}

RougeL::RougeL(const Options& options)
    : TextScoreMetric("RougeL", 2), options_(detail::checked_options(options, "RougeL")) {}

namespace {

/// Lower case, everything but a to z and digits a space.
std::string normalized_text(const std::string& text) {
  std::string normalized = text;
  for (char& byte : normalized) {
    if (byte >= 'A' && byte <= 'Z') byte = static_cast<char>(byte - 'A' + 'a');
    if (!((byte >= 'a' && byte <= 'z') || (byte >= '0' && byte <= '9'))) byte = ' ';
  }
  return normalized;
}

/// Length of the longest common subsequence, by dynamic programming, one row at a time.
size_t longest_common(const detail::TextUnits& a, const detail::TextUnits& b) {
  std::vector<size_t> lengths(b.size() + 1, 0);
  for (const auto& unit : a) {
    size_t diagonal = 0;
    for (size_t i = 0; i < b.size(); ++i) {
      const size_t above = lengths[i + 1];
      lengths[i + 1] = unit == b[i] ? diagonal + 1 : std::max(above, lengths[i]);
      diagonal = above;
    }
  }
  return lengths.back();
}

}  // namespace

void RougeL::add(const std::string& prediction, const std::vector<std::string>& references, double* sums) const {
  const std::string written = normalized_text(prediction);
  const auto words = detail::words_of(written);
  double best = -1;
  double value = 0;
  for (const auto& reference : references) {
    const std::string meant = normalized_text(reference);
    const auto meant_words = detail::words_of(meant);
    const auto common = static_cast<double>(longest_common(words, meant_words));
    const double precision = words.empty() ? 0 : common / static_cast<double>(words.size());
    const double recall = meant_words.empty() ? 0 : common / static_cast<double>(meant_words.size());
    const double fmeasure = common > 0 ? 2 * precision * recall / (precision + recall) : 0;
    if (fmeasure <= best) continue;
    best = fmeasure;
    value = options_.value == "precision" ? precision : options_.value == "recall" ? recall : fmeasure;
  }
  sums[0] += value;
  sums[1] += 1;
}

at::Tensor RougeL::compute() const { return sums()[0] / sums()[1]; }

}  // namespace levin::metrics
