// deepinfer._core: the all-in-one server inside a Python process, without a socket. Requests and
// answers are the JSON of the HTTP API; the package in front makes Python of them.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/version.h"
#include "cli/embedded_server.h"

namespace py = pybind11;

namespace deepinfer {
namespace {

// Python's own signal handlers run between waits of this length.
constexpr std::chrono::milliseconds kWait{100};

// (kind, bytes): "piece", "end" or "pending".
py::tuple Next(EmbeddedCall& call) {
  std::string piece;
  EmbeddedCall::Step step = EmbeddedCall::Step::kPending;
  {
    const py::gil_scoped_release released;
    step = call.Next(kWait, &piece);
  }
  switch (step) {
    case EmbeddedCall::Step::kPiece:
      return py::make_tuple("piece", py::bytes(piece));
    case EmbeddedCall::Step::kEnd:
      return py::make_tuple("end", py::bytes());
    case EmbeddedCall::Step::kPending:
      break;
  }
  return py::make_tuple("pending", py::bytes());
}

std::unique_ptr<EmbeddedServer> Start(std::vector<std::string> flags) {
  Result<std::unique_ptr<EmbeddedServer>> server = [&] {
    const py::gil_scoped_release released;
    return EmbeddedServer::Start(std::move(flags));
  }();
  if (server.ok()) return *std::move(server);
  const std::string message = std::string(server.status().message());
  switch (server.status().code()) {
    case StatusCode::kInvalidRequest:
    case StatusCode::kUnsupported:
      throw py::value_error(message);
    case StatusCode::kNotFound:
      PyErr_SetString(PyExc_FileNotFoundError, message.c_str());
      throw py::error_already_set();
    default:
      throw std::runtime_error(server.status().ToString());
  }
}

// Stopping waits for threads that may want the interpreter's lock.
struct StopUnlocked {
  void operator()(EmbeddedServer* server) const {
    const py::gil_scoped_release released;
    delete server;
  }
};

}  // namespace
}  // namespace deepinfer

PYBIND11_MODULE(_core, module) {
  using deepinfer::EmbeddedCall;
  using deepinfer::EmbeddedServer;
  module.attr("version") = std::string(deepinfer::kVersion);

  py::class_<EmbeddedCall, std::shared_ptr<EmbeddedCall>>(module, "Call")
      .def("next", deepinfer::Next)
      .def("cancel", &EmbeddedCall::Cancel, py::call_guard<py::gil_scoped_release>())
      .def_property_readonly("status", &EmbeddedCall::status);

  py::class_<EmbeddedServer, std::unique_ptr<EmbeddedServer, deepinfer::StopUnlocked>>(module,
                                                                                       "Server")
      .def(py::init([](std::vector<std::string> flags) {
        return std::unique_ptr<EmbeddedServer, deepinfer::StopUnlocked>(
            deepinfer::Start(std::move(flags)).release());
      }))
      .def("call", &EmbeddedServer::Call, py::call_guard<py::gil_scoped_release>(),
           py::keep_alive<0, 1>())
      .def_property_readonly("model_name", &EmbeddedServer::model_name);
}
