#include <levin/core/optim/optimizer_state.h>

#include <levin/core/base/error.h>
#include <levin/core/optim/archive_state.h>
#include <levin/core/optim/group_options.h>
#include <levin/core/optim/has_parameter_states.h>

#include <c10/util/Type.h>
#include <fmt/format.h>
#include <torch/optim/optimizer.h>

#include <typeinfo>

namespace levin::optim {
namespace {

std::string type_of(const torch::optim::Optimizer& optimizer) { return c10::demangle(typeid(optimizer).name()); }

/// Numbers and lists as text, each of which reads back as the same value.
State to_state(const Config& node) {
  if (node.is_scalar()) return node.text();
  if (node.is_sequence()) {
    State list = State::list();
    for (const auto& item : node.items()) list.push_back(to_state(item));
    return list;
  }
  if (!node.is_mapping()) return {};
  State map = State::map();
  for (const auto& entry : node.entries()) map[entry.key] = to_state(entry.value);
  return map;
}

Config to_config(const State& state) {
  if (state.is_string()) return Config::scalar(state.as_string());
  if (state.is_list()) {
    Config sequence = Config::sequence();
    for (const auto& item : state.as_list()) sequence.push_back(to_config(item));
    return sequence;
  }
  if (!state.is_map()) return Config::null();
  Config mapping = Config::mapping();
  for (const auto& [key, value] : state.as_map()) mapping.set(key, to_config(value));
  return mapping;
}

/// The learning rate, or nothing for options of the user's own that do not say.
State learning_rate(const torch::optim::OptimizerParamGroup& group) {
  if (!group.has_options()) return {};
  try {
    return group.options().get_lr();
  } catch (const c10::Error&) {
    return {};
  }
}

State groups_state(const torch::optim::Optimizer& optimizer, const ParameterNames& names) {
  State groups = State::list();
  for (const auto& group : optimizer.param_groups()) {
    State saved = State::map();
    State& params = saved["params"] = State::list();
    for (const auto& param : group.params()) params.push_back(names.require(param));
    saved["lr"] = learning_rate(group);
    if (const auto* ours = dynamic_cast<const DescribedGroupOptions*>(&group.options()))
      saved["options"] = to_state(ours->dump());
    groups.push_back(std::move(saved));
  }
  return groups;
}

std::string printed_names(const State& params) {
  std::vector<std::string> parts;
  for (const auto& param : params.as_list()) parts.push_back(param.as_string());
  return join(parts);
}

void load_groups(torch::optim::Optimizer& optimizer, const ParameterNames& names, const State& saved_groups) {
  const auto& saved = saved_groups.as_list();
  auto& groups = optimizer.param_groups();
  if (saved.size() != groups.size())
    throw Error("checkpoint",
                fmt::format("the optimizer has {} parameter groups; got {} in the checkpoint; hint: resume "
                            "with the callback that added groups, such as backbone_finetuning",
                            groups.size(), saved.size()));
  const State present = groups_state(optimizer, names);
  for (size_t i = 0; i < groups.size(); ++i) {
    // LibTorch's load matches parameters by position.
    const std::string expected = printed_names(present.as_list()[i].at("params"));
    const std::string got = printed_names(saved[i].at("params"));
    if (expected != got)
      throw Error("checkpoint",
                  fmt::format("parameter group {} of the optimizer does not fit; got {} in the checkpoint; "
                              "valid: {}; hint: it was saved from another model or configure_optimizers, or a callback "
                              "such as backbone_finetuning freezes parameters that were trained, which an optimizer of "
                              "the trained ones leaves out: hand over all of them",
                              i, got, expected));
  }
  for (size_t i = 0; i < groups.size(); ++i) {
    if (const State* options = saved[i].find("options"))
      if (auto* ours = dynamic_cast<DescribedGroupOptions*>(&groups[i].options()))
        ours->restore(to_config(*options), fmt::format("optimizer.groups[{}]", i));
    const State& lr = saved[i].at("lr");
    if (!lr.is_null()) groups[i].options().set_lr(lr.as_double());
  }
}

/// What an optimizer keeps for a parameter without elements may be of another kind than for the whole of which a rank
/// holds none.
State without_empty_parameters(State parameters, const ParameterNames& names) {
  std::erase_if(parameters.as_map(), [&names](const auto& item) {
    const at::Tensor* const parameter = names.find_parameter(item.first);
    return parameter != nullptr && parameter->numel() == 0;
  });
  return parameters;
}

void load_archive(torch::optim::Optimizer& optimizer, const ParameterNames& names, const State& archive) {
  // LibTorch's load adds to the state there is: a parameter that had none when it was saved must have none again.
  optimizer.state().clear();
  if (!archive.as_map().empty()) load_archived_state(optimizer, names, archive);
}

}  // namespace

State optimizer_state_dict(const torch::optim::Optimizer& optimizer, const ParameterNames& names) {
  State state = State::map();
  state["type"] = type_of(optimizer);
  state["groups"] = groups_state(optimizer, names);
  if (const auto* stateful = dynamic_cast<const Stateful*>(&optimizer)) {
    state["custom"] = stateful->state_dict();
  } else if (const auto* named = dynamic_cast<const HasParameterStates*>(&optimizer)) {
    state["parameters"] = without_empty_parameters(named->parameter_states(names), names);
  } else {
    state["archive"] = archived_state(optimizer, names);
    if (state.at("archive").as_map().empty() && !optimizer.state().empty())
      throw Error("optim",
                  fmt::format("{} has state but its save() writes none, so training could not be resumed; override "
                              "save() and load(), or derive it from levin::Stateful as well",
                              type_of(optimizer)));
  }
  return state;
}

void load_optimizer_state_dict(torch::optim::Optimizer& optimizer, const ParameterNames& names, const State& state) {
  const std::string& saved_type = state.at("type").as_string();
  if (saved_type != type_of(optimizer))
    throw Error("checkpoint", fmt::format("the checkpoint has the state of another optimizer; got {}; valid: {}; hint: "
                                          "start from its weights alone, or configure the optimizer it was saved with",
                                          saved_type, type_of(optimizer)));
  load_groups(optimizer, names, state.at("groups"));
  if (auto* stateful = dynamic_cast<Stateful*>(&optimizer))
    stateful->load_state_dict(state.at("custom"));
  else if (auto* named = dynamic_cast<HasParameterStates*>(&optimizer))
    named->load_parameter_states(names, without_empty_parameters(state.at("parameters"), names));
  else
    load_archive(optimizer, names, state.at("archive"));
}

}  // namespace levin::optim
