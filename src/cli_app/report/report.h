// The report of a run, as text or as JSON.
#pragma once

#include <cstdint>
#include <iosfwd>

#include "arrays/compare.h"
#include "json.h"
#include "report/measure.h"
#include "session/inputs.h"
#include "session/session.h"

namespace cudarelu::cli {

struct Report {
  std::filesystem::path model;
  const Runtime& runtime;
  const Session& session;
  std::uint64_t seed;
  bool explain;
  MeasureOptions measure;  // of the measurements
  Inputs inputs = {};
  std::vector<Tensor> outputs = {};
  std::vector<std::filesystem::path> output_files = {};  // one for each output, or none
  std::vector<NodeRun> nodes = {};
  std::vector<Comparison> comparisons = {};
  std::vector<Measurement> measurements = {};
};

/// Writes the first lines of a report in text.
void write_heading(std::ostream& stream, const std::string& model, const Runtime& runtime,
                   const Provider& provider);

/// The first keys of a report in JSON.
Json json_heading(const std::string& model, const Runtime& runtime, const Provider& provider);

/// Writes the JSON. Its strings, such as names in a model, may contain invalid UTF-8.
void write(std::ostream& stream, const Json& json);

void write_text(std::ostream& stream, const Report& report);

/// Writes one JSON object with the keys of docs/ort_infer.md. It contains the values of tensors of
/// up to 1,000 elements, in row-major order; numbers that JSON lacks are the strings "nan", "inf"
/// and "-inf".
void write_json(std::ostream& stream, const Report& report);

}  // namespace cudarelu::cli
