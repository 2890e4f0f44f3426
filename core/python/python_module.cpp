#include <levin/core/python/python_module.h>

#include <levin/core/base/error.h>
#include <levin/core/base/seed.h>
#include <levin/core/data/tensor_dataset.h>
#include <levin/core/interfaces/checkpointer.h>
#include <levin/core/nn/module_type_name.h>

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include <csignal>
#include <cstdint>
#include <exception>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace levin::python::detail {
namespace {

constexpr const char* kModuleClasses = "module_classes";

using ReleaseLock = py::call_guard<py::gil_scoped_release>;
/// Threads that a destructor waits for may need Python's lock to let go of a tensor.
using DestroyUnlocked = py::release_gil_before_calling_cpp_dtor;

template <class Call>
auto without_lock(const Call& call) {
  const py::gil_scoped_release no_lock;
  return call();
}

// ---- Errors

void bind_errors(py::module_& module) {
  // What LibTorch throws is what PyTorch makes of it, without the list of C++ functions.
  py::register_local_exception_translator([](std::exception_ptr thrown) {
    try {
      if (thrown) std::rethrow_exception(thrown);
    } catch (const c10::Error&) {
      torch::translate_exception_to_python(thrown);
    } catch (const python_error&) {
      torch::translate_exception_to_python(thrown);
    }
  });
  // The last one that was registered is asked first.
  auto& error = py::register_local_exception<Error>(module, "Error", PyExc_RuntimeError);
  error.doc() = "A mistake that the user can mend.";
  py::register_local_exception<ConfigError>(module, "ConfigError", error.ptr()).doc() =
      "A wrong option, key or value in code or in YAML.";
}

/// Has Python do with a signal that ended a call what it does with it elsewhere; Ctrl-C is a KeyboardInterrupt.
void hand_over_signal(const Trainer& trainer) {
  if (!trainer.interrupted()) return;
  std::raise(trainer.interrupt_signal());
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
}

// ---- Modules

/// The object that stands for a parameter in Python: of the same tensor, not of another one with its values.
py::object parameter_of(const at::Tensor& tensor) {
  auto parameter =
      py::reinterpret_steal<py::object>(THPVariable_Wrap(tensor, reinterpret_cast<PyTypeObject*>(ParameterClass)));
  // One that Python has met as a plain tensor stays that object; PyTorch takes what is marked so for a parameter too.
  if (Py_TYPE(parameter.ptr()) != reinterpret_cast<PyTypeObject*>(ParameterClass)) parameter.attr("_is_param") = true;
  return parameter;
}

py::dict parameters_of(const torch::nn::Module& module) {
  py::dict parameters;
  for (const auto& item : module.named_parameters(/*recurse=*/false))
    parameters[py::str(item.key())] = parameter_of(item.value());
  return parameters;
}

py::dict buffers_of(const torch::nn::Module& module) {
  py::dict buffers;
  for (const auto& item : module.named_buffers(/*recurse=*/false)) buffers[py::str(item.key())] = item.value();
  return buffers;
}

std::vector<std::pair<std::string, std::shared_ptr<torch::nn::Module>>> children_of(const torch::nn::Module& module) {
  return module.named_children().pairs();
}

/// What stands between the parentheses of "torch::nn::Linear(in_features=4, out_features=8, bias=true)"; nothing for a
/// module that says more than a line.
std::string settings_of(const torch::nn::Module& module) {
  std::ostringstream stream;
  module.pretty_print(stream);
  const std::string text = stream.str();
  const size_t begin = text.find('(');
  const size_t end = text.rfind(')');
  if (begin == std::string::npos || end != text.size() - 1 || text.find('\n') != std::string::npos) return "";
  return text.substr(begin + 1, end - begin - 1);
}

void bind_modules(py::module_& module) {
  using TorchModule = torch::nn::Module;
  py::class_<TorchModule, std::shared_ptr<TorchModule>>(module, "TorchModule", py::module_local())
      .def("parameters", parameters_of)
      .def("buffers", buffers_of)
      .def("children", children_of)
      .def("train", &TorchModule::train)
      .def_property_readonly("training", &TorchModule::is_training)
      .def_property_readonly("type_name", [](const TorchModule& self) { return short_type_name(self.name()); })
      .def_property_readonly("printed_settings", settings_of);
  py::class_<Module, TorchModule, std::shared_ptr<Module>>(module, "Module", py::module_local())
      .def("configure_model", &Module::configure_model, ReleaseLock())
      .def_property_readonly("init_options", [](const Module& self) { return self.init_options().to_flow(); });
  module.attr(kModuleClasses) = py::dict();
}

// ---- Data

Stage stage_of(const std::string& name) {
  std::vector<std::string> names;
  for (const Stage stage : {Stage::kFit, Stage::kValidate, Stage::kTest, Stage::kPredict}) {
    if (name == to_string(stage)) return stage;
    names.emplace_back(to_string(stage));
  }
  throw Error("data", "there is no stage '" + name + "'" + valid_names_hint(name, names));
}

std::optional<DataLoader> loader_or_none(DataLoader loader) {
  if (!loader) return {};
  return loader;
}

std::string type_of(const py::handle& value) {
  const py::type type = py::type::of(value);
  return py::str("{}.{}").format(type.attr("__module__"), type.attr("__qualname__"));
}

/// Says what was given in the place of a dict of tensors: "numpy.ndarray", or "{x: numpy.ndarray, y: torch.Tensor}".
std::string types_of(const py::object& given) {
  if (!py::isinstance<py::dict>(given)) return type_of(given);
  std::vector<std::string> items;
  for (const auto& [name, value] : given.cast<py::dict>())
    items.push_back(py::repr(name).cast<std::string>() + ": " + type_of(value));
  return "{" + join(items) + "}";
}

DataLoader loader_of(const py::object& tensors, const py::kwargs& options) {
  py::detail::make_caster<Batch> batch;
  if (!batch.load(tensors, false))
    throw py::type_error("[data] DataLoader takes a dict of torch tensors by name; got " + types_of(tensors) +
                         "; hint: DataLoader({'x': x, 'y': y}, batch_size=32), and torch.from_numpy for arrays");
  return DataLoader(std::make_shared<data::TensorDataset>(py::detail::cast_op<Batch&>(batch)),
                    parse_options<DataLoaderOptions>(config_of(options, "DataLoader"), "DataLoader"));
}

int64_t length_of(const DataLoader& loader) {
  const auto batches = loader.num_batches();
  if (!batches)
    throw py::type_error("[data] nobody knows how many batches the loader has: its data is read as it comes");
  return *batches;
}

void bind_data(py::module_& module) {
  py::class_<DataLoader::Pass>(module, "Pass", py::module_local(), DestroyUnlocked(), "One pass over a loader.")
      .def("__iter__", [](py::object self) { return self; })
      .def("__next__", [](DataLoader::Pass& self) {
        auto batch = without_lock([&] { return self.next(); });
        if (!batch) throw py::stop_iteration();
        return *batch;
      });
  const auto pass_of = [](const DataLoader& self, int64_t epoch) {
    return self.pass({.seed = global_seed(), .epoch = epoch});
  };
  const std::string text =
      "DataLoader(tensors, **options): batches of a dict of tensors, whose first dimension counts the examples.";
  py::class_<DataLoader>(module, "DataLoader", py::module_local(), DestroyUnlocked(),
                         documentation(text, schema_of<DataLoaderOptions>().fields()).c_str())
      .def(py::init(&loader_of), py::arg("tensors"))
      .def("__len__", &length_of)
      .def("__iter__", [pass_of](const DataLoader& self) { return pass_of(self, 0); })
      .def("batches", pass_of, py::arg("epoch") = 0, "Dicts of tensors, in the order of an epoch.");
  py::class_<DataModule, std::shared_ptr<DataModule>>(module, "DataModule", py::module_local(),
                                                      "The data of a run: its preparation and its loaders.")
      .def("prepare_data", &DataModule::prepare_data, ReleaseLock())
      .def(
          "setup", [](DataModule& self, const std::string& stage) { self.setup(stage_of(stage)); },
          py::arg("stage") = "fit", ReleaseLock())
      .def(
          "teardown", [](DataModule& self, const std::string& stage) { self.teardown(stage_of(stage)); },
          py::arg("stage") = "fit", ReleaseLock())
      .def(
          "train_dataloader", [](DataModule& self) { return loader_or_none(self.train_dataloader()); }, ReleaseLock())
      .def(
          "val_dataloader", [](DataModule& self) -> std::vector<DataLoader> { return self.val_dataloader(); },
          ReleaseLock())
      .def(
          "test_dataloader", [](DataModule& self) -> std::vector<DataLoader> { return self.test_dataloader(); },
          ReleaseLock())
      .def(
          "predict_dataloader", [](DataModule& self) -> std::vector<DataLoader> { return self.predict_dataloader(); },
          ReleaseLock());
}

// ---- The trainer

using Loaders = std::vector<DataLoader>;
using SharedModule = std::shared_ptr<Module>;
using SharedData = std::shared_ptr<DataModule>;
using Metrics = std::map<std::string, double>;

DataLoaders loaders_of(const Loaders& given) {
  DataLoaders loaders;
  loaders.assign(given.begin(), given.end());
  return loaders;
}

/// Results as Python has them.
template <class Result>
Result plain(Result result) {
  return result;
}
std::vector<Metrics> plain(const std::vector<MetricMap>& metrics) { return {metrics.begin(), metrics.end()}; }

/// Runs a call of the trainer; Python's other threads go on meanwhile.
template <class Call>
auto run(const Trainer& trainer, const Call& call) {
  if constexpr (std::is_void_v<decltype(call())>) {
    without_lock(call);
    hand_over_signal(trainer);
  } else {
    auto result = plain(without_lock(call));
    hand_over_signal(trainer);
    return result;
  }
}

/// A call in its two forms, as NAME_with_data and NAME_with_loaders.
template <class Result>
void bind_training(py::class_<Trainer>& trainer, const std::string& name,
                   Result (Trainer::*with_data)(SharedModule, SharedData, const std::string&),
                   Result (Trainer::*with_loaders)(SharedModule, DataLoader, DataLoaders, const std::string&)) {
  trainer.def((name + "_with_data").c_str(),
              [=](Trainer& self, const SharedModule& module, const SharedData& data, const std::string& ckpt) {
                return run(self, [&] { return (self.*with_data)(module, data, ckpt); });
              });
  trainer.def((name + "_with_loaders").c_str(), [=](Trainer& self, const SharedModule& module,
                                                    const std::optional<DataLoader>& train, const Loaders& val,
                                                    const std::string& ckpt) {
    return run(self, [&] { return (self.*with_loaders)(module, train.value_or(DataLoader{}), loaders_of(val), ckpt); });
  });
}

template <class Call>
void bind_evaluation(py::class_<Trainer>& trainer, const std::string& name, const Call& call) {
  trainer.def((name + "_with_data").c_str(),
              [=](Trainer& self, const SharedModule& module, const SharedData& data, const std::string& ckpt) {
                return run(self, [&] { return call(self, module, data, ckpt); });
              });
  trainer.def((name + "_with_loaders").c_str(),
              [=](Trainer& self, const SharedModule& module, const Loaders& loaders, const std::string& ckpt) {
                return run(self, [&] { return call(self, module, loaders_of(loaders), ckpt); });
              });
}

void bind_trainer(py::module_& module) {
  py::class_<Trainer> trainer(module, "Trainer", py::module_local(), DestroyUnlocked());
  trainer.def(py::init([](const py::object& options, const py::kwargs& given) {
                const Config config = trainer_config(options, given);
                const py::gil_scoped_release no_lock;
                return std::make_unique<Trainer>(parse_options<TrainerOptions>(config, "trainer"));
              }),
              py::arg("options") = py::none());
  bind_training<void>(trainer, "fit", &Trainer::fit, &Trainer::fit);
  bind_training<std::vector<std::string>>(trainer, "tune", &Trainer::tune, &Trainer::tune);
  bind_evaluation(trainer, "validate",
                  [](Trainer& self, const auto&... arguments) { return self.validate(arguments...); });
  bind_evaluation(trainer, "test", [](Trainer& self, const auto&... arguments) { return self.test(arguments...); });
  bind_evaluation(trainer, "predict",
                  [](Trainer& self, const auto&... arguments) { return self.predict(arguments...); });
  trainer.def(
      "save_checkpoint", [](Trainer& self, const std::string& path) { self.save_checkpoint(path); }, py::arg("path"),
      ReleaseLock(), "Saves the whole state, so that fit can go on from it.");
  trainer.def_property_readonly("current_epoch", &Trainer::current_epoch, "0-based")
      .def_property_readonly("global_step", &Trainer::global_step, "Optimizer steps taken")
      .def_property_readonly("total_batches", &Trainer::total_batches, "Training batches done in all epochs")
      .def_property_readonly("interrupted", &Trainer::interrupted, "Whether a signal ended the last call")
      .def_property_readonly("run_directory", &Trainer::run_directory, "Folder of checkpoints and logs; may be empty")
      .def_property_readonly("status", [](const Trainer& self) { return to_string(self.status()); })
      .def_property_readonly(
          "callback_metrics", [](const Trainer& self) -> Metrics { return self.callback_metrics(); },
          "The newest value of all that was logged")
      .def_property_readonly("learning_rates", &Trainer::learning_rates)
      .def_property_readonly(
          "best_model_path",
          [](const Trainer& self) {
            const Checkpointer* checkpoints = self.checkpoint_callback();
            return checkpoints != nullptr ? checkpoints->best_model_path() : std::string();
          },
          "The best checkpoint, or the newest where nothing is monitored; may be empty");
}

}  // namespace

void bind_library(py::module_& module) {
  bind_errors(module);
  bind_modules(module);
  bind_data(module);
  bind_trainer(module);
  module.def(
      "seed_everything", [](uint64_t seed) { seed_everything(seed); }, py::arg("seed"),
      "Seeds the weights of modules made from here on, PyTorch's generators and the order of data.");
}

void add_module_class(py::module_& module, const char* name, const py::object& bound) {
  module.attr(kModuleClasses)[name] = bound;
}

}  // namespace levin::python::detail
