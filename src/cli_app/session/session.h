// A loaded model.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "arrays/tensor.h"
#include "session/model_ops.h"
#include "session/profile.h"
#include "session/provider.h"
#include "session/runtime.h"

namespace cudarelu::cli {

struct Dim {
  std::int64_t size = -1;  // -1: free
  std::string symbol;      // the name of a free dimension; may be empty
};

struct InputInfo {
  std::string name;
  const ElementType* type = nullptr;
  std::vector<Dim> shape;  // empty for a scalar, and if the rank is unknown
  bool scalar = false;     // the model declares a scalar

  /// "float32 [N, 4]"
  std::string text() const;
};

class Session {
 public:
  /// Registers the libraries and cudarelu's ops (see op_modules.h), and loads the model. Throws an
  /// Error.
  Session(const Runtime& runtime, const std::filesystem::path& model, const ProviderChoice& choice,
          const std::vector<std::string>& libraries);

  const Runtime& runtime() const { return runtime_; }
  OrtSession* get() const { return session_.get(); }
  OrtRunOptions* run_options() const { return run_options_.get(); }  // null without --cuda-graph
  const Provider& provider() const { return provider_; }
  const std::vector<InputInfo>& inputs() const { return inputs_; }
  const std::vector<std::string>& output_names() const { return output_names_; }

  /// Runs the model once. The tensors are in the order of inputs(). Never captures a CUDA graph.
  /// Throws an Error.
  std::vector<Tensor> run(const std::vector<Tensor>& inputs);

  /// Ends ONNX Runtime's trace and returns the nodes of the first run. Copies the trace to the file
  /// `keep`, unless that is empty. Must be called only once.
  std::vector<NodeRun> end_trace(const std::filesystem::path& keep);

 private:
  void describe();
  /// With --cuda-graph, makes run() not capture a graph. Throws an Error if graphs are unavailable.
  void skip_graph_in_run();

  const Runtime& runtime_;
  ModelOps ops_;
  ProfileFolder profile_;
  Owned<OrtEnv> environment_;
  Owned<OrtSession> session_;
  Owned<OrtRunOptions> run_options_;
  Provider provider_;
  std::vector<InputInfo> inputs_;
  std::vector<std::string> output_names_;
};

/// Returns a value that uses the memory of the tensor, which must outlive it.
Owned<OrtValue> value_of(const Runtime& runtime, const Tensor& tensor);

/// Returns a tensor that uses the memory of the value and keeps it alive. Throws an Error if its
/// elements are no numbers.
Tensor tensor_of(const Runtime& runtime, Owned<OrtValue> value);

}  // namespace cudarelu::cli
