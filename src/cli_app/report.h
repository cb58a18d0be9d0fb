// What ort_infer says of a run: for a reader, or as JSON.
#pragma once

#include <cstdint>
#include <iosfwd>

#include "inputs.h"
#include "session.h"

namespace cudarelu::cli {

struct Report {
  std::filesystem::path model;
  const Runtime& runtime;
  const Session& session;
  const Inputs& inputs;
  std::uint64_t seed;
  std::vector<Tensor> outputs;
  std::vector<std::filesystem::path> output_files;  // each one's; empty where none are written
  std::vector<NodeRun> nodes;
};

void write_text(std::ostream& stream, const Report& report);

/// One object. Values are given of tensors of up to 1,000 elements, in row-major order; those that
/// JSON has no numbers for are the strings "nan", "inf" and "-inf".
void write_json(std::ostream& stream, const Report& report);

}  // namespace cudarelu::cli
