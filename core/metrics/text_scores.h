#pragma once

#include <levin/core/base/schema.h>
#include <levin/core/metrics/metric.h>

#include <cstdint>
#include <string>
#include <vector>

/// Scores of written texts against one or more references each. Counts are whole numbers of the whole corpus, so that
/// batches and ranks add up to the value of all.
namespace levin::metrics {

/// Base of them.
class TextScoreMetric : public Metric {
 public:
  /// Adds a batch: a prediction and its references each. Throws levin::Error where there are not as many, or a
  /// prediction has none.
  TextScoreMetric& update(const std::vector<std::string>& predictions,
                          const std::vector<std::vector<std::string>>& references);
  /// The same with one reference each.
  TextScoreMetric& update(const std::vector<std::string>& predictions, const std::vector<std::string>& targets);

 protected:
  /// `name` is the metric's name in messages, `sums` the number of sums.
  TextScoreMetric(const char* name, int64_t sums);
  /// Adds what a prediction gives to the sums, [sums].
  virtual void add(const std::string& prediction, const std::vector<std::string>& references, double* sums) const = 0;
  /// The sums so far, [sums], float64.
  const at::Tensor& sums() const { return state(0); }

 private:
  const char* name_;
};

struct BleuOptions {
  int64_t n_gram = 4;   ///< the longest sequences of words that are compared
  bool smooth = false;  ///< adds one to the matches and counts of sequences of several words (Lin and Och, 2004)

  static void describe(Schema<BleuOptions>& schema);
};

/// BLEU of a corpus (Papineni et al., 2002): the geometric mean of the shares of sequences of 1 to n words that a
/// reference has too, less what is too short. Words are those between white space; 0 where no sequence of some length
/// matches.
class Bleu : public TextScoreMetric {
 public:
  using Options = BleuOptions;

  /// Throws levin::ConfigError when an option is out of range.
  explicit Bleu(const Options& options = {});

  /// Returns a scalar, float64; NaN where there is no word in any text, as before the first update.
  at::Tensor compute() const override;

 protected:
  void add(const std::string& prediction, const std::vector<std::string>& references, double* sums) const override;

 private:
  Options options_;
};

struct ChrfOptions {
  int64_t n_char_order = 6;  ///< the longest sequences of characters
  int64_t n_word_order = 2;  ///< the longest sequences of words; 0: chrF, else chrF++
  double beta = 2;           ///< how many times recall counts as much as precision
  bool whitespace = false;   ///< whether spaces are characters

  static void describe(Schema<ChrfOptions>& schema);
};

/// chrF++ of a corpus (Popović, 2017): the mean of the F scores of sequences of characters and of words, of which
/// punctuation is split off. Of several references the best one counts. As sacreBLEU has it, a reference of which
/// nothing matches lowers the recall; torchmetrics leaves it out.
class Chrf : public TextScoreMetric {
 public:
  using Options = ChrfOptions;

  /// Throws levin::ConfigError when an option is out of range.
  explicit Chrf(const Options& options = {});

  /// Returns a scalar, float64; NaN before any update.
  at::Tensor compute() const override;

 protected:
  void add(const std::string& prediction, const std::vector<std::string>& references, double* sums) const override;

 private:
  double score(const double* sums) const;

  Options options_;
};

struct RougeLOptions {
  std::string value = "fmeasure";  ///< or precision, recall

  static void describe(Schema<RougeLOptions>& schema);
};

/// Mean over predictions of ROUGE-L (Lin, 2004): the longest common subsequence of words as a part of the prediction
/// (precision) and of the reference (recall), and their harmonic mean. Words are of the letters a to z and digits, in
/// either case. Of several references that with the best harmonic mean counts.
class RougeL : public TextScoreMetric {
 public:
  using Options = RougeLOptions;

  /// Throws levin::ConfigError when an option is out of range.
  explicit RougeL(const Options& options = {});

  /// Returns a scalar, float64; NaN before any update.
  at::Tensor compute() const override;

 protected:
  void add(const std::string& prediction, const std::vector<std::string>& references, double* sums) const override;

 private:
  Options options_;
};

}  // namespace levin::metrics
