#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <functional>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

namespace levin {

/// Looks at a tensor, and may replace it.
using TensorVisitor = std::function<void(at::Tensor&)>;

namespace detail {

/// Visits the tensors in a value: the value itself, or those in vectors, arrays, optionals, pairs and tuples of any
/// depth, in order, undefined ones too. What is in other types is not seen.
template <class T>
struct TensorsIn {
  static void visit(T& /*value*/, const TensorVisitor& /*visitor*/) {}
};

template <class T>
void for_each_tensor(T& value, const TensorVisitor& visitor) {
  TensorsIn<T>::visit(value, visitor);
}

template <>
struct TensorsIn<at::Tensor> {
  static void visit(at::Tensor& tensor, const TensorVisitor& visitor) { visitor(tensor); }
};

template <class Range>
struct TensorsInRange {
  static void visit(Range& range, const TensorVisitor& visitor) {
    for (auto& item : range) for_each_tensor(item, visitor);
  }
};
template <class T>
struct TensorsIn<std::vector<T>> : TensorsInRange<std::vector<T>> {};
template <>
struct TensorsIn<std::vector<bool>> {
  static void visit(std::vector<bool>& /*value*/, const TensorVisitor& /*visitor*/) {}
};
template <class T, size_t kSize>
struct TensorsIn<std::array<T, kSize>> : TensorsInRange<std::array<T, kSize>> {};

template <class T>
struct TensorsIn<std::optional<T>> {
  static void visit(std::optional<T>& value, const TensorVisitor& visitor) {
    if (value) for_each_tensor(*value, visitor);
  }
};

template <class Tuple>
struct TensorsInTuple {
  static void visit(Tuple& tuple, const TensorVisitor& visitor) {
    std::apply([&](auto&... items) { (for_each_tensor(items, visitor), ...); }, tuple);
  }
};
template <class... Types>
struct TensorsIn<std::tuple<Types...>> : TensorsInTuple<std::tuple<Types...>> {};
template <class First, class Second>
struct TensorsIn<std::pair<First, Second>> : TensorsInTuple<std::pair<First, Second>> {};

}  // namespace detail
}  // namespace levin
