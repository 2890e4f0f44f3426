#include <levin/core/export/model_trace.h>

#include <levin/core/base/error.h>
#include <levin/core/base/log.h>
#include <levin/core/base/released_storage.h>
#include <levin/core/base/seed.h>
#include <levin/core/export/batch_size.h>
#include <levin/core/nn/behaviour_key.h>
#include <levin/core/nn/move_to_device.h>
#include <levin/core/nn/named_units.h>
#include <levin/core/nn/unit.h>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/frontend/tracer.h>
#include <torch/csrc/jit/passes/dead_code_elimination.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cctype>
#include <exception>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace levin {
namespace {

namespace jit = torch::jit;

// Small, since the model runs with each. Of a number that grows with the rows the two traces show how.
constexpr int64_t kRows = 2;
constexpr int64_t kOtherRows = 3;
constexpr int64_t kFewRowsTried = 1;
/// Above the bounds that code sets to numbers of rows, as a rule: min(rows, 4), rows / 4.
constexpr int64_t kMoreRowsTried = 9;

std::string first_line(const std::exception& error) {
  const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
  const std::string text = of_torch != nullptr ? of_torch->what_without_backtrace() : error.what();
  return text.substr(0, text.find('\n'));
}

/// Errors of the interpreter end with what went wrong, after where it was.
std::string last_line(const std::exception& error) {
  const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
  std::string text = of_torch != nullptr ? of_torch->what_without_backtrace() : error.what();
  while (!text.empty() && text.back() == '\n') text.pop_back();
  const size_t end = text.rfind('\n');
  return end == std::string::npos ? text : text.substr(end + 1);
}

/// Where a module is traced.
enum class TraceOn { kItsDevice, kCpu };

/// Keeps buffers, the mode of every submodule, the device and the random generators for as long as a module is traced.
class ModuleStateGuard {
 public:
  ModuleStateGuard(torch::nn::Module& module, TraceOn where) {
    modes_.emplace_back(&module, module.is_training());
    for (const auto& part : module.modules(/*include_self=*/false))
      modes_.emplace_back(part.get(), part->is_training());
    if (where == TraceOn::kCpu) {
      for (const auto& tensors : {module.parameters(), module.buffers()})
        for (const at::Tensor& tensor : tensors)
          if (!tensor.is_cpu()) devices_.emplace_back(tensor, tensor.device());
      if (!devices_.empty()) move_to_device(module, at::kCPU);
    }
    for (const at::Tensor& buffer : module.buffers()) buffers_.emplace_back(buffer, buffer.clone());
    for (const auto& parameter : module.named_parameters())
      if (parameter.value().defined() && !parameter.value().is_inference())
        parameters_.push_back({parameter.key(), parameter.value(), parameter.value()._version()});
  }
  ~ModuleStateGuard() {
    const at::NoGradGuard no_gradients;
    for (auto& [part, training] : modes_) set_mode(*part, training);
    for (auto& [buffer, saved] : buffers_) buffer.copy_(saved);
    try {
      for (auto& [tensor, device] : devices_) replace_data(tensor, tensor.detach().to(device));
    } catch (const std::exception& error) {
      log::warning(
          fmt::format("could not bring all of the module back to its devices after the export: {}", error.what()));
    }
  }
  ModuleStateGuard(const ModuleStateGuard&) = delete;
  ModuleStateGuard& operator=(const ModuleStateGuard&) = delete;

  /// Throws levin::Error where a run has written to a parameter.
  void require_same_parameters() const {
    for (const auto& [name, parameter, version] : parameters_)
      if (parameter._version() != version)
        throw Error("export", fmt::format("forward writes to the parameter '{}', also in evaluation: the export's runs "
                                          "have done so too; hint: write to it in training_step or a hook",
                                          name));
  }
  /// Brings the buffers back to what they were.
  void restore_buffers() {
    const at::NoGradGuard no_gradients;
    for (auto& [buffer, saved] : buffers_) buffer.copy_(saved);
  }

