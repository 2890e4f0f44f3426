#pragma once

#include <levin/core/base/schema.h>

#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace levin {

/// A class whose objects are made from an options struct named `Options`.
template <class T>
concept HasOptions = requires {
  typename T::Options;
};

namespace detail {
/// The options of a class that has no public `using Options = ...;`.
struct NoUsingOptions {
  static void describe(Schema<NoUsingOptions>& /*schema*/) {}
};
template <class T>
struct OptionsType {
  using type = NoUsingOptions;
};
template <HasOptions T>
struct OptionsType<T> {
  using type = typename T::Options;
};
std::string demangled(const char* type_name);
}  // namespace detail

/// Options struct of a class, or an empty one.
template <class T>
using OptionsOf = typename detail::OptionsType<T>::type;

/// Base of everything that users name in YAML or hand to the trainer. It remembers how it was made, so that replicas,
/// thread ranks and load_from_checkpoint can make it again; levin::make and registries record that.
class Configurable {
 public:
  virtual ~Configurable() = default;

  /// Returns the name under which its class was registered, else its C++ type; empty when it was made without
  /// levin::make or a registry.
  const std::string& init_name() const { return init_name_; }
  /// Returns its options; empty when it was made without levin::make or a registry.
  const Config& init_options() const { return init_options_; }
  /// Returns whether rebuild() can make another.
  bool can_rebuild() const { return static_cast<bool>(rebuild_); }
  /// Makes a second object as this one was made. Throws levin::Error that says to use levin::make when it cannot.
  std::shared_ptr<Configurable> rebuild() const;

  void set_init_options(std::string name, Config options, std::function<std::shared_ptr<Configurable>()> rebuild) {
    init_name_ = std::move(name);
    init_options_ = std::move(options);
    rebuild_ = std::move(rebuild);
  }

 private:
  std::string init_name_;
  Config init_options_;
  std::function<std::shared_ptr<Configurable>()> rebuild_;
};

namespace detail {

/// Checks that a `T` can be made of its options; where it cannot, the compiler's message says what to write.
template <class T>
consteval bool check_constructor() {
  if constexpr (std::is_abstract_v<T>) {
    static_assert(!std::is_abstract_v<T>,
                  "levin: the class is abstract: it lacks a function that its base declares with `= 0`; `override` on "
                  "each function of yours finds the one that is misspelled or has other arguments");
    return false;
  } else if constexpr (HasOptions<T>) {
    constexpr bool takes_options = std::is_constructible_v<T, const typename T::Options&>;
    static_assert(takes_options,
                  "levin: the class has a type Options, but no public constructor that takes "
                  "`const Options&`");
    return takes_options;
  } else {
    constexpr bool takes_nothing = std::is_default_constructible_v<T>;
    static_assert(takes_nothing,
                  "levin: the class has no public constructor without arguments; one that takes options needs a public "
                  "`using Options = ...;` beside `explicit T(const Options&)`");
    return takes_nothing;
  }
}

template <class T>
std::shared_ptr<T> construct(const OptionsOf<T>& options) {
  if constexpr (HasOptions<T>)
    return std::make_shared<T>(options);
  else
    return std::make_shared<T>();
}

template <class T>
std::shared_ptr<T> make_named(const std::string& name, const OptionsOf<T>& options) {
  Config dumped = Config::mapping();
  if constexpr (Described<OptionsOf<T>>) dumped = schema_of<OptionsOf<T>>().dump(options);
  auto object = construct<T>(options);
  object->set_init_options(name, std::move(dumped),
                           [name, options]() -> std::shared_ptr<Configurable> { return make_named<T>(name, options); });
  return object;
}

}  // namespace detail

/// Makes a Configurable (module, data module, callback, logger, ...) that remembers its options. Throws ConfigError
/// when one is out of range.
template <class T>
std::shared_ptr<T> make(const OptionsOf<T>& options = {}) {
  constexpr bool is_buildable = std::is_convertible_v<T*, Configurable*>;
  static_assert(
      is_buildable,
      "levin::make makes classes derived publicly from levin::Module, DataModule, Callback, Logger, Strategy, "
      "...; for any other class use std::make_shared");
  if constexpr (is_buildable && detail::check_constructor<T>()) {
    const std::string name = detail::demangled(typeid(T).name());
    if constexpr (Described<OptionsOf<T>>) schema_of<OptionsOf<T>>().validate(options, name);
    return detail::make_named<T>(name, options);
  } else {
    return nullptr;
  }
}

