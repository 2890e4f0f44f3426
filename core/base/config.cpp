#include <levin/core/base/config.h>

#include <levin/core/base/error.h>
#include <levin/core/base/utf8.h>
#include <levin/core/base/yaml_reader.h>

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <filesystem>
#include <fstream>

namespace levin {
namespace {

/// How much of a value or of its origin a message shows.
constexpr size_t kMostShown = 200;

/// Of what two sources gave together; the second alone where the words would get long.
Origin joined(const Origin& first, const Origin& second) {
  constexpr size_t kLongest = 300;
  if (first == second || second.source.empty()) return first;
  if (first.source.empty()) return second;
  std::string both = first.describe() + " and " + second.describe();
  return both.size() > kLongest ? second : Origin{std::move(both)};
}

/// yaml-cpp writes a carriage return as it is, and a line end that follows makes it one when it is read again.
void emit_text(YAML::Emitter& out, const std::string& text, bool quoted) {
  if (quoted || text.find('\r') != std::string::npos) out << YAML::DoubleQuoted;
  out << text;
}

void emit(YAML::Emitter& out, const Config& node) {
  switch (node.kind()) {
    case Config::Kind::kNull:
      out << YAML::Null;
      break;
    case Config::Kind::kScalar:
      emit_text(out, node.text(), node.quoted());
      break;
    case Config::Kind::kSequence:
      out << YAML::BeginSeq;
      for (const auto& item : node.items()) emit(out, item);
      out << YAML::EndSeq;
      break;
    case Config::Kind::kMapping:
      out << YAML::BeginMap;
      for (const auto& entry : node.entries()) {
        out << YAML::Key;
        emit_text(out, entry.key, /*quoted=*/false);
        out << YAML::Value;
        emit(out, entry.value);
      }
      out << YAML::EndMap;
      break;
  }
}

void write_with_origins(const Config& node, size_t indent, std::string& out);

void write_leaf(const std::string& start, const Config& value, std::string& out) {
  const std::string line = start + value.to_flow();
  out += fmt::format("{:<50}  # {}\n", line, value.origin().describe());
}

bool has_mappings(const Config& list) {
  return std::any_of(list.items().begin(), list.items().end(), [](const Config& item) { return item.is_mapping(); });
}

/// A list of which some members are mappings, one member after the other.
void write_members_with_origins(const Config& list, size_t indent, std::string& out) {
  const std::string lead(indent, ' ');
  for (const auto& item : list.items()) {
    if (!item.is_mapping() || item.entries().empty()) {
      write_leaf(lead + "- ", item, out);
      continue;
    }
    const size_t dash = out.size() + indent;
    write_with_origins(item, indent + 2, out);
    out[dash] = '-';
  }
}

/// One line a leaf, with a comment that says where its value was written.
void write_with_origins(const Config& node, size_t indent, std::string& out) {
  for (const auto& entry : node.entries()) {
    const std::string start = std::string(indent, ' ') + Config::scalar(entry.key).to_flow() + ":";
    if (entry.value.is_mapping() && !entry.value.entries().empty()) {
      out += start + "\n";
      write_with_origins(entry.value, indent + 2, out);
    } else if (has_mappings(entry.value)) {
      out += start + "\n";
      write_members_with_origins(entry.value, indent + 2, out);
    } else {
      write_leaf(start + " ", entry.value, out);
    }
  }
}

}  // namespace

std::string Origin::describe() const {
  if (source.empty()) return "default";
  return line > 0 ? fmt::format("{}:{}:{}", source, line, column) : source;
}

Config::Config() = default;
Config::Config(const Config&) = default;
Config::Config(Config&&) noexcept = default;
Config& Config::operator=(const Config&) = default;
Config& Config::operator=(Config&&) noexcept = default;
Config::~Config() = default;

Config Config::null(Origin origin) {
  Config node;
  node.origin_ = std::move(origin);
  return node;
}

Config Config::scalar(std::string text, bool quoted, Origin origin) {
  Config node = null(std::move(origin));
  node.kind_ = Kind::kScalar;
  node.text_ = std::move(text);
  node.quoted_ = quoted;
  return node;
}

Config Config::sequence(std::vector<Config> items, Origin origin) {
  Config node = null(std::move(origin));
  node.kind_ = Kind::kSequence;
  node.items_ = std::move(items);
  return node;
}

Config Config::mapping(Origin origin) {
  Config node = null(std::move(origin));
  node.kind_ = Kind::kMapping;
  return node;
}

Config Config::parse(const std::string& yaml, const Origin& origin, bool fixed_origin) {
  Config tree = read_yaml(yaml, origin, fixed_origin);
  // A list or mapping of a command line keeps its text, for an option that is text itself.
  if (fixed_origin && (tree.is_sequence() || tree.is_mapping())) tree.text_ = yaml;
  return tree;
}

Config Config::load(const std::string& path) {
  std::error_code ignored;
  const auto status = std::filesystem::status(path, ignored);
  if (exists(status) && !is_regular_file(status) && !is_directory(status))
    throw ConfigError(fmt::format("{} is a pipe or a device; valid: a configuration file", path));
  std::ifstream file(path);
  if (is_directory(status)) throw ConfigError(fmt::format("'{}' is a folder; valid: a configuration file", path));
  if (!file) {
    std::string hint;
    if (std::filesystem::path(path).is_relative())
      hint = fmt::format("; hint: the path is relative to '{}'", std::filesystem::current_path(ignored).string());
    throw ConfigError(fmt::format("cannot read the configuration file '{}'{}", path, hint));
  }
  std::string text;
  std::array<char, 1 << 12> block;
  while (text.size() <= kMaxBytes && (file.read(block.data(), block.size()), file.gcount() > 0))
    text.append(block.data(), static_cast<size_t>(file.gcount()));
  if (text.size() > kMaxBytes)
    throw ConfigError(
        fmt::format("{} is too large for a configuration file; valid: at most {} MiB", path, kMaxBytes >> 20));
  return parse(text, {.source = path});
}

const Config* Config::find(std::string_view key) const {
  const auto found = index_.find(key);
  return found == index_.end() ? nullptr : &entries_[found->second].value;
}

const Config* Config::find_path(std::string_view path) const {
  const size_t dot = path.find('.');
  const Config* const node = find(path.substr(0, dot));
  return node == nullptr || dot == std::string_view::npos ? node : node->find_path(path.substr(dot + 1));
}

Config* Config::find(std::string_view key) { return const_cast<Config*>(std::as_const(*this).find(key)); }

Config& Config::operator[](std::string_view key) {
  if (Config* found = find(key)) return *found;
  if (is_null()) kind_ = Kind::kMapping;
  LEVIN_CHECK(is_mapping(), "a key of a node that is no mapping");
  text_.clear();
  index_.emplace(key, entries_.size());
  entries_.push_back({std::string(key), {}, Config()});
  return entries_.back().value;
}

void Config::set(std::string_view key, Config value, Origin key_origin) {
  if (is_mapping()) text_.clear();
  (*this)[key] = std::move(value);
  entries_[index_.find(key)->second].origin = std::move(key_origin);
}

void Config::erase(std::string_view key) {
  const auto found = index_.find(key);
  if (found == index_.end()) return;
  text_.clear();
  const size_t place = found->second;
  index_.erase(found);
  entries_.erase(entries_.begin() + static_cast<std::ptrdiff_t>(place));
  for (auto& [name, index] : index_)
    if (index > place) --index;
}

void Config::push_back(Config item) {
  if (is_null()) kind_ = Kind::kSequence;
  LEVIN_CHECK(is_sequence(), "an item of a node that is no sequence");
  text_.clear();
  items_.push_back(std::move(item));
}

void Config::set_path(std::string_view dotted_path, Config value) {
  const Origin origin = value.origin();
  const auto keys = 1 + static_cast<size_t>(std::count(dotted_path.begin(), dotted_path.end(), '.'));
  if (keys > kMaxDepth)
    throw ConfigError(fmt::format("{}: a path of {} keys; valid: at most {}", shown_text(origin.describe(), kMostShown),
                                  keys, kMaxDepth));
  const size_t dot = dotted_path.find('.');
  if (is_scalar() || is_null()) {
    const Config name = *this;
    *this = mapping(origin);
    if (name.is_scalar()) set("name", name, name.origin());
  }
  if (!is_mapping())
    throw ConfigError(fmt::format("{}: cannot set '{}' inside {}", origin.describe(), dotted_path, describe()));
  text_.clear();
  if (dot == std::string_view::npos) {
    set(dotted_path, std::move(value), origin);
    return;
  }
  const std::string_view key = dotted_path.substr(0, dot);
  if (find(key) == nullptr) set(key, Config::mapping(origin), origin);
  find(key)->set_path(dotted_path.substr(dot + 1), std::move(value));
}

void Config::merge(const Config& later) {
  if (!is_mapping() || !later.is_mapping()) {
    *this = later;
    return;
  }
  origin_ = joined(origin_, later.origin_);
  text_.clear();
  for (const auto& entry : later.entries_) {
    Config* mine = find(entry.key);
    if (mine != nullptr && mine->is_mapping() && entry.value.is_mapping())
      mine->merge(entry.value);
    else
      set(entry.key, entry.value, entry.origin);
  }
}

std::string Config::describe() const {
  switch (kind_) {
    case Kind::kNull:
      return "null";
    case Kind::kScalar:
      return fmt::format("'{}'", shown_text(text_, kMostShown));
    case Kind::kSequence:
      return "a list";
    case Kind::kMapping:
      return "a mapping";
  }
  return "";
}

std::string Config::to_yaml(bool with_origins) const {
  if (with_origins && is_mapping()) {
    std::string out;
    write_with_origins(*this, 0, out);
    return out;
  }
  YAML::Emitter out;
  out.SetNullFormat(YAML::LowerNull);
  emit(out, *this);
  return std::string(out.c_str()) + "\n";
}

std::string Config::to_flow() const {
  YAML::Emitter out;
  out.SetNullFormat(YAML::LowerNull);
  out.SetMapFormat(YAML::Flow);
  out.SetSeqFormat(YAML::Flow);
  emit(out, *this);
  // The emitter breaks long flow lines; a flow value means the same on one line.
  std::string text = out.c_str();
  std::string line;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\n') {
      line += text[i];
      continue;
    }
    while (i + 1 < text.size() && text[i + 1] == ' ') ++i;
    if (!line.empty() && line.back() != ' ' && line.back() != '[' && line.back() != '{') line += ' ';
  }
  return line;
}

bool Config::operator==(const Config& other) const {
  return kind_ == other.kind_ && (!is_scalar() || text_ == other.text_) && quoted_ == other.quoted_ &&
         items_ == other.items_ && entries_ == other.entries_;
}

}  // namespace levin