 private:
  /// Sets the mode of this part; train() passes it on, so that parents come before their children.
  static void set_mode(torch::nn::Module& part, bool training) {
    if (part.is_training() != training) part.train(training);
  }

  std::vector<std::pair<torch::nn::Module*, bool>> modes_;
  std::vector<std::pair<at::Tensor, at::Tensor>> buffers_;
  struct Parameter {
    std::string name;
    at::Tensor tensor;
    int64_t version;
  };
  std::vector<Parameter> parameters_;
  std::vector<std::pair<at::Tensor, at::Device>> devices_;  ///< of what was elsewhere than on the CPU
  RngStateGuard generators_;
};

/// Writes the path of the unit that runs into the nodes that the tracer makes.
class UnitScopes {
 public:
  explicit UnitScopes(torch::nn::Module& module) {
    for (NamedUnit& unit : named_units(module)) {
      hooks_.push_back(std::make_unique<Hook>(unit.path));
      units_.push_back(unit.unit);
      unit.unit->add_hook(*hooks_.back());
    }
  }
  ~UnitScopes() {
    for (size_t i = 0; i < units_.size(); ++i) units_[i]->remove_hook(*hooks_[i]);
  }
  UnitScopes(const UnitScopes&) = delete;
  UnitScopes& operator=(const UnitScopes&) = delete;

 private:
  class Hook : public UnitHook {
   public:
    explicit Hook(std::string path) : path_(std::move(path)) {}
    void before_forward(UnitCall& /*call*/) override {
      if (!jit::tracer::isTracing()) return;
      jit::Graph& graph = *jit::tracer::getTracingState()->graph;
      outer_.push_back(graph.current_scope());
      graph.set_current_scope(graph.current_scope()->push(c10::Symbol::scope(path_)));
    }
    void after_forward(UnitCall& /*call*/) override {
      if (outer_.empty()) return;
      if (jit::tracer::isTracing()) jit::tracer::getTracingState()->graph->set_current_scope(outer_.back());
      outer_.pop_back();
    }

   private:
    std::string path_;
    std::vector<jit::ScopePtr> outer_;
  };

  std::vector<std::unique_ptr<Hook>> hooks_;
  std::vector<Unit*> units_;
};

/// The numbers of rows that an example's tensors have, each once: one, unless it is a batch of graphs or the like,
/// whose nodes, edges and graphs are not as many.
class RowCounts {
 public:
  explicit RowCounts(const Batch& example) {
    for (const auto& [name, tensor] : example.items()) {
      if (tensor.dim() == 0 || place_of(tensor.size(0)) < given_.size()) continue;
      given_.push_back(tensor.size(0));
      names_.push_back(name + "_rows");
      more_.push_back(1);
      while (is_like_an_earlier_one(more_.back(), given_.back())) ++more_.back();
    }
    if (given_.size() == 1) names_.front() = "batch";
  }

  const std::vector<int64_t>& given() const { return given_; }
  /// Of what changes with the batch, as ONNX names it.
  const std::vector<std::string>& names() const { return names_; }
  /// The index of a number of rows; how many numbers there are, where it is none of them.
  size_t place_of(int64_t rows) const {
    return static_cast<size_t>(std::find(given_.begin(), given_.end(), rows) - given_.begin());
  }

  // What the model is traced with, and tried with.
  std::vector<int64_t> first() const { return counts(kRows, 0); }
  std::vector<int64_t> second() const { return counts(kOtherRows, 1); }
  std::vector<std::vector<int64_t>> tried() const {
    return {counts(kFewRowsTried, 3), counts(kMoreRowsTried, kMoreRowsTried), given_};
  }

 private:
  /// As few as `one` where there is one number. Else as many as are given, since a tensor may have the indices of all
  /// of another's rows, and some times more of each.
  std::vector<int64_t> counts(int64_t one, int64_t times) const {
    if (given_.size() == 1) return {one};
    std::vector<int64_t> rows = given_;
    for (size_t i = 0; i < rows.size(); ++i) rows[i] += times * more_[i];
    return rows;
  }

