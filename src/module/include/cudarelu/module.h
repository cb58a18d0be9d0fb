/* The boundary between an op module and its readers.
 *
 * An op module is a shared library with ops: their declarations as text, and their kernels. It
 * exports cudarelu_get_module(). A reader (PyTorch's binding, the plugin for ONNX Runtime,
 * ort_infer) loads it, parses the declarations, and calls the kernels with services of its host.
 *
 * Only what this header declares crosses the boundary, in C: no object of C++, no exception, and no
 * memory that the other side frees. Structs that may grow begin with their size: a reader uses a
 * member only if it is within the size that the module states, and the other way round. A change
 * that the sizes do not describe increases CUDARELU_MODULE_VERSION; a reader refuses another
 * version.
 *
 * Authors of ops do not use this header: elementwise.h, rows.h, product.h and kernel.h do.
 */
#ifndef CUDARELU_MODULE_H
#define CUDARELU_MODULE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CUDARELU_MODULE_VERSION 1

/* The result of a kernel or a service. */
enum {
  CUDARELU_OK = 0,
  CUDARELU_INVALID_ARGUMENT = 1,  /* a shape, a value or an attribute that the op does not accept */
  CUDARELU_UNSUPPORTED_DTYPE = 2, /* an element type that the op does not support */
  CUDARELU_UNAVAILABLE = 3,       /* the build or the machine lacks what the call needs */
  CUDARELU_OUT_OF_MEMORY = 4,
  CUDARELU_DEVICE_FAILURE = 5, /* CUDA reported an error */
  CUDARELU_INTERNAL = 6        /* an exception, or a bug */
};
typedef int32_t cudarelu_code;

/* The message of a result other than CUDARELU_OK: one line in UTF-8 that ends with NUL. */
typedef struct cudarelu_error {
  char message[1024];
} cudarelu_error;

enum {
  CUDARELU_FLOAT32 = 0,
  CUDARELU_FLOAT64 = 1,
  CUDARELU_FLOAT16 = 2,
  CUDARELU_BFLOAT16 = 3,
  CUDARELU_INT8 = 4,
  CUDARELU_UINT8 = 5,
  CUDARELU_INT32 = 6,
  CUDARELU_INT64 = 7,
  CUDARELU_BOOL = 8 /* a byte, 0 or 1 */
};

/* A dense tensor in row-major order, unless the call has strides for it. The layout is that of
 * TensorView in C++. */
typedef struct cudarelu_tensor {
  void* data; /* may be null where a size is 0 */
  uint8_t dtype;
  const int64_t* shape;
  size_t rank;
  uint8_t present;    /* 0: an optional input without a tensor */
  uint8_t transposed; /* 1: the last two dimensions are swapped in memory */
} cudarelu_tensor;

/* The value of an attribute: `real` for a floating-point number, NaN for none; else `integer`,
 * which for a label is its position, and for a bool 0 or 1. */
typedef struct cudarelu_attribute {
  int64_t is_integer;
  union {
    double real;
    int64_t integer;
  } value;
} cudarelu_attribute;

enum {
  CUDARELU_ACTIVATION_NONE = 0,
  CUDARELU_ACTIVATION_RELU = 1,
  CUDARELU_ACTIVATION_GELU_ERF = 2,
  CUDARELU_ACTIVATION_GELU_TANH = 3,
  CUDARELU_ACTIVATION_SILU = 4
};

enum { CUDARELU_A_TRANSPOSED = 1, CUDARELU_B_TRANSPOSED = 2 };

enum { CUDARELU_COMBINE_ADD = 0, CUDARELU_COMBINE_MULTIPLY = 1 };

/* d[i] = activation(a[i] b[i] + bias), plus or times other[i], for each matrix i of a batch:
 * a [m, k], b [k, n], d and other [m, n], bias [n]; see gemm.h. */
typedef struct cudarelu_gemm {
  size_t size;
  int64_t batch;
  int64_t m;
  int64_t n;
  int64_t k;
  const void* a;
  const void* b;
  void* d;
  const void* bias; /* or null */
  void* sum;        /* [m, n], receives a b + bias; or null */
  uint32_t dtype;
  uint32_t flags;
  uint32_t activation;
  uint32_t combine;
  const void* other; /* or null; not in the first modules, so that engines check `size` */
} cudarelu_gemm;

struct cudarelu_call;