/// Names that YAML may use for classes derived from `Base`, with their typed options.
template <class Base>
class Registry {
 public:
  /// Makes an empty registry. `kind` is its word in messages: "callback".
  explicit Registry(std::string kind) : kind_(std::move(kind)) {}

  struct Item {
    std::string name;
    std::string doc;
    std::vector<FieldDoc> fields;
    std::function<std::shared_ptr<Base>(const Config& options, const std::string& path)> make;
    std::function<bool(const Base&)> is_instance;  ///< the object is of this class or one derived from it
    /// Checks options and fills in every default, without making an object. Given values keep their written form.
    std::function<Config(const Config& options, const std::string& path)> resolve;
    Config alias_of = {};  ///< of an alias: {name: NAME, option: value}; else null
  };

  /// Registers `T`; a second registration of a name replaces the first. `doc`: one line for --help.
  template <class T>
  void add(const std::string& name, const std::string& doc = "") {
    constexpr bool is_derived = std::is_convertible_v<T*, Base*>;
    static_assert(
        is_derived,
        "levin: only a class derived publicly from what the registry holds can be added: levin::Module "
        "(cli.modules), DataModule (cli.data), Callback (callbacks), Logger (loggers), Strategy (strategies)");
    constexpr bool is_described = Described<OptionsOf<T>>;
    static_assert(is_described,
                  "levin: the class's Options need a public `static void describe(levin::Schema<Options>&)`");
    if constexpr (is_derived && is_described && detail::check_constructor<T>()) add_item(item_of<T>(name, doc));
  }

  /// Adds another name for `name` with other defaults. The objects made under it remember `name` and their options.
  void add_alias(const std::string& alias, const std::string& name, const Config& defaults,
                 const std::string& doc = "") {
    const auto filled = [defaults](const Config& options) {
      Config all = defaults;
      if (!options.is_null()) all.merge(options);
      return all;
    };
    Item item = require(name);
    item.name = alias;
    item.doc = doc;
    item.alias_of = Config::mapping();
    item.alias_of.set("name", Config::scalar(name));
    item.alias_of.merge(defaults);
    for (auto& field : item.fields)
      if (const Config* value = defaults.find(field.name)) field.default_value = value->to_flow();
    item.make = [filled, make = std::move(item.make)](const Config& options, const std::string& path) {
      return make(filled(options), path);
    };
    item.resolve = [filled, resolve = std::move(item.resolve)](const Config& options, const std::string& path) {
      return resolve(filled(options), path);
    };
    add_item(std::move(item));
  }

  /// Makes an object by name. `origin` is where the name was written. Throws ConfigError with the nearest valid name.
  std::shared_ptr<Base> make(const std::string& name, const Config& options, const std::string& path,
                             const Origin& origin = {}) const {
    return require(name, origin).make(options, path);
  }

  const Item* find(const std::string& name) const {
    for (const auto& item : items_)
      if (item.name == name) return &item;
    return nullptr;
  }

  const Item& require(const std::string& name, const Origin& origin = {}) const {
    const Item* item = find(name);
    if (item == nullptr) {
      const std::string place = origin.prefix();
      throw ConfigError(place + "unknown " + kind_ + " '" + name + "'" + valid_names_hint(name, names()));
    }
    return *item;
  }

  const std::vector<Item>& items() const { return items_; }
  const std::string& kind() const { return kind_; }
  std::vector<std::string> names() const {
    std::vector<std::string> result;
    for (const auto& item : items_) result.push_back(item.name);
    return result;
  }

 private:
  template <class T>
  static Item item_of(const std::string& name, const std::string& doc) {
    using Options = OptionsOf<T>;
    return {
        .name = name,
        .doc = doc,
        .fields = schema_of<Options>().fields(),
        .make =
            [name](const Config& options, const std::string& path) {
              return std::static_pointer_cast<Base>(detail::make_named<T>(name, parse_options<Options>(options, path)));
            },
        .is_instance = [](const Base& object) { return dynamic_cast<const T*>(&object) != nullptr; },
        .resolve = [](const Config& options,
                      const std::string& path) { return schema_of<Options>().resolve(options, path); }};
  }

  void add_item(Item item) {
    for (auto& existing : items_) {
      if (existing.name == item.name) {
        existing = std::move(item);
        return;
      }
    }
    items_.push_back(std::move(item));
  }

  std::string kind_;
  std::vector<Item> items_;
};

}  // namespace levin
