#include <levin/core/python/python_module.h>

#include "models.h"

using namespace levin::testing;

LEVIN_PYTHON_MODULE(module) {
  using ReleaseLock = pybind11::call_guard<pybind11::gil_scoped_release>;
  levin::python::bind_module<Net>(module, "Net", "A net.")
      .def("weight_address", [](const Net& net) { return reinterpret_cast<uintptr_t>(net.first->weight.data_ptr()); })
      .def("gradient_address",
           [](const Net& net) { return reinterpret_cast<uintptr_t>(net.first->weight.grad().data_ptr()); })
      .def("address_of", [](const Net&, const at::Tensor& x) { return reinterpret_cast<uintptr_t>(x.data_ptr()); })
      .def(
          "fill",
          [](Net& net, double value) {
            torch::NoGradGuard no_grad;
            net.first->weight.fill_(value);
          },
          ReleaseLock())
      .def("is_training", [](const Net& net) { return net.is_training() && net.norm->is_training(); })
      .def(
          "backward", [](Net& net, const at::Tensor& x) { net.forward(x).sum().backward(); }, ReleaseLock());
  levin::python::bind_module<Tied>(module, "Tied");
  levin::python::bind_module<Late>(module, "Late");
  levin::python::bind_module<Steps>(module, "Steps");
}
