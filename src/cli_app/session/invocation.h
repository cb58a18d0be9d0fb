// Repeated runs of a model with the same inputs, on one thread.
#pragma once

#include <string>
#include <vector>

#include "session/cuda_driver.h"
#include "session/session.h"

namespace cudarelu::cli {

/// Calls OrtApi::Run, which allocates the outputs of each run.
class PlainInvocation {
 public:
  PlainInvocation(const Session& session, const std::vector<Tensor>& inputs);
  ~PlainInvocation() { release(); }
  PlainInvocation(const PlainInvocation&) = delete;
  PlainInvocation& operator=(const PlainInvocation&) = delete;

  void run();
  /// The outputs of the last run, once.
  std::vector<Tensor> take_outputs();

 private:
  void release();

  const Session& session_;
  std::vector<Owned<OrtValue>> inputs_;
  std::vector<const char*> input_names_;
  std::vector<const OrtValue*> input_values_;
  std::vector<const char*> output_names_;
  std::vector<OrtValue*> outputs_;
};

/// Calls OrtApi::RunWithBinding with fixed buffers for inputs and outputs. With a device, the
/// buffers are in its memory, and copy_in() and copy_out() copy from and to the host.
class BoundInvocation {
 public:
  /// `outputs` gives the types and shapes of the outputs; it comes from a run with the same inputs.
  /// `graph` is the number of the CUDA graph that captures the run; 0 means no capture.
  BoundInvocation(const Session& session, const std::vector<Tensor>& inputs,
                  const std::vector<Tensor>& outputs, const CudaDevice* device, int ordinal,
                  int graph);

  void copy_in();
  void run();
  void copy_out();
  /// The outputs on the host, as of the last copy_out() or, without a device, of the last run().
  const std::vector<Tensor>& outputs() const { return host_outputs_; }

 private:
  Owned<OrtValue> buffer(const Tensor& tensor);

  const Session& session_;
  const CudaDevice* device_;
  Owned<OrtAllocator> allocator_;  // of the device's memory
  Owned<OrtIoBinding> binding_;
  Owned<OrtRunOptions> run_options_;
  std::vector<Tensor> host_inputs_;
  std::vector<Tensor> host_outputs_;
  std::vector<Owned<OrtValue>> inputs_;
  std::vector<Owned<OrtValue>> outputs_;
};

}  // namespace cudarelu::cli
