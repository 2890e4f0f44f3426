#pragma once

#include <levin/core/base/registry.h>

#include <memory>
#include <string>
#include <utility>

namespace levin {

namespace detail {
/// Splits `name`, `{name: x, option: 1}` and `{x: {option: 1}}` into a name and options. Throws ConfigError.
std::pair<Config, Config> split_named_config(const Config& node, const std::string& path, const std::string& kind);
/// Returns the form `{x: {option: 1}}` of any of these in a TypedFormScope, and otherwise `node`, as of what is none.
Config named_form(const Config& node);
}  // namespace detail

/// A strategy, precision, callback or logger as users give it: an object, a registered name, or a name with options.
template <class Base>
class Spec {
 public:
  Spec() = default;
  Spec(const char* name) : config_(Config::scalar(name)) {}         // NOLINT(google-explicit-constructor)
  Spec(const std::string& name) : config_(Config::scalar(name)) {}  // NOLINT(google-explicit-constructor)
  explicit Spec(Config config) : config_(std::move(config)) {}
  template <class Derived>
  requires std::is_base_of_v<Base, Derived> Spec(std::shared_ptr<Derived> object)
      : object_(std::move(object)) {}  // NOLINT(google-explicit-constructor)

  const std::shared_ptr<Base>& object() const { return object_; }
  /// Returns the YAML form; for an object, its name and init options.
  Config config() const {
    if (object_ == nullptr) return config_;
    Config node = Config::mapping();
    node.set(object_->init_name().empty() ? "object" : object_->init_name(), object_->init_options());
    return node;
  }
  bool empty() const { return object_ == nullptr && config_.is_null(); }

  /// Returns the registered name; empty for an object. Throws ConfigError for a malformed node.
  std::string name(const std::string& path, const std::string& kind) const {
    return object_ != nullptr ? "" : detail::split_named_config(config_, path, kind).first.text();
  }

  /// Returns the object, or makes one from the registry. Throws ConfigError for an unknown name or a wrong option.
  std::shared_ptr<Base> resolve(const Registry<Base>& registry, const std::string& path) const {
    if (object_ != nullptr) return object_;
    const auto [name, options] = detail::split_named_config(config_, path, registry.kind());
    const bool by_key = config_.is_mapping() && config_.find("name") == nullptr;  // {NAME: {option: value}}
    return registry.make(name.text(), options, by_key ? path + "." + name.text() : path, name.origin());
  }

 private:
  std::shared_ptr<Base> object_;
  Config config_;
};

template <class Base>
struct ConfigCodec<Spec<Base>> {
  static std::string type_name() { return "name, or mapping of a name and options"; }
  static Spec<Base> parse(const Config& node, const std::string& path) {
    if (node.is_sequence()) throw_wrong_type(node, path, "one " + type_name());
    return Spec<Base>(node);
  }
  static Config dump(const Spec<Base>& value) { return detail::named_form(value.config()); }
};

}  // namespace levin
