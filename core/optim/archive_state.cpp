#include <levin/core/optim/archive_state.h>

#include <levin/core/base/error.h>

#include <fmt/format.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize/archive.h>

#include <algorithm>
#include <optional>
#include <sstream>

namespace levin::optim {
namespace {

using torch::serialize::InputArchive;
using torch::serialize::OutputArchive;

// A nested archive becomes a mapping; so does a compound value, under one of these keys.
constexpr const char* kTuple = "__tuple__";
constexpr const char* kTensors = "__tensors__";
constexpr const char* kIntegers = "__integers__";
constexpr const char* kNumbers = "__numbers__";

constexpr char kParameterMark = '@';

/// Shorter numbers are indices; addresses of the heap are longer.
constexpr size_t kShortestAddress = 10;

bool looks_like_address(const std::string& text) {
  return text.size() >= kShortestAddress &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

/// Whether a key is the mark and name of a parameter without elements, which has no state.
bool is_empty_parameter(const std::string& key, const ParameterNames& names) {
  if (key.empty() || key.front() != kParameterMark) return false;
  const at::Tensor* const parameter = names.find_parameter(std::string_view(key).substr(1));
  return parameter != nullptr && parameter->numel() == 0;
}

class ArchiveReader {
 public:
  explicit ArchiveReader(const ParameterNames& names) : names_(names) {}

  State read(InputArchive& archive) const {
    State tree = State::map();
    for (const auto& key : archive.keys()) {
      InputArchive nested;
      c10::IValue value;
      const std::string name = named(key);
      if (is_empty_parameter(name, names_)) continue;
      State& child = tree[name];
      if (archive.try_read(key, nested)) {
        child = read(nested);
      } else {
        archive.read(key, value);
        child = read(value, key);
      }
    }
    return tree;
  }

 private:
  /// The mark and the name for a parameter's address; any other text as it is.
  std::string named(const std::string& text) const {
    if (!looks_like_address(text)) return text;
    // NOLINTNEXTLINE(performance-no-int-to-ptr)
    const std::string* name = names_.find(reinterpret_cast<const void*>(std::stoull(text)));
    if (name == nullptr)
      throw Error("optim",
                  "an optimizer has state of a parameter that the module does not have, so it cannot be saved; "
                  "register the parameter with the module");
    return kParameterMark + *name;
  }

  State read(const c10::IValue& value, const std::string& key) const {
    if (value.isNone()) return {};
    if (value.isTensor()) return value.toTensor();
    if (value.isBool()) return value.toBool();
    if (value.isInt()) return value.toInt();
    if (value.isDouble()) return value.toDouble();
    if (value.isString()) return named(value.toStringRef());
    State items = State::list();
    State compound = State::map();
    if (value.isTuple()) {
      for (const auto& item : value.toTupleRef().elements()) items.push_back(read(item, key));
      compound[kTuple] = std::move(items);
    } else if (value.isTensorList()) {
      for (const auto& item : value.toTensorVector()) items.push_back(item);
      compound[kTensors] = std::move(items);
    } else if (value.isIntList()) {
      for (const int64_t item : value.toIntVector()) items.push_back(item);
      compound[kIntegers] = std::move(items);
    } else if (value.isDoubleList()) {
      for (const double item : value.toDoubleVector()) items.push_back(item);
      compound[kNumbers] = std::move(items);
    } else {
      throw Error("optim",
                  fmt::format("an optimizer saves '{}' as a {}, which a checkpoint cannot keep; valid: tensors, "
                              "numbers, strings, tuples and lists of them; or derive it from levin::Stateful",
                              key, value.tagKind()));
    }
    return compound;
  }

  const ParameterNames& names_;
};

class ArchiveWriter {
 public:
  explicit ArchiveWriter(const ParameterNames& names) : names_(names) {}

  void write(OutputArchive& archive, const State& tree) const {
    for (const auto& [key, child] : tree.as_map()) {
      if (is_empty_parameter(key, names_)) continue;
      const std::string address = addressed(key);
      if (child.is_map() && !is_compound(child)) {
        OutputArchive nested(archive.compilation_unit());
        write(nested, child);
        archive.write(address, nested);
      } else {
        archive.write(address, value(child));
      }
    }
  }

 private:
  static bool is_compound(const State& state) {
    return state.contains(kTuple) || state.contains(kTensors) || state.contains(kIntegers) || state.contains(kNumbers);
  }

  std::string addressed(const std::string& text) const {
    if (text.empty() || text.front() != kParameterMark) return text;
    const at::Tensor* parameter = names_.find_parameter(std::string_view(text).substr(1));
    if (parameter == nullptr)
      throw Error("checkpoint",
                  fmt::format("the checkpoint has optimizer state of a parameter '{}' that the module does "
                              "not have; hint: it was saved from another model",
                              text.substr(1)));
    return std::to_string(reinterpret_cast<size_t>(parameter->unsafeGetTensorImpl()));
  }

  c10::IValue value(const State& state) const {
    if (state.is_null()) return {};
    if (state.is_tensor()) return state.as_tensor();
    if (state.is_bool()) return state.as_bool();
    if (state.is_int()) return state.as_int();
    if (state.is_double()) return state.as_double();
    if (state.is_string()) return addressed(state.as_string());
    if (const State* tuple = state.find(kTuple)) {
      std::vector<c10::IValue> items;
      for (const auto& item : tuple->as_list()) items.push_back(value(item));
      return c10::ivalue::Tuple::create(std::move(items));
    }
    if (const State* tensors = state.find(kTensors)) {
      c10::List<at::Tensor> items;
      for (const auto& item : tensors->as_list()) items.push_back(item.as_tensor());
      return items;
    }
    if (const State* integers = state.find(kIntegers)) {
      c10::List<int64_t> items;
      for (const auto& item : integers->as_list()) items.push_back(item.as_int());
      return items;
    }
    c10::List<double> items;
    for (const auto& item : state.at(kNumbers).as_list()) items.push_back(item.as_double());
    return items;
  }

  const ParameterNames& names_;
};

/// A list in LBFGS's state has a tensor for each step of its history, made or not, which a step fills before it reads
/// them; those that are not made cannot be written.
void drop_scratch(const torch::optim::Optimizer& optimizer) {
  if (dynamic_cast<const torch::optim::LBFGS*>(&optimizer) == nullptr) return;
  for (const auto& [parameter, state] : optimizer.state())
    static_cast<torch::optim::LBFGSParamState&>(*state).al(std::nullopt);
}

}  // namespace

State archived_state(const torch::optim::Optimizer& optimizer, const ParameterNames& names) {
  drop_scratch(optimizer);
  OutputArchive written;
  optimizer.save(written);
  std::stringstream stream;
  written.save_to(stream);
  InputArchive archive;
  archive.load_from(stream);
  return ArchiveReader(names).read(archive);
}

void load_archived_state(torch::optim::Optimizer& optimizer, const ParameterNames& names, const State& state) {
  OutputArchive written;
  ArchiveWriter(names).write(written, state);
  std::stringstream stream;
  written.save_to(stream);
  InputArchive archive;
  archive.load_from(stream);
  optimizer.state().clear();
  optimizer.load(archive);
}

}  // namespace levin::optim
