#include <levin/core/interchange/weight_rules.h>

#include <levin/core/base/error.h>

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <optional>
#include <regex>
#include <utility>

namespace levin {
namespace {

std::vector<WeightRule> gpt2_rules() {
  return {{.match = R"((.*)h\.(\d+)\.(attn\.c_attn|attn\.c_proj|mlp\.c_fc|mlp\.c_proj)\.weight)",
           .to = "$1h.$2.$3.weight",
           .transpose = true},
          // Masks that older files hold.
          {.match = R"((.*)h\.(\d+)\.attn\.(bias|masked_bias))", .drop = true}};
}

std::vector<WeightRule> bert_rules() {
  const std::string layer = R"((.*)encoder\.layer\.(\d+)\.)";
  const std::string to = "$1encoder.layers.$2.";
  return {
      {.match = layer + R"(attention\.self\.{part}\.(weight|bias))",
       .to = to + "self_attn.in_proj_$3",
       .parts = {"query", "key", "value"}},
      {.match = layer + R"(attention\.output\.dense\.(weight|bias))", .to = to + "self_attn.out_proj.$3"},
      {.match = layer + R"(attention\.output\.LayerNorm\.(weight|bias))", .to = to + "norm1.$3"},
      {.match = layer + R"(intermediate\.dense\.(weight|bias))", .to = to + "linear1.$3"},
      {.match = layer + R"(output\.dense\.(weight|bias))", .to = to + "linear2.$3"},
      {.match = layer + R"(output\.LayerNorm\.(weight|bias))", .to = to + "norm2.$3"},
      {.match = R"((.*)embeddings\.position_ids)", .drop = true},
  };
}

std::vector<WeightRule> vit_rules() {
  const std::string layer = R"((?:vit\.)?encoder\.layer\.(\d+)\.)";
  const std::string to = "encoder.layers.encoder_layer_$1.";
  return {
      {.match = layer + R"(attention\.attention\.{part}\.(weight|bias))",
       .to = to + "self_attention.in_proj_$2",
       .parts = {"query", "key", "value"}},
      {.match = R"((?:vit\.)?embeddings\.cls_token)", .to = "class_token"},
      {.match = R"((?:vit\.)?embeddings\.position_embeddings)", .to = "encoder.pos_embedding"},
      {.match = R"((?:vit\.)?embeddings\.patch_embeddings\.projection\.(weight|bias))", .to = "conv_proj.$1"},
      {.match = layer + R"(attention\.output\.dense\.(weight|bias))", .to = to + "self_attention.out_proj.$2"},
      {.match = layer + R"(layernorm_before\.(weight|bias))", .to = to + "ln_1.$2"},
      {.match = layer + R"(layernorm_after\.(weight|bias))", .to = to + "ln_2.$2"},
      {.match = layer + R"(intermediate\.dense\.(weight|bias))", .to = to + "mlp.0.$2"},
      {.match = layer + R"(output\.dense\.(weight|bias))", .to = to + "mlp.3.$2"},
      {.match = R"((?:vit\.)?layernorm\.(weight|bias))", .to = "encoder.ln.$1"},
      {.match = R"(classifier\.(weight|bias))", .to = "heads.head.$1"},
  };
}

std::vector<WeightRule> resnet_rules() {
  std::vector<WeightRule> rules{
      {.match = R"((?:resnet\.)?embedder\.embedder\.convolution\.weight)", .to = "conv1.weight"},
      {.match = R"((?:resnet\.)?embedder\.embedder\.normalization\.(\w+))", .to = "bn1.$1"},
      {.match = R"(classifier\.1\.(weight|bias))", .to = "fc.$1"},
  };
  for (int stage = 0; stage < 4; ++stage) {
    const std::string block = fmt::format(R"((?:resnet\.)?encoder\.stages\.{}\.layers\.(\d+)\.)", stage);
    const std::string to = fmt::format("layer{}.$1.", stage + 1);
    for (int layer = 0; layer < 3; ++layer) {
      rules.push_back({.match = fmt::format(R"({}layer\.{}\.convolution\.weight)", block, layer),
                       .to = fmt::format("{}conv{}.weight", to, layer + 1)});
      rules.push_back({.match = fmt::format(R"({}layer\.{}\.normalization\.(\w+))", block, layer),
                       .to = fmt::format("{}bn{}.$2", to, layer + 1)});
    }
    rules.push_back({.match = block + R"(shortcut\.convolution\.weight)", .to = to + "downsample.0.weight"});
    rules.push_back({.match = block + R"(shortcut\.normalization\.(\w+))", .to = to + "downsample.1.$2"});
  }
  return rules;
}

using RuleSet = std::vector<WeightRule> (*)();

const std::map<std::string, RuleSet>& rule_sets() {
  static const std::map<std::string, RuleSet> kSets{
      {"bert", bert_rules}, {"gpt2", gpt2_rules}, {"resnet", resnet_rules}, {"vit", vit_rules}};
  return kSets;
}

std::vector<WeightRule> rules_of_set(const std::string& name) {
  const auto found = rule_sets().find(name);
  if (found == rule_sets().end())
    throw ConfigError(
        fmt::format("unknown weight rules; got '{}'{}", name, valid_names_hint(name, built_in_weight_rules())));
  std::vector<WeightRule> rules = found->second();
  // All models have what the first rule meets, and differ in the rest.
  for (size_t i = 1; i < rules.size(); ++i) rules[i].required = false;
  return rules;
}

size_t count_of(std::string_view text, std::string_view what) {
  size_t count = 0;
  for (size_t at = text.find(what); at != std::string_view::npos; at = text.find(what, at + what.size())) ++count;
  return count;
}

/// A piece of a simple regular expression: text, or a group.
struct Piece {
  bool is_group = false;
  std::string text;  ///< of a group with its parentheses
};

/// The pieces of an expression that is made of text, groups and optional text; nothing for any other.
std::optional<std::vector<Piece>> pieces_of(const std::string& expression) {
  std::vector<Piece> pieces;
  const auto add_text = [&](std::string_view text) {
    if (pieces.empty() || pieces.back().is_group) pieces.push_back({});
    pieces.back().text += text;
  };
  for (size_t i = 0; i < expression.size(); ++i) {
    const std::string_view rest = std::string_view(expression).substr(i);
    const char c = rest.front();
    if (rest.starts_with(kRulePart)) {
      add_text(kRulePart);
      i += kRulePart.size() - 1;
    } else if (c == '\\') {
      if (rest.size() < 2 || std::isalnum(static_cast<unsigned char>(rest[1])) != 0) return {};
      add_text(rest.substr(1, 1));
      ++i;
    } else if (c == '(') {
      size_t end = 1;
      while (end < rest.size() && rest[end] != ')') end += rest[end] == '\\' ? 2 : 1;
      if (end >= rest.size()) return {};
      const std::string group(rest.substr(0, end + 1));
      i += end;
      if (group.starts_with("(?:")) {
        // Optional text is there in what is written.
        const auto inside = pieces_of(group.substr(3, group.size() - 4));
        const bool optional = i + 1 < expression.size() && expression[i + 1] == '?';
        if (!inside || inside->size() != 1 || inside->front().is_group || !optional) return {};
        add_text(inside->front().text);
        ++i;
      } else if (group.find('(', 1) != std::string::npos || group.starts_with("(?")) {
        return {};
      } else {
        pieces.push_back({true, group});
      }
    } else if (std::string_view("^$.*+?[]{}|)").find(c) != std::string_view::npos) {
      return {};
    } else {
      add_text(rest.substr(0, 1));
    }
  }
  return pieces;
}

std::string escaped(std::string_view text) {
  std::string result;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text.substr(i).starts_with(kRulePart)) {
      result += kRulePart;
      i += kRulePart.size() - 1;
      continue;
    }
    if (std::string_view(R"(^$.*+?[]{}|()\)").find(text[i]) != std::string_view::npos) result += '\\';
    result += text[i];
  }
  return result;
}

