#include <levin/core/interchange/weight_plan.h>

#include <levin/core/base/error.h>
#include <levin/core/base/expanded_tensor.h>
#include <levin/core/base/log.h>
#include <levin/core/base/utf8.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isinf.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/accumulate.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <mutex>
#include <regex>
#include <set>

namespace levin {
namespace {

constexpr int64_t kBufferBytes = int64_t{16} << 20;

using Source = std::shared_ptr<const SavedTensor>;

int64_t elements_of(const SavedTensor& tensor) { return c10::multiply_integers(tensor.shape()); }

/// A tensor made of others; its elements are read as they are asked for.
class DerivedTensor : public SavedTensor {
 public:
  DerivedTensor(at::ScalarType dtype, std::vector<int64_t> shape) : dtype_(dtype), shape_(std::move(shape)) {}
  at::ScalarType dtype() const override { return dtype_; }
  const std::vector<int64_t>& shape() const override { return shape_; }
  const std::vector<int64_t>& dimension_order() const override { return order_; }
  at::Tensor read_whole() const override {
    const c10::InferenceMode ordinary(false);
    at::Tensor whole = at::empty(shape_, at::TensorOptions().dtype(dtype_));
    read(0, whole);
    return whole;
  }
  const at::Tensor& whole() const override {
    std::call_once(once_, [this] { whole_ = read_whole(); });
    return whole_;
  }

 private:
  at::ScalarType dtype_;
  std::vector<int64_t> shape_;
  std::vector<int64_t> order_;
  mutable std::once_flag once_;
  mutable at::Tensor whole_;
};

/// A matrix with its dimensions swapped.
class TransposedTensor final : public DerivedTensor {
 public:
  explicit TransposedTensor(Source source)
      : DerivedTensor(source->dtype(), {source->shape()[1], source->shape()[0]}), source_(std::move(source)) {}

  void read(int64_t offset, at::Tensor target) const override {
    const at::Tensor swapped = source_->read_whole().t();
    const at::Tensor all =
        target.numel() == swapped.numel() ? swapped : swapped.reshape({-1}).narrow(0, offset, target.numel());
    target.copy_(all.reshape(target.sizes()));
  }

 private:
  Source source_;
};

/// Tensors one after the other along the first dimension.
class JoinedTensor final : public DerivedTensor {
 public:
  JoinedTensor(std::vector<int64_t> shape, std::vector<Source> parts)
      : DerivedTensor(parts.front()->dtype(), std::move(shape)), parts_(std::move(parts)) {}

  void read(int64_t offset, at::Tensor target) const override {
    const at::Tensor flat = target.view({-1});
    int64_t start = 0;  // of a part
    for (const auto& part : parts_) {
      const int64_t end = start + elements_of(*part);
      const int64_t first = std::max(start, offset);
      const int64_t last = std::min(end, offset + flat.numel());
      if (first < last) part->read(first - start, flat.narrow(0, first - offset, last - first));
      start = end;
    }
  }

 private:
  std::vector<Source> parts_;
};

/// One of equal parts of a tensor along its first dimension.
class SlicedTensor final : public DerivedTensor {
 public:
  SlicedTensor(Source source, std::vector<int64_t> shape, int64_t offset)
      : DerivedTensor(source->dtype(), std::move(shape)), source_(std::move(source)), offset_(offset) {}

  void read(int64_t offset, at::Tensor target) const override { source_->read(offset_ + offset, target); }

 private:
  Source source_;
  int64_t offset_;
};

/// A name's tensor before parts are joined.
struct Arrival {
  std::string from;
  Source tensor;
  size_t part = 0;
};

/// A rule whose expressions are ready: one for each part that it joins, or one.
class CompiledRule {
 public:
  explicit CompiledRule(const WeightRule& rule) : rule_(rule), joins_(rule.match.find(kRulePart) != std::string::npos) {
    static const std::regex kSpecial(R"([\^$.*+?\[\]{}|()\\])");
    const size_t count = joins_ ? rule.parts.size() : 1;
    for (size_t i = 0; i < count; ++i) {
      std::string expression = rule.match;
      if (joins_)
        expression.replace(expression.find(kRulePart), kRulePart.size(),
                           std::regex_replace(rule.parts[i], kSpecial, R"(\$&)"));
      expressions_.emplace_back(expression);
    }
  }

