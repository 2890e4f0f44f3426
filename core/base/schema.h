#pragma once

#include <levin/core/base/config.h>
#include <levin/core/base/error.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

/// Typed options, described once. A struct of plain fields with a static `describe(levin::Schema<T>&)` can be read from
/// YAML, checked, printed, documented and saved with a checkpoint.
namespace levin {

template <class T>
class Schema;

/// A struct whose fields are described: `static void describe(levin::Schema<T>&)`.
template <class T>
concept Described = requires(Schema<T>& schema) {
  T::describe(schema);
};

/// One line of help: a field in words.
struct FieldDoc {
  std::string name;
  std::string type;           ///< "integer", "list of strings", ...
  std::string default_value;  ///< flow-style YAML
  std::string constraint;     ///< "at least 1" or empty
  std::string doc;
};

/// How a C++ type is read from and written to a Config. Specialise it for a type of one's own.
template <class T>
struct ConfigCodec;

/// Throws ConfigError: "mlp.yaml:3:5: trainer.max_epochs: expected an integer; got 'three'".
[[noreturn]] void throw_wrong_type(const Config& node, std::string_view path, std::string_view expected);
/// Throws ConfigError for a key that no field has, with the nearest valid name.
[[noreturn]] void throw_unknown_key(const Config::Entry& entry, std::string_view path,
                                    const std::vector<std::string>& valid);
/// Throws ConfigError: "trainer.max_epochs must be at least 1; got 0", led by the place where one is known.
[[noreturn]] void throw_out_of_range(const Origin& origin, std::string_view path, std::string_view constraint,
                                     std::string_view got);

template <>
struct ConfigCodec<bool> {
  static std::string type_name() { return "boolean"; }
  static bool parse(const Config& node, const std::string& path);
  static Config dump(bool value);
};

template <>
struct ConfigCodec<int64_t> {
  static std::string type_name() { return "integer"; }
  static int64_t parse(const Config& node, const std::string& path);
  static Config dump(int64_t value);
};

template <>
struct ConfigCodec<double> {
  static std::string type_name() { return "number"; }
  static double parse(const Config& node, const std::string& path);
  static Config dump(double value);
};

template <>
struct ConfigCodec<std::string> {
  static std::string type_name() { return "string"; }
  static std::string parse(const Config& node, const std::string& path);
  static Config dump(const std::string& value);
};

template <>
struct ConfigCodec<Config> {
  static std::string type_name() { return "any"; }
  static Config parse(const Config& node, const std::string&) { return node; }
  static Config dump(const Config& value) { return value; }
};

template <class T>
struct ConfigCodec<std::optional<T>> {
  static std::string type_name() { return ConfigCodec<T>::type_name() + " or null"; }
  static std::optional<T> parse(const Config& node, const std::string& path) {
    if (node.is_null()) return std::nullopt;
    return ConfigCodec<T>::parse(node, path);
  }
  static Config dump(const std::optional<T>& value) { return value ? ConfigCodec<T>::dump(*value) : Config::null(); }
};

template <class T>
struct ConfigCodec<std::vector<T>> {
  static std::string type_name() { return "list of " + ConfigCodec<T>::type_name(); }
  static std::vector<T> parse(const Config& node, const std::string& path) {
    if (!node.is_sequence()) throw_wrong_type(node, path, type_name());
    std::vector<T> values;
    values.reserve(node.items().size());
    for (size_t i = 0; i < node.items().size(); ++i)
      values.push_back(ConfigCodec<T>::parse(node.items()[i], path + "[" + std::to_string(i) + "]"));
    return values;
  }
  static Config dump(const std::vector<T>& values) {
    std::vector<Config> items;
    items.reserve(values.size());
    for (const auto& value : values) items.push_back(ConfigCodec<T>::dump(value));
    return Config::sequence(std::move(items));
  }
};

template <class T>
struct ConfigCodec<std::map<std::string, T>> {
  static std::string type_name() { return "mapping of " + ConfigCodec<T>::type_name(); }
  static std::map<std::string, T> parse(const Config& node, const std::string& path) {
    if (!node.is_mapping()) throw_wrong_type(node, path, type_name());
    std::map<std::string, T> values;
    for (const auto& entry : node.entries())
      values.emplace(entry.key, ConfigCodec<T>::parse(entry.value, path + "." + entry.key));
    return values;
  }
  static Config dump(const std::map<std::string, T>& values) {
    Config node = Config::mapping();
    for (const auto& [key, value] : values) node.set(key, ConfigCodec<T>::dump(value));
    return node;
  }
};

namespace detail {

/// The type inside std::optional, or the type itself: what a range constraint compares.
template <class T>
struct Unwrapped {
  using type = T;
  static const T* get(const T& value) { return &value; }
};
template <class T>
struct Unwrapped<std::optional<T>> {
  using type = T;
  static const T* get(const std::optional<T>& value) { return value ? &*value : nullptr; }
};

/// `dumped`, with each value that `given` has in the form and with the origin in which it was given.
Config keep_given(const Config& dumped, const Config& given);

template <class T>
std::string printed(const T& value) {
  std::ostringstream stream;
  stream << value;
  return stream.str();
}

}  // namespace detail

/// The description of an options struct `T`, filled in by `T::describe`.
template <class T>
class Schema {
  struct Entry {
    FieldDoc doc;
    std::function<void(T&, const Config&, const std::string& path)> parse;
    std::function<Config(const T&)> dump;
    /// Throws when the field's value is out of range.
    std::vector<std::function<void(const T&, const Origin&, const std::string& path)>> checks;
  };