  bool is_like_an_earlier_one(int64_t more, int64_t given) const {
    for (size_t i = 0; i + 1 < more_.size(); ++i)
      if (more_[i] == more || more_[i] * given == more * given_[i]) return true;
    return false;
  }

  std::vector<int64_t> given_;
  std::vector<std::string> names_;
  /// How many more of each there are in the second trace: another number of each, and another proportion, so that what
  /// is computed of two numbers differs too, and a multiple of one is none of another.
  std::vector<int64_t> more_;
};

/// In words: "2 rows", "5 and 8 rows".
std::string rows_in_words(const std::vector<int64_t>& rows) {
  if (rows.size() == 1) return counted(rows.front(), "row");
  std::vector<std::string> numbers;
  for (const int64_t count : rows) numbers.push_back(std::to_string(count));
  return join(numbers, " and ") + " rows";
}

/// Values to try a model with.
enum class Values {
  kExample,  ///< the example's rows, again and again
  kScaled,   ///< real numbers times one above 0 for each row, whole numbers and truth values in another order
  kTurned,   ///< the same, times one below 0
};

at::Tensor with_values(const at::Tensor& tensor, Values values) {
  if (values == Values::kExample || tensor.dim() == 0) return tensor;
  if (!tensor.is_floating_point()) return tensor.dim() == 1 ? tensor.flip(0) : tensor.flip(0).roll(1, tensor.dim() - 1);
  std::vector<int64_t> sizes(static_cast<size_t>(tensor.dim()), 1);
  sizes.front() = tensor.size(0);
  const at::Tensor factors = (at::arange(tensor.size(0), at::kFloat).mul(3).remainder(5) + 2).view(sizes) / 4;
  return tensor * (values == Values::kScaled ? factors : -factors).to(tensor.scalar_type());
}

/// As many rows as `rows` has for each number of the example's.
Batch with_rows(const Batch& example, const std::vector<int64_t>& rows, Values values = Values::kExample) {
  const RowCounts counts(example);
  Batch batch;
  for (const auto& [name, tensor] : example.items()) {
    const at::Tensor cpu = tensor.detach().to(at::kCPU);
    if (cpu.dim() == 0) {
      batch.set(name, cpu);
      continue;
    }
    const int64_t given = cpu.size(0);
    const at::Tensor index = at::arange(rows.at(counts.place_of(given)), at::kLong).remainder(given);
    batch.set(name, with_values(cpu.index_select(0, index), values));
  }
  return batch;
}

void check_example(const Batch& example) {
  if (example.empty()) throw Error("export", "the example has no tensors; hint: give a batch as export_step gets it");
  for (const auto& [name, tensor] : example.items()) {
    if (!tensor.defined()) throw Error("export", fmt::format("the example's tensor '{}' is undefined", name));
    if (tensor.dim() > 0 && tensor.size(0) == 0)
      throw Error("export", fmt::format("the example's tensor '{}' has no rows; valid: one or more", name));
  }
}

void check_module(const torch::nn::Module& module) {
  for (const auto& parameter : module.named_parameters()) {
    const at::Tensor& tensor = parameter.value();
    if (is_released(tensor))
      throw Error("export", fmt::format("the model cannot be traced; got {}", released_message(tensor)));
    if (tensor.is_meta() || (tensor.numel() > 0 && !tensor.has_storage()))
      throw Error("export", fmt::format("the parameter '{}' has no values; hint: give a checkpoint", parameter.key()));
  }
}

/// The module's tree as one of the script, sharing parameters and buffers.
class ScriptTree {
 public:
  ScriptTree() : unit_(std::make_shared<jit::CompilationUnit>()) {}