[[noreturn]] void throw_not_reversible(const WeightRule& rule) {
  throw Error("weights",
              fmt::format("the rule '{}' -> '{}' cannot be turned around; valid: text (with '\\.' for a dot) "
                          "and groups, each of which 'to' names once",
                          rule.match, rule.to));
}

WeightRule reversed_rule(const WeightRule& rule) {
  const auto pieces = pieces_of(rule.match);
  if (!pieces) throw_not_reversible(rule);
  std::vector<std::string> groups;
  for (const auto& piece : *pieces)
    if (piece.is_group) groups.push_back(piece.text);
  WeightRule reversed{.transpose = rule.transpose, .parts = rule.parts, .required = rule.required};
  std::vector<size_t> order;  // of the groups in `to`
  std::string text;
  const auto end_text = [&] { reversed.match += escaped(std::exchange(text, {})); };
  for (size_t i = 0; i < rule.to.size(); ++i) {
    const bool is_reference =
        rule.to[i] == '$' && i + 1 < rule.to.size() && std::isdigit(static_cast<unsigned char>(rule.to[i + 1])) != 0;
    if (!is_reference) {
      text += rule.to[i];
      continue;
    }
    const auto group = static_cast<size_t>(rule.to[++i] - '0');
    if (group < 1 || group > groups.size() || std::find(order.begin(), order.end(), group) != order.end())
      throw_not_reversible(rule);
    order.push_back(group);
    end_text();
    reversed.match += groups[group - 1];
  }
  end_text();
  if (order.size() != groups.size()) throw_not_reversible(rule);
  size_t group = 0;
  for (const auto& piece : *pieces) {
    if (!piece.is_group) {
      reversed.to += piece.text;
      continue;
    }
    const auto place = std::find(order.begin(), order.end(), ++group) - order.begin() + 1;
    reversed.to += fmt::format("${}", place);
  }
  return reversed;
}

}  // namespace

