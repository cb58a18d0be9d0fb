// Domains that other libraries have put into a session's options.
#pragma once

#include <onnxruntime_c_api.h>

namespace cudarelu::ort {

/// Whether a session would refuse the domain because another library has put one of that name into
/// the options. False where that cannot be found out: where there is no library, since the program
/// made the domain itself, and in Python's packages of ONNX Runtime before 1.23.
bool is_taken(const OrtApi& api, const OrtSessionOptions& options, OrtCustomOpDomain& domain);

}  // namespace cudarelu::ort
