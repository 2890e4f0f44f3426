#pragma once

#include <levin/core/base/config.h>
#include <levin/core/base/error.h>

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <type_traits>
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

template <Described T>
const Schema<T>& schema_of();

/// Documentation of one field: a line of --help.
struct FieldDoc {
  std::string name = {};
  std::string type = {};           ///< "integer", "list of strings", ...
  std::string default_value = {};  ///< flow-style YAML
  std::string constraint = {};     ///< "at least 1" or empty
  std::string doc = {};
};

/// Conversion of a C++ type from and to a Config. Specialise it for your own types.
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

/// An integer that the type of its field cannot hold.
class BeyondTypeError : public ConfigError {
 public:
  BeyondTypeError(const std::string& message, Config nearest) : ConfigError(message), nearest_(std::move(nearest)) {}
  /// The number nearest to it that the type holds.
  const Config& nearest() const { return nearest_; }

 private:
  Config nearest_;
};

template <>
struct ConfigCodec<bool> {
  static std::string type_name() { return "boolean"; }
  static bool parse(const Config& node, const std::string& path);
  static Config dump(bool value);
};

/// Integer types other than bool and the character types.
template <class T>
concept Integer = std::integral<T> && !std::same_as<T, bool> && !std::same_as<T, char> && !std::same_as<T, wchar_t> &&
                  !std::same_as<T, char8_t> && !std::same_as<T, char16_t> && !std::same_as<T, char32_t>;

/// Rejects values outside the type's range with an error that names the range.
template <Integer T>
struct ConfigCodec<T> {
  static std::string type_name() { return std::signed_integral<T> ? "integer" : "non-negative integer"; }
  static T parse(const Config& node, const std::string& path);
  static Config dump(T value);
};

// Not one partial specialisation for both: g++ 12 takes the members of a constrained one for local to the source.
template <>
struct ConfigCodec<double> {
  static std::string type_name() { return "number"; }
  static double parse(const Config& node, const std::string& path);
  static Config dump(double value);
};

template <>
struct ConfigCodec<float> {
  static std::string type_name() { return "number"; }
  static float parse(const Config& node, const std::string& path);
  static Config dump(float value);
};

template <>
struct ConfigCodec<std::string> {
  static std::string type_name() { return "string"; }
  static std::string parse(const Config& node, const std::string& path);
  static Config dump(const std::string& value);
};

template <>
struct ConfigCodec<std::filesystem::path> {
  static std::string type_name() { return "path"; }
  static std::filesystem::path parse(const Config& node, const std::string& path);
  static Config dump(const std::filesystem::path& value);
};

/// An enumeration is a number here: Schema::field, which is told the names of its values, reads and writes those.
template <class T>
requires std::is_enum_v<T>
struct ConfigCodec<T> {
  static constexpr bool needs_names = true;
  static std::string type_name() { return "string"; }
  static T parse(const Config& node, const std::string& path) {
    if (!node.is_scalar()) throw_wrong_type(node, path, "a string");
    return static_cast<T>(ConfigCodec<int64_t>::parse(node, path));
  }
  static Config dump(T value) { return ConfigCodec<int64_t>::dump(static_cast<int64_t>(value)); }
};

template <>
struct ConfigCodec<Config> {
  static std::string type_name() { return "any"; }
  static Config parse(const Config& node, const std::string&) { return node; }
  static Config dump(const Config& value) { return value; }
};

/// A type that a field may have.
template <class T>
concept Readable = requires {
  ConfigCodec<T>::type_name();
};

template <Readable T>
struct ConfigCodec<std::optional<T>> {
  static std::string type_name() { return ConfigCodec<T>::type_name() + " or null"; }
  static std::optional<T> parse(const Config& node, const std::string& path) {
    if (node.is_null()) return std::nullopt;
    return ConfigCodec<T>::parse(node, path);
  }
  static Config dump(const std::optional<T>& value) { return value ? ConfigCodec<T>::dump(*value) : Config::null(); }
};

template <Readable T>
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

