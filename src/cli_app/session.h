// A model, loaded.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "model_ops.h"
#include "profile.h"
#include "provider.h"
#include "runtime.h"
#include "tensor.h"

namespace cudarelu::cli {

struct Dim {
  std::int64_t size = -1;  // -1: free
  std::string symbol;      // of a free dimension; may be empty
};

struct InputInfo {
  std::string name;
  const ElementType* type = nullptr;
  std::vector<Dim> shape;  // empty also where the model does not say the rank
  bool scalar = false;     // the model says that there are no dimensions

  /// "float32 [N, 4]"
  std::string text() const;
};

class Session {
 public:
  /// Registers the ops and the libraries, and loads the model. Throws an Error.
  Session(const Runtime& runtime, const std::filesystem::path& model, const ProviderChoice& choice,
          const std::vector<std::string>& libraries);

  const Runtime& runtime() const { return runtime_; }
  OrtSession* get() const { return session_.get(); }
  const Provider& provider() const { return provider_; }
  const std::vector<InputInfo>& inputs() const { return inputs_; }
  const std::vector<std::string>& output_names() const { return output_names_; }

  /// Runs the model once; the inputs are in the order of inputs(). Throws an Error. Never captures
  /// a CUDA graph.
  std::vector<Tensor> run(const std::vector<Tensor>& inputs);

  /// Ends ONNX Runtime's trace: what each node of the first run ran on. The file of the trace is
  /// copied to `keep`, unless that is empty. To be called once.
  std::vector<NodeRun> end_trace(const std::filesystem::path& keep);

 private:
  void describe();
  /// For --cuda-graph; throws an Error where that cannot be had.
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

/// A value of ONNX Runtime's whose memory is the tensor's.
Owned<OrtValue> value_of(const Runtime& runtime, const Tensor& tensor);

}  // namespace cudarelu::cli