  const WeightRule& rule() const { return rule_; }
  bool joins() const { return joins_; }
  bool met() const { return met_; }

  /// The index of the part whose expression the name meets; -1 for none.
  int meets(const std::string& name) const {
    for (size_t i = 0; i < expressions_.size(); ++i)
      if (std::regex_match(name, expressions_[i])) return static_cast<int>(i);
    return -1;
  }
  std::string target(const std::string& name, int part) {
    met_ = true;
    return std::regex_replace(name, expressions_[static_cast<size_t>(part)], rule_.to);
  }

 private:
  WeightRule rule_;
  bool joins_;
  bool met_ = false;
  std::vector<std::regex> expressions_;
};

class Mapper {
 public:
  explicit Mapper(const LoadWeightsOptions& options) : options_(options) {
    for (const auto& rule : options.rules.rules()) rules_.emplace_back(rule);
  }

  MappedWeights map(const SavedTensors& tensors) {
    bool any_prefix = options_.strip_prefix.empty();
    for (const auto& [name, tensor] : tensors) {
      std::string stripped = name;
      if (!options_.strip_prefix.empty() && name.starts_with(options_.strip_prefix)) {
        stripped = name.substr(options_.strip_prefix.size());
        any_prefix = true;
      }
      add(name, stripped, tensor);
    }
    if (!any_prefix)
      throw Error("weights", fmt::format("no name starts with the strip_prefix '{}'; the first is '{}'",
                                         options_.strip_prefix, tensors.empty() ? "" : tensors.begin()->first));
    for (const auto& rule : rules_)
      if (!rule.met() && rule.rule().required)
        throw Error("weights",
                    fmt::format("the rule '{}' meets no name; the first of {} is '{}'; hint: a rule that may "
                                "meet nothing has required: false",
                                rule.rule().match, tensors.size(), tensors.empty() ? "" : tensors.begin()->first));
    finish();
    return std::move(result_);
  }

 private:
  void add(const std::string& name, const std::string& stripped, const Source& tensor) {
    CompiledRule* met = nullptr;
    int part = -1;
    for (auto& rule : rules_) {
      const int index = rule.meets(stripped);
      if (index < 0) continue;
      if (met != nullptr)
        throw Error("weights", fmt::format("two rules meet '{}': '{}' and '{}'; valid: one at most", name,
                                           met->rule().match, rule.rule().match));
      met = &rule;
      part = index;
    }
    if (met == nullptr) return arrive(options_.add_prefix + stripped, {name, tensor}, nullptr);
    const std::string target = options_.add_prefix + met->target(stripped, part);
    if (met->rule().drop) {
      result_.dropped.push_back(name);
      return;
    }
    Source source = tensor;
    if (met->rule().transpose && source->shape().size() == 2) source = std::make_shared<TransposedTensor>(source);
    if (met->rule().parts.empty() || met->joins())
      return arrive(target, {name, source, static_cast<size_t>(part)}, met->joins() ? &met->rule() : nullptr);
    split(name, target, source, met->rule().parts);
  }

  void split(const std::string& name, const std::string& target, const Source& source,
             const std::vector<std::string>& parts) {
    std::vector<int64_t> shape = source->shape();
    const auto count = static_cast<int64_t>(parts.size());
    if (shape.empty() || shape.front() % count != 0)
      throw Error("weights",
                  fmt::format("'{}' of shape [{}] cannot be split into {} parts", name, fmt::join(shape, ", "), count));
    shape.front() /= count;
    const int64_t size = c10::multiply_integers(shape);
    for (int64_t i = 0; i < count; ++i) {
      std::string own = target;
      if (const size_t at = own.find(kRulePart); at != std::string::npos)
        own.replace(at, kRulePart.size(), parts[static_cast<size_t>(i)]);
      arrive(own, {name, std::make_shared<SlicedTensor>(source, shape, i * size)}, nullptr);
    }
  }