 public:
  /// Adds constraints to the field just described.
  template <class M>
  class Field {
   public:
    using Value = typename detail::Unwrapped<M>::type;

    Field(Entry& entry, M T::*member) : entry_(entry), member_(member) {}
    Field& at_least(Value bound) {
      return require("at least " + detail::printed(bound), [bound](const Value& v) { return v >= bound; });
    }
    Field& at_most(Value bound) {
      return require("at most " + detail::printed(bound), [bound](const Value& v) { return v <= bound; });
    }
    Field& above(Value bound) {
      return require("above " + detail::printed(bound), [bound](const Value& v) { return v > bound; });
    }
    Field& below(Value bound) {
      return require("below " + detail::printed(bound), [bound](const Value& v) { return v < bound; });
    }
    Field& one_of(std::vector<Value> values) {
      std::string words;
      for (const auto& value : values) words += (words.empty() ? "" : ", ") + detail::printed(value);
      return require("one of " + words, [values](const Value& v) {
        for (const auto& value : values)
          if (value == v) return true;
        return false;
      });
    }
    /// Any other constraint, in words that follow "must be".
    Field& require(const std::string& constraint, std::function<bool(const Value&)> holds) {
      entry_.doc.constraint += (entry_.doc.constraint.empty() ? "" : ", ") + constraint;
      entry_.checks.push_back([member = member_, constraint, holds = std::move(holds)](
                                  const T& options, const Origin& origin, const std::string& path) {
        const Value* value = detail::Unwrapped<M>::get(options.*member);
        if (value != nullptr && !holds(*value))
          throw_out_of_range(origin, path, constraint, ConfigCodec<Value>::dump(*value).to_flow());
      });
      return *this;
    }

   private:
    Entry& entry_;
    M T::*member_;
  };

  /// Describes one field. `doc`: one line, without a full stop.
  template <class M>
  Field<M> field(const std::string& name, M T::*member, const std::string& doc) {
    static const T defaults{};
    entries_.push_back(
        {.doc = {.name = name,
                 .type = ConfigCodec<M>::type_name(),
                 .default_value = ConfigCodec<M>::dump(defaults.*member).to_flow(),
                 .constraint = "",
                 .doc = doc},
         .parse = [member](T& options, const Config& node,
                           const std::string& path) { options.*member = ConfigCodec<M>::parse(node, path); },
         .dump = [member](const T& options) { return ConfigCodec<M>::dump(options.*member); },
         .checks = {}});
    return Field<M>(entries_.back(), member);
  }

  /// Sets the fields that `node` (a mapping, or null for none) names; rejects unknown keys and values out of range.
  /// `path` is the dotted path of the node, for messages.
  void apply(T& options, const Config& node, const std::string& path) const {
    if (node.is_null()) return;
    if (!node.is_mapping()) throw_wrong_type(node, path, "a mapping of options");
    for (const auto& item : node.entries()) {
      const Entry* entry = find(item.key);
      if (entry == nullptr) throw_unknown_key(item, path, names());
      const std::string field_path = path.empty() ? item.key : path + "." + item.key;
      entry->parse(options, item.value, field_path);
      for (const auto& check : entry->checks) check(options, item.value.origin(), field_path);
    }
  }

  /// Checks values that were set in code.
  void validate(const T& options, const std::string& path) const {
    for (const auto& entry : entries_)
      for (const auto& check : entry.checks)
        check(options, Origin{}, path.empty() ? entry.doc.name : path + "." + entry.doc.name);
  }

  Config dump(const T& options) const {
    Config node = Config::mapping();
    for (const auto& entry : entries_) node.set(entry.doc.name, entry.dump(options));
    return node;
  }

  /// The checked options with every default. What `node` gives keeps its form and its origin; defaults have the origin
  /// "default".
  Config resolve(const Config& node, const std::string& path) const {
    T options{};
    apply(options, node, path);
    return detail::keep_given(dump(options), node);
  }

  std::vector<FieldDoc> fields() const {
    std::vector<FieldDoc> docs;
    for (const auto& entry : entries_) docs.push_back(entry.doc);
    return docs;
  }

  std::vector<std::string> names() const {
    std::vector<std::string> result;
    for (const auto& entry : entries_) result.push_back(entry.doc.name);
    return result;
  }

 private:
  const Entry* find(const std::string& name) const {
    for (const auto& entry : entries_)
      if (entry.doc.name == name) return &entry;
    return nullptr;
  }

  std::vector<Entry> entries_;
};

/// The schema of `T`, made once.
template <Described T>
const Schema<T>& schema_of() {
  static const Schema<T> schema = [] {
    Schema<T> made;
    T::describe(made);
    return made;
  }();
  return schema;
}

/// Options read from a mapping over the defaults.
template <Described T>
T parse_options(const Config& node, const std::string& path) {
  T options{};
  schema_of<T>().apply(options, node, path);
  return options;
}

/// A described struct inside another.
template <Described T>
struct ConfigCodec<T> {
  static std::string type_name() { return "mapping"; }
  static T parse(const Config& node, const std::string& path) { return parse_options<T>(node, path); }
  static Config dump(const T& value) { return schema_of<T>().dump(value); }
};

}  // namespace levin