/* What a reader lends to kernels. `host` is cudarelu_call::host. */
typedef struct cudarelu_services {
  size_t size;
  /* Calls body(state, begin, end) on the host's threads for parts of [0, n) of at least `grain`
   * items; returns when all are done. The body throws nothing. */
  void (*parallel_for)(void* host, int64_t n, int64_t grain,
                       void (*body)(void* state, int64_t begin, int64_t end), void* state);
  /* Workspace on the call's device, aligned to 16 bytes, valid for the work that the call enqueues;
   * null if there is none. The host frees it. */
  void* (*allocate)(void* host, size_t bytes);
  /* The host's own matrix product on the CPU, without activation, sum and other matrix. */
  cudarelu_code (*matmul)(void* host, const cudarelu_gemm* gemm, cudarelu_error* error);
  /* Whether `matmul` is faster in this half-precision dtype than in float32. */
  int32_t (*has_matmul)(void* host, uint32_t dtype);
  /* Whether products of float32 on CUDA may round their factors to TF32. */
  int32_t (*allow_tf32)(void* host);
  /* A matrix product with its epilogue on the call's device, by cudarelu's engines. */
  cudarelu_code (*fused_matmul)(const struct cudarelu_call* call, const cudarelu_gemm* gemm,
                                cudarelu_error* error);
  /* The size of cudarelu_gemm for `fused_matmul`. Readers without this member ignore `other`. */
  size_t gemm_size;
} cudarelu_services;

enum { CUDARELU_CPU = 0, CUDARELU_CUDA = 1 };

/* One call of an op. The reader has checked the arguments against the signature, and has replaced
 * absent inputs that have a stand-in. */
typedef struct cudarelu_call {
  size_t size;
  const char* op; /* its name, for messages: op_length characters */
  size_t op_length;
  const cudarelu_tensor* inputs;        /* one for each input of the signature */
  const cudarelu_tensor* outputs;       /* of the shapes of the signature */
  const cudarelu_attribute* attributes; /* one for each attribute of the signature */
  uint32_t input_count;
  uint32_t output_count;
  uint32_t attribute_count;
  int32_t device_type;
  int32_t device_index; /* of the CUDA device */
  void* stream;         /* the cudaStream_t on which the kernel enqueues its work */
  const cudarelu_services* services;
  void* host;
  /* The strides of tensors, for an op with CUDARELU_STRIDED; see Strides in call.h. Each is null,
   * or has a pointer for each tensor. A null pointer: the tensor is dense. */
  const int64_t* const* input_strides;
  const int64_t* const* output_strides;
} cudarelu_call;

/* Runs an op. Several threads may call it at the same time. */
typedef cudarelu_code (*cudarelu_kernel)(const cudarelu_call* call, cudarelu_error* error);

enum {
  CUDARELU_ELEMENTWISE = 1, /* element i of each output is a function of elements i of the inputs */
  CUDARELU_PRODUCT = 2,     /* a matrix product, whose inputs may be transposed */
  CUDARELU_STRIDED = 4      /* the kernels read cudarelu_call::input_strides and output_strides */
};

enum { CUDARELU_AUTOCAST_PROMOTE = 0, CUDARELU_AUTOCAST_FLOAT32 = 1, CUDARELU_AUTOCAST_LOWER = 2 };

/* The declaration of an op; see op_spec.h for the texts. An absent text is "". */
typedef struct cudarelu_op {
  size_t size;
  const char* signature;
  const char* summary;
  const char* in_place;
  const char* gradient;
  const char* alias_domain;
  const char* alias_op_type;
  const char* definition;
  const char* equivalent_forms;
  uint32_t dtypes; /* bit CUDARELU_FLOAT32, ... */
  uint32_t autocast;
  uint32_t flags;
  cudarelu_kernel cpu;  /* null: none */
  cudarelu_kernel cuda; /* null: none */
  /* The inputs of a node that calls the op by its alias: see OnnxAlias in op_spec.h. Not in the
   * first modules, so a reader checks `size`. */
  const char* alias_inputs;
} cudarelu_op;

/* The engines of matrix products, which the module `cudarelu` lends to the others. */
typedef struct cudarelu_engines {
  size_t size;
  cudarelu_code (*fused_matmul)(const cudarelu_call* call, const cudarelu_gemm* gemm,
                                cudarelu_error* error);
  /* Why products on CUDA cannot use cuBLASLt, and how to correct it; "" if they can. */
  const char* (*cublaslt_problem)(void);
  /* A matrix product on the CPU in float32 or float64, without activation, sum and other matrix,
   * for the service `matmul` of a host that has none. */
  cudarelu_code (*matmul)(const cudarelu_call* call, const cudarelu_gemm* gemm,
                          cudarelu_error* error);
  size_t gemm_size; /* as in cudarelu_services */
} cudarelu_engines;

/* An op module. Everything it points to is valid until the process ends. */
typedef struct cudarelu_module {
  size_t size;
  uint32_t version;         /* CUDARELU_MODULE_VERSION */
  int32_t onnx_version;     /* of the domain in ONNX models */
  int32_t definition_opset; /* the opset of ONNX that the definitions are written in */
  uint32_t op_count;
  const char* name; /* the namespace of the ops: torch.ops.<name> */
  const char* onnx_domain;
  const char* built_for; /* for messages: "the CPU and CUDA 9.0" */
  const cudarelu_op* const* ops;
  const cudarelu_engines* engines; /* or null */
} cudarelu_module;

/* The function that a module exports. */
typedef const cudarelu_module* (*cudarelu_get_module_function)(void);
#define CUDARELU_GET_MODULE "cudarelu_get_module"

#ifdef __cplusplus
}
#endif

#endif
