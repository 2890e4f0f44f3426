#pragma once

#include <levin/core/base/schema.h>

#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

namespace levin::data {

/// An option that is one value or a list of them: `size: 224`, `size: [224, 320]`.
template <class T>
class OneOrMore {
 public:
  OneOrMore() = default;
  OneOrMore(T value) : values_{std::move(value)} {}                 // NOLINT(google-explicit-constructor)
  OneOrMore(std::initializer_list<T> values) : values_(values) {}   // NOLINT(google-explicit-constructor)
  OneOrMore(std::vector<T> values) : values_(std::move(values)) {}  // NOLINT(google-explicit-constructor)

  const std::vector<T>& values() const { return values_; }
  size_t count() const { return values_.size(); }
  const T& operator[](size_t i) const { return values_[i]; }
  /// Returns the last value for positions beyond it, so that one value stands for all.
  const T& at(size_t i) const { return values_[i < values_.size() ? i : values_.size() - 1]; }

 private:
  std::vector<T> values_;
};

}  // namespace levin::data

namespace levin {

template <class T>
struct ConfigCodec<data::OneOrMore<T>> {
  static std::string type_name() {
    return ConfigCodec<T>::type_name() + " or " + ConfigCodec<std::vector<T>>::type_name();
  }
  static data::OneOrMore<T> parse(const Config& node, const std::string& path) {
    if (node.is_sequence()) return ConfigCodec<std::vector<T>>::parse(node, path);
    return ConfigCodec<T>::parse(node, path);
  }
  static Config dump(const data::OneOrMore<T>& value) {
    return value.count() == 1 ? ConfigCodec<T>::dump(value[0]) : ConfigCodec<std::vector<T>>::dump(value.values());
  }
};

}  // namespace levin
