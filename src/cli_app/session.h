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
  Session(const Runtime& runtime, const std::filesystem::path& model, const std::string& provider,
          const std::vector<std::string>& libraries);

  const Provider& provider() const { return provider_; }
  const std::vector<InputInfo>& inputs() const { return inputs_; }
  const std::vector<std::string>& output_names() const { return output_names_; }

  /// Runs the model once; the inputs are in the order of inputs(). Throws an Error.
  std::vector<Tensor> run(const std::vector<Tensor>& inputs);

  /// What each node ran on; to be called once, after the last run.
  std::vector<NodeRun> finish();

 private:
  void describe();

  const Runtime& runtime_;
  ModelOps ops_;
  ProfileFolder profile_;
  Owned<OrtEnv> environment_;
  Owned<OrtSession> session_;
  Provider provider_;
  std::vector<InputInfo> inputs_;
  std::vector<std::string> output_names_;
};

}  // namespace cudarelu::cli