  jit::Module of(const torch::nn::Module& module, const std::string& name = "__torch__.model") {
    if (const auto known = made_.find(&module); known != made_.end()) return known->second;
    jit::Module script(c10::QualifiedName(name), unit_, /*shouldMangle=*/true);
    script.register_attribute("training", c10::BoolType::get(), module.is_training());
    for (const auto& parameter : module.named_parameters(/*recurse=*/false))
      script.register_parameter(parameter.key(), parameter.value(), /*is_buffer=*/false);
    for (const auto& buffer : module.named_buffers(/*recurse=*/false))
      script.register_buffer(buffer.key(), buffer.value());
    for (const auto& child : module.named_children())
      script.register_module(child.key(), of(*child.value(), name + "." + class_name(child.key())));
    made_.emplace(&module, script);
    return script;
  }

  jit::CompilationUnit& unit() { return *unit_; }

 private:
  /// A child's name as a word of a class name; LibTorch makes those that are alike different.
  static std::string class_name(const std::string& child) {
    std::string word = "part_";
    for (const char letter : child) word += std::isalnum(static_cast<unsigned char>(letter)) != 0 ? letter : '_';
    return word;
  }

  std::shared_ptr<jit::CompilationUnit> unit_;
  std::map<const torch::nn::Module*, jit::Module> made_;
};

/// What the tracer recorded in one mode.
struct ModeTrace {
  std::shared_ptr<jit::Graph> graph;
  std::vector<std::string> outputs;
};

struct ModeTraces {
  Batch batch;  ///< traced with it
  ModeTrace evaluation = {};
  ModeTrace training = {};
  std::vector<std::vector<int64_t>> output_sizes = {};
  std::vector<std::string> fixed = {};  ///< what ties them to the batch's size
};

class ModelTracer {
 public:
  ModelTracer(torch::nn::Module& module, const ExportedFunction& function, const Batch& example, TraceOn where)
      : module_(module),
        function_(function),
        example_(example),
        rows_(example),
        guard_(module, where),
        self_(tree_.of(module)) {}

  ModelTrace run(bool tries_training) {
    const at::NoGradGuard no_gradients;
    ModeTraces traces = trace_freely();
    std::string follows_values;
    if (traces.fixed.empty()) {
      follows_values = difference_with_other_values(traces, rows_.first());
      traces.fixed = differences_with_other_sizes(traces, follows_values.empty());
    }
    if (!traces.fixed.empty()) {
      auto fixed = std::move(traces.fixed);
      traces = trace_fixed();
      traces.fixed = std::move(fixed);
      const auto wrong = differences_with(traces, rows_.given());
      if (!wrong.empty())
        throw Error("export", wrong.front() +
                                  ", as with the example's: something that it computes is no operator; hint: "
                                  "numbers of the host in a tensor belong in a buffer");
      follows_values = difference_with_other_values(traces, rows_.given());
    }
    guard_.restore_buffers();
    ModelTrace trace = assemble(traces);
    trace.follows_values = follows_values;
    add_forward(trace, *traces.training.graph);
    if (tries_training) trace.trains_otherwise = difference_in_training(trace);
    trace.script.eval();
    guard_.restore_buffers();
    guard_.require_same_parameters();
    return trace;
  }

  EvaluationTrace run_evaluation() {
    const at::NoGradGuard no_gradients;
    const UnitScopes scopes(module_);
    const ModeTrace trace = trace_mode(/*training=*/false, example_);
    EvaluationTrace result{.graph = trace.graph, .inputs = {}, .outputs = trace.outputs};
    for (const auto& [name, tensor] : example_.items()) result.inputs.push_back(name);
    return result;
  }