void WeightRule::describe(Schema<WeightRule>& schema) {
  schema.field("match", &WeightRule::match, "a regular expression that a whole name of the file meets");
  schema.field("to", &WeightRule::to, "the module's name; $1 is what the first group met");
  schema.field("transpose", &WeightRule::transpose, "swap the dimensions of a matrix; vectors stay");
  schema.field(
      "parts", &WeightRule::parts,
      "what stands for {part}: in match, tensors that are joined in this order along their first dimension; in "
      "to, those that one is split into");
  schema.field("drop", &WeightRule::drop, "the tensor is not needed");
  schema.field("required", &WeightRule::required, "a name must meet it");
}

void check_weight_rule(const WeightRule& rule, const std::string& place) {
  const auto fail = [&](const std::string& what) { throw ConfigError(fmt::format("{}: {}", place, what)); };
  if (rule.match.empty()) fail("a rule needs 'match', a regular expression");
  if (rule.drop != rule.to.empty())
    fail(rule.drop ? "a rule that drops has no 'to'" : "a rule needs 'to', or drop: true");
  const size_t marks = count_of(rule.match, kRulePart) + count_of(rule.to, kRulePart);
  if (marks != (rule.parts.empty() ? 0U : 1U))
    fail(
        fmt::format("'parts' and '{}' go together; got {} parts and the mark {} times; valid: once, in 'match' to join "
                    "or in 'to' to split",
                    kRulePart, rule.parts.size(), marks));
  if (rule.parts.size() == 1) fail("'parts' has one part; valid: at least two");
  std::string expression = rule.match;
  if (const size_t at = expression.find(kRulePart); at != std::string::npos)
    expression.replace(at, kRulePart.size(), "x");
  try {
    const std::regex compiled(expression);
    for (size_t i = 0; i + 1 < rule.to.size(); ++i)
      if (rule.to[i] == '$' && std::isdigit(static_cast<unsigned char>(rule.to[i + 1])) != 0 &&
          static_cast<size_t>(rule.to[i + 1] - '0') > compiled.mark_count())
        fail(fmt::format("'to' names a group that 'match' lacks; got '{}'; valid: up to ${}", rule.to,
                         compiled.mark_count()));
  } catch (const std::regex_error& error) {
    fail(fmt::format("'match' is no regular expression; got '{}' ({})", rule.match, error.what()));
  }
}

