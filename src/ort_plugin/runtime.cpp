#include "runtime.h"

#include <cstdint>
#include <stdexcept>
#include <string>

#include "cudarelu/onnx_runtime.h"

namespace cudarelu::ort {
namespace {

OrtErrorCode code_of(Status::Code code) {
  switch (code) {
    case Status::Code::ok:
      return ORT_OK;
    case Status::Code::invalid_argument:
      return ORT_INVALID_ARGUMENT;
    case Status::Code::unsupported_dtype:
    case Status::Code::unavailable:
      return ORT_NOT_IMPLEMENTED;
    case Status::Code::device_failure:
      return ORT_EP_FAIL;
    case Status::Code::out_of_memory:
    case Status::Code::internal:
      break;
  }
  return ORT_FAIL;
}

}  // namespace

OrtStatus* to_ort(const OrtApi& api, const Status& error) {
  return api.CreateStatus(code_of(error.code()), error.message().c_str());
}

Runtime negotiate(const OrtApiBase& base) {
  // GetApi() prints an error for a version that the runtime lacks, so its version is checked first.
  const char* version = base.GetVersionString();
  Runtime runtime{.minor = onnx_runtime_minor_of(version)};
  if (runtime.minor >= oldest_onnx_runtime_minor) {
    runtime.api = base.GetApi(static_cast<std::uint32_t>(runtime.api_version()));
  }
  if (runtime.api != nullptr) return runtime;

  throw std::runtime_error("cudarelu needs ONNX Runtime 1." +
                           std::to_string(oldest_onnx_runtime_minor) +
                           " or a later 1.x, but this is " + version);
}

}  // namespace cudarelu::ort
