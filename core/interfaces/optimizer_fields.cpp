#include <levin/core/interfaces/optimizer_fields.h>

namespace levin {
namespace {

/// What optimizers keep beside tensors of a parameter's size.
bool is_counter(const std::string& field) { return field == "step"; }

}  // namespace

State with_fields(const State& fields, const std::function<State(const TensorLeaf&)>& change) {
  if (fields.is_tensor()) return change(fields.as_leaf());
  if (fields.is_list()) {
    State changed = State::list();
    for (const State& item : fields.as_list()) changed.push_back(with_fields(item, change));
    return changed;
  }
  if (!fields.is_map()) return fields;
  State changed = State::map();
  for (const auto& [field, value] : fields.as_map())
    changed[field] = is_counter(field) ? value : with_fields(value, change);
  return changed;
}

State with_parameters(const State& state,
                      const std::function<State(const std::string& name, const State& fields)>& change) {
  if (!state.is_map()) return state;
  State changed = State::map();
  for (const auto& [key, value] : state.as_map()) {
    if (key == "parameters") {
      State& parameters = changed[key] = State::map();
      for (const auto& [name, fields] : value.as_map()) parameters[name] = change(name, fields);
    } else if (key.starts_with("@") && value.is_map()) {
      changed[key] = change(key.substr(1), value);
    } else {
      changed[key] = with_parameters(value, change);
    }
  }
  return changed;
}

}  // namespace levin
