#include <levin/core/data/random_split.h>

#include <levin/core/base/error.h>
#include <levin/core/data/read_column.h>
#include <levin/core/data/sampler.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>

namespace levin::data {

namespace {

// Classes have the streams from 0 on.
constexpr int64_t kTieStream = -1;

int64_t sum(const std::vector<int64_t>& values) { return std::accumulate(values.begin(), values.end(), int64_t{0}); }

void shuffle(std::vector<int64_t>& values, Generator& generator) {
  for (size_t i = values.size(); i > 1; --i)
    std::swap(values[i - 1], values[static_cast<size_t>(generator.below(static_cast<int64_t>(i)))]);
}

/// How many of each class to take, `taken` in all: each class's share rounded down, and one more of those with the
/// largest remainders. Which of equal remainders, is drawn.
std::vector<int64_t> counts_to_take(const std::vector<int64_t>& counts, int64_t taken, Generator& ties) {
  const int64_t all = sum(counts);
  std::vector<int64_t> result;
  std::map<int64_t, std::vector<int64_t>, std::greater<>> by_remainder;
  __extension__ using Wide = __int128;
  for (size_t i = 0; i < counts.size(); ++i) {
    const Wide share = static_cast<Wide>(counts[i]) * taken;
    result.push_back(static_cast<int64_t>(share / all));
    by_remainder[static_cast<int64_t>(share % all)].push_back(static_cast<int64_t>(i));
  }
  int64_t left = taken - sum(result);
  for (auto& [remainder, classes] : by_remainder) {
    if (std::ssize(classes) > left) shuffle(classes, ties);
    for (size_t i = 0; i < classes.size() && left > 0; ++i, --left) ++result[static_cast<size_t>(classes[i])];
  }
  return result;
}

std::vector<std::shared_ptr<Subset>> subsets(const std::shared_ptr<const Dataset>& dataset, SplitIndices parts) {
  std::vector<std::shared_ptr<Subset>> result;
  for (auto& part : parts) result.push_back(std::make_shared<Subset>(dataset, std::move(part)));
  return result;
}

}  // namespace

SplitLengths::SplitLengths(std::vector<int64_t> lengths) : lengths_(std::move(lengths)) {}
SplitLengths::SplitLengths(std::vector<double> fractions) : fractions_(std::move(fractions)) {}

std::vector<int64_t> SplitLengths::of(int64_t size) const {
  if (lengths_.empty() && fractions_.empty()) throw Error("data", "a split needs at least one part; got none");
  std::vector<int64_t> lengths = lengths_;
  if (!fractions_.empty()) {
    const double whole = std::accumulate(fractions_.begin(), fractions_.end(), 0.0);
    const bool are_fractions =
        std::all_of(fractions_.begin(), fractions_.end(), [](double part) { return part > 0 && part <= 1; });
    if (!are_fractions || std::abs(whole - 1) > 1e-9)
      throw Error("data", fmt::format("the fractions of a split add up to 1; got {}, which is {}; valid: numbers above "
                                      "0; hint: whole numbers are examples",
                                      fmt::join(fractions_, " + "), whole));
    for (const double fraction : fractions_)
      lengths.push_back(static_cast<int64_t>(std::floor(static_cast<double>(size) * fraction)));
    for (size_t i = 0; sum(lengths) < size; i = (i + 1) % lengths.size()) ++lengths[i];
  }
  for (size_t i = 0; i < lengths.size(); ++i)
    if (lengths[i] < 1)
      throw Error("data", fmt::format("part {} of a split of {} has no examples; got {} of them; valid: at least 1", i,
                                      counted(size, "example"), lengths[i]));
  if (sum(lengths) != size)
    throw Error("data", fmt::format("the parts of a split have all examples of the data set; got {}, which is {}; "
                                    "valid: {} together",
                                    fmt::join(lengths, " + "), sum(lengths), size));
  return lengths;
}

SplitIndices random_split(int64_t size, const SplitLengths& lengths, uint64_t seed) {
  const std::vector<int64_t> order = RandomSampler().order(size, seed, 0);
  SplitIndices parts;
  auto begin = order.begin();
  for (const int64_t length : lengths.of(size)) {
    auto& part = parts.emplace_back(begin, begin + length);
    std::sort(part.begin(), part.end());
    begin += length;
  }
  return parts;
}

std::vector<std::shared_ptr<Subset>> random_split(const std::shared_ptr<const Dataset>& dataset,
                                                  const SplitLengths& lengths, uint64_t seed) {
  if (dataset == nullptr) throw Error("data", "random_split was given no data set (a null pointer)");
  return subsets(dataset, random_split(dataset->size(), lengths, seed));
}

SplitIndices stratified_split(std::span<const int64_t> labels, const SplitLengths& lengths, uint64_t seed,
                              std::span<const std::string> class_names) {
  const std::vector<int64_t> sizes = lengths.of(std::ssize(labels));
  std::map<int64_t, std::vector<int64_t>> by_label;
  for (size_t i = 0; i < labels.size(); ++i) by_label[labels[i]].push_back(static_cast<int64_t>(i));
  std::vector<int64_t> left;
  for (const auto& [label, examples] : by_label) {
    left.push_back(std::ssize(examples));
    if (examples.size() > 1) continue;
    const bool has_name = label >= 0 && label < std::ssize(class_names);
    throw Error("data", fmt::format("a stratified split needs two examples of each class; got one of class {}; hint: "
                                    "leave that class out, or split at random",
                                    has_name ? fmt::format("'{}'", class_names[static_cast<size_t>(label)])
                                             : std::to_string(label)));
  }
  for (size_t part = 0; part < sizes.size(); ++part)
    if (sizes[part] < std::ssize(left))
      throw Error("data", fmt::format("each part of a stratified split needs an example for each class; got {} for {} "
                                      "in part {}; hint: a larger fraction, or split at random",
                                      counted(sizes[part], "example"),
                                      left.size() == 1 ? "1 class" : fmt::format("{} classes", left.size()), part));

  int64_t stream = 0;
  for (auto& [label, examples] : by_label) {
    Generator generator(seed, 0, stream++);
    shuffle(examples, generator);
  }
  Generator ties(seed, 0, kTieStream);
  SplitIndices parts;
  for (const int64_t size : sizes) {
    const std::vector<int64_t> counts = counts_to_take(left, size, ties);
    auto& part = parts.emplace_back();
    size_t place = 0;
    for (auto& [label, examples] : by_label) {
      const int64_t count = counts[place];
      left[place++] -= count;
      part.insert(part.end(), examples.end() - count, examples.end());
      examples.resize(examples.size() - static_cast<size_t>(count));
    }
    std::sort(part.begin(), part.end());
  }
  return parts;
}

std::vector<std::shared_ptr<Subset>> stratified_split(const std::shared_ptr<const Dataset>& dataset,
                                                      const SplitLengths& lengths, uint64_t seed,
                                                      const std::string& label) {
  if (dataset == nullptr) throw Error("data", "stratified_split was given no data set (a null pointer)");
  const std::vector<int64_t> labels = to_labels(read_column(*dataset, label), label);
  return subsets(dataset, stratified_split(labels, lengths, seed));
}

}  // namespace levin::data
