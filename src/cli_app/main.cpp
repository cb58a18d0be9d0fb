// ort_infer: runs an ONNX model that calls the ops. Where something is wrong with what it is given:
// exit code 2, and one line on stderr.

#include <optional>

#include "batch.h"
#include "error.h"
#include "infer.h"
#include "interrupt.h"

int main(int argc, char** argv) {
  using namespace cudarelu::cli;
  constexpr int bad_input = 2;
  try {
    const std::optional<Options> options = parse_options(argc, argv);
    if (!options) return 0;
    note_interrupts();
    return options->batch ? infer_batch(*options, *options->batch) : infer(*options);
  } catch (const std::bad_alloc&) {
    tell("out of memory");
  } catch (const std::exception& error) {
    tell(error.what());
  }
  return bad_input;
}