template <Readable T, size_t N>
struct ConfigCodec<std::array<T, N>> {
  static std::string type_name() {
    return "list of " + std::to_string(N) + " " + ConfigCodec<T>::type_name() + (N == 1 ? "" : "s");
  }
  static std::array<T, N> parse(const Config& node, const std::string& path) {
    if (!node.is_sequence() || node.items().size() != N) throw_wrong_type(node, path, type_name());
    std::vector<T> values = ConfigCodec<std::vector<T>>::parse(node, path);
    std::array<T, N> result{};
    std::move(values.begin(), values.end(), result.begin());
    return result;
  }
  static Config dump(const std::array<T, N>& values) {
    return ConfigCodec<std::vector<T>>::dump({values.begin(), values.end()});
  }
};

template <Readable T>
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

/// While one lives, options that this thread resolves have the form in which their types write values, so that those
/// that mean the same are equal: 0.1 for 1e-1.
class TypedFormScope {
 public:
  TypedFormScope();
  ~TypedFormScope();
  TypedFormScope(const TypedFormScope&) = delete;
  TypedFormScope& operator=(const TypedFormScope&) = delete;
  /// Whether one lives on this thread.
  static bool is_active();

 private:
  const bool outer_;
};

namespace detail {

/// Type inside std::optional, or the type itself: range constraints compare it.
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

/// Enumeration without a codec of its own that a field of type `T` holds, or void.
template <class T>
struct EnumIn {
  using type = void;
};
template <class T>
requires ConfigCodec<T>::needs_names struct EnumIn<T> {
  using type = T;
};
template <class T>
struct EnumIn<std::optional<T>> : EnumIn<T> {};
template <class T>
struct EnumIn<std::vector<T>> : EnumIn<T> {};
template <class T, size_t N>
struct EnumIn<std::array<T, N>> : EnumIn<T> {};
template <class T>
struct EnumIn<std::map<std::string, T>> : EnumIn<T> {};

/// Names of an enumeration's values.
using ValueNames = std::vector<std::pair<std::string, int64_t>>;
/// Returns "one of relu, gelu".
std::string one_of_names(const ValueNames& names);
/// Returns `node` with its names replaced by numbers. Throws ConfigError for an unknown name.
Config names_to_numbers(const Config& node, const std::string& path, const ValueNames& names);
/// Returns `node` with its numbers replaced by names; a number without a name stays.
Config numbers_to_names(const Config& node, const ValueNames& names);

/// Moves an option given by its former name to its present one, and says so once. Throws ConfigError where both are
/// given.
void rename_key(Config& node, const std::string& path, const std::string& former, const std::string& present);

/// Returns `dumped` in which the values that `given` has keep their written form and origin, outside of a
/// TypedFormScope.
Config keep_given(const Config& dumped, const Config& given);

template <class T>
std::string printed(const T& value) {
  std::ostringstream stream;
  if constexpr (Integer<T>)
    stream << +value;  // the number, where the type is one byte
  else
    stream << value;
  return stream.str();
}

/// The fields of an options struct, by their places in it: what does not depend on the struct's type is compiled once.
class SchemaFields {
 public:
  struct Field {
    FieldDoc doc = {};
    size_t offset = 0;             ///< in the struct, in bytes
    std::string former_name = {};  ///< empty: never renamed
    std::function<void(void* value, const Config&, const std::string& path)> parse = {};
    std::function<Config(const void* value)> dump = {};
    /// Throws when the value is out of range. `given`: what it was read from; null where code has set it.
    using Check = std::function<void(const void* value, const Config& given, const std::string& path)>;
    std::vector<Check> checks = {};
  };

  /// Puts a field before those that the struct declares later.
  Field& insert(Field field);
  const std::vector<Field>& all() const { return fields_; }

  // As the functions of Schema, for the struct at `options`.
  void apply(void* options, const Config& node, const std::string& path) const;
  void validate(const void* options, const std::string& path) const;
  Config dump(const void* options) const;
  std::vector<FieldDoc> docs() const;
  std::vector<std::string> names() const;
  /// Returns `node` with the present names of renamed fields.
  Config with_present_names(const Config& node, const std::string& path) const;

