// ort_infer: runs an ONNX model that calls the ops. An error in the input ends it with exit code 2
// and one line on stderr.

#include <optional>

#include "batch.h"
#include "error.h"
#include "interrupt.h"
#include "run_model.h"

int main(int argc, char** argv) {
  using namespace cudarelu::cli;
  constexpr int bad_input = 2;
  try {
    const std::optional<Options> options = parse_options(argc, argv);
    if (!options) return 0;
    max_array_bytes = options->max_array_bytes.value_or(max_array_bytes);
    note_interrupts();
    return options->batch ? infer_batch(*options, *options->batch) : infer(*options);
  } catch (const std::bad_alloc&) {
    print_error("out of memory");
  } catch (const std::exception& error) {
    print_error(error.what());
  }
  return bad_input;
}
