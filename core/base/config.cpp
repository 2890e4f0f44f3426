#include <levin/core/base/config.h>

#include <levin/core/base/error.h>

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace levin {
namespace {

Origin origin_of(const YAML::Mark& mark, const Origin& base, bool fixed_origin) {
  if (fixed_origin || mark.is_null()) return base;
  return {base.source, mark.line + 1, mark.column + 1};
}

Config from_yaml(const YAML::Node& node, const Origin& base, bool fixed_origin) {
  const Origin origin = origin_of(node.Mark(), base, fixed_origin);
  switch (node.Type()) {
    case YAML::NodeType::Scalar:
      return Config::scalar(node.Scalar(), node.Tag() == "!", origin);
    case YAML::NodeType::Sequence: {
      std::vector<Config> items;
      for (const auto& item : node) items.push_back(from_yaml(item, base, fixed_origin));
      return Config::sequence(std::move(items), origin);
    }
    case YAML::NodeType::Map: {
      Config mapping = Config::mapping(origin);
      for (const auto& pair : node) {
        const std::string key = pair.first.Scalar();
        const Origin key_origin = origin_of(pair.first.Mark(), base, fixed_origin);
        if (mapping.find(key) != nullptr)
          throw ConfigError(fmt::format("{}: the key '{}' is given twice", key_origin.describe(), key));
        mapping.set(key, from_yaml(pair.second, base, fixed_origin), key_origin);
      }
      return mapping;
    }
    default:
      return Config::null(origin);
  }
}

void emit(YAML::Emitter& out, const Config& node) {
  switch (node.kind()) {
    case Config::Kind::kNull:
      out << YAML::Null;
      break;
    case Config::Kind::kScalar:
      if (node.quoted()) out << YAML::DoubleQuoted;
      out << node.text();
      break;
    case Config::Kind::kSequence:
      out << YAML::BeginSeq;
      for (const auto& item : node.items()) emit(out, item);
      out << YAML::EndSeq;
      break;
    case Config::Kind::kMapping:
      out << YAML::BeginMap;
      for (const auto& entry : node.entries()) {
        out << YAML::Key << entry.key << YAML::Value;
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
  try {
    return from_yaml(YAML::Load(yaml), origin, fixed_origin);
  } catch (const YAML::Exception& error) {
    throw ConfigError(
        fmt::format("{}: not YAML: {}", origin_of(error.mark, origin, fixed_origin).describe(), error.msg));
  }
}

Config Config::load(const std::string& path) {
  std::error_code ignored;
  std::ifstream file(path);
  if (!file || std::filesystem::is_directory(path, ignored))
    throw ConfigError(fmt::format("cannot read the configuration file '{}'; hint: the path is relative to '{}'", path,
                                  std::filesystem::current_path(ignored).string()));
  std::stringstream text;
  text << file.rdbuf();
  return parse(text.str(), {.source = path});
}

const Config* Config::find(std::string_view key) const {
  for (const auto& entry : entries_)
    if (entry.key == key) return &entry.value;
  return nullptr;
}

Config* Config::find(std::string_view key) { return const_cast<Config*>(std::as_const(*this).find(key)); }

Config& Config::operator[](std::string_view key) {
  if (Config* found = find(key)) return *found;
  if (is_null()) kind_ = Kind::kMapping;
  LEVIN_CHECK(is_mapping(), "a key of a node that is no mapping");
  entries_.push_back({std::string(key), {}, Config()});
  return entries_.back().value;
}

void Config::set(std::string_view key, Config value, Origin key_origin) {
  (*this)[key] = std::move(value);
  const auto entry = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& item) { return item.key == key; });
  entry->origin = std::move(key_origin);
}

void Config::erase(std::string_view key) {
  std::erase_if(entries_, [&](const Entry& entry) { return entry.key == key; });
}

void Config::push_back(Config item) {
  if (is_null()) kind_ = Kind::kSequence;
  LEVIN_CHECK(is_sequence(), "an item of a node that is no sequence");
  items_.push_back(std::move(item));
}

void Config::set_path(std::string_view dotted_path, Config value) {
  const size_t dot = dotted_path.find('.');
  const Origin origin = value.origin();
  if (is_scalar() || is_null()) {
    const Config name = *this;
    *this = mapping(origin);
    if (name.is_scalar()) set("name", name, name.origin());
  }
  if (!is_mapping())
    throw ConfigError(fmt::format("{}: cannot set '{}' inside {}", origin.describe(), dotted_path, describe()));
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
  for (const auto& entry : later.entries_) {
    if (Config* mine = find(entry.key))
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
      return fmt::format("'{}'", text_);
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
  return kind_ == other.kind_ && text_ == other.text_ && quoted_ == other.quoted_ && items_ == other.items_ &&
         entries_ == other.entries_;
}

}  // namespace levin
