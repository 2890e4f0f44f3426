#include <levin/core/interchange/lightning.h>

#include <levin/core/base/config.h>
#include <levin/core/base/error.h>
#include <levin/core/base/tree_budget.h>
#include <levin/core/interchange/pickler.h>
#include <levin/core/interchange/weights.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>

namespace levin {
namespace {

State state_of(const PickleValue& value, TreeBudget& budget) {
  const auto level = budget.enter();
  budget.visit();
  using Kind = PickleValue::Kind;
  switch (value.kind) {
    case Kind::kBool:
      return value.integer != 0;
    case Kind::kInt:
      return value.integer;
    case Kind::kFloat:
      return value.number;
    case Kind::kText:
      budget.copy(value.text.size());
      return value.text;
    case Kind::kTensor:
      return value.tensor;
    case Kind::kTuple:
    case Kind::kList: {
      State list = State::list();
      for (const PickleValue* item : value.items) list.push_back(state_of(*item, budget));
      return list;
    }
    case Kind::kObject:
      if (value.text == "argparse.Namespace" && value.state != nullptr) return state_of(*value.state, budget);
      return {};
    case Kind::kDict: {
      State map = State::map();
      for (const auto& [key, item] : value.pairs) {
        budget.copy(key->text.size());
        if (key->is(Kind::kText)) map[key->text] = state_of(*item, budget);
        if (key->is(Kind::kInt)) map[std::to_string(key->integer)] = state_of(*item, budget);
      }
      return map;
    }
    default:
      return {};
  }
}

/// Where Lightning has the state of torch.amp.GradScaler, and where its versions 1 had it.
constexpr const char* kScaler = "MixedPrecision";
constexpr const char* kScalerOfVersion1 = "native_amp_scaling_state";

template <class T>
std::optional<T> number_in(const std::string& text) {
  T number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(number) : std::nullopt;
}

/// A YAML scalar as Python reads it.
PickleValue* python_scalar(PickleDocument& document, const std::string& text, bool quoted) {
  if (!quoted) {
    if (text == "true" || text == "false") return document.boolean(text == "true");
    if (text == "null" || text == "~" || text.empty()) return document.none();
    if (const auto whole = number_in<int64_t>(text)) return document.integer(*whole);
    if (const auto number = number_in<double>(text)) return document.number(*number);
  }
  return document.text(text);
}

PickleValue* python_value(PickleDocument& document, const Config& node) {
  if (node.is_null()) return document.none();
  if (node.is_scalar()) return python_scalar(document, node.text(), node.quoted());
  if (node.is_sequence()) {
    std::vector<PickleValue*> items;
    for (const auto& item : node.items()) items.push_back(python_value(document, item));
    return document.list(std::move(items));
  }
  PickleValue* const dict = document.dict();
  for (const auto& entry : node.entries()) document.put(dict, entry.key, python_value(document, entry.value));
  return dict;
}

/// A tensor of a tree; one that is in files is read when it is written.
PickleValue* tensor_value(PickleDocument& document, Pickler& pickler, const TensorLeaf& leaf) {
  if (leaf.saved == nullptr) return document.tensor(leaf.value);
  PickleValue* const value =
      document.tensor(at::empty(leaf.saved->shape(), at::TensorOptions().dtype(leaf.saved->dtype()).device(at::kMeta)));
  pickler.defer(value, leaf.saved);
  return value;
}

std::string short_type(const State& optimizer) {
  const std::string& type = optimizer.at("type").as_string();
  return type.substr(type.rfind(':') + 1);
}

/// A number that may be a tensor of one element, as a learning rate is where `capturable` asks for it.
State number_of(const State& value) {
  if (value.is_tensor() && value.as_tensor().numel() == 1) return State(value.as_tensor().item<double>());
  if (!value.is_list()) return value;
  State list = State::list();
  for (const auto& item : value.as_list()) list.push_back(number_of(item));
  return list;
}

std::vector<double> numbers_of(const State& list) {
  std::vector<double> numbers;
  for (const auto& item : list.as_list()) numbers.push_back(item.as_double());
  return numbers;
}

PickleValue* numbers_value(PickleDocument& document, const std::vector<double>& numbers) {
  std::vector<PickleValue*> items;
  for (const double number : numbers) items.push_back(document.number(number));
  return document.list(std::move(items));
}

PickleValue* counts(PickleDocument& document, int64_t count, bool short_form = false) {
  const auto number = [&] { return document.integer(count); };
  if (short_form) return document.dict({{"ready", number()}, {"completed", number()}});
  return document.dict({{"ready", number()}, {"completed", number()}, {"started", number()}, {"processed", number()}});
}

PickleValue* progress(PickleDocument& document, int64_t total, int64_t current, bool short_form = false) {
  return document.dict(
      {{"total", counts(document, total, short_form)}, {"current", counts(document, current, short_form)}});
}

PickleValue* batch_progress(PickleDocument& document, int64_t total, int64_t current, bool is_last) {
  PickleValue* const made = progress(document, total, current);
  document.put(made, "is_last_batch", document.boolean(is_last));
  return made;
}

PickleValue* evaluation_loop(PickleDocument& document) {
  return document.dict({{"state_dict", document.dict()}, {"batch_progress", batch_progress(document, 0, 0, false)}});
}

PickleValue* fit_loop(PickleDocument& document, const State& loops, int64_t scheduler_steps) {
  constexpr int64_t kEpochDone = 3;  // FitPhase
  const int64_t steps = loops.at("global_step").as_int();
  const int64_t batch = loops.at("batch").as_int();
  const bool done = loops.at("phase").as_int() == kEpochDone;
  const int64_t epochs = loops.at("epoch").as_int() + (done ? 1 : 0);
  PickleValue* const three = document.dict({{"ready", document.integer(steps)},
                                            {"completed", document.integer(steps)},
                                            {"started", document.integer(steps)}});
  const int64_t begun = done || batch == 0 ? epochs : epochs + 1;
  const auto epoch_counts = [&] {
    return document.dict({{"ready", document.integer(begun)},
                          {"completed", document.integer(epochs)},
                          {"started", document.integer(begun)},
                          {"processed", document.integer(epochs)}});
  };
  PickleValue* const optimizer = document.dict({{"step", progress(document, steps, batch, /*short_form=*/true)},
                                                {"zero_grad", document.dict({{"total", three}, {"current", three}})}});
  return document.dict(
      {{"state_dict", document.dict()},
       {"epoch_loop.state_dict", document.dict({{"_batches_that_stepped", document.integer(steps)}})},
       {"epoch_loop.batch_progress",
        batch_progress(document, loops.at("total_batches").as_int(), batch, loops.at("last_batch_done").as_bool())},
       {"epoch_loop.scheduler_progress", progress(document, scheduler_steps, done ? 1 : 0, /*short_form=*/true)},
       {"epoch_loop.automatic_optimization.state_dict", document.dict()},
       {"epoch_loop.automatic_optimization.optim_progress", document.dict({{"optimizer", optimizer}})},
       {"epoch_loop.manual_optimization.state_dict", document.dict()},
       // Lightning counts by one of the two, as the module says.
       {"epoch_loop.manual_optimization.optim_step_progress", progress(document, steps, batch, /*short_form=*/true)},
       {"epoch_loop.val_loop.state_dict", document.dict()},
       {"epoch_loop.val_loop.batch_progress", batch_progress(document, 0, 0, false)},
       {"epoch_progress", document.dict({{"total", epoch_counts()}, {"current", epoch_counts()}})}});
}

PickleValue* scheduler_state(PickleDocument& document, const State& scheduler) {
  PickleValue* const made = document.dict();
  const State* const lower = scheduler.find("lower_lrs");
  if (lower != nullptr) {
    document.put(made, "base_lrs", numbers_value(document, numbers_of(*lower)));
    document.put(made, "max_lrs", numbers_value(document, numbers_of(scheduler.at("upper_lrs"))));
    document.put(made, "_scale_fn_custom", document.none());
  } else if (const State* base = scheduler.find("base_lrs")) {
    document.put(made, "base_lrs", numbers_value(document, numbers_of(*base)));
    // LambdaLR asks for it, the counterpart of Levin's schedules that Python has none of.
    std::vector<PickleValue*> functions;
    for (size_t i = 0; i < base->as_list().size(); ++i) functions.push_back(document.none());
    document.put(made, "lr_lambdas", document.list(std::move(functions)));
  }
  if (const State* last = scheduler.find("last_lr"))
    document.put(made, "_last_lr", numbers_value(document, numbers_of(*last)));
  if (const State* steps = scheduler.find("steps")) {
    document.put(made, "last_epoch", document.integer(steps->as_int()));
    document.put(made, "_step_count", document.integer(steps->as_int() + 1));
  }
  if (const State* best = scheduler.find("best")) {
    document.put(made, "best", document.number(best->as_double()));
    document.put(made, "num_bad_epochs", document.integer(scheduler.at("bad_steps").as_int()));
    document.put(made, "cooldown_counter", document.integer(scheduler.at("cooldown_left").as_int()));
  }
  if (const State* period = scheduler.find("period")) {
    document.put(made, "T_i", document.integer(period->as_int()));
    document.put(made, "T_cur", document.integer(scheduler.at("in_period").as_int()));
  }
  if (const State* parts = scheduler.find("parts")) {
    std::vector<PickleValue*> saved;
    for (const State& part : parts->as_list()) saved.push_back(scheduler_state(document, part));
    document.put(made, "_schedulers", document.list(std::move(saved)));
  }
  return made;
}

/// The keys of a mapping that are whole numbers, with their values, in the order of the numbers.
std::map<int64_t, const State*> by_number(const State& map) {
  std::map<int64_t, const State*> numbered;
  for (const auto& [key, value] : map.as_map())
    if (const auto number = number_in<int64_t>(key)) numbered[*number] = &value;
  return numbered;
}

/// A number of torch.optim's groups as text that Levin's options read.
std::optional<State> option_text(const State& given) {
  const State value = number_of(given);
  if (value.is_bool()) return State(value.as_bool() ? "true" : "false");
  if (value.is_int()) return State(std::to_string(value.as_int()));
  if (value.is_double()) return State(fmt::format("{}", value.as_double()));
  if (!value.is_list()) return {};
  State list = State::list();
  for (const auto& item : value.as_list()) {
    auto text = option_text(item);
    if (!text) return {};
    list.push_back(std::move(*text));
  }
  return list;
}

/// Throws levin::Error where a group is of another optimizer of PyTorch, as its options say, whose state would be taken
/// for this one's.
void require_same_optimizer(const State& present, const State& group, const State& saved, const std::string& path) {
  const State* const options = group.find("options");
  if (options == nullptr) return;
  const std::string type = short_type(present);
  const auto fail = [&](const std::string& what) {
    throw Error("checkpoint",
                fmt::format("{} has the state of another optimizer than {}: {}; hint: the optimizer that it "
                            "was saved with, or start from the weights alone with init_from",
                            path, type, what));
  };
  for (const char* of_some : {"amsgrad", "centered", "etas", "lambd", "lr_decay", "momentum_decay", "nesterov", "rho"})
    if ((options->find(of_some) != nullptr) != (saved.find(of_some) != nullptr))
      fail(fmt::format("one of them has the option '{}'", of_some));
  const State* const decoupled = saved.find("decoupled_weight_decay");
  const State* const decay = saved.find("weight_decay");
  if (decoupled == nullptr || !decoupled->is_bool() || (type != "Adam" && type != "AdamW")) return;
  const bool decays = decay != nullptr && (decay->is_double() || decay->is_int()) && decay->as_double() != 0;
  if (decays && decoupled->as_bool() != (type == "AdamW"))
    fail(decoupled->as_bool() ? "its weight decay is that of AdamW" : "its weight decay is that of Adam");
}

}  // namespace

State state_from_pickle(const PickleValue& value) {
  TreeBudget budget("weights");
  return state_of(value, budget);
}

PickleValue* torch_optimizer_state(PickleDocument& document, Pickler& pickler, const State& optimizer,
                                   const std::vector<double>& initial_lrs) {
  const std::string type = short_type(optimizer);
  const State* const parameters = optimizer.find("parameters");
  if (parameters == nullptr || optimizer.at("type").as_string().find("levin::optim::") != 0)
    throw Error("weights", fmt::format("the state of {} cannot be written for PyTorch; valid: levin::optim::SGD, Adam, "
                                       "AdamW and Adagrad; hint: save_weights_only: true",
                                       optimizer.at("type").as_string()));
  PickleValue* const state = document.dict();
  std::vector<PickleValue*> groups;
  int64_t next = 0;
  for (size_t g = 0; g < optimizer.at("groups").as_list().size(); ++g) {
    const State& saved = optimizer.at("groups").as_list()[g];
    PickleValue* const group = document.dict();
    for (const auto& [name, value] : saved.at("options").as_map()) {
      if (name == "lr") continue;
      if (value.is_list()) {
        std::vector<PickleValue*> items;
        for (const auto& item : value.as_list()) items.push_back(python_scalar(document, item.as_string(), false));
        document.put(group, name, document.list(std::move(items), PickleValue::Kind::kTuple));
      } else if (value.is_string()) {
        // As PyTorch has them: a whole number is a float all the same.
        PickleValue* const scalar = python_scalar(document, value.as_string(), false);
        document.put(
            group, name,
            scalar->is(PickleValue::Kind::kInt) ? document.number(static_cast<double>(scalar->integer)) : scalar);
      }
    }
    document.put(group, "lr", document.number(saved.at("lr").as_double()));
    document.put(group, "foreach", document.none());
    document.put(group, "differentiable", document.boolean(false));
    document.put(group, "fused", document.none());
    if (type == "Adam" || type == "AdamW") {
      document.put(group, "capturable", document.boolean(false));
      document.put(group, "decoupled_weight_decay", document.boolean(type == "AdamW"));
    }
    if (g < initial_lrs.size()) document.put(group, "initial_lr", document.number(initial_lrs[g]));
    std::vector<PickleValue*> indices;
    for (const auto& name : saved.at("params").as_list()) {
      indices.push_back(document.integer(next));
      if (const State* fields = parameters->find(name.as_string())) {
        PickleValue* const own = document.dict();
        for (const auto& [field, value] : fields->as_map())
          if (value.is_tensor()) document.put(own, field, tensor_value(document, pickler, value.as_leaf()));
        state->pairs.emplace_back(document.integer(next), own);
      }
      ++next;
    }
    document.put(group, "params", document.list(std::move(indices)));
    groups.push_back(group);
  }
  return document.dict({{"state", state}, {"param_groups", document.list(std::move(groups))}});
}

/// Of a run with an average of its weights, as Lightning's WeightAveraging writes it: `state_dict` has the average.
void put_average(PickleDocument& document, Pickler& pickler, const State& tree, PickleValue* root) {
  const State* const callbacks = tree.find("callbacks");
  if (callbacks == nullptr || !callbacks->is_map()) return;
  for (const auto& [key, callback] : callbacks->as_map()) {
    const State* const training = callback.is_map() ? callback.find("training_weights") : nullptr;
    const State* const updates = callback.is_map() ? callback.find("updates") : nullptr;
    if (training == nullptr || updates == nullptr) continue;
    PickleValue* const weights = document.ordered_dict();
    const auto& own = training->at("parameters").as_map();
    for (const auto& [name, value] : tree.at("model").as_map()) {
      const auto found = own.find(name);
      const TensorLeaf& leaf = found != own.end() ? found->second.at("value").as_leaf() : value.as_leaf();
      document.put(weights, name, tensor_value(document, pickler, leaf));
    }
    document.put(root, "current_model_state", weights);
    const TensorLeaf count{.value = at::full({}, updates->as_int(), at::TensorOptions().dtype(at::kLong))};
    document.put(root, "averaging_state", document.dict({{"n_averaged", tensor_value(document, pickler, count)}}));
    return;
  }
}

/// Of a run with a loss scale.
void put_scaler(PickleDocument& document, const State& tree, PickleValue* root) {
  const State* const scaler = tree.find("precision");
  if (scaler == nullptr || scaler->find("scale") == nullptr) return;
  // Earlier versions saved the scale and its age alone.
  const auto saved_or = [&](const char* name, State usual) {
    const State* const saved = scaler->find(name);
    return saved == nullptr ? usual : *saved;
  };
  const auto number = [&](const char* name, double usual) {
    return document.number(saved_or(name, State(usual)).as_double());
  };
  document.put(
      root, kScaler,
      document.dict({{"scale", document.number(scaler->at("scale").as_double())},
                     {"growth_factor", number("growth_factor", 2)},
                     {"backoff_factor", number("backoff_factor", 0.5)},
                     {"growth_interval", document.integer(saved_or("growth_interval", State(int64_t{2000})).as_int())},
                     {"_growth_tracker", document.integer(scaler->at("growth_tracker").as_int())}}));
}

PickleValue* lightning_checkpoint(PickleDocument& document, Pickler& pickler, const State& tree, bool weights_only) {
  PickleValue* const weights = document.ordered_dict();
  std::map<std::string, PickleValue*> values;
  for (const auto& [name, value] : tree.at("model").as_map())
    document.put(weights, name, values[name] = tensor_value(document, pickler, value.as_leaf()));
  if (const State* tied = tree.find(kTiedNames))
    for (const auto& [name, saved_as] : tied->as_map())
      if (const auto found = values.find(saved_as.as_string()); found != values.end())
        document.put(weights, name, found->second);
  const State& loops = tree.at("loops");
  PickleValue* const root = document.dict();
  constexpr int64_t kEpochDone = 3;
  const int64_t epochs = loops.at("epoch").as_int() + (loops.at("phase").as_int() == kEpochDone ? 1 : 0);
  document.put(root, "epoch", document.integer(epochs));
  document.put(root, "global_step", document.integer(loops.at("global_step").as_int()));
  document.put(root, "pytorch-lightning_version", document.text(kLightningVersion));
  document.put(root, "state_dict", weights);
  if (!weights_only) put_average(document, pickler, tree, root);
  if (const State* options = tree.find("hyper_parameters")) {
    const std::string& yaml = options->at("options").as_string();
    if (!yaml.empty()) {
      document.put(root, "hparams_name", document.text("kwargs"));
      document.put(root, "hyper_parameters",
                   python_value(document, Config::parse(yaml, {.source = "hyper_parameters"})));
    }
  }
  PickleValue* const schedulers = document.list();
  int64_t scheduler_steps = 0;
  PickleValue* const optimizers = document.list();
  if (!weights_only) {
    std::vector<double> initial;
    for (const auto& scheduler : tree.at("schedulers").as_list()) {
      schedulers->items.push_back(scheduler_state(document, scheduler));
      if (const State* base = scheduler.find("base_lrs"); base != nullptr && initial.empty())
        initial = numbers_of(*base);
      if (const State* steps = scheduler.find("steps")) scheduler_steps += steps->as_int();
    }
    for (const auto& optimizer : tree.at("optimizers").as_list())
      optimizers->items.push_back(torch_optimizer_state(document, pickler, optimizer, initial));
    put_scaler(document, tree, root);
    document.put(root, "optimizer_states", optimizers);
    document.put(root, "lr_schedulers", schedulers);
    document.put(root, "callbacks", document.dict());
  }
  // load_from_checkpoint asks for the loops of weights too.
  document.put(root, "loops",
               document.dict({{"fit_loop", fit_loop(document, loops, scheduler_steps)},
                              {"validate_loop", evaluation_loop(document)},
                              {"test_loop", evaluation_loop(document)},
                              {"predict_loop", evaluation_loop(document)}}));
  return root;
}

LightningProgress lightning_progress(const State& checkpoint, const std::string& path) {
  const State* const loops = checkpoint.find("loops");
  const State* const fit = loops != nullptr && loops->is_map() ? loops->find("fit_loop") : nullptr;
  if (fit == nullptr || checkpoint.find("optimizer_states") == nullptr)
    throw Error("checkpoint", fmt::format("{} holds weights alone, from which training cannot go on; hint: start from "
                                          "them with init_from",
                                          path));
  const State& epochs = fit->at("epoch_progress").at("current");
  const State& batches = fit->at("epoch_loop.batch_progress");
  LightningProgress progress;
  // A batch whose hooks were under way is counted as processed alone.
  const auto trained = [&](const char* counts) {
    const State& of = batches.at(counts);
    return std::max(of.at("completed").as_int(), of.at("processed").as_int());
  };
  progress.batch = trained("current");
  progress.total_batches = trained("total");
  progress.global_step = checkpoint.at("global_step").as_int();
  const int64_t completed = epochs.at("completed").as_int();
  const int64_t processed = epochs.at("processed").as_int();
  // Begun, and its end has not come: validation and the schedules of epochs are still to run, also after its last
  // batch.
  const bool is_under_way = progress.batch > 0 && epochs.at("ready").as_int() > std::max(completed, processed);
  progress.epoch_done = !is_under_way;
  const State* const last = batches.find("is_last_batch");
  progress.last_batch_done = progress.epoch_done || (last != nullptr && last->as_bool());
  progress.epoch = is_under_way ? completed : std::max<int64_t>(0, std::max(completed, processed) - 1);
  return progress;
}

State optimizer_state_from_torch(const State& present, const State& saved, const std::string& path) {
  if (present.find("parameters") == nullptr)
    throw Error("checkpoint",
                fmt::format("the state of an optimizer in {} cannot be taken over by {}; valid: "
                            "levin::optim::SGD, Adam, AdamW and Adagrad; hint: start from the weights alone "
                            "with init_from",
                            path, present.at("type").as_string()));
  State state = present;
  auto& groups = state["groups"].as_list();
  const auto& saved_groups = saved.at("param_groups").as_list();
  if (groups.size() != saved_groups.size())
    throw Error("checkpoint", fmt::format("the optimizer has {} parameter groups; got {} in {}", groups.size(),
                                          saved_groups.size(), path));
  const auto saved_parameters = by_number(saved.at("state"));
  State& parameters = state["parameters"] = State::map();
  for (size_t g = 0; g < groups.size(); ++g) {
    const auto& names = groups[g].at("params").as_list();
    const auto& indices = saved_groups[g].at("params").as_list();
    if (names.size() != indices.size())
      throw Error("checkpoint", fmt::format("parameter group {} has {} parameters; got {} in {}; hint: parameters are "
                                            "taken by their place",
                                            g, names.size(), indices.size(), path));
    require_same_optimizer(present, groups[g], saved_groups[g], path);
    groups[g]["lr"] = number_of(saved_groups[g].at("lr"));
    if (groups[g].find("options") != nullptr)
      for (auto& [name, value] : groups[g]["options"].as_map())
        if (const State* own = saved_groups[g].find(name))
          if (auto text = option_text(*own)) value = std::move(*text);
    for (size_t i = 0; i < names.size(); ++i) {
      const auto found = saved_parameters.find(indices[i].as_int());
      if (found == saved_parameters.end()) continue;
      State& fields = parameters[names[i].as_string()] = State::map();
      for (const auto& [field, value] : found->second->as_map()) {
        if (value.is_tensor())
          fields[field] = field == "step" ? State(value.as_tensor().to(at::kFloat)) : value;
        else if (field == "step" && !value.is_null())
          fields[field] = State(at::full({}, value.as_double(), at::TensorOptions().dtype(at::kFloat)));
      }
    }
  }
  return state;
}

std::optional<State> scaler_state_from_lightning(const State& checkpoint) {
  const State* saved = checkpoint.find(kScaler);
  if (saved == nullptr) saved = checkpoint.find(kScalerOfVersion1);
  if (saved == nullptr || !saved->is_map() || saved->find("scale") == nullptr) return std::nullopt;
  const State* const tracker = saved->find("_growth_tracker");
  State state = State::map();
  state["scale"] = number_of(saved->at("scale"));
  state["growth_tracker"] = tracker == nullptr ? int64_t{0} : tracker->as_int();
  for (const char* count : {"skipped", "skipped_in_a_row", "skipped_told"}) state[count] = int64_t{0};
  return state;
}

State scheduler_state_from_torch(const State& present, const State& saved) {
  State state = present;
  const auto take = [&](const char* own, const char* theirs) {
    if (state.find(own) != nullptr)
      if (const State* value = saved.find(theirs); value != nullptr && !value->is_null())
        state[own] = number_of(*value);
  };
  // Levin's base of a cycle is its upper bound. Those of OneCycleLR are with the optimizer, where its options have
  // them.
  if (saved.find("max_lrs") != nullptr)
    take("base_lrs", "max_lrs");
  else if (saved.find("_schedule_phases") == nullptr)
    take("base_lrs", "base_lrs");
  take("last_lr", "_last_lr");
  take("steps", "last_epoch");
  take("best", "best");
  take("bad_steps", "num_bad_epochs");
  take("cooldown_left", "cooldown_counter");
  take("period", "T_i");
  take("in_period", "T_cur");
  if (!state.contains("parts")) return state;
  auto& parts = state["parts"].as_list();
  const State* const saved_parts = saved.find("_schedulers");
  const size_t count = saved_parts == nullptr ? 0 : saved_parts->as_list().size();
  if (count != parts.size())
    throw Error("checkpoint",
                fmt::format("the scheduler has {} parts; got {} in the checkpoint of Lightning", parts.size(), count));
  for (size_t k = 0; k < count; ++k) parts[k] = scheduler_state_from_torch(parts[k], saved_parts->as_list()[k]);
  return state;
}

}  // namespace levin