std::vector<std::string> built_in_weight_rules() {
  std::vector<std::string> names;
  for (const auto& [name, rules] : rule_sets()) names.push_back(name);
  return names;
}

WeightRules::WeightRules(std::vector<WeightRule> rules) : rules_(std::move(rules)) {
  for (size_t i = 0; i < rules_.size(); ++i) check_weight_rule(rules_[i], fmt::format("rules[{}]", i));
}

WeightRules::WeightRules(const char* built_in) : rules_(rules_of_set(built_in)) {}

void WeightRules::add(const WeightRules& more) { rules_.insert(rules_.end(), more.rules_.begin(), more.rules_.end()); }

WeightRules WeightRules::reversed() const {
  WeightRules result;
  for (const auto& rule : rules_)
    if (!rule.drop) result.rules_.push_back(reversed_rule(rule));
  return result;
}

WeightRules ConfigCodec<WeightRules>::parse(const Config& node, const std::string& path) {
  const auto named = [&](const Config& name) {
    try {
      return WeightRules(name.text().c_str());
    } catch (const ConfigError&) {
      throw ConfigError(fmt::format("{}: unknown rules; got '{}'{}", path, name.text(),
                                    valid_names_hint(name.text(), built_in_weight_rules())));
    }
  };
  if (node.is_null()) return {};
  if (node.is_scalar()) return named(node);
  if (!node.is_sequence()) throw_wrong_type(node, path, type_name());
  WeightRules rules;
  for (size_t i = 0; i < node.items().size(); ++i) {
    const Config& item = node.items()[i];
    if (item.is_scalar()) {
      rules.add(named(item));
      continue;
    }
    const std::string place = fmt::format("{}[{}]", path, i);
    const auto rule = parse_options<WeightRule>(item, place);
    check_weight_rule(rule, place);
    rules.add(std::vector<WeightRule>{rule});
  }
  return rules;
}

Config ConfigCodec<WeightRules>::dump(const WeightRules& value) {
  Config list = Config::sequence();
  for (const auto& rule : value.rules()) list.push_back(schema_of<WeightRule>().dump(rule));
  return list;
}

void LoadWeightsOptions::describe(Schema<LoadWeightsOptions>& schema) {
  using O = LoadWeightsOptions;
  schema.field("path", &O::path, "a file or folder that Levin, PyTorch, Lightning or Hugging Face wrote");
  schema.field("key", &O::key,
               "where a torch.save file holds the weights, as in ema.state_dict; empty: found by itself");
  schema.field("rules", &O::rules, "how names and shapes are changed: rules, or bert, gpt2, resnet, vit");
  schema.field("strip_prefix", &O::strip_prefix, "taken off names before the rules");
  schema.field("add_prefix", &O::add_prefix, "put in front of names after the rules");
  schema.field("strict", &O::strict, "every tensor must fit; false: those that do not are reported and left alone");
}

LoadWeightsOptions ConfigCodec<LoadWeightsOptions>::parse(const Config& node, const std::string& path) {
  if (node.is_null()) return {};
  if (node.is_scalar()) return {.path = node.text()};
  if (!node.is_mapping()) throw_wrong_type(node, path, type_name());
  auto options = parse_options<LoadWeightsOptions>(node, path);
  if (options.path.empty()) throw_wrong_type(node, path, "a path, or a mapping that has one as 'path'");
  return options;
}

Config ConfigCodec<LoadWeightsOptions>::dump(const LoadWeightsOptions& value) {
  const bool is_path = value.key.empty() && value.rules.empty() && value.strip_prefix.empty() &&
                       value.add_prefix.empty() && value.strict;
  if (value.path.empty()) return Config::null();
  return is_path ? Config::scalar(value.path, /*quoted=*/true) : schema_of<LoadWeightsOptions>().dump(value);
}

}  // namespace levin