 private:
  ModeTrace trace_mode(bool training, const Batch& batch) {
    module_.train(training);
    guard_.restore_buffers();
    const RngStateGuard generators;
    jit::Stack inputs;
    std::vector<std::string> names;
    for (const auto& [name, tensor] : batch.items()) {
      inputs.emplace_back(tensor);
      names.push_back(variable_name(name));
    }
    ModeTrace trace;
    const auto traced = [&](const jit::Stack& stack) {
      Batch given;
      for (size_t i = 0; i < stack.size(); ++i) given.set(batch.items()[i].first, stack[i].toTensor());
      const Batch result = function_(given);
      jit::Stack outputs;
      for (const auto& [name, tensor] : result.items()) {
        if (!tensor.defined()) throw Error("export", fmt::format("export_step gave an undefined tensor '{}'", name));
        trace.outputs.push_back(name);
        outputs.emplace_back(tensor);
      }
      if (outputs.empty())
        throw Error("export", "export_step gave no tensors; hint: it returns what the model computes");
      return outputs;
    };
    try {
      const auto no_name = [](const at::Tensor& /*tensor*/) { return std::string(); };
      trace.graph = jit::tracer::trace(std::move(inputs), traced, no_name, /*strict=*/false, /*force_outplace=*/false,
                                       &self_, names)
                        .first->graph;
    } catch (const c10::Error& error) {
      throw Error("export", fmt::format("the model cannot be run with a batch of {} like the example, in {} mode: {}",
                                        rows_in_words(RowCounts(batch).given()), training ? "training" : "evaluation",
                                        first_line(error)));
    }
    jit::EliminateDeadCode(trace.graph->block());
    return trace;
  }

  /// A name of the example as one of a function's arguments.
  static std::string variable_name(const std::string& name) {
    std::string word;
    for (const char letter : name) word += std::isalnum(static_cast<unsigned char>(letter)) != 0 ? letter : '_';
    return word.empty() || std::isdigit(static_cast<unsigned char>(word.front())) != 0 ? "x" + word : word;
  }

  ModeTraces trace_freely() {
    const UnitScopes scopes(module_);
    ModeTraces traces{.batch = with_rows(example_, rows_.first())};
    const Batch other_batch = with_rows(example_, rows_.second());
    for (const bool training : {false, true}) {
      ModeTrace& trace = training ? traces.training : traces.evaluation;
      trace = trace_mode(training, traces.batch);
      const ModeTrace other = trace_mode(training, other_batch);
      if (!training) traces.output_sizes = common_sizes(*trace.graph, *other.graph);
      const auto sizes = free_sizes(*trace.graph, traces.batch);
      if (sizes.empty()) continue;
      auto problems = free_batch_size({.graph = *trace.graph, .other = *other.graph, .sizes = sizes});
      for (auto& problem : problems) traces.fixed.push_back((training ? "in training mode " : "") + problem);
    }
    return traces;
  }

  ModeTraces trace_fixed() {
    const UnitScopes scopes(module_);
    ModeTraces traces{.batch = with_rows(example_, rows_.given())};
    traces.evaluation = trace_mode(/*training=*/false, traces.batch);
    traces.training = trace_mode(/*training=*/true, traces.batch);
    traces.output_sizes = common_sizes(*traces.evaluation.graph, *traces.evaluation.graph);
    return traces;
  }

  /// The sizes of the outputs, below 0 where two traces differ, as ModelTrace has them.
  std::vector<std::vector<int64_t>> common_sizes(const jit::Graph& graph, const jit::Graph& other) const {
    std::vector<std::vector<int64_t>> all;
    for (size_t i = 0; i < std::min(graph.outputs().size(), other.outputs().size()); ++i) {
      std::vector<int64_t> sizes = sizes_of(*graph.outputs()[i]);
      const std::vector<int64_t> of_other = sizes_of(*other.outputs()[i]);
      for (size_t d = 0; d < std::min(sizes.size(), of_other.size()); ++d)
        if (sizes[d] != of_other[d]) sizes[d] = free_size(sizes[d], of_other[d]);
      all.push_back(std::move(sizes));
    }
    return all;
  }

  static std::vector<int64_t> sizes_of(const jit::Value& value) {
    const auto type = value.type()->cast<c10::TensorType>();
    const auto sizes = type == nullptr ? std::nullopt : type->sizes().concrete_sizes();
    return sizes.value_or(std::vector<int64_t>());
  }

  /// A size that changes with the batch, as ModelTrace has it, by what it is in two traces.
  int64_t free_size(int64_t size, int64_t of_other) const {
    const auto first = rows_.first();
    const auto second = rows_.second();
    size_t which = 0;
    while (which < first.size() && (first[which] != size || second[which] != of_other)) ++which;
    return -1 - static_cast<int64_t>(which);
  }

