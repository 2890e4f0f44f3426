#pragma once

/// Modules and data modules of C++ for Python, by an extension module that users build with levin_add_python_module
/// (docs/python.md):
///
///     LEVIN_PYTHON_MODULE(module) {
///       levin::python::bind_module<Classifier>(module, "Classifier");
///       levin::python::bind_data_module<levin::data::FashionMnist>(module, "FashionMnist");
///     }
///
/// It is in none of Levin's libraries: it needs Python's headers and the LibTorch of a Python package.

#include <levin/core/data/data_module.h>
#include <levin/core/interfaces/module.h>
#include <levin/core/python/batch_caster.h>
#include <levin/core/python/python_options.h>
#include <levin/core/trainer/trainer.h>

#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <string>

/// Begins the function that says what an extension module has, in one source of it.
#define LEVIN_PYTHON_MODULE(variable)                                \
  static void levin_bind_python_module(pybind11::module_& variable); \
  PYBIND11_MODULE(LEVIN_PYTHON_EXTENSION, levin_python_extension) {  \
    levin::python::detail::bind_library(levin_python_extension);     \
    levin_bind_python_module(levin_python_extension);                \
  }                                                                  \
  static void levin_bind_python_module(pybind11::module_& variable)

namespace levin::python {

namespace detail {

/// Binds what every extension module has: the trainer, data loaders, errors and the bases of modules.
void bind_library(py::module_& module);

/// Has the generated Python file make a torch.nn.Module of this class.
void add_module_class(py::module_& module, const char* name, const py::object& bound);

/// A class that has one function `forward`, which may be called from outside.
template <class M>
concept HasForward = requires {
  &M::forward;
};

}  // namespace detail

/// Makes a class of modules known to Python, where it is a torch.nn.Module whose options are given by name. Its forward
/// is the public member function `forward`, whose arguments and results may be tensors, levin::Batch, numbers, strings
/// and lists of these; where there is none, or several, it is export_step. Returns the class, for further members:
/// `.def("encode", &Classifier::encode, py::call_guard<py::gil_scoped_release>())`.
template <class M>
py::class_<M, Module, std::shared_ptr<M>> bind_module(py::module_& module, const char* name, const char* doc = "") {
  py::class_<M, Module, std::shared_ptr<M>> bound(module, name, py::module_local(),
                                                  documentation(doc, schema_of<OptionsOf<M>>().fields()).c_str());
  bound.def(py::init([name = std::string(name)](const py::kwargs& options) {
    const Config config = config_of(options, name);
    const py::gil_scoped_release no_lock;
    return make_from<M>(config, name);
  }));
  bound.def_static("from_options", [name = std::string(name)](const std::string& yaml) {
    return make_from<M>(Config::parse(yaml, {.source = "Python"}), name);
  });
  bound.def_static("load_from_checkpoint", [](const std::string& path, bool strict) {
    const py::gil_scoped_release no_lock;
    return levin::load_from_checkpoint<M>(path, strict);
  });
  using ReleaseLock = py::call_guard<py::gil_scoped_release>;
  if constexpr (detail::HasForward<M>)
    bound.def("forward", &M::forward, ReleaseLock());
  else
    bound.def("forward", &M::export_step, ReleaseLock());
  detail::add_module_class(module, name, bound);
  return bound;
}

/// Makes a class of data modules known to Python; its options are given by name. Returns the class, for further
/// members.
template <class D>
py::class_<D, DataModule, std::shared_ptr<D>> bind_data_module(py::module_& module, const char* name,
                                                               const char* doc = "") {
  py::class_<D, DataModule, std::shared_ptr<D>> bound(module, name, py::module_local(),
                                                      documentation(doc, schema_of<OptionsOf<D>>().fields()).c_str());
  bound.def(py::init(
      [name = std::string(name)](const py::kwargs& options) { return make_from<D>(config_of(options, name), name); }));
  return bound;
}

}  // namespace levin::python
