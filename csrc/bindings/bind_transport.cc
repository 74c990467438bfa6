#include <pybind11/stl.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bindings/bind.h"
#include "comm/mpi/mpi_point_to_point.h"
#include "comm/point_to_point.h"
#include "comm/tcp/tcp_listener.h"
#include "common/message_memory.h"

namespace py = pybind11;
using namespace py::literals;

namespace autotune {

void bind_transport(py::module_& module) {
  py::class_<PointToPoint, std::shared_ptr<PointToPoint>>(module, "Transport")
      .def_property_readonly("rank", &PointToPoint::rank)
      .def_property_readonly("size", &PointToPoint::size);
  py::class_<MpiInterface>(module, "MpiInterface")
      .def(py::init<>())
      .def_readwrite("handle_bytes", &MpiInterface::handle_bytes)
      .def_readwrite("status_bytes", &MpiInterface::status_bytes)
      .def_readwrite("error_text_bytes", &MpiInterface::error_text_bytes)
      .def_readwrite("byte", &MpiInterface::byte)
      .def_readwrite("no_request", &MpiInterface::no_request)
      .def_readwrite("issend", &MpiInterface::issend)
      .def_readwrite("irecv", &MpiInterface::irecv)
      .def_readwrite("testall", &MpiInterface::testall)
      .def_readwrite("iprobe", &MpiInterface::iprobe)
      .def_readwrite("cancel", &MpiInterface::cancel)
      .def_readwrite("error_string", &MpiInterface::error_string)
      .def_readwrite("finalized", &MpiInterface::finalized);
  module.def(
      "mpi_transport",
      [](const MpiInterface& interface, std::uintptr_t comm, int rank, int size,
         std::vector<bool> far) -> std::shared_ptr<PointToPoint> {
        return make_mpi_point_to_point(interface, comm, rank, size, std::move(far));
      },
      "interface"_a, "comm"_a, "rank"_a, "size"_a, "far"_a = std::vector<bool>());
  py::class_<TcpListener>(module, "TcpListener")
      .def(py::init([](int rank, const py::bytes& key, const std::string& interfaces) {
             return std::make_unique<TcpListener>(rank, std::string(key), interfaces);
           }),
           "rank"_a, "key"_a, "interfaces"_a = "")
      .def_property_readonly("address", &TcpListener::address)
      .def(
          "connect",
          [](TcpListener& listener, const std::vector<std::string>& addresses,
             const std::vector<int>& hosts, double seconds) -> std::shared_ptr<PointToPoint> {
            const std::chrono::seconds timeout(static_cast<int64_t>(seconds));
            return listener.connect(addresses, hosts, timeout);
          },
          "addresses"_a, "hosts"_a, "seconds"_a = 60.0, py::call_guard<py::gil_scoped_release>());
  module.def("messages_were_left_behind", [] { return messages_were_left_behind.load(); });
}

}  // namespace autotune
