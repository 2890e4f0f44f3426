#include <levin/core/base/state.h>

#include <levin/core/base/error.h>

#include <ATen/core/grad_mode.h>
#include <c10/core/ScalarType.h>
#include <fmt/format.h>

#include <sstream>

namespace levin {
namespace {

template <class T>
const T& require(const State& state, const T* value, const char* expected) {
  if (value == nullptr)
    throw Error("checkpoint",
                fmt::format("expected {}; got {}; hint: the checkpoint may come from another version of the "
                            "program",
                            expected, state.type_name()));
  return *value;
}

template <class T>
std::string printed(const T& value) {
  std::ostringstream out;
  out << value;
  return out.str();
}

}  // namespace

bool State::as_bool() const { return require(*this, std::get_if<bool>(&value_), "true or false"); }
int64_t State::as_int() const { return require(*this, std::get_if<int64_t>(&value_), "an integer"); }
double State::as_double() const {
  if (is_int()) return static_cast<double>(as_int());
  return require(*this, std::get_if<double>(&value_), "a number");
}
const std::string& State::as_string() const { return require(*this, std::get_if<std::string>(&value_), "a string"); }
const TensorLeaf& State::as_leaf() const { return require(*this, std::get_if<TensorLeaf>(&value_), "a tensor"); }
const at::Tensor& State::as_tensor() const { return as_leaf().tensor(); }
const State::List& State::as_list() const { return require(*this, std::get_if<List>(&value_), "a list"); }
State::List& State::as_list() { return const_cast<List&>(std::as_const(*this).as_list()); }
const State::Map& State::as_map() const { return require(*this, std::get_if<Map>(&value_), "a mapping"); }
State::Map& State::as_map() { return const_cast<Map&>(std::as_const(*this).as_map()); }

State& State::operator[](std::string_view key) {
  if (is_null()) value_ = Map{};
  Map& map = as_map();
  auto found = map.find(key);
  if (found == map.end()) found = map.emplace(std::string(key), State()).first;
  return found->second;
}

const State* State::find(std::string_view key) const {
  if (!is_map()) return nullptr;
  const Map& map = as_map();
  const auto found = map.find(key);
  return found == map.end() ? nullptr : &found->second;
}

const State& State::at(std::string_view key) const {
  if (const State* found = find(key)) return *found;
  std::vector<std::string> names;
  if (is_map())
    for (const auto& [name, value] : as_map()) names.push_back(name);
  throw Error("checkpoint", fmt::format("no entry '{}'{}", key, valid_names_hint(key, names)));
}

void State::push_back(State item) {
  if (is_null()) value_ = List{};
  as_list().push_back(std::move(item));
}

const char* State::type_name() const {
  static constexpr const char* kNames[] = {"nothing",  "true or false", "an integer", "a number",
                                           "a string", "a tensor",      "a list",     "a mapping"};
  return kNames[value_.index()];
}

void copy_in_place(at::Tensor& target, const at::Tensor& source, std::string_view name) {
  if (!target.defined() || !source.defined() || target.sizes() != source.sizes() ||
      target.scalar_type() != source.scalar_type()) {
    const auto words = [](const at::Tensor& tensor) {
      return tensor.defined() ? printed(tensor.sizes()) + " " + std::string(c10::toString(tensor.scalar_type()))
                              : std::string("nothing");
    };
    throw Error(
        "checkpoint",
        fmt::format("'{}' does not fit; got {} in the checkpoint; valid: {}; hint: it was saved from another model",
                    name, words(source), words(target)));
  }
  at::NoGradGuard no_grad;
  target.detach().copy_(source);
}

}  // namespace levin
