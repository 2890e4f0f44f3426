#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace levin {

/// Place in which a configuration value was written.
struct Origin {
  std::string source = {};  ///< a file's path, "command line", "default", "code"
  int line = 0;             ///< 1-based; 0 when the source has no lines
  int column = 0;           ///< 1-based

  /// Returns "mlp.yaml:3:5", or the source alone where it has no lines.
  std::string describe() const;
  /// Returns the same and ": ", as messages begin; nothing where there is no source.
  std::string prefix() const { return source.empty() ? "" : describe() + ": "; }
  bool operator==(const Origin& other) const = default;
};

/// A configuration tree in the shape of YAML, in which every node remembers where it was written.
class Config {
 public:
  // Limits of a configuration, since a small file whose aliases repeat each other would fill the memory.
  static constexpr size_t kMaxDepth = 100;               ///< mappings and lists inside each other
  static constexpr size_t kMaxValues = 200'000;          ///< values in a file, each alias counted as what it stands for
  static constexpr size_t kMaxBytes = size_t{16} << 20;  ///< size of a file, and of the text of all its values

  enum class Kind { kNull, kScalar, kSequence, kMapping };
  struct Entry;

  // Defined in the source: Entry is not complete here.
  Config();
  Config(const Config&);
  Config(Config&&) noexcept;
  Config& operator=(const Config&);
  Config& operator=(Config&&) noexcept;
  ~Config();

  static Config null(Origin origin = {});
  /// Makes a scalar. `quoted`: the text was in quotation marks and is therefore a string, even "3".
  static Config scalar(std::string text, bool quoted = false, Origin origin = {});
  static Config sequence(std::vector<Config> items = {}, Origin origin = {});
  static Config mapping(Origin origin = {});

  /// Parses one YAML document (block or flow style). Throws ConfigError with source, line and column, also for a
  /// document beyond the bounds above. `fixed_origin`: every node gets `origin` as it is (for text from a command line,
  /// whose lines mean nothing to the user).
  static Config parse(const std::string& yaml, const Origin& origin, bool fixed_origin = false);
  /// Throws ConfigError when the file cannot be read or is not YAML.
  static Config load(const std::string& path);

  Kind kind() const { return kind_; }
  bool is_null() const { return kind_ == Kind::kNull; }
  bool is_scalar() const { return kind_ == Kind::kScalar; }
  bool is_sequence() const { return kind_ == Kind::kSequence; }
  bool is_mapping() const { return kind_ == Kind::kMapping; }
  const Origin& origin() const { return origin_; }

  /// Returns the text of a scalar, and that which a command line or a variable gave for a list or a mapping.
  const std::string& text() const { return text_; }
  bool quoted() const { return quoted_; }
  const std::vector<Config>& items() const { return items_; }
  const std::vector<Entry>& entries() const { return entries_; }

  /// Returns the value of a key of this mapping, or nullptr.
  const Config* find(std::string_view key) const;
  Config* find(std::string_view key);
  /// Returns the value at a dotted path through mappings, or nullptr.
  const Config* find_path(std::string_view path) const;
  /// Returns the value of a key; adds a null one where there is none, and turns a null node into a mapping.
  Config& operator[](std::string_view key);
  void set(std::string_view key, Config value, Origin key_origin = {});
  void erase(std::string_view key);
  void push_back(Config item);

  /// Sets the value at a dotted path such as "trainer.max_epochs", making mappings on the way. A scalar on the way is a
  /// name in short form (`strategy: ddp`) and becomes `{name: ddp}`. Throws ConfigError for more than kMaxDepth keys.
  void set_path(std::string_view dotted_path, Config value);

  /// Lays `later` over this tree: mappings merge key by key, everything else is replaced. Each value has the origin of
  /// the source that gave it, a mapping to which both gave something the origins of both.
  void merge(const Config& later);

  /// Describes the node for messages: its kind, and a scalar's text, shortened where it is long.
  std::string describe() const;

  /// Returns YAML text; `with_origins` adds to each line a comment with the origin of its value.
  std::string to_yaml(bool with_origins = false) const;
  /// Returns one line of YAML in flow style.
  std::string to_flow() const;

  /// Compares trees, not origins.
  bool operator==(const Config& other) const;

 private:
  Kind kind_ = Kind::kNull;
  bool quoted_ = false;
  std::string text_;
  std::vector<Config> items_;
  std::vector<Entry> entries_;
  std::map<std::string, size_t, std::less<>> index_;  ///< positions in `entries_` by key
  Origin origin_;
};

struct Config::Entry {
  std::string key = {};
  Origin origin = {};  ///< the key's, not the value's
  Config value = {};
  bool operator==(const Entry& other) const { return key == other.key && value == other.value; }
};

}  // namespace levin
