#include <levin/core/interchange/pickle_value.h>

#include <levin/core/base/error.h>

#include <fmt/format.h>

namespace levin {

const PickleValue* PickleValue::find(std::string_view key) const {
  // The last one, as Python's dict has it.
  for (auto pair = pairs.rbegin(); pair != pairs.rend(); ++pair)
    if (pair->first->kind == PickleValue::Kind::kText && pair->first->text == key) return pair->second;
  return nullptr;
}

const char* PickleValue::kind_name() const {
  switch (kind) {
    case PickleValue::Kind::kNone:
      return "None";
    case PickleValue::Kind::kBool:
      return "a bool";
    case PickleValue::Kind::kInt:
    case PickleValue::Kind::kBigInt:
      return "an int";
    case PickleValue::Kind::kFloat:
      return "a float";
    case PickleValue::Kind::kComplex:
      return "a complex number";
    case PickleValue::Kind::kText:
      return "a str";
    case PickleValue::Kind::kBytes:
      return "bytes";
    case PickleValue::Kind::kTuple:
      return "a tuple";
    case PickleValue::Kind::kList:
      return "a list";
    case PickleValue::Kind::kSet:
      return "a set";
    case PickleValue::Kind::kDict:
      return "a dict";
    case PickleValue::Kind::kTensor:
      return "a tensor";
    case PickleValue::Kind::kName:
      return "a class or function";
    case PickleValue::Kind::kObject:
      return "an object of another class";
    case PickleValue::Kind::kStorage:
      return "a storage";
    case PickleValue::Kind::kMark:
      break;
  }
  return "a mark";
}

PickleValue* PickleDocument::make(PickleValue::Kind kind) {
  if (values_.size() >= kMaxValues)
    throw Error("weights", fmt::format("a pickle holds more than {} values", kMaxValues));
  values_.emplace_back().kind = kind;
  return &values_.back();
}

PickleValue* PickleDocument::boolean(bool value) {
  PickleValue* const made = make(PickleValue::Kind::kBool);
  made->integer = value ? 1 : 0;
  return made;
}

PickleValue* PickleDocument::integer(int64_t value) {
  PickleValue* const made = make(PickleValue::Kind::kInt);
  made->integer = value;
  return made;
}

PickleValue* PickleDocument::number(double value) {
  PickleValue* const made = make(PickleValue::Kind::kFloat);
  made->number = value;
  return made;
}

PickleValue* PickleDocument::text(std::string_view value, PickleValue::Kind kind) {
  PickleValue* const made = make(kind);
  made->text = value;
  return made;
}

PickleValue* PickleDocument::tensor(at::Tensor value) {
  PickleValue* const made = make(PickleValue::Kind::kTensor);
  made->tensor = std::move(value);
  return made;
}

PickleValue* PickleDocument::list(std::vector<PickleValue*> items, PickleValue::Kind kind) {
  PickleValue* const made = make(kind);
  made->items = std::move(items);
  return made;
}

PickleValue* PickleDocument::dict(const std::vector<std::pair<std::string, PickleValue*>>& pairs) {
  PickleValue* const made = make(PickleValue::Kind::kDict);
  for (const auto& [key, value] : pairs) put(made, key, value);
  return made;
}

PickleValue* PickleDocument::ordered_dict() { return text("collections.OrderedDict", PickleValue::Kind::kDict); }

void PickleDocument::put(PickleValue* dict, std::string_view key, PickleValue* value) {
  dict->pairs.emplace_back(text(key), value);
}

}  // namespace levin