 private:
  const Field* find(const std::string& name) const;

  std::vector<Field> fields_;
};

}  // namespace detail

/// Adds constraints to the field of type `M` just described.
template <class M>
class SchemaField {
 public:
  using Value = typename detail::Unwrapped<M>::type;

  explicit SchemaField(detail::SchemaFields::Field& field) : field_(field) {}
  SchemaField& at_least(Value bound) {
    return require("at least " + detail::printed(bound), [bound](const Value& v) { return v >= bound; });
  }
  SchemaField& at_most(Value bound) {
    return require("at most " + detail::printed(bound), [bound](const Value& v) { return v <= bound; });
  }
  SchemaField& above(Value bound) {
    return require("above " + detail::printed(bound), [bound](const Value& v) { return v > bound; });
  }
  SchemaField& below(Value bound) {
    return require("below " + detail::printed(bound), [bound](const Value& v) { return v < bound; });
  }
  SchemaField& one_of(std::vector<Value> values) {
    std::string words;
    for (const auto& value : values) words += (words.empty() ? "" : ", ") + detail::printed(value);
    return require("one of " + words, [values](const Value& v) {
      for (const auto& value : values)
        if (value == v) return true;
      return false;
    });
  }
  /// Adds the option's former name, which is still read, with a message that gives the present one.
  SchemaField& formerly(const std::string& name) {
    field_.former_name = name;
    return *this;
  }
  /// Adds any other constraint; `constraint` is worded to follow "must be".
  SchemaField& require(const std::string& constraint, std::function<bool(const Value&)> holds) {
    field_.doc.constraint += (field_.doc.constraint.empty() ? "" : ", ") + constraint;
    field_.checks.push_back(
        [constraint, holds = std::move(holds)](const void* field, const Config& given, const std::string& path) {
          const Value* value = detail::Unwrapped<M>::get(*static_cast<const M*>(field));
          if (value != nullptr && !holds(*value))
            throw_out_of_range(given.origin(), path, constraint,
                               given.is_null() ? ConfigCodec<Value>::dump(*value).to_flow() : given.to_flow());
        });
    return *this;
  }

 private:
  detail::SchemaFields::Field& field_;
};

namespace detail {

template <class M>
SchemaField<M> describe_field(SchemaFields& fields, size_t offset, const M& default_value, const std::string& name,
                              const std::string& doc) {
  return SchemaField<M>(fields.insert(
      {.doc = {.name = name,
               .type = ConfigCodec<M>::type_name(),
               .default_value = ConfigCodec<M>::dump(default_value).to_flow(),
               .doc = doc},
       .offset = offset,
       .parse = [](void* value, const Config& node,
                   const std::string& path) { *static_cast<M*>(value) = ConfigCodec<M>::parse(node, path); },
       .dump = [](const void* value) { return ConfigCodec<M>::dump(*static_cast<const M*>(value)); }}));
}

template <class M>
void describe_named_field(SchemaFields& fields, size_t offset, const M& default_value, const std::string& name,
                          const std::string& doc, const ValueNames& names) {
  const auto dump = [names](const void* value) {
    return numbers_to_names(ConfigCodec<M>::dump(*static_cast<const M*>(value)), names);
  };
  fields.insert({.doc = {.name = name,
                         .type = ConfigCodec<M>::type_name(),
                         .default_value = dump(&default_value).to_flow(),
                         .constraint = one_of_names(names),
                         .doc = doc},
                 .offset = offset,
                 .parse =
                     [names](void* value, const Config& node, const std::string& path) {
                       *static_cast<M*>(value) = ConfigCodec<M>::parse(names_to_numbers(node, path, names), path);
                     },
                 .dump = dump,
                 .checks = {[dump, names](const void* value, const Config& /*given*/, const std::string& path) {
                   names_to_numbers(dump(value), path, names);
                 }}});
}

}  // namespace detail