  /// What is free in a graph: each number of rows, as that of an input that is read, or else of one that is not.
  std::vector<FreeSize> free_sizes(const jit::Graph& graph, const Batch& batch) const {
    const auto first = rows_.first();
    const auto second = rows_.second();
    std::vector<FreeSize> sizes;
    std::vector<bool> is_found(first.size());
    for (const bool is_read : {true, false}) {
      for (size_t i = 1; i < graph.inputs().size(); ++i) {
        const at::Tensor& tensor = batch.items()[i - 1].second;
        if (graph.inputs()[i]->hasUses() != is_read || tensor.dim() == 0) continue;
        const size_t which = RowCounts(batch).place_of(tensor.size(0));
        if (is_found.at(which)) continue;
        is_found[which] = true;
        sizes.push_back({.rows = first[which], .other_rows = second[which], .input = i});
      }
    }
    return sizes;
  }

  /// Runs the evaluation graph with numbers of rows that it has not seen; says where it is not the model. With values
  /// that differ from row to row, where these can be told apart from the numbers of rows.
  std::vector<std::string> differences_with_other_sizes(const ModeTraces& traces, bool with_other_values) {
    std::vector<std::string> differences;
    for (const std::vector<int64_t>& rows : rows_.tried())
      for (const Values values : {Values::kExample, Values::kScaled})
        if (differences.empty() && (values == Values::kExample || with_other_values))
          differences = differences_with(traces, rows, values);
    return differences;
  }

  std::string difference_with_other_values(const ModeTraces& traces, const std::vector<int64_t>& rows) {
    for (const Values values : {Values::kScaled, Values::kTurned})
      if (const auto found = differences_with(traces, rows, values); !found.empty())
        return "with other values, " + found.front();
    return "";
  }

  /// Empty also where the model itself does not take such a batch.
  std::vector<std::string> differences_with(const ModeTraces& traces, const std::vector<int64_t>& rows,
                                            Values values = Values::kExample) {
    const Batch batch = with_rows(example_, rows, values);
    module_.eval();
    Batch expected;
    try {
      const RngStateGuard generators;
      expected = function_(batch);
    } catch (const std::exception&) {
      return {};
    }
    jit::Stack stack{self_._ivalue()};
    for (const auto& [name, tensor] : batch.items()) stack.emplace_back(tensor);
    // A function has one output.
    const auto graph = traces.evaluation.graph->copy();
    jit::Node* all = graph->insertNode(graph->createTuple(graph->outputs()));
    while (!graph->outputs().empty()) graph->eraseOutput(0);
    graph->registerOutput(all->output());
    std::vector<c10::IValue> got;
    try {
      const RngStateGuard generators;
      const c10::impl::ExcludeDispatchKeyGuard traced_already(detail::kBehaviourKey);
      jit::GraphFunction("evaluation", graph, nullptr).run(stack);
      got = stack.at(0).toTupleRef().elements().vec();
    } catch (const std::exception& error) {
      return {fmt::format("with {} the traced operators do not run: {}", rows_in_words(rows), last_line(error))};
    }
    for (size_t i = 0; i < got.size(); ++i) {
      const at::Tensor& result = got[i].toTensor();
      const at::Tensor& wanted = expected.items().at(i).second;
      if (result.sizes() != wanted.sizes() ||
          !at::allclose(result.to(at::kDouble), wanted.to(at::kDouble), 1e-4, 1e-5, /*equal_nan=*/true))
        return {fmt::format("with {} the traced operators give another '{}' than the model", rows_in_words(rows),
                            traces.evaluation.outputs[i])};
    }
    return {};
  }