  void arrive(const std::string& target, Arrival arrival, const WeightRule* joined_by) {
    auto& [rule, arrivals] = arrivals_[target];
    if (!arrivals.empty() && (rule == nullptr || rule->match != (joined_by == nullptr ? "" : joined_by->match)))
      throw Error("weights",
                  fmt::format("'{}' and '{}' both become '{}'", arrivals.front().from, arrival.from, target));
    for (const auto& other : arrivals)
      if (other.part == arrival.part)
        throw Error("weights", fmt::format("'{}' and '{}' both become '{}'", other.from, arrival.from, target));
    rule = joined_by;
    arrivals.push_back(std::move(arrival));
  }

  void finish() {
    for (auto& [target, entry] : arrivals_) {
      auto& [rule, arrivals] = entry;
      if (rule == nullptr) {
        result_.tensors.emplace(target, arrivals.front().tensor);
        continue;
      }
      std::sort(arrivals.begin(), arrivals.end(), [](const Arrival& a, const Arrival& b) { return a.part < b.part; });
      result_.tensors.emplace(target, joined(target, *rule, arrivals));
    }
  }

  static Source joined(const std::string& target, const WeightRule& rule, const std::vector<Arrival>& arrivals) {
    std::vector<Source> parts;
    for (const auto& arrival : arrivals) parts.push_back(arrival.tensor);
    if (parts.size() != rule.parts.size())
      throw Error("weights", fmt::format("'{}' needs the parts {}; got {} of them, the first '{}'", target,
                                         join(rule.parts), parts.size(), arrivals.front().from));
    std::vector<int64_t> shape = parts.front()->shape();
    const std::vector<int64_t> inner(shape.empty() ? shape.begin() : shape.begin() + 1, shape.end());
    for (size_t i = 1; i < parts.size(); ++i) {
      const std::vector<int64_t>& other = parts[i]->shape();
      const bool fits = !other.empty() && !shape.empty() && parts[i]->dtype() == parts.front()->dtype() &&
                        std::vector<int64_t>(other.begin() + 1, other.end()) == inner;
      if (!fits)
        throw Error("weights", fmt::format("'{}' cannot be joined: '{}' has shape [{}], '{}' has [{}]", target,
                                           arrivals.front().from, fmt::join(parts.front()->shape(), ", "),
                                           arrivals[i].from, fmt::join(other, ", ")));
      shape.front() += other.front();
    }
    return std::make_shared<JoinedTensor>(shape, std::move(parts));
  }

