// What ort_infer says of a run: for a reader, or as JSON.
#pragma once

#include <cstdint>
#include <iosfwd>

#include "compare.h"
#include "inputs.h"
#include "measure.h"
#include "session.h"

namespace cudarelu::cli {

struct Report {
  std::filesystem::path model;
  const Runtime& runtime;
  const Session& session;
  std::uint64_t seed;
  bool explain;
  MeasureOptions measure;  // for what was measured
  Inputs inputs;
  std::vector<Tensor> outputs;
  std::vector<std::filesystem::path> output_files;  // each one's; empty where none are written
  std::vector<NodeRun> nodes;
  std::vector<Comparison> comparisons;
  std::vector<Measurement> measurements;
};

/// Of the JSON; a key may be added to it, but never taken away or changed.
inline constexpr int report_schema = 1;

/// The lines that each report begins with.
void write_heading(std::ostream& stream, const std::string& model, const Runtime& runtime,
                   const Provider& provider);

void write_text(std::ostream& stream, const Report& report);

/// One object, its keys as in docs/ort_infer.md. Values are given of tensors of up to 1,000
/// elements, in row-major order; those that JSON has no numbers for are the strings "nan", "inf"
/// and
/// "-inf".
void write_json(std::ostream& stream, const Report& report);

}  // namespace cudarelu::cli
