#include <levin/core/base/yaml_reader.h>

#include <levin/core/base/error.h>
#include <levin/core/base/utf8.h>

#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <map>
#include <optional>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

namespace levin {
namespace {

/// How much a tree holds.
struct TreeSize {
  size_t values = 0;
  size_t bytes = 0;  ///< of keys and scalars
  size_t depth = 0;  ///< of lists and mappings inside each other
};

TreeSize size_of_tree(const Config& node) {
  TreeSize size{.values = 1, .bytes = node.text().size(), .depth = 0};
  const auto count = [&](const Config& child) {
    const TreeSize below = size_of_tree(child);
    size.values += below.values;
    size.bytes += below.bytes;
    size.depth = std::max(size.depth, below.depth);
  };
  for (const auto& item : node.items()) count(item);
  for (const auto& entry : node.entries()) {
    size.bytes += entry.key.size();
    count(entry.value);
  }
  if (node.is_sequence() || node.is_mapping()) ++size.depth;
  return size;
}

/// Makes a tree of what the parser reads. An alias becomes a copy of what it stands for, within the bounds of a Config.
class TreeBuilder final : public YAML::EventHandler {
 public:
  TreeBuilder(const Origin& base, bool fixed_origin)
      : base_(base), fixed_origin_(fixed_origin), tree_(Config::null(base)) {}

  Config take_tree() { return std::move(tree_); }

  Origin origin_at(const YAML::Mark& mark) const {
    if (fixed_origin_ || mark.is_null()) return base_;
    return {base_.source, mark.line + 1, mark.column + 1};
  }

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (++documents_ > 1) fail(mark, "a second document begins here; valid: one document");
  }
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    add(mark, Config::null(origin_at(mark)), anchor);
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    // It could not be written again: YAML is Unicode.
    if (!is_utf8(value)) fail(mark, "this text is not UTF-8; hint: save the file, or name what it names, in UTF-8");
    add(mark, Config::scalar(value, /*quoted=*/tag == "!", origin_at(mark)), anchor);
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    const auto found = anchored_.find(anchor);
    if (found == anchored_.end()) fail(mark, "an alias stands for what it is a part of");
    const auto& [tree, size] = found->second;
    if (unfinished_.size() + size.depth > Config::kMaxDepth) fail_too_deep(mark);
    count(mark, size);
    place(mark, tree);
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& /*tag*/, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value /*style*/) override {
    open(mark, Config::sequence({}, origin_at(mark)), anchor);
  }
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& /*tag*/, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value /*style*/) override {
    open(mark, Config::mapping(origin_at(mark)), anchor);
  }
  void OnMapEnd() override { close(); }

 private:
  /// A list or mapping whose end has not been read.
  struct Unfinished {
    Config node;
    YAML::Mark mark;
    YAML::anchor_t anchor;
    std::optional<Config> key = {};  ///< of a mapping: that of the value that comes next
  };

  struct Anchored {
    Config tree;
    TreeSize size;
  };

  [[noreturn]] void fail(const YAML::Mark& mark, const std::string& problem) const {
    throw ConfigError(fmt::format("{}: {}", origin_at(mark).describe(), problem));
  }

  [[noreturn]] void fail_too_deep(const YAML::Mark& mark) const {
    fail(mark,
         fmt::format("lists and mappings lie too deep inside each other; valid: at most {} levels", Config::kMaxDepth));
  }

  void open(const YAML::Mark& mark, Config node, YAML::anchor_t anchor) {
    if (unfinished_.size() == Config::kMaxDepth) fail_too_deep(mark);
    unfinished_.push_back({.node = std::move(node), .mark = mark, .anchor = anchor});
  }

  void close() {
    Unfinished finished = std::move(unfinished_.back());
    unfinished_.pop_back();
    add(finished.mark, std::move(finished.node), finished.anchor);
  }

  /// Called before values are made, so that those beyond the bounds never are.
  void count(const YAML::Mark& mark, const TreeSize& size) {
    values_ += size.values;
    bytes_ += size.bytes;
    if (values_ > Config::kMaxValues || bytes_ > Config::kMaxBytes)
      fail(mark, fmt::format("more than a configuration may hold; valid: at most {} values and {} MiB of text, where "
                             "an alias counts as all that it stands for",
                             Config::kMaxValues, Config::kMaxBytes >> 20));
  }

  /// Takes a whole node; what is inside it has been counted.
  void add(const YAML::Mark& mark, Config node, YAML::anchor_t anchor) {
    count(mark, {.values = key_is_next() ? size_t{0} : size_t{1}, .bytes = node.text().size()});
    if (anchor != YAML::NullAnchor) {
      const TreeSize size = size_of_tree(node);
      count(mark, size);
      anchored_.emplace(anchor, Anchored{node, size});
    }
    place(mark, std::move(node));
  }

  bool key_is_next() const {
    return !unfinished_.empty() && unfinished_.back().node.is_mapping() && !unfinished_.back().key;
  }

  void place(const YAML::Mark& mark, Config node) {
    if (unfinished_.empty()) {
      tree_ = std::move(node);
      return;
    }
    Unfinished& parent = unfinished_.back();
    if (parent.node.is_sequence()) {
      parent.node.push_back(std::move(node));
    } else if (key_is_next()) {
      if (!node.is_scalar()) fail(mark, fmt::format("a key must be text; got {}", node.describe()));
      if (parent.node.find(node.text()) != nullptr)
        fail(mark, fmt::format("the key {} is given twice", node.describe()));
      parent.key = std::move(node);
    } else {
      parent.node.set(parent.key->text(), std::move(node), parent.key->origin());
      parent.key.reset();
    }
  }

  const Origin& base_;
  bool fixed_origin_;
  int documents_ = 0;
  Config tree_;
  std::vector<Unfinished> unfinished_;  ///< from the outermost to the innermost
  std::map<YAML::anchor_t, Anchored> anchored_;
  size_t values_ = 0;
  size_t bytes_ = 0;
};

}  // namespace

Config read_yaml(const std::string& text, const Origin& origin, bool fixed_origin) {
  TreeBuilder builder(origin, fixed_origin);
  try {
    std::istringstream stream(text);
    YAML::Parser parser(stream);
    while (parser.HandleNextDocument(builder)) {
    }
  } catch (const YAML::Exception& error) {
    throw ConfigError(fmt::format("{}: not YAML: {}", builder.origin_at(error.mark).describe(), error.msg));
  }
  return builder.take_tree();
}

void refuse_broken_yaml(const Config& node) {
  for (const Config& item : node.items()) refuse_broken_yaml(item);
  for (const auto& entry : node.entries()) refuse_broken_yaml(entry.value);
  const std::string& source = node.origin().source;
  if (!source.starts_with("command line") && !source.starts_with("LEVIN_")) return;
  if (!node.is_scalar() || node.quoted() || node.text().empty()) return;
  if (std::string_view("[{\"'").find(node.text().front()) != std::string_view::npos)
    read_yaml(node.text(), node.origin(), /*fixed_origin=*/true);
}

}  // namespace levin
