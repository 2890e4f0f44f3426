#pragma once

#include <levin/core/base/schema.h>

#include <string>
#include <string_view>
#include <vector>

namespace levin {

/// Stands for each of WeightRule::parts.
inline constexpr std::string_view kRulePart = "{part}";

/// Says how tensors of a file come to the names and shapes that a module gives them.
struct WeightRule {
  std::string match = {};               ///< a regular expression (ECMAScript) that a whole name meets
  std::string to = {};                  ///< the module's name; $1 is what the first group met
  bool transpose = false;               ///< swaps the dimensions of a matrix; vectors stay
  std::vector<std::string> parts = {};  ///< what stands for `{part}` in `match` (joined) or in `to` (split)
  bool drop = false;                    ///< the tensor is not needed
  bool required = true;                 ///< false: may meet no name

  static void describe(Schema<WeightRule>& schema);
};

/// A list of rules. In YAML a list whose items are rules or names of built-in sets, or one such name.
class WeightRules {
 public:
  WeightRules() = default;
  WeightRules(std::vector<WeightRule> rules);  // NOLINT(google-explicit-constructor)
  /// Takes a built-in set: see built_in_weight_rules. Throws ConfigError for a name that none has.
  WeightRules(const char* built_in);  // NOLINT(google-explicit-constructor)

  const std::vector<WeightRule>& rules() const { return rules_; }
  bool empty() const { return rules_.empty(); }
  void add(const WeightRules& more);

  /// Returns the rules that lead from the module's names back to those of the file. Throws levin::Error for a rule that
  /// cannot be turned around: one that drops, or whose `match` is more than text and groups that `to` names once each.
  WeightRules reversed() const;

 private:
  std::vector<WeightRule> rules_;
};

/// Returns the names of the built-in sets. Each leads from the names in Hugging Face's files of a model to those of a
/// module in C++: `gpt2` (linear layers instead of transposed ones), `bert` (encoder layers as
/// torch::nn::TransformerEncoderLayer has them), `vit` (torchvision's names), `resnet` (torchvision's and timm's).
std::vector<std::string> built_in_weight_rules();

/// Throws ConfigError for a rule that says nothing or contradicts itself; `place` names it.
void check_weight_rule(const WeightRule& rule, const std::string& place);

template <>
struct ConfigCodec<WeightRules> {
  static std::string type_name() { return "name of built-in rules, or list of rules"; }
  static WeightRules parse(const Config& node, const std::string& path);
  static Config dump(const WeightRules& value);
};

/// Where weights come from and how they fit: the option `init_from`, and what load_weights takes. In YAML a path, or a
/// mapping.
struct LoadWeightsOptions {
  std::string path = {};          ///< a file or folder; see open_weights
  std::string key = {};           ///< of the weights in a torch.save file; empty: found by itself
  WeightRules rules = {};         ///< a name that no rule meets stays as it is
  std::string strip_prefix = {};  ///< taken off names before the rules
  std::string add_prefix = {};    ///< put in front of names after the rules
  bool strict = true;             ///< false: tensors that do not fit are left as they were

  static void describe(Schema<LoadWeightsOptions>& schema);
};

template <>
struct ConfigCodec<LoadWeightsOptions> {
  static std::string type_name() { return "path, or mapping"; }
  static LoadWeightsOptions parse(const Config& node, const std::string& path);
  static Config dump(const LoadWeightsOptions& value);
};

}  // namespace levin
