#include <memory>

#include "bindings/bind.h"
#include "comm/mpi/mpi_point_to_point.h"
#include "comm/point_to_point.h"
#include "common/message_memory.h"

namespace py = pybind11;
using namespace py::literals;

namespace autotune {

void bind_transport(py::module_& module) {
  py::class_<PointToPoint, std::shared_ptr<PointToPoint>>(module, "Transport")
      .def_property_readonly("rank", &PointToPoint::rank)
      .def_property_readonly("size", &PointToPoint::size);
  module.def(
      "mpi_transport",
      [](std::uintptr_t comm) -> std::shared_ptr<PointToPoint> {
        return make_mpi_point_to_point(comm);
      },
      "comm"_a);
  module.def("mpi_library", &mpi_library_path);
  module.def("mpi_library_version", &mpi_library_version);
  module.def("messages_were_left_behind", [] { return messages_were_left_behind.load(); });
}

}  // namespace autotune
