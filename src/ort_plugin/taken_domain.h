// Detection of domains that another library has added to a session's options.
#pragma once

#include <onnxruntime_c_api.h>

namespace cudarelu::ort {

/// Whether a session would reject the domain, since another library has added one of the same name.
/// Returns false if that cannot be determined: if the program itself has added the domain, without
/// a library, and in Python's packages of ONNX Runtime before 1.23.
bool is_taken(const OrtApi& api, const OrtSessionOptions& options, OrtCustomOpDomain& domain);

}  // namespace cudarelu::ort