  /// What training would see: the outputs' gradients, and buffers after two batches (what counts batches is the same
  /// constant in each), of which the second one has other real numbers.
  struct Trained {
    std::vector<at::Tensor> gradients;
    std::vector<at::Tensor> buffers;
  };
  Trained train(const Batch& example, const std::function<std::vector<at::Tensor>(const Batch&)>& forward) {
    const at::AutoGradMode gradients_on(true);
    guard_.restore_buffers();
    const RngStateGuard generators;
    Trained trained;
    Batch other;
    for (const auto& [name, tensor] : example.items())
      other.set(name, tensor.is_floating_point() ? tensor * 0.5 : tensor);
    for (const Batch* batch : std::initializer_list<const Batch*>{&example, &other}) {
      at::Tensor sum;
      for (const at::Tensor& output : forward(*batch))
        if (output.requires_grad() && output.is_floating_point())
          sum = sum.defined() ? sum + output.square().sum() : output.square().sum();
      std::vector<at::Tensor> parameters;
      for (const at::Tensor& parameter : module_.parameters())
        if (parameter.defined() && parameter.requires_grad()) parameters.push_back(parameter);
      if (sum.defined() && !parameters.empty())
        trained.gradients =
            torch::autograd::grad({sum}, parameters, {}, /*retain_graph=*/false, false, /*allow_unused=*/true);
    }
    for (const at::Tensor& buffer : module_.buffers())
      trained.buffers.push_back(buffer.defined() ? buffer.clone() : buffer);
    return trained;
  }

  std::string difference_in_training(ModelTrace& trace) {
    const auto is_other = [](const at::Tensor& a, const at::Tensor& b) {
      if (a.defined() != b.defined()) {
        const at::Tensor& one = a.defined() ? a : b;
        return one.is_sparse() || one.count_nonzero().item<int64_t>() > 0;
      }
      if (!a.defined() || !a.is_floating_point() || a.layout() != at::kStrided) return false;
      const at::Tensor wanted = a.to(at::kDouble);
      const double largest = wanted.numel() > 0 ? wanted.abs().nan_to_num().max().item<double>() : 0;
      return !at::allclose(wanted, b.to(at::kDouble), 1e-3, 1e-5 + 1e-4 * largest, /*equal_nan=*/true);
    };
    // LibTorch's optimised graphs draw the masks of dropout in another way.
    const jit::GraphOptimizerEnabledGuard as_written(false);
    module_.train();
    trace.script.train();
    Trained own;
    Trained of_script;
    try {
      own = train(trace.example, [&](const Batch& batch) {
        const Batch result = function_(batch);
        std::vector<at::Tensor> outputs;
        for (const auto& [name, tensor] : result.items()) outputs.push_back(tensor);
        return outputs;
      });
    } catch (const std::exception&) {
      return "";  // the module itself cannot be trained on this
    }
    try {
      of_script = train(trace.example, [&](const Batch& batch) {
        std::vector<c10::IValue> inputs;
        for (const auto& [name, tensor] : batch.items()) inputs.emplace_back(tensor);
        const c10::impl::ExcludeDispatchKeyGuard traced_already(detail::kBehaviourKey);
        const c10::IValue result = trace.script.forward(inputs);
        std::vector<at::Tensor> outputs;
        if (result.isTensor()) return std::vector<at::Tensor>{result.toTensor()};
        for (const std::string& name : trace.outputs) outputs.push_back(result.toGenericDict().at(name).toTensor());
        return outputs;
      });
    } catch (const std::exception& error) {
      return fmt::format("in training mode it does not run: {}", last_line(error));
    }
    size_t next = 0;
    for (const auto& parameter : module_.named_parameters()) {
      if (!parameter.value().defined() || !parameter.value().requires_grad() || next >= own.gradients.size()) continue;
      if (next >= of_script.gradients.size() || is_other(own.gradients[next], of_script.gradients[next]))
        return fmt::format("the gradient of '{}' is another one", parameter.key());
      ++next;
    }
    next = 0;
    for (const auto& buffer : module_.named_buffers()) {
      if (is_other(own.buffers[next], of_script.buffers[next]))
        return fmt::format("the buffer '{}' is another one after two batches", buffer.key());
      ++next;
    }
    return "";
  }