/// The description of an options struct `T`, filled in by `T::describe`.
template <class T>
class Schema {
 public:
  /// Describes one field. `doc`: one line, without a full stop. Fields are listed as the struct declares them, which is
  /// the order that designated initialisers need.
  template <class M>
  SchemaField<M> field(const std::string& name, M T::*member, const std::string& doc) {
    constexpr bool has_names = std::is_void_v<typename detail::EnumIn<M>::type>;
    static_assert(has_names,
                  "levin: an enumeration's values need names: schema.field(\"activation\", &Options::activation, "
                  "\"what it does\", {{\"relu\", Activation::kRelu}, {\"gelu\", Activation::kGelu}})");
    constexpr bool is_readable = Readable<M>;
    static_assert(is_readable,
                  "levin: a field of this type cannot be read from YAML. Fields may be bool, integers, float, double, "
                  "std::string, std::filesystem::path, enumerations, levin::Config, structs with `static void "
                  "describe(levin::Schema<T>&)`, and std::optional, std::vector, std::array and "
                  "std::map<std::string, ...> of these; for any other type specialise levin::ConfigCodec");
    if constexpr (has_names && is_readable)
      return detail::describe_field<M>(fields_, offset_of(member), defaults().*member, name, doc);
  }

  /// Describes a field that is an enumeration, or an optional, a list or a mapping of one, with the names of its
  /// values.
  template <class M, class E = typename detail::EnumIn<M>::type>
  void field(const std::string& name, M T::*member, const std::string& doc,
             const std::vector<std::pair<std::string, std::type_identity_t<E>>>& values) {
    detail::ValueNames names;
    for (const auto& [word, value] : values) names.emplace_back(word, static_cast<int64_t>(value));
    detail::describe_named_field<M>(fields_, offset_of(member), defaults().*member, name, doc, names);
  }

  /// Describes the fields of a member that is a described struct itself as though they were of `T`.
  template <Described M>
  void fields_of(M T::*member) {
    for (detail::SchemaFields::Field inner : schema_of<M>().fields_.all()) {
      inner.offset += offset_of(member);
      fields_.insert(std::move(inner));
    }
  }

  /// Sets the fields that `node` (a mapping, or null for none) names; rejects unknown keys and values out of range.
  /// `path` is the dotted path of the node, for messages.
  void apply(T& options, const Config& node, const std::string& path) const { fields_.apply(&options, node, path); }

  /// Checks values that were set in code. Throws ConfigError for one out of range.
  void validate(const T& options, const std::string& path) const { fields_.validate(&options, path); }

  Config dump(const T& options) const { return fields_.dump(&options); }

  /// Returns the checked options with every default. Values of `node` keep their form and origin; defaults have the
  /// origin "default".
  Config resolve(const Config& node, const std::string& path) const {
    T options{};
    apply(options, node, path);
    return detail::keep_given(dump(options), fields_.with_present_names(node, path));
  }

  std::vector<FieldDoc> fields() const { return fields_.docs(); }
  std::vector<std::string> names() const { return fields_.names(); }

 private:
  static const T& defaults() {
    static const T value{};
    return value;
  }

  template <class M>
  static size_t offset_of(M T::*member) {
    return reinterpret_cast<const std::byte*>(&(defaults().*member)) - reinterpret_cast<const std::byte*>(&defaults());
  }

  template <class Other>
  friend class Schema;

  detail::SchemaFields fields_;
};

/// Returns the schema of `T`, made once.
template <Described T>
const Schema<T>& schema_of() {
  static const Schema<T> schema = [] {
    Schema<T> made;
    T::describe(made);
    return made;
  }();
  return schema;
}

/// Reads options from a mapping over the defaults. Throws ConfigError.
template <Described T>
T parse_options(const Config& node, const std::string& path) {
  T options{};
  schema_of<T>().apply(options, node, path);
  return options;
}

/// Codec of a described struct inside another.
template <Described T>
struct ConfigCodec<T> {
  static std::string type_name() { return "mapping"; }
  static T parse(const Config& node, const std::string& path) { return parse_options<T>(node, path); }
  static Config dump(const T& value) { return schema_of<T>().dump(value); }
};

}  // namespace levin
