// Op modules as readers see them: the ops with their parsed declarations, and the modules that are
// loaded.
#pragma once

#include <algorithm>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cudarelu/call.h"
#include "cudarelu/detail/signature.h"
#include "cudarelu/module.h"
#include "cudarelu/op_spec.h"

namespace cudarelu {

/// The largest rank that is accepted, as in PyTorch and NumPy.
inline constexpr std::size_t max_rank = 64;

struct Module;

/// An input of a node that calls an op in an ONNX model: an input of the op, or one of its
/// attributes as a tensor of one element.
struct NodeInput {
  bool is_attribute = false;
  std::size_t index = 0;  // in the signature

  bool operator==(const NodeInput&) const = default;
};

/// An op of a module.
struct Op {
  std::string_view name;
  const Module* module = nullptr;
  std::string onnx_type;  // the op type in the module's ONNX domain: the name in CamelCase
  OpSpec spec;
  Signature signature;
  std::vector<NodeInput> alias_inputs;  // of a node that calls the op by its alias
  bool elementwise = false;  // element i of each output is a function of elements i of the inputs
  bool uniform = false;      // all tensors are T[*] and required: they have one dtype and one shape
  bool uses_gemm = false;    // a matrix product; on the CPU it calls Execution::matmul()
  bool strided = false;      // the kernels read the strides of a call
  int in_place_input = -1;   // the input that an output may overwrite; -1: none
  int in_place_output = -1;
  cudarelu_kernel cpu = nullptr;  // null: no kernel
  cudarelu_kernel cuda = nullptr;

  const void* attachment = nullptr;  // what the reader knows about the op beside this

  /// The name for PyTorch's dispatcher and in gradients of other modules: "cudarelu::relu".
  std::string qualified_name() const;
};

/// The inputs of a node that calls the op by its own name: those of the signature.
std::vector<NodeInput> inputs_of(const Op& op);

/// A module whose declarations are valid. It refers to memory of its library, which stays loaded.
struct Module {
  std::string_view name;         // the namespace of the ops
  std::string_view onnx_domain;  // of the ops in ONNX models
  int onnx_version = 1;          // of that domain
  int definition_opset = 0;      // the opset of ONNX that the definitions are written in
  std::string_view built_for;    // the devices and architectures, for messages
  std::filesystem::path path;    // of the library; empty if it is part of the program
  const cudarelu_engines* engines = nullptr;
  std::vector<Op> ops;

  Module() = default;
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  /// The op of that name, or nullptr.
  const Op* find(std::string_view op) const {
    const auto found = std::ranges::find(ops, op, &Op::name);
    return found == ops.end() ? nullptr : &*found;
  }
};

inline std::string Op::qualified_name() const {
  return std::string(module->name) + "::" + std::string(name);
}

/// Throws std::invalid_argument if no module can have the name: it must be lower-case letters,
/// digits and _, no word of C++, Python or gradients, and no namespace of PyTorch.
void check_module_name(std::string_view name);

/// Parses the declarations of a module. Throws std::invalid_argument, with the name of the op, if
/// the module has another version, a name or a signature is malformed, two ops have the same name
/// or the same ONNX type, or T has no dtypes. Does not read the gradients: see gradient.h.
std::unique_ptr<Module> read_module(const cudarelu_module& table, std::filesystem::path path = {});

/// Throws std::invalid_argument if a file is no library, or an incomplete one, as one that is still
/// copied: dlopen() would end the process. Of what is no file, dlopen() searches for a library.
void check_complete(const std::filesystem::path& library);

/// Loads a library and reads its module. Throws std::invalid_argument if the file is not an op
/// module that read_module() accepts.
std::unique_ptr<Module> open_module(const std::filesystem::path& path);

/// The file of the library that contains a function, as it was given to the dynamic linker; empty
/// if that does not know it.
std::filesystem::path library_of(const void* function);

/// The modules of this process that the reader has added, in that order. Thread-safe; modules are
/// never removed.
std::vector<const Module*> modules();

/// The module of that name, or nullptr.
const Module* find_module(std::string_view name);

/// The module that has been loaded from this file, or from an equal one, or nullptr. Throws
/// std::invalid_argument if a module of the same name as `module` came from a different file.
const Module* find_same(const Module& module);

/// Adds a module of a new name.
const Module& add_module(std::unique_ptr<Module> module);

/// The op of a name: of `own` for "relu", of the module that is named in "cudarelu::relu". nullptr
/// if there is none.
const Op* find_op(std::string_view name, const Module& own);

/// Runs a call that infer() has accepted: replaces absent inputs by their stand-ins and runs the
/// kernel of the call's device. Checks the values of inputs in host memory that the signature
/// restricts. It does not read device memory, since that would wait for the device: a CUDA kernel
/// stays within the tensors, whatever the values of offsets are. Only an op that is `strided` may
/// get strides.
Status run(const Op& op, std::span<const TensorView> inputs, std::span<const TensorView> outputs,
           std::span<const Attribute> attributes, Execution& execution,
           const Strides& strides = {}) noexcept;

/// The library of the module `cudarelu`, which has the engines for matrix products.
inline constexpr const char* engine_library = "libcudarelu_ops.so";

/// The engines for matrix products: those of a module that has been added, else those of
/// engine_library. nullptr if there are none.
const cudarelu_engines* find_engines();

/// Execution::matmul() for a host that has no matrix product: that of the engines.
Status engine_matmul(const Gemm& gemm, Execution& execution);

}  // namespace cudarelu