  ModelTrace assemble(ModeTraces& traces) const {
    if (traces.evaluation.outputs != traces.training.outputs)
      throw Error("export",
                  fmt::format("export_step gives other tensors in training mode than in evaluation; got {} and {}",
                              join(traces.training.outputs), join(traces.evaluation.outputs)));
    ModelTrace trace{.script = self_,
                     .outputs = traces.evaluation.outputs,
                     .output_sizes = traces.output_sizes,
                     .size_names = rows_.names(),
                     .fixed = traces.fixed};
    const auto& items = traces.batch.items();
    std::vector<jit::Graph*> graphs{traces.evaluation.graph.get(), traces.training.graph.get()};
    for (size_t i = items.size(); i-- > 0;) {
      const bool is_read = graphs[0]->inputs()[i + 1]->hasUses() || graphs[1]->inputs()[i + 1]->hasUses();
      if (!is_read)
        for (jit::Graph* graph : graphs) graph->eraseInput(i + 1);
      else
        trace.inputs.insert(trace.inputs.begin(), items[i].first);
    }
    if (trace.inputs.empty())
      throw Error("export", "what export_step returns does not depend on the example's tensors");
    for (const std::string& name : trace.inputs) {
      const at::Tensor& tensor = std::as_const(traces.batch)[name];
      trace.example.set(name, tensor);
      trace.input_sizes.push_back(tensor.sizes().vec());
      if (tensor.dim() > 0 && trace.fixed.empty())
        trace.input_sizes.back().front() = -1 - static_cast<int64_t>(RowCounts(traces.batch).place_of(tensor.size(0)));
    }
    trace.evaluation = traces.evaluation.graph;
    return trace;
  }

  /// Gives the script a forward that asks for its mode.
  void add_forward(const ModelTrace& trace, jit::Graph& training) {
    auto graph = std::make_shared<jit::Graph>();
    std::vector<jit::Value*> inputs{graph->addInput("self")};
    inputs.front()->setType(self_.type());
    for (const std::string& name : trace.inputs) inputs.push_back(graph->addInput(variable_name(name)));
    jit::Value* mode = graph->insertGetAttr(inputs.front(), "training");
    jit::Node* branch = graph->insertNode(graph->create(c10::prim::If, {mode}, 0));
    for (jit::Graph* of_mode : {&training, trace.evaluation.get()}) {
      jit::Block* block = branch->addBlock();
      const jit::WithInsertPoint here(block);
      for (jit::Value* output : jit::insertGraph(*graph, *of_mode, inputs)) block->registerOutput(output);
    }
    std::vector<jit::Value*> outputs;
    for (size_t i = 0; i < trace.outputs.size(); ++i)
      outputs.push_back(branch->addOutput()->setType(c10::TensorType::get()));
    if (outputs.size() == 1) {
      graph->registerOutput(outputs.front());
    } else {
      std::vector<jit::Value*> names;
      for (const std::string& name : trace.outputs) names.push_back(graph->insertConstant(name));
      jit::Node* mapping = graph->createDict(c10::StringType::get(), c10::TensorType::get(), names, outputs);
      graph->registerOutput(graph->insertNode(mapping)->output());
    }
    const c10::QualifiedName name(self_.type()->name().value(), "forward");
    self_.type()->addMethod(tree_.unit().create_function(name, graph));
  }

  torch::nn::Module& module_;
  const ExportedFunction& function_;
  const Batch& example_;
  const RowCounts rows_;
  ModuleStateGuard guard_;
  ScriptTree tree_;
  jit::Module self_;
};

}  // namespace

ModelTrace trace_model(torch::nn::Module& module, const ExportedFunction& function, const Batch& example,
                       bool tries_training) {
  check_example(example);
  check_module(module);
  return ModelTracer(module, function, example, TraceOn::kCpu).run(tries_training);
}

EvaluationTrace trace_evaluation(torch::nn::Module& module, const ExportedFunction& function, const Batch& example) {
  check_example(example);
  check_module(module);
  return ModelTracer(module, function, example, TraceOn::kItsDevice).run_evaluation();
}

}  // namespace levin