  const LoadWeightsOptions& options_;
  std::vector<CompiledRule> rules_;
  std::map<std::string, std::pair<const WeightRule*, std::vector<Arrival>>> arrivals_;  ///< by target
  MappedWeights result_;
};

/// Throws levin::Error where a conversion would lose more than digits.
void require_kept_numbers(const std::string& path, const std::string& name, at::ScalarType from, at::ScalarType to) {
  const bool loses_imaginary = c10::isComplexType(from) && !c10::isComplexType(to);
  const bool loses_fraction = c10::isFloatingType(from) && c10::isIntegralType(to, /*includeBool=*/true);
  if (loses_imaginary || loses_fraction)
    throw Error("weights",
                fmt::format("{}: '{}' has numbers that the module's tensor does not hold; got {}; valid: {}; "
                            "hint: convert it in the file, or drop it by a rule",
                            path, name, c10::toString(from), c10::toString(to)));
}

bool has_same_values(const SavedTensor& a, const SavedTensor& b) {
  return a.dtype() == b.dtype() && a.shape() == b.shape() && a.read_whole().equal(b.read_whole());
}

/// "; 'key' says where ...", for weights that may be the wrong ones of a file; else "".
std::string place_hint(const Weights& weights) {
  if (weights.torch_file == nullptr) return "";
  const std::string taken = weights.key == kWholeFile ? "the whole file" : fmt::format("'{}'", weights.key);
  const std::vector<std::string> others = entries_passed_over(weights);
  return fmt::format("; 'key' says where in the file the weights are: {} was taken{}", taken,
                     others.empty() ? "" : fmt::format(", not {}", shown_names(others)));
}

}  // namespace

std::string WeightReport::text() const {
  std::string text = fmt::format("{} loaded", counted(static_cast<int64_t>(loaded.size()), "tensor"));
  if (!dropped.empty()) text += fmt::format(", {} dropped by rules", dropped.size());
  if (!missing.empty()) {
    std::vector<std::string> names;
    for (const auto& name : missing) {
      const std::string nearest = nearest_name(name, left_over);
      names.push_back(nearest.empty() ? name : fmt::format("{} (the file has '{}')", name, nearest));
    }
    text += fmt::format("; {} not in the file: {}", missing.size(), shown_names(names));
  }
  if (!left_over.empty()) text += fmt::format("; {} not in the module: {}", left_over.size(), shown_names(left_over));
  if (!other_shape.empty()) {
    std::vector<std::string> names;
    for (const auto& item : other_shape)
      names.push_back(fmt::format("{} ([{}] in the file, [{}] in the module)", item.name, fmt::join(item.got, ", "),
                                  fmt::join(item.wanted, ", ")));
    text += fmt::format("; {} of another shape: {}", other_shape.size(), shown_names(names));
  }
  if (!untied.empty())
    text += fmt::format("; {} of the file {} other values than the tensor that the module ties to it: {}",
                        untied.size(), untied.size() == 1 ? "has" : "have", shown_names(untied));
  return text;
}

MappedWeights map_weights(const SavedTensors& tensors, const LoadWeightsOptions& options) {
  return Mapper(options).map(tensors);
}

WeightPlan plan_weights(const NamedTensors& module, const std::map<std::string, std::string>& aliases,
                        const LoadWeightsOptions& options) {
  const Weights weights = open_weights(options.path, options.key);
  MappedWeights mapped = map_weights(weights.tensors, options);
  WeightPlan plan;
  WeightReport& report = plan.report;
  report.dropped = std::move(mapped.dropped);
  std::set<const SavedTensor*> used;
  for (const auto& [name, tensor] : module) {
    auto found = mapped.tensors.find(name);
    if (found == mapped.tensors.end()) {
      // A tied tensor that the file holds under its other name.
      for (const auto& [alias, original] : aliases)
        if (original == name && found == mapped.tensors.end()) found = mapped.tensors.find(alias);
    }
    if (found == mapped.tensors.end()) {
      report.missing.push_back(name);
      continue;
    }
    require_kept_numbers(options.path, name, found->second->dtype(), tensor.scalar_type());
    if (at::IntArrayRef(found->second->shape()) == tensor.sizes()) {
      plan.tensors[name] = TensorLeaf{.saved = found->second};
      report.loaded.push_back(name);
    } else {
      report.other_shape.push_back({name, found->second->shape(), tensor.sizes().vec()});
    }
    used.insert(found->second.get());
    mapped.tensors.erase(found);
  }
  // A further name of what was found, on either side, is not left over.
  for (const auto& [name, tensor] : mapped.tensors) {
    if (used.contains(tensor.get())) continue;
    const auto alias = aliases.find(name);
    if (alias == aliases.end()) {
      report.left_over.push_back(name);
      continue;
    }
    const State* const taken = plan.tensors.find(alias->second);
    if (taken != nullptr && !has_same_values(*tensor, *taken->as_leaf().saved)) report.untied.push_back(name);
  }
  if (options.key.empty())
    if (const auto objects = objects_passed_over(weights); !objects.empty())
      log::rank_zero_warning(
          fmt::format("{}: {} {} of a class that is not read as a dict, and {} passed over; '{}' was "
                      "taken; hint: save a plain dict of tensors",
                      options.path, shown_names(objects), objects.size() == 1 ? "is" : "are",
                      objects.size() == 1 ? "was" : "were", weights.key));

  const bool useless = report.loaded.empty() && !module.empty();
  if (!useless && (report.fits() || !options.strict)) return plan;
  throw Error("weights", fmt::format("{} does not fit the module: {}; hint: {}{}", options.path, report.text(),
                                     useless ? "names are changed by rules, strip_prefix and add_prefix"
                                             : "rules change names; strict: false leaves alone what does not fit",
                                     place_hint(weights)));
}

namespace {

/// Throws levin::Error where a conversion has made other numbers of some, and not only cut digits off.
void require_held(const at::Tensor& given, const at::Tensor& taken) {
  const auto fails = [&](const char* what) {
    throw Error("weights",
                fmt::format("a tensor of the file has numbers that the module's type does not hold ({}); got "
                            "{}; valid: {}, where its numbers fit; hint: drop it by a rule, or convert it in "
                            "the file",
                            what, c10::toString(given.scalar_type()), c10::toString(taken.scalar_type())));
  };
  if (c10::isIntegralType(given.scalar_type(), /*includeBool=*/false) &&
      c10::isIntegralType(taken.scalar_type(), /*includeBool=*/true)) {
    // The way back wraps as well where the types differ in their signs alone.
    const auto is_signed = [](const at::Tensor& tensor) {
      return c10::isSignedType(tensor.scalar_type()) && tensor.scalar_type() != at::kBool;
    };
    const at::Tensor* const signed_one = is_signed(given) == is_signed(taken) ? nullptr
                                         : is_signed(given)                   ? &given
                                                                              : &taken;
    const bool has_negative = signed_one != nullptr && signed_one->lt(0).any().item<bool>();
    if (has_negative || !taken.to(given.scalar_type()).equal(given)) fails("whole numbers outside of its range");
    return;
  }
  // Other types have the range of float32 or more.
  const bool has_less_range =
      taken.scalar_type() == at::kHalf || (given.scalar_type() == at::kDouble && taken.scalar_type() != at::kDouble);
  if (has_less_range && c10::isFloatingType(taken.scalar_type()) &&
      at::isinf(taken).logical_and(at::isinf(given).logical_not()).any().item<bool>())
    fails("numbers that become infinite");
}

}  // namespace

void read_into(const SavedTensor& saved, at::Tensor target) {
  if (target.is_contiguous() && saved.dimension_order().empty()) return read_part_into(saved, 0, target);
  const at::NoGradGuard no_grad;
  const c10::InferenceMode ordinary(false);
  const at::Tensor whole = saved.read_whole();
  copy_elements(whole, target);
  if (whole.scalar_type() != target.scalar_type()) require_held(whole, target);
}

void read_part_into(const SavedTensor& saved, int64_t offset, at::Tensor target) {
  const at::NoGradGuard no_grad;
  const c10::InferenceMode ordinary(false);
  const at::Tensor flat = target.view({-1});
  if (flat.numel() == 0) return;
  if (saved.dtype() == flat.scalar_type()) return saved.read(offset, flat);
  const int64_t step = kBufferBytes / static_cast<int64_t>(c10::elementSize(saved.dtype()));
  const at::Tensor buffer = at::empty({std::min(step, flat.numel())}, at::TensorOptions().dtype(saved.dtype()));
  for (int64_t start = 0; start < flat.numel(); start += step) {
    const int64_t count = std::min(step, flat.numel() - start);
    const at::Tensor part = buffer.narrow(0, 0, count);
    saved.read(offset + start, part);
    flat.narrow(0, start, count).copy_(part);
    require_held(part, flat.narrow(0, start, count));
  }
}

}  // namespace levin
